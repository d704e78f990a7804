"""The local backend against a scripted worker, which is a real child process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from chatapp import process
from chatapp.local import RESTARTS, LocalBackend
from runtime.protocol import (
    CachedState,
    CacheReport,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    LoadProgress,
    Message,
    Notice,
    PromptProgress,
    Ready,
    Sampling,
    encode,
)

FAKE = str(Path(__file__).parents[1] / "fake_worker.py")
SECONDS = 20  # after which a test has hung


class Heard:
    """What the listener of a backend has heard."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, kind: type[Event], count: int = 1) -> Event:
        """The event that makes it `count` of this kind."""
        async with asyncio.timeout(SECONDS):
            while len(found := [event for event in self.events if isinstance(event, kind)]) < count:
                self._changed.clear()
                await self._changed.wait()
        return found[count - 1]


Open = Callable[..., LocalBackend]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Open]:
    """Makes backends of a script; they are closed at the end."""
    made: list[LocalBackend] = []

    def make(patience: float = SECONDS, **script: Any) -> LocalBackend:
        command = (sys.executable, FAKE, json.dumps({"record": str(tmp_path / "received"), **script}))
        made.append(LocalBackend(command, tmp_path / "log" / "worker.log", patience))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def everything(events: AsyncIterator[Event]) -> list[Event]:
    async with asyncio.timeout(SECONDS):
        return [event async for event in events]


def ask(text: str = "hi", request_id: str = "r1", **choices: Any) -> Generate:
    return Generate(request_id, "c1", (Message("user", text),), **choices)


def answer(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.channel == "answer")


def received(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "received").read_text("utf-8").splitlines()]


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


async def test_nothing_runs_before_the_first_command(backend: Open, tmp_path: Path) -> None:
    one = backend()
    assert one.model is None
    await one.close()
    assert not (tmp_path / "received").exists()


async def test_a_load_ends_in_ready_and_names_the_model(backend: Open) -> None:
    one = backend()
    events = await everything(one.load(Load("/m/qwen.gguf", context_length=2048)))
    assert kinds(events) == [LoadProgress, LoadProgress, Ready]
    assert one.model is not None
    assert (one.model.name, one.model.context_length) == ("qwen", 2048)


async def test_a_failed_load_ends_in_its_sentence_and_the_next_may_succeed(backend: Open, tmp_path: Path) -> None:
    step = {"once": str(tmp_path / "failed"), "fail": "Not enough memory.", "kind": "memory", "detail": "trace here"}
    one = backend(load=[step])
    events = await everything(one.load(Load("/m/large.gguf")))
    assert events == [Failed("Not enough memory.", "memory", "trace here")]
    assert one.model is None
    assert kinds(await everything(one.load(Load("/m/small.gguf")))) == [Ready]
    assert "trace here" in (tmp_path / "log" / "worker.log").read_text()


@pytest.mark.parametrize("end", [{"fail": "No."}, {"exit": 1}], ids=["failed", "died"])
async def test_after_a_failed_load_no_model_answers(backend: Open, end: dict[str, Any]) -> None:
    """The worker lets go of the old model before it tries the new one."""
    one = backend(load=[{"when": "large", **end}])
    await everything(one.load(Load("/m/small.gguf")))
    assert isinstance((await everything(one.load(Load("/m/large.gguf"))))[-1], Failed)
    assert one.model is None
    [event] = await everything(one.generate(ask()))
    assert event == Failed("No model is loaded.", "load", request_id="r1")
    assert isinstance((await everything(one.load(Load("/m/small.gguf"))))[-1], Ready)


async def test_a_reply_streams_in_order_and_ends_once(backend: Open) -> None:
    one = backend()
    await everything(one.load(Load("/m/q.gguf")))
    events = await everything(one.generate(ask()))
    assert kinds(events) == [PromptProgress, Delta, Delta, Delta, Delta, Finished]
    assert answer(events) == "Hello from the fake worker."
    assert isinstance(events[-1], Finished)
    assert events[-1].stats.generated_tokens == 4


