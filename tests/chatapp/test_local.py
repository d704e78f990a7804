"""The local backend against a scripted worker, which is a real child process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from workers import SECONDS, Heard, Workers, answer, ask, everything, kinds, received

from chatapp import process
from chatapp.local import LocalBackend
from runtime.protocol import (
    Delta,
    Event,
    Failed,
    Finished,
    Load,
    LoadProgress,
    Notice,
    PromptProgress,
    Ready,
    Sampling,
    encode,
)


async def test_nothing_runs_before_the_first_command(backend: Workers, tmp_path: Path) -> None:
    one = backend()
    assert one.model is None
    await one.close()
    assert not (tmp_path / "received").exists()


async def test_a_load_ends_in_ready_and_names_the_model(backend: Workers) -> None:
    one = backend()
    events = await everything(one.load(Load("/m/qwen.gguf", context_length=2048)))
    assert kinds(events) == [LoadProgress, LoadProgress, Ready]
    assert one.model is not None
    assert (one.model.name, one.model.context_length) == ("qwen", 2048)


async def test_a_failed_load_ends_in_its_sentence_and_the_next_may_succeed(backend: Workers, tmp_path: Path) -> None:
    step = {"once": str(tmp_path / "failed"), "fail": "Not enough memory.", "kind": "memory", "detail": "trace here"}
    one = backend(load=[step])
    events = await everything(one.load(Load("/m/large.gguf")))
    assert events == [Failed("Not enough memory.", "memory", "trace here")]
    assert one.model is None
    assert kinds(await everything(one.load(Load("/m/small.gguf")))) == [Ready]
    assert "trace here" in (tmp_path / "log" / "worker.log").read_text()


@pytest.mark.parametrize("end", [{"fail": "No."}, {"exit": 1}], ids=["failed", "died"])
async def test_after_a_failed_load_no_model_answers(backend: Workers, end: dict[str, Any]) -> None:
    """The worker lets go of the old model before it tries the new one."""
    one = backend(load=[{"when": "large", **end}])
    await everything(one.load(Load("/m/small.gguf")))
    assert isinstance((await everything(one.load(Load("/m/large.gguf"))))[-1], Failed)
    assert one.model is None
    [event] = await everything(one.generate(ask()))
    assert event == Failed("No model is loaded.", "load", request_id="r1")
    assert isinstance((await everything(one.load(Load("/m/small.gguf"))))[-1], Ready)


async def test_a_reply_streams_in_order_and_ends_once(backend: Workers) -> None:
    one = backend()
    await everything(one.load(Load("/m/q.gguf")))
    events = await everything(one.generate(ask()))
    assert kinds(events) == [PromptProgress, Delta, Delta, Delta, Delta, Finished]
    assert answer(events) == "Hello from the fake worker."
    assert isinstance(events[-1], Finished)
    assert events[-1].stats.generated_tokens == 4


async def test_the_worker_receives_what_was_asked(backend: Workers, tmp_path: Path) -> None:
    one = backend(replies=[[{"echo": True}]])
    await everything(one.load(Load("/m/q.gguf")))
    command = ask("hé\u2028\ud83d", thinking=False, sampling=Sampling(temperature=0.0, seed=7), thinking_budget=5)
    echoed = json.loads(answer(await everything(one.generate(command))))
    assert echoed == received(tmp_path)[-1]
    assert echoed["messages"] == [{"role": "user", "content": "hé\u2028\ud83d", "thought": ""}]
    assert (echoed["thinking"], echoed["thinking_budget"]) == (False, 5)
    assert (echoed["sampling"]["temperature"], echoed["sampling"]["seed"]) == (0.0, 7)


async def test_a_conversation_of_many_megabytes_passes_both_ways(backend: Workers) -> None:
    one = backend(replies=[[{"echo": True}]])
    await everything(one.load(Load("/m/q.gguf")))
    text = "word " * 2_000_000
    assert json.loads(answer(await everything(one.generate(ask(text)))))["messages"][0]["content"] == text


async def test_what_was_drafted_arrives_with_its_text(backend: Workers) -> None:
    one = backend(replies=[[{"answer": "the sea", "drafted": [[0, 3], [5, 7]]}]])
    await everything(one.load(Load("/m/q.gguf")))
    assert (await everything(one.generate(ask())))[0] == Delta("r1", "answer", "the sea", 1, ((0, 3), (5, 7)))


async def test_cancel_keeps_what_came_and_ends_in_cancelled(backend: Workers) -> None:
    one = backend(replies=[[{"answer": "one "}, {"answer": "two ", "delay": 60}]])
    await everything(one.load(Load("/m/q.gguf")))
    events: list[Event] = []
    async with asyncio.timeout(SECONDS):
        async for event in one.generate(ask()):
            events.append(event)
            if isinstance(event, Delta):
                await one.cancel("r1")
    assert answer(events) == "one "
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "cancelled"


async def test_leaving_a_reply_cancels_it_and_its_rest_reaches_nobody(backend: Workers, tmp_path: Path) -> None:
    one = backend(replies=[[{"answer": "one "}, {"answer": "two ", "delay": 60}], [{"answer": "second"}]])
    await everything(one.load(Load("/m/q.gguf")))
    async with contextlib.aclosing(one.generate(ask())) as reply:
        async for event in reply:
            if isinstance(event, Delta):
                break
    assert answer(await everything(one.generate(ask(request_id="r2")))) == "second"
    assert [line["type"] for line in received(tmp_path)] == ["Load", "Generate", "Cancel", "Generate"]


async def test_answer_now_ends_the_thought_also_when_it_is_asked_before_the_request_is_sent(backend: Workers) -> None:
    one = backend(replies=[[{"thinking": "so "}, {"thinking": "long", "delay": 60}, {"answer": "at last"}]])
    await everything(one.load(Load("/m/q.gguf")))
    events: list[Event] = []
    async with asyncio.timeout(SECONDS):
        async for event in one.generate(ask()):
            events.append(event)
            if isinstance(event, Delta) and event.channel == "thinking":
                assert await one.answer_now("r1")
    assert [event.text for event in events if isinstance(event, Delta)] == ["so ", "at last"]

    reply = asyncio.ensure_future(everything(one.generate(ask(request_id="r2"))))
    await asyncio.sleep(0)
    assert await one.answer_now("r2")
    assert [event.text for event in await reply if isinstance(event, Delta)] in (["at last"], ["so ", "at last"])


async def test_cancel_before_the_model_is_there_ends_at_once(backend: Workers) -> None:
    one = backend(load=[{"notice": "loading"}, {"delay": 60}])
    loading = one.load(Load("/m/q.gguf"))
    assert await anext(loading) == Notice("loading")
    reply = asyncio.ensure_future(everything(one.generate(ask())))
    await asyncio.sleep(0)
    await one.cancel("r1")
    [event] = await reply
    assert isinstance(event, Finished)
    assert event.reason == "cancelled"
    await one.close()
    assert kinds(await everything(loading)) == [Failed]


async def test_a_request_that_ignores_its_cancel_is_ended_by_force(backend: Workers, tmp_path: Path) -> None:
    deaf = {"once": str(tmp_path / "deaf"), "delay": 60, "deaf": True}
    one = backend(patience=0.1, replies=[[{"answer": "x"}, deaf]])
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    events: list[Event] = []
    async with asyncio.timeout(SECONDS):
        async for event in one.generate(ask()):
            events.append(event)
            await one.cancel("r1")
    assert kinds(events) == [Delta, Failed]
    await heard.until(Ready)
    assert answer(await everything(one.generate(ask(request_id="r2")))) == "x"


async def test_what_is_not_of_the_protocol_is_logged_and_ignored(backend: Workers, tmp_path: Path) -> None:
    noise = "print from a library\n\x00\xff{]\n" + '{"type": "Delta", "colour": 1}\n' + "\n" + "[1, 2]\n"
    stray = '{"type":"Delta","request_id":"other","channel":"answer","text":"stray","n_tokens":1}\n'
    one = backend(replies=[[{"stdout": noise + stray}, {"stderr": "a warning\n"}, {"answer": "fine"}]])
    await everything(one.load(Load("/m/q.gguf")))
    events = await everything(one.generate(ask()))
    assert kinds(events) == [Delta, Finished]
    assert answer(events) == "fine"
    await one.close()
    log = (tmp_path / "log" / "worker.log").read_text()
    assert "print from a library" in log
    assert "a warning" in log


async def test_notices_go_to_whoever_waits_else_to_the_listeners(backend: Workers) -> None:
    one = backend(load=[{"notice": "no MTP"}], replies=[[{"notice": "in a reply"}]], idle=[{"notice": "idle"}])
    heard = Heard()
    one.on_event(heard)
    assert (await everything(one.load(Load("/m/q.gguf"))))[0] == Notice("no MTP")
    assert (await everything(one.generate(ask())))[0] == Notice("in a reply")
    assert await heard.until(Notice) == Notice("idle")


async def test_a_load_that_nobody_waits_for_is_announced_and_the_next_gets_its_own_end(backend: Workers) -> None:
    one = backend()
    heard = Heard()
    one.on_event(heard)
    async with contextlib.aclosing(one.load(Load("/m/first.gguf"))) as loading:
        async for _ in loading:
            break
    events = await everything(one.load(Load("/m/second.gguf")))
    assert isinstance(events[-1], Ready)
    assert events[-1].model.name == "second"
    assert [event.model.name for event in heard.events if isinstance(event, Ready)] == ["first"]
    assert one.model == events[-1].model


async def test_a_program_that_cannot_be_started_is_a_sentence() -> None:
    one = LocalBackend(("/nowhere/worker",))
    expected = "The engine could not be started: No such file or directory."
    assert await everything(one.load(Load("/m/q.gguf"))) == [Failed(expected, "worker")]
    assert await everything(one.generate(ask())) == [Failed(expected, "worker", request_id="r1")]
    await one.close()


async def test_close_ends_an_open_request_and_the_process_and_may_be_repeated(backend: Workers, tmp_path: Path) -> None:
    one = backend(replies=[[{"delay": 60}]])
    await everything(one.load(Load("/m/q.gguf")))
    reply = asyncio.ensure_future(everything(one.generate(ask())))
    await asyncio.sleep(0)
    await one.close()
    await one.close()
    assert await reply == [Failed("The engine was closed.", "worker", request_id="r1")]
    assert await everything(one.load(Load("/m/q.gguf"))) == [Failed("The engine was closed.", "worker")]


async def test_close_ends_a_worker_that_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PATIENCE", (0.1, 0.1, 5.0))
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    code = deaf + f"print({encode(Notice('deaf')).decode()!r}, flush=True); time.sleep(60)"
    one = LocalBackend((sys.executable, "-c", code))
    async with asyncio.timeout(SECONDS):
        loading = one.load(Load("/m/q.gguf"))
        assert await anext(loading) == Notice("deaf")
        await one.close()
    assert kinds(await everything(loading)) == [Failed]


# What is kept of conversations


async def test_after_a_failed_load_the_old_model_answers_if_the_engine_kept_it(backend: Workers) -> None:
    one = backend(load=[{"when": "second", "fail": "There is no such file.", "kind": "load", "kept": True}])
    [*_, ready] = await everything(one.load(Load("/m/first.gguf")))
    [failed] = await everything(one.load(Load("/m/second.gguf")))
    assert isinstance(failed, Failed)
    assert isinstance(ready, Ready)
    assert one.model == ready.model
    assert isinstance((await everything(one.generate(ask())))[-1], Finished)


async def test_a_failed_answer_is_no_failed_load(backend: Workers) -> None:
    one = backend(cache=[{"fail": "The folder cannot be read.", "detail": "trace"}])
    await everything(one.load(Load("/m/q.gguf")))
    assert await one.cache() == Failed("The folder cannot be read.", "internal", "trace")
    assert one.model is not None
    assert answer(await everything(one.generate(ask()))) == "Hello from the fake worker."


async def test_a_settled_turn_is_told_to_nobody(backend: Workers) -> None:
    one = backend(idle=[{"settled": 40}, {"notice": "after it"}])
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    assert kinds(await everything(one.generate(ask())))[-1] is Finished
    await heard.until(Notice)
    assert heard.events == [Notice("after it")]
