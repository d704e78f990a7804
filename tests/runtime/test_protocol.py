"""Messages survive the pipe, and nothing else gets through."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.protocol import (
    AnswerNow,
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    Load,
    LoadProgress,
    Message,
    ModelInfo,
    Notice,
    PromptProgress,
    ProtocolError,
    Ready,
    Sampling,
    Settled,
    Shutdown,
    Stats,
    decode_command,
    decode_event,
    encode,
)

COMMANDS = [
    Load("/a b/ü.gguf", 4096, "cpu", 2),
    Load("m.gguf"),
    Generate("r", "c", (Message("system", "s"), Message("user", "u"), Message("assistant", "a", "t"))),
    Generate("r", "c", (), Sampling(temperature=0.5, top_k=3, seed=7, max_tokens=9), True, 100, False),
    Cancel("r"),
    AnswerNow("r"),
    Shutdown(),
]
EVENTS = [
    LoadProgress(1, 2, "reading"),
    Ready(ModelInfo("p", "n", "qwen35", 1, 2, 3, 4, True, False, "cpu", {"thinking": Sampling(temperature=1.0)})),
    Notice("n"),
    PromptProgress("r", 1, 2, 0),
    Delta("r", "thinking", "text\n", 3),
    Delta("r", "answer", "a draft", 3, drafted=((0, 1), (2, 7))),
    Finished("r", "budget", Stats(ttft_ms=1.5, decode_tok_per_s=None), thought_closed=False),
    Failed("m", "context", "d", "r"),
    Settled("c", 5),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_comes_out_as_it_went_in(command: object) -> None:
    assert decode_command(encode(command)) == command  # type: ignore[arg-type]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_out_as_it_went_in(event: object) -> None:
    assert decode_event(encode(event)) == event  # type: ignore[arg-type]


@given(st.text())
def test_any_text_is_one_line(text: str) -> None:
    line = encode(Delta("r", "answer", text, 1))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_event(line) == Delta("r", "answer", text, 1)


def test_whole_numbers_pass_for_fractions() -> None:
    line = b'{"type":"Generate","request_id":"r","conversation_id":"c","messages":[],"sampling":{"temperature":1}}'
    command = decode_command(line)
    assert isinstance(command, Generate)
    assert type(command.sampling.temperature) is float


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"[]",
        b"{}",
        b'{"type":"Nonsense"}',
        b'{"type":"Delta"}',
        b'{"type":"Cancel"}',
        b'{"type":"Cancel","request_id":5}',
        b'{"type":"Cancel","request_id":"r","more":1}',
        b'{"type":"Load","path":"m","ops":"magic"}',
        b'{"type":"Load","path":"m","threads":true}',
        b'{"type":"Generate","request_id":"r","conversation_id":"c","messages":[{"role":"tool","content":"x"}]}',
        b'{"type":"Generate","request_id":"r","conversation_id":"c","messages":5}',
        b"\xff\xfe",
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(line)


def test_the_protocol_needs_the_standard_library_only() -> None:
    code = (
        "import sys, runtime.protocol;"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'textual', 'rich', 'gguf', 'kernels')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_figure_that_nobody_told_is_none() -> None:
    told = Stats(prompt_tokens=20, ttft_ms=1.5, unknown=("cached_tokens",)).told()
    assert (told["prompt_tokens"], told["cached_tokens"], told["drafted"], told["ttft_ms"]) == (20, None, 0, 1.5)
    assert set(told) == {field.name for field in dataclasses.fields(Stats)} - {"unknown"}
