"""The worker as a process: what goes in, what comes out, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rewrite import GOLDENS

from runtime.protocol import (
    AnswerNow,
    Cancel,
    Command,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    Message,
    Notice,
    Ready,
    Sampling,
    Settled,
    Shutdown,
    decode_event,
    encode,
)

MODEL = str(GOLDENS / "tiny-dense.gguf")
ROOT = Path(__file__).parents[2]
FOREVER = Sampling(temperature=0, max_tokens=1900)


class Process:
    """A worker and the two ends of its pipes."""

    def __init__(self, prelude: str = "") -> None:
        code = f"{prelude}\nfrom runtime.worker import main\nmain()"
        self.child = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def send(self, *commands: Command | bytes) -> None:
        assert self.child.stdin
        for command in commands:
            self.child.stdin.write(command if isinstance(command, bytes) else encode(command))
        self.child.stdin.flush()

    def events(self) -> Iterator[Event]:
        assert self.child.stdout
        for line in self.child.stdout:
            yield decode_event(line)

    def until(self, *kinds: type) -> list[Event]:
        seen = []
        for event in self.events():
            seen.append(event)
            if isinstance(event, kinds):
                return seen
        raise AssertionError(f"ended without {kinds}: {seen[-3:]}")

    def end(self) -> bytes:
        """What it wrote to stderr."""
        self.child.kill()
        if self.child.stdin and self.child.stdin.closed:
            self.child.stdin = None
        return self.child.communicate()[1]

    def load(self) -> None:
        self.send(Load(MODEL))
        self.until(Ready)


@pytest.fixture
def worker() -> Iterator[Process]:
    process = Process()
    yield process
    process.end()


def generate(request_id: str = "r", sampling: Sampling = FOREVER, text: str = "hello") -> Generate:
    return Generate(request_id, "c", (Message("user", text),), sampling, thinking=False)


def test_a_turn(worker: Process) -> None:
    worker.send(Load(MODEL), generate(sampling=Sampling(temperature=0, max_tokens=5)))
    seen = worker.until(Finished)
    assert sum(isinstance(event, Ready) for event in seen) == 1
    assert isinstance(seen[-1], Finished)
    assert seen[-1].stats.generated_tokens == 5
    assert isinstance(worker.until(Settled)[-1], Settled)


def test_cancel_ends_the_turn_at_its_next_step_and_the_next_one_runs(worker: Process) -> None:
    worker.load()
    worker.send(generate())
    worker.until(Delta)
    worker.send(Cancel("r"))
    end = worker.until(Finished)[-1]
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    assert end.stats.generated_tokens < 1900
    worker.send(generate("next", Sampling(max_tokens=1)))
    assert worker.until(Finished)[-1].request_id == "next"  # type: ignore[union-attr]


def test_answer_now_closes_the_thought_and_an_answer_follows(worker: Process) -> None:
    worker.load()
    thinking = replace(generate(sampling=Sampling(temperature=0, max_tokens=60)), thinking=True)
    worker.send(AnswerNow("r"), thinking)
    end = worker.until(Finished)[-1]
    assert isinstance(end, Finished)
    assert end.thought_closed
    assert end.stats.thinking_tokens <= 1


def test_a_request_cancelled_while_it_waits_does_not_begin(worker: Process) -> None:
    worker.load()
    worker.send(generate("one"), generate("two"), Cancel("two"), Cancel("one"))
    ends = [worker.until(Finished)[-1], worker.until(Finished)[-1]]
    assert [(end.request_id, end.reason) for end in ends if isinstance(end, Finished)] == [
        ("one", "cancelled"),
        ("two", "cancelled"),
    ]
    assert isinstance(ends[1], Finished)
    assert ends[1].stats.generated_tokens == 0


def test_the_closed_pipe_ends_it_in_the_middle_of_a_reply(worker: Process) -> None:
    worker.load()
    worker.send(generate())
    worker.until(Delta)
    assert worker.child.stdin
    worker.child.stdin.close()
    assert worker.child.wait(timeout=20) == 0


def test_shutdown_ends_it(worker: Process) -> None:
    worker.send(Shutdown())
    assert worker.child.wait(timeout=20) == 0


def test_ctrl_c_in_the_terminal_does_not_reach_it(worker: Process) -> None:
    worker.load()
    worker.send(generate(sampling=Sampling(temperature=0, max_tokens=300)))
    worker.until(Delta)
    worker.child.send_signal(signal.SIGINT)
    end = worker.until(Finished)[-1]
    assert isinstance(end, Finished)
    assert end.reason in ("length", "stop")
    assert end.stats.generated_tokens > 100


def test_a_line_that_is_no_message_is_passed_over(worker: Process) -> None:
    worker.send(b"hello\n", b"\xff\xfe\n", b'{"type":"Load","path":5}\n')
    worker.load()


def test_prints_from_python_and_from_c_stay_out_of_the_protocol() -> None:
    worker = Process("import threading, time, os, runtime.engine as e\n_old = e.Engine.generate\n"
                     "def noisy(*a):\n    print('hello'); os.write(1, b'from C\\n'); yield from _old(*a)\n"
                     "e.Engine.generate = noisy")  # fmt: skip
    try:
        worker.load()
        worker.send(generate(sampling=Sampling(max_tokens=2)))
        assert isinstance(worker.until(Finished)[-1], Finished)  # every line before it decoded
    finally:
        errors = worker.end()
    assert b"from C" in errors


def test_without_a_model_there_is_a_sentence(worker: Process) -> None:
    worker.send(generate())
    failed = worker.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.request_id) == ("load", "r")


def test_a_load_that_fails_leaves_it_able_to_load_another(worker: Process, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    worker.send(Load(str(bad)))
    failed = worker.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert failed.kind == "load"
    assert failed.request_id is None
    assert not failed.model_kept
    worker.load()


def test_a_file_that_cannot_be_a_model_does_not_cost_the_one_that_is_loaded(worker: Process, tmp_path: Path) -> None:
    worker.load()
    worker.send(Load(str(tmp_path / "missing.gguf")), generate(sampling=Sampling(max_tokens=1)))
    seen = worker.until(Finished)
    assert any(isinstance(event, Failed) and event.kind == "load" and event.model_kept for event in seen)


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(worker: Process) -> None:
    worker.send(Load(MODEL, context_length=64))
    worker.until(Ready)
    worker.send(generate(text="x " * 200))
    failed = worker.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert failed.kind == "context"
    assert "64" in failed.message


def test_a_context_beyond_the_model_s_training_opens_it_with_what_it_was_trained_for(worker: Process) -> None:
    """It may have been chosen for another model."""
    worker.send(Load(MODEL, context_length=65_536))
    *before, ready = worker.until(Failed, Ready)
    assert isinstance(ready, Ready)
    assert ready.model.context_length == 2048
    [told] = [event.message for event in before if isinstance(event, Notice)]
    assert "65,536" in told
    assert "2,048" in told


def test_a_context_of_nothing_is_refused_and_does_not_cost_the_model_that_is_loaded(worker: Process) -> None:
    worker.load()
    worker.send(Load(MODEL, context_length=0))
    failed = worker.until(Failed, Ready)[-1]
    assert isinstance(failed, Failed)
    assert failed.model_kept


def test_an_error_of_ours_fails_the_request_and_not_the_process() -> None:
    worker = Process("import runtime.engine as e\ndef broken(*a):\n    raise ZeroDivisionError\n    yield\n"
                     "e.Engine.generate = broken")  # fmt: skip
    try:
        worker.load()
        for request in "ab":
            worker.send(generate(request))
            failed = worker.until(Failed)[-1]
            assert isinstance(failed, Failed)
            assert (failed.kind, failed.request_id) == ("internal", request)
            assert "ZeroDivisionError" in failed.detail
    finally:
        worker.end()
