"""One model after another on this machine: beside the old one where there is room, and back to it after a failure."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_backend import MODEL, FakeBackend, Gate, Step, end, say
from harness import here, running
from program import FAKE

from chatapp.backends import Backends
from chatapp.local import LocalBackend
from chatapp.options import ChatOptions
from chatapp.switching import Switching, has_room
from runtime.protocol import (
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    LoadProgress,
    Message,
    Notice,
    Ready,
)

pytestmark = here("models of this machine take each other's place")

OLD, NEW = Load("/m/old.gguf"), Load("/m/new.gguf")
NO_MEMORY = Failed("There is not enough memory for this.", "memory")


class Engines:
    """Makes engines; the n-th plays the n-th script at every load."""

    def __init__(self, *loadings: Sequence[Step] | None, replies: Sequence[Sequence[Step]] = ()) -> None:
        self.made: list[FakeBackend] = []
        self._loadings = loadings
        self._replies = replies

    def __call__(self) -> FakeBackend:
        number = len(self.made)
        loading = self._loadings[number] if number < len(self._loadings) else None
        self.made.append(FakeBackend(*self._replies, loading=loading))
        return self.made[-1]


async def everything(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def ask(key: str = "r1") -> Generate:
    return Generate(key, "c", (Message("user", "hi"),))


async def test_the_old_model_answers_until_the_new_one_is_ready_and_ends_its_reply() -> None:
    loading, reply = Gate(), Gate()
    engines = Engines(
        None, [LoadProgress(1, 2, "weights"), loading, Ready(MODEL)], replies=[[say("a"), reply, say("b")]]
    )
    switching = Switching(engines, room=lambda path: True)
    await everything(switching.load(OLD))
    assert switching.beside(NEW) and not switching.beside(OLD)
    coming = asyncio.create_task(everything(switching.load(NEW)))
    await loading.reached.wait()
    answering = asyncio.create_task(everything(switching.generate(ask())))
    await reply.reached.wait()
    loading.open()
    assert isinstance((await coming)[-1], Ready)
    old, new = engines.made
    assert not old.closed
    reply.open()
    assert "".join(event.text for event in await answering if isinstance(event, Delta)) == "ab"
    await everything(switching.generate(ask("r2")))
    assert [request.request_id for request in new.requests] == ["r2"]
    await switching.close()
    assert old.closed and new.closed


async def test_a_load_beside_that_fails_leaves_the_old_model() -> None:
    engines = Engines(None, [NO_MEMORY])
    switching = Switching(engines, room=lambda path: True)
    await everything(switching.load(OLD))
    [failed] = await everything(switching.load(NEW))
    assert isinstance(failed, Failed) and failed.model_kept and failed.kind == "memory"
    assert isinstance((await everything(switching.generate(ask())))[-1], Finished)
    assert [request.request_id for request in engines.made[0].requests] == ["r1"]
    await switching.close()


@pytest.fixture
def worker(tmp_path: Path) -> Callable[..., Switching]:
    """A real child process that plays the script, in which two models never fit."""

    def make(**script: Any) -> Switching:
        (tmp_path / "script.json").write_text(json.dumps({"record": str(tmp_path / "received"), **script}))
        command = (sys.executable, FAKE, str(tmp_path / "script.json"))
        return Switching(lambda: LocalBackend(command), room=lambda path: False)

    return make


@pytest.mark.parametrize("end", [{"fail": "No memory.", "kind": "memory"}, {"signal": 9}], ids=["said", "killed"])
async def test_a_failed_load_brings_the_old_model_back_and_a_smaller_one_loads(
    worker: Callable[..., Switching], tmp_path: Path, end: dict[str, Any]
) -> None:
    """CASES 49, whether the engine says so or the system kills it."""
    switching = worker(load=[{"when": "large", **end}])
    await everything(switching.load(OLD))
    events = await everything(switching.load(Load("/m/large.gguf")))
    assert events[0] == Notice("old is being opened again.")
    failed = events[-1]
    assert isinstance(failed, Failed) and failed.model_kept
    assert switching.model is not None and switching.model.path == OLD.path
    assert isinstance((await everything(switching.generate(ask())))[-1], Finished)
    [*_, ready] = await everything(switching.load(Load("/m/small.gguf")))
    assert isinstance(ready, Ready) and ready.model.path == "/m/small.gguf"
    received = [json.loads(line) for line in (tmp_path / "received").read_text().splitlines()]
    assert [line["path"] for line in received if line["type"] == "Load"] == [
        OLD.path,
        "/m/large.gguf",
        OLD.path,
        "/m/small.gguf",
    ]
    await switching.close()


async def test_if_the_old_model_does_not_come_back_either_none_answers(worker: Callable[..., Switching]) -> None:
    switching = worker(load=[{"when": "large", "fail": "No memory.", "kind": "memory"}, {"once": "/nowhere/x"}])
    events = await everything(switching.load(Load("/m/large.gguf")))
    assert [type(event) for event in events] == [Failed]
    assert switching.model is None
    await switching.close()


async def test_a_message_is_answered_while_another_model_loads(tmp_path: Path) -> None:
    loading = Gate()
    new = Ready(replace(MODEL, path="/m/new.gguf"))
    engines = Engines([Ready(MODEL)], [LoadProgress(43, 100, "weights"), loading, new])
    switching = Backends(Switching(engines, room=lambda path: True), FakeBackend)
    async with running(switching, tmp_path, ChatOptions(model="/m/old.gguf")) as chat:  # type: ignore[arg-type]
        await chat.until(lambda: switching.model is not None)
        await chat.send("/model /m/new.gguf")
        await loading.reached.wait()
        await chat.until(lambda: "loading new 43 %" in chat.text())
        await chat.ask("hi")
        assert len(engines.made[0].requests) == 1 and "ok" in chat.text()
        loading.open()
        await chat.until(lambda: "new answers from now on" in chat.words())
        await chat.until(lambda: " ".join(chat.status().split()).endswith("ready context 4,096"))
        await chat.ask("and now?")
        assert len(engines.made[1].requests) == 1


async def test_a_reply_that_a_new_model_overtakes_stays_the_old_ones(tmp_path: Path) -> None:
    loading, reply = Gate(), Gate()
    new = Ready(replace(MODEL, name="New", path="/m/new.gguf"))
    engines = Engines([Ready(MODEL)], [loading, new], replies=[[say("a"), reply, end(context_used=640)]])
    switching = Backends(Switching(engines, room=lambda path: True), FakeBackend)
    options = ChatOptions(model="/m/old.gguf", context_length=2048)
    async with running(switching, tmp_path, options) as chat:  # type: ignore[arg-type]
        await chat.until(lambda: switching.model is not None)
        chat.screen.turns.reconfigure({"context_length": 8192, "kv_type": "q8"})
        await chat.send("/model /m/new.gguf")
        await loading.reached.wait()
        await chat.send("hi")
        await reply.reached.wait()
        loading.open()
        await chat.until(lambda: "new answers from now on" in chat.words())
        reply.open()
        await chat.idle()
        answer = chat.thread()[-1]
        assert (answer.meta["model"], answer.meta["source"]) == (MODEL.name, MODEL.path)
        assert chat.screen.turns.status.context_used is None
    old, opened = (engine.loads[0] for engine in engines.made[:2])
    assert (old.context_length, old.kv_type) == (2048, "auto")
    assert (opened.context_length, opened.kv_type) == (8192, "q8")


def test_room_is_what_is_free_for_all_parts(tmp_path: Path) -> None:
    if not Path("/proc/meminfo").exists():
        assert not has_room(str(tmp_path / "small.gguf"))
        return
    (tmp_path / "small.gguf").write_bytes(b"x")
    assert has_room(str(tmp_path / "small.gguf"))
    for number in (1, 2):
        with (tmp_path / f"big-0000{number}-of-00002.gguf").open("wb") as file:
            file.truncate(1 << 42)
    assert not has_room(str(tmp_path / "big-00001-of-00002.gguf"))
    assert not has_room(str(tmp_path / "none.gguf"))
