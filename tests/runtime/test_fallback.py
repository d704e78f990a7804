"""The card's memory ends in the middle of a reply: it goes on, first with less kept, then on the processor."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rewrite import GOLDENS

from runtime.engine import Engine, NewToken, Prefilled, Step
from runtime.fallback import FREED, TO_PROCESSOR, Said
from runtime.protocol import Delta, Event, Failed, Finished, Generate, Load, Message, Notice, Sampling
from runtime.worker import Inbox, Worker

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

TOKENS = 5


def generate(request_id: str) -> Generate:
    sampling = Sampling(temperature=0, max_tokens=12)
    return Generate(request_id, "c", (Message("user", "hello"),), sampling, thinking=False)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replies on a card get so far, and are refused memory; on the processor they are what they are."""
    plain, begun = Engine.generate, list[int]()

    def broken(self: Engine, conversation: str, request: Any, cancelled: Any) -> Iterator[Step]:
        if self.model.ops.card is None:
            yield from plain(self, conversation, request, cancelled)
            return
        begun.append(request.begun)
        yield Prefilled(0, len(request.prompt), 0)
        for id in range(40, 40 + TOKENS):
            yield NewToken(id)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Engine, "generate", broken)
    monkeypatch.setattr("runtime.turn._FLUSH_SECONDS", 0.0)
    return begun


def test_the_reply_goes_on(full: list[int]) -> None:
    events: list[Event] = []
    worker = Worker(Inbox(io.BytesIO()), events.append)
    worker._load(Load(str(GOLDENS / "tiny-dense.gguf"), ops="triton"))
    del events[:]
    worker._generate(generate("r"))
    told = [event for event in events if isinstance(event, Notice)]
    assert told[0] == FREED and told[-1] == TO_PROCESSOR
    assert full[0] == 0 < full[1]  # the second time it goes on behind what had been said
    deltas = [event for event in events if isinstance(event, Delta)]
    assert events.index(told[0]) > events.index(deltas[0])
    assert [event for event in events if isinstance(event, Finished | Failed)] == events[-1:]
    assert isinstance(events[-1], Finished)
    said = sum(delta.n_tokens for delta in deltas)
    assert said == events[-1].stats.generated_tokens + 2 * TOKENS or events[-1].reason == "stop"

    del events[:]
    worker._generate(generate("next"))
    assert isinstance(events[-1], Finished) and not any(isinstance(event, Notice) for event in events)


def test_an_error_of_another_kind_still_ends_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Iterator[Step]:
        raise torch.OutOfMemoryError("of no card")
        yield

    monkeypatch.setattr(Engine, "generate", broken)
    worker = Worker(Inbox(io.BytesIO()), lambda event: None)
    worker._load(Load(str(GOLDENS / "tiny-dense.gguf"), ops="cpu"))
    with pytest.raises(torch.OutOfMemoryError):
        worker._generate(generate("r"))


def test_what_is_still_to_come_is_asked_for() -> None:
    said, command = Said(), generate("r")
    assert said.rest(command) == command
    for channel, text in (("thinking", "Hm"), ("answer", "It is"), ("answer", " so")):
        said.follow(Delta("r", channel, text, 2))  # type: ignore[arg-type]
    rest = said.rest(command)
    assert rest.messages == (*command.messages, Message("assistant", "It is so", "Hm"))
    assert rest.sampling.max_tokens == 6
    more = Said(answer=" now", tokens=1).rest(rest)
    assert more.messages[-1] == Message("assistant", "It is so now", "Hm")
    assert len(more.messages) == len(command.messages) + 1