async def test_the_worker_receives_what_was_asked(backend: Open, tmp_path: Path) -> None:
    one = backend(replies=[[{"echo": True}]])
    await everything(one.load(Load("/m/q.gguf")))
    command = ask("hé\u2028\ud83d", thinking=False, sampling=Sampling(temperature=0.0, seed=7), thinking_budget=5)
    echoed = json.loads(answer(await everything(one.generate(command))))
    assert echoed == received(tmp_path)[-1]
    assert echoed["messages"] == [{"role": "user", "content": "hé\u2028\ud83d", "thought": ""}]
    assert (echoed["thinking"], echoed["thinking_budget"]) == (False, 5)
    assert (echoed["sampling"]["temperature"], echoed["sampling"]["seed"]) == (0.0, 7)


async def test_a_conversation_of_many_megabytes_passes_both_ways(backend: Open) -> None:
    one = backend(replies=[[{"echo": True}]])
    await everything(one.load(Load("/m/q.gguf")))
    text = "word " * 2_000_000
    assert json.loads(answer(await everything(one.generate(ask(text)))))["messages"][0]["content"] == text


async def test_what_was_drafted_arrives_with_its_text(backend: Open) -> None:
    one = backend(replies=[[{"answer": "the sea", "drafted": [[0, 3], [5, 7]]}]])
    await everything(one.load(Load("/m/q.gguf")))
    assert (await everything(one.generate(ask())))[0] == Delta("r1", "answer", "the sea", 1, ((0, 3), (5, 7)))


async def test_cancel_keeps_what_came_and_ends_in_cancelled(backend: Open) -> None:
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


async def test_leaving_a_reply_cancels_it_and_its_rest_reaches_nobody(backend: Open, tmp_path: Path) -> None:
    one = backend(replies=[[{"answer": "one "}, {"answer": "two ", "delay": 60}], [{"answer": "second"}]])
    await everything(one.load(Load("/m/q.gguf")))
    async with contextlib.aclosing(one.generate(ask())) as reply:
        async for event in reply:
            if isinstance(event, Delta):
                break
    assert answer(await everything(one.generate(ask(request_id="r2")))) == "second"
    assert [line["type"] for line in received(tmp_path)] == ["Load", "Generate", "Cancel", "Generate"]


async def test_answer_now_ends_the_thought_also_when_it_is_asked_before_the_request_is_sent(backend: Open) -> None:
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


async def test_cancel_before_the_model_is_there_ends_at_once(backend: Open) -> None:
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


async def test_a_request_that_ignores_its_cancel_is_ended_by_force(backend: Open, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ({"signal": signal.SIGKILL}, "The engine was killed, most likely because the machine ran out of memory."),
        ({"signal": signal.SIGSEGV}, "The engine crashed (SIGSEGV)."),
        ({"stderr": "Traceback:\nOSError: disk gone\n\n", "exit": 1}, "The engine stopped: OSError: disk gone."),
        ({"exit": 0}, "The engine stopped unexpectedly."),
    ],
    ids=["killed", "crashed", "exit 1", "exit 0"],
)
async def test_a_worker_that_dies_in_a_reply_is_explained_and_comes_back_with_its_model(
    backend: Open, tmp_path: Path, end: dict[str, Any], sentence: str
) -> None:
    one = backend(replies=[[{"answer": "part "}, {"once": str(tmp_path / "died"), **end}, {"answer": "whole"}]])
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf", context_length=512)))
    events = await everything(one.generate(ask()))
    assert answer(events) == "part "
    assert events[-1] == Failed(sentence, "worker", request_id="r1")
    ready = await heard.until(Ready)
    assert kinds(heard.events) == [Notice, Ready]
    assert isinstance(ready, Ready)
    assert ready.model.context_length == 512
    assert answer(await everything(one.generate(ask(request_id="r2")))) == "part whole"


async def test_a_request_sent_while_the_worker_restarts_is_answered(backend: Open, tmp_path: Path) -> None:
    one = backend(replies=[[{"once": str(tmp_path / "died"), "exit": 1}, {"answer": "yes"}]])
    await everything(one.load(Load("/m/q.gguf")))
    assert isinstance((await everything(one.generate(ask())))[-1], Failed)
    assert answer(await everything(one.generate(ask(request_id="r2")))) == "yes"


