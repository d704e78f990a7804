"""The local backend when its worker dies: explained, started again, given up after a while."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from workers import FAKE, Heard, Workers, answer, ask, everything, kinds

from chatapp.local import RESTARTS, LocalBackend
from runtime.protocol import (
    Event,
    Failed,
    Load,
    LoadProgress,
    Notice,
    Ready,
)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (
            {"signal": signal.SIGKILL},
            "The engine was killed from outside, perhaps because the machine was short of memory.",
        ),
        ({"signal": signal.SIGSEGV}, "The engine crashed (SIGSEGV)."),
        ({"stderr": "Traceback:\nOSError: disk gone\n\n", "exit": 1}, "The engine stopped: OSError: disk gone."),
        ({"exit": 0}, "The engine stopped unexpectedly."),
    ],
    ids=["killed", "crashed", "exit 1", "exit 0"],
)
async def test_a_worker_that_dies_in_a_reply_is_explained_and_comes_back_with_its_model(
    backend: Workers, tmp_path: Path, end: dict[str, Any], sentence: str
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


async def test_a_request_sent_while_the_worker_restarts_is_answered(backend: Workers, tmp_path: Path) -> None:
    one = backend(replies=[[{"once": str(tmp_path / "died"), "exit": 1}, {"answer": "yes"}]])
    await everything(one.load(Load("/m/q.gguf")))
    assert isinstance((await everything(one.generate(ask())))[-1], Failed)
    assert answer(await everything(one.generate(ask(request_id="r2")))) == "yes"


async def test_a_worker_killed_from_outside_while_idle_comes_back(backend: Workers, tmp_path: Path) -> None:
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


async def test_deaths_with_replies_between_them_are_no_crash_loop(backend: Workers) -> None:
    one = backend(replies=[[{"answer": "x"}]], idle=[{"exit": 3}])
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    for number in range(1, RESTARTS + 3):
        assert answer(await everything(one.generate(ask(request_id=f"r{number}")))) == "x"
        await heard.until(Ready, number)
    assert not any(isinstance(event, Failed) for event in heard.events)


async def test_a_crash_loop_stops_with_a_sentence_and_a_new_load_starts_again(backend: Workers, tmp_path: Path) -> None:
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


async def test_a_worker_that_dies_while_loading_fails_the_load_alone(backend: Workers, tmp_path: Path) -> None:
    one = backend(load=[{"progress": [1, 9]}, {"once": str(tmp_path / "died"), "signal": signal.SIGKILL}])
    heard = Heard()
    one.on_event(heard)
    events = await everything(one.load(Load("/m/q.gguf")))
    assert kinds(events) == [LoadProgress, Failed]
    assert isinstance(events[-1], Failed)
    assert events[-1].kind == "worker"
    assert heard.events == []
    assert isinstance((await everything(one.load(Load("/m/q.gguf"))))[-1], Ready)


async def test_no_model_answers_between_a_death_and_the_return(backend: Workers, tmp_path: Path) -> None:
    one = backend(idle=[{"once": str(tmp_path / "died"), "exit": 1}])
    seen: list[tuple[type[Event], bool]] = []
    heard = Heard()
    one.on_event(lambda event: seen.append((type(event), one.model is not None)))
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    await everything(one.generate(ask()))
    await heard.until(Ready)
    assert seen == [(Notice, False), (Ready, True)]
