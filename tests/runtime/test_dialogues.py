"""A learnt model's dialogues, word for word as two independent engines agree on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.loading import open_chat_model
from runtime.protocol import Delta, Finished, Generate, Load, Message, PromptProgress, Sampling
from runtime.turn import ChatModel

GREEDY = Sampling(temperature=0, presence_penalty=0, repetition_penalty=1)


@pytest.fixture(scope="module")
def dialogues(fixtures: Path) -> list[list[dict[str, object]]]:
    found: list[list[dict[str, object]]] = json.loads((fixtures / "learnt.json").read_text())
    return found


@pytest.fixture(scope="module", params=["reference", "cpu"])
def chat(fixtures: Path, request: pytest.FixtureRequest) -> ChatModel:
    return open_chat_model(Load(str(fixtures / "learnt-f16.gguf"), ops=request.param), lambda done, total: None)[0]


def reply(chat: ChatModel, name: str, messages: list[Message], thinking: bool) -> tuple[Message, Finished, int]:
    """The reply, its end, and how many tokens of the prompt were cached."""
    texts, cached = {"thinking": "", "answer": ""}, -1
    for event in chat.generate(Generate("r", name, tuple(messages), GREEDY, thinking), lambda: False):
        if isinstance(event, PromptProgress):
            cached = event.cached
        if isinstance(event, Delta):
            texts[event.channel] += event.text
    assert isinstance(event, Finished)
    return Message("assistant", texts["answer"], texts["thinking"]), event, cached


@pytest.mark.parametrize("index", range(16))
@pytest.mark.parametrize("settled", [False, True], ids=["at once", "settled"])
def test_dialogue(chat: ChatModel, dialogues: list[list[dict[str, object]]], index: int, settled: bool) -> None:
    messages: list[Message] = []
    for turn in dialogues[index]:
        messages.append(Message("user", str(turn["user"])))
        found, end, _ = reply(chat, f"{index}-{settled}", messages, bool(turn["thinking"]))
        assert found.thought.strip() == turn["thought"]
        assert found.content.strip() == turn["reply"]
        assert end.reason == "stop"
        assert end.thought_closed
        messages.append(found)
        if settled:
            assert chat.settle(lambda: False)


def test_all_dialogues_are_tested(dialogues: list[list[dict[str, object]]]) -> None:
    assert len(dialogues) == 16


def test_after_settling_only_the_new_message_and_headers_are_prefilled(chat: ChatModel) -> None:
    messages = [Message("system", "Be kind."), Message("user", "My name is Marigold.")]
    for text in ("What is 31 + 46?", "What is the capital of Japan?", "What is my name?"):
        messages.append(reply(chat, "c", messages, thinking=True)[0])
        settled = chat.settle(lambda: False)
        assert settled
        messages.append(Message("user", text))
        found, end, cached = reply(chat, "c", messages, thinking=True)
        assert cached == settled.tokens
        assert end.stats.prefilled_tokens == end.stats.prompt_tokens - settled.tokens
        again, _, _ = reply(chat, f"fresh {text}", messages, thinking=True)
        assert again == found