async def test_a_worker_killed_from_outside_while_idle_comes_back(backend: Open, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    one = LocalBackend(
        (
            sys.executable,
            "-c",
            f"import os; open({str(pid)!r}, 'w').write(str(os.getpid()));"
            f"os.execv({sys.executable!r}, [{sys.executable!r}, {FAKE!r}])",
        )
    )
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    os.kill(int(pid.read_text()), signal.SIGKILL)
    await heard.until(Ready)
    assert kinds(heard.events) == [Notice, Ready]
    assert "killed" in heard.events[0].message  # type: ignore[union-attr]
    await one.close()


async def test_deaths_with_replies_between_them_are_no_crash_loop(backend: Open) -> None:
    one = backend(replies=[[{"answer": "x"}]], idle=[{"exit": 3}])
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    for number in range(1, RESTARTS + 3):
        assert answer(await everything(one.generate(ask(request_id=f"r{number}")))) == "x"
        await heard.until(Ready, number)
    assert not any(isinstance(event, Failed) for event in heard.events)


async def test_a_crash_loop_stops_with_a_sentence_and_a_new_load_starts_again(backend: Open, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    code = (
        "import pathlib, runpy, sys;"
        f"pathlib.Path({str(broken)!r}).exists() and sys.exit('cannot start');"
        f"sys.argv = [{FAKE!r}, sys.argv[1]]; runpy.run_path({FAKE!r}, run_name='__main__')"
    )
    one = LocalBackend((sys.executable, "-c", code, json.dumps({"replies": [[{"exit": 1}]]})))
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    broken.touch()
    assert isinstance((await everything(one.generate(ask())))[-1], Failed)
    failed = await heard.until(Failed)
    assert kinds(heard.events) == [Notice] * RESTARTS + [Failed]
    assert isinstance(failed, Failed)
    assert failed.message == (
        f"The engine stopped: cannot start. It has failed {RESTARTS + 1} times in a row and is not restarted."
    )
    again = await everything(one.generate(ask(request_id="r2")))
    assert kinds(again) == [Failed]
    broken.unlink()
    assert isinstance((await everything(one.load(Load("/m/q.gguf"))))[-1], Ready)
    await one.close()


async def test_a_worker_that_dies_while_loading_fails_the_load_alone(backend: Open, tmp_path: Path) -> None:
    one = backend(load=[{"progress": [1, 9]}, {"once": str(tmp_path / "died"), "signal": signal.SIGKILL}])
    heard = Heard()
    one.on_event(heard)
    events = await everything(one.load(Load("/m/q.gguf")))
    assert kinds(events) == [LoadProgress, Failed]
    assert isinstance(events[-1], Failed)
    assert events[-1].kind == "worker"
    assert heard.events == []
    assert isinstance((await everything(one.load(Load("/m/q.gguf"))))[-1], Ready)


async def test_what_is_not_of_the_protocol_is_logged_and_ignored(backend: Open, tmp_path: Path) -> None:
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


async def test_notices_go_to_whoever_waits_else_to_the_listeners(backend: Open) -> None:
    one = backend(load=[{"notice": "no MTP"}], replies=[[{"notice": "in a reply"}]], idle=[{"notice": "idle"}])
    heard = Heard()
    one.on_event(heard)
    assert (await everything(one.load(Load("/m/q.gguf"))))[0] == Notice("no MTP")
    assert (await everything(one.generate(ask())))[0] == Notice("in a reply")
    assert await heard.until(Notice) == Notice("idle")


async def test_a_load_that_nobody_waits_for_is_announced_and_the_next_gets_its_own_end(backend: Open) -> None:
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


async def test_close_ends_an_open_request_and_the_process_and_may_be_repeated(backend: Open, tmp_path: Path) -> None:
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

FIRST = CachedState("c1", 120, 3, 400, 500, in_memory=True)
SECOND = CachedState("c2", 80, 1, 0, 300, in_memory=False)
KEPT = [dataclasses.asdict(state) for state in (FIRST, SECOND)]


async def test_what_is_kept_is_asked_and_dropped(backend: Open, tmp_path: Path) -> None:
    one = backend(kept=KEPT)
    await everything(one.load(Load("/m/q.gguf")))
    assert await one.cache() == CacheReport((FIRST, SECOND), 400, 1000, 800, 2000)
    assert await one.drop_cache("c1") == CacheReport((SECOND,), 0, 1000, 300, 2000)
    assert await one.drop_cache(None) == CacheReport((), 0, 1000, 0, 2000)
    assert [(line["type"], line.get("conversation_id")) for line in received(tmp_path)[1:]] == [
        ("CacheList", None),
        ("CacheDrop", "c1"),
        ("CacheDrop", None),
    ]


async def test_it_is_told_in_its_turn_beside_loads_and_replies(backend: Open) -> None:
    """Each of several questions and loads gets its own answer."""
    one = backend(kept=KEPT, load=[{"when": "bad", "fail": "No."}])
    await everything(one.load(Load("/m/q.gguf")))
    async with asyncio.timeout(SECONDS):
        reply, first, bad, good, second = await asyncio.gather(
            everything(one.generate(ask())),
            one.cache(),
            everything(one.load(Load("/m/bad.gguf"))),
            everything(one.load(Load("/m/good.gguf"))),
            one.drop_cache(None),
        )
    assert (kinds(reply)[-1], kinds(bad), kinds(good)) == (Finished, [Failed], [Ready])
    assert isinstance(first, CacheReport) and isinstance(second, CacheReport)
    assert (len(first.states), len(second.states)) == (2, 0)


async def test_after_a_failed_load_the_old_model_answers_if_the_engine_kept_it(backend: Open) -> None:
    one = backend(load=[{"when": "second", "fail": "There is no such file.", "kind": "load", "kept": True}])
    [*_, ready] = await everything(one.load(Load("/m/first.gguf")))
    [failed] = await everything(one.load(Load("/m/second.gguf")))
    assert isinstance(failed, Failed)
    assert isinstance(ready, Ready)
    assert one.model == ready.model
    assert isinstance((await everything(one.generate(ask())))[-1], Finished)


async def test_a_failed_answer_is_no_failed_load(backend: Open) -> None:
    one = backend(cache=[{"fail": "The folder cannot be read.", "detail": "trace"}])
    await everything(one.load(Load("/m/q.gguf")))
    assert await one.cache() == Failed("The folder cannot be read.", "internal", "trace")
    assert one.model is not None
    assert answer(await everything(one.generate(ask()))) == "Hello from the fake worker."


async def test_a_worker_that_dies_over_the_question_answers_it_and_comes_back(backend: Open, tmp_path: Path) -> None:
    one = backend(kept=KEPT, cache=[{"once": str(tmp_path / "died"), "signal": signal.SIGSEGV}])
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    assert await one.cache() == Failed("The engine crashed (SIGSEGV).", "worker")
    assert heard.events == [Notice("The engine is being restarted.")]
    await heard.until(Ready)
    assert isinstance(await one.cache(), CacheReport)


async def test_without_a_model_no_worker_is_started_to_tell_it(backend: Open, tmp_path: Path) -> None:
    one = backend()
    assert await one.cache() == Failed("No model is open, and what is kept is kept of a model.", "load")
    assert not (tmp_path / "received").exists()


async def test_a_question_that_nobody_waits_for_any_more_leaves_the_next_its_answer(backend: Open) -> None:
    one = backend(kept=KEPT, cache=[{"delay": 0.2}])
    await everything(one.load(Load("/m/q.gguf")))
    gone = asyncio.ensure_future(one.drop_cache("c1"))
    await asyncio.sleep(0)
    gone.cancel()
    report = await one.cache()
    assert isinstance(report, CacheReport)
    assert report.states == (SECOND,)


async def test_closing_answers_an_open_question(backend: Open) -> None:
    one = backend(cache=[{"delay": 60}])
    await everything(one.load(Load("/m/q.gguf")))
    asking = asyncio.ensure_future(one.cache())
    await asyncio.sleep(0)
    await one.close()
    assert await asking == Failed("The engine was closed.", "worker")


async def test_a_settled_turn_is_told_to_nobody(backend: Open) -> None:
    one = backend(idle=[{"settled": 40}, {"notice": "after it"}])
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    assert kinds(await everything(one.generate(ask())))[-1] is Finished
    await heard.until(Notice)
    assert heard.events == [Notice("after it")]


async def test_no_model_answers_between_a_death_and_the_return(backend: Open, tmp_path: Path) -> None:
    one = backend(idle=[{"once": str(tmp_path / "died"), "exit": 1}])
    seen: list[tuple[type[Event], bool]] = []
    heard = Heard()
    one.on_event(lambda event: seen.append((type(event), one.model is not None)))
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    await everything(one.generate(ask()))
    await heard.until(Ready)
    assert seen == [(Notice, False), (Ready, True)]
