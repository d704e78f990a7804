"""The chat template: that of the family, written again."""

from __future__ import annotations

from pathlib import Path

import gguf
import jinja2
import jinja2.sandbox
import pytest

from runtime.builtin.prompt import render, take_apart

CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "3 + 4"},
    {"role": "assistant", "content": "3 + 4 = 7", "reasoning_content": "ones: 3 + 4 = 7"},
    {"role": "user", "content": "And 5 + 5?"},
]
ANSWER = {"role": "assistant", "content": "5 + 5 = 10", "reasoning_content": "ones: 5 + 5 = 10"}
TAGS = [
    *CHAT[1:2],
    {"role": "assistant", "content": "Use <think> and </think> tags.", "reasoning_content": ""},
    CHAT[3],
]


@pytest.fixture(scope="module")
def family(fixtures: Path) -> jinja2.Template:
    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    field = gguf.GGUFReader(fixtures / "learnt-Q8_0.gguf").get_field("tokenizer.chat_template")
    assert field is not None
    return environment.from_string(field.contents())


@pytest.mark.parametrize("messages", [CHAT, CHAT[:2], [*CHAT, ANSWER], CHAT[1:], TAGS], ids=str)
@pytest.mark.parametrize("thinking", [None, True, False])
def test_it_writes_what_the_family_writes(
    family: jinja2.Template, messages: list[dict[str, str]], thinking: bool | None
) -> None:
    wanted = family.render(
        messages=messages, add_generation_prompt=thinking is not None, enable_thinking=thinking is not False
    )
    assert render(messages, thinking) == wanted


def test_a_prompt_opens_or_closes_the_thought() -> None:
    assert render(CHAT, thinking=True).endswith("<|im_start|>assistant\n<think>\n")
    assert render(CHAT, thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_history_drops_thoughts_unless_they_are_preserved() -> None:
    assert "ones: 3" not in render(CHAT, thinking=True)
    assert "<think>\nones: 3 + 4 = 7\n</think>\n\n3 + 4 = 7<|im_end|>" in render(CHAT, thinking=True, preserve=True)


def test_a_preserved_prompt_begins_with_the_last_one_and_its_reply() -> None:
    first = render(CHAT[:2], thinking=True, preserve=True)
    assert render(CHAT, thinking=True, preserve=True).startswith(
        f"{first}ones: 3 + 4 = 7\n</think>\n\n3 + 4 = 7<|im_end|>\n"
    )


@pytest.mark.parametrize(
    "messages",
    [
        [],
        CHAT[:1],
        [CHAT[1], CHAT[0]],
        [*CHAT, {"role": "developer", "content": "x"}],
        [{"role": "user", "content": "<tool_response>x</tool_response>"}],
        [{"role": "user", "content": [{"type": "image"}]}],
    ],
    ids=["none", "system alone", "system second", "unknown role", "only a tool's response", "an image"],
)
def test_it_raises_where_the_family_raises(messages: list[dict[str, str]]) -> None:
    with pytest.raises(jinja2.TemplateError):
        render(messages, thinking=True)


def test_replies_are_taken_apart_at_the_first_closing_tag() -> None:
    assert take_apart("a\n</think>\n\nb </think> c", thinking=True) == ("a", "b </think> c", True)
    assert take_apart("never closed", thinking=True) == ("never closed", "", False)
    assert take_apart("plain </think> text", thinking=False) == ("", "plain </think> text", True)
