"""The built-in model says with native functions, word for word, what it says with the references."""

from __future__ import annotations

import pytest

from kernels.op import Column
from runtime.builtin.corpus.tour import DEFAULT_TOUR, read_tour
from runtime.builtin.held_out import cases
from runtime.loading import open_chat_model
from runtime.protocol import BUILT_IN_MODEL, Delta, Generate, Load, Message, Sampling
from runtime.turn import ChatModel

pytest.importorskip("llvmlite")

PROMPTS = 50
GREEDY = Sampling(temperature=0, presence_penalty=0, repetition_penalty=1, max_tokens=320)


@pytest.fixture(scope="module")
def prompts() -> list[tuple[str, bool]]:
    """First questions of dialogues that the model has not learnt from, some with thoughts."""
    first = list(dict.fromkeys((case.users[0], case.thinking) for case in cases(read_tour(DEFAULT_TOUR))))
    return first[:: len(first) // PROMPTS][:PROMPTS]


def chat_model(ops: Column) -> ChatModel:
    return open_chat_model(Load(str(BUILT_IN_MODEL), ops=ops, threads=1), lambda done, total: None)[0]


def reply(chat: ChatModel, prompt: str, thinking: bool) -> str:
    command = Generate("r", "c", (Message("user", prompt),), GREEDY, thinking)
    return "".join(event.text for event in chat.generate(command, lambda: False) if isinstance(event, Delta))


@pytest.mark.slow
def test_fifty_prompts(prompts: list[tuple[str, bool]]) -> None:
    assert len(prompts) == PROMPTS
    native, reference = chat_model("cpu"), chat_model("reference")
    for prompt, thinking in prompts:
        assert reply(native, prompt, thinking) == reply(reference, prompt, thinking)
