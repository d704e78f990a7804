"""What the worker keeps between turns, over its own end, and what it tells of it."""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rewrite import GOLDENS
from test_worker import ROOT, Process

import runtime.worker
from runtime.protocol import (
    CacheDrop,
    CacheList,
    CacheReport,
    Command,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    Message,
    Notice,
    PromptProgress,
    Ready,
    Sampling,
    Settled,
    encode,
)
from runtime.turn import ChatModel
from runtime.worker import Inbox, Worker

MODEL = str(GOLDENS / "tiny-dense.gguf")
SHORT = Sampling(temperature=0, max_tokens=4)
HEADER = 9  # tokens, of a reply without a thought


class Threaded:
    """A worker in a thread of this process: what takes no killing need not wait for a process to start."""

    def __init__(self, **changes: object) -> None:
        read, write = os.pipe()
        self.commands = os.fdopen(write, "wb", buffering=0)
        self.source = os.fdopen(read, "rb")
        self.events: queue.Queue[Event] = queue.Queue()
        self.last: type[Event] | None = None  # of the events that somebody hears
        self.gone = False
        inbox = Inbox(self.source)
        inbox.start()
        self.thread = threading.Thread(target=Worker(inbox, self.emit).run)
        self.thread.start()
        if changes:
            self.send(load(**changes))
            self.until(Ready)

    def emit(self, event: Event) -> None:
        if self.gone:
            raise BrokenPipeError
        self.events.put(event)
        self.gone = type(event) is self.last

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.commands.write(encode(command))

    def until(self, *kinds: type) -> list[Event]:
        seen = [self.events.get(timeout=60)]
        while not isinstance(seen[-1], kinds):
            seen.append(self.events.get(timeout=60))
        return seen

    def end(self) -> None:
        self.commands.close()
        self.thread.join(60)
        self.source.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Threaded]]:
    """Makes workers with a model, which keep their states in one folder."""
    workers: list[Threaded] = []

    def started(**changes: object) -> Threaded:
        workers.append(Threaded(**{"snapshots": str(tmp_path / "states"), **changes}))
        return workers[-1]

    yield started
    for worker in workers:
        worker.end()


def load(**changes: object) -> Load:
    return Load(MODEL, threads=1, **changes)  # type: ignore[arg-type]


def messages(*texts: str) -> tuple[Message, ...]:
    """User and assistant in turns."""
    return tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts))


def ask(worker: Process | Threaded, *texts: str, name: str = "a", settled: bool = True) -> Finished:
    worker.send(Generate("r", name, messages(*texts), SHORT, thinking=False))
    end = worker.until(Finished)[-1]
    assert isinstance(end, Finished)
    if settled:
        worker.until(Settled)
    return end


def report(worker: Process | Threaded, command: CacheList | CacheDrop) -> CacheReport:
    worker.send(command)
    found = worker.until(CacheReport)[-1]
    assert isinstance(found, CacheReport)
    return found


STORY = "A long story, if you please, of the sea and the wind."


class TestTheNextWorker:
    def goes_on(self, worker: Process | Threaded) -> None:
        """The same question again: no reply is needed to know the prompt."""
        stats = ask(worker, STORY).stats
        assert stats.cached_tokens > 20
        assert stats.prefilled_tokens <= HEADER

    def test_goes_on_after_quitting(self, start: Callable[..., Threaded]) -> None:
        worker = start()
        ask(worker, STORY)
        worker.end()
        self.goes_on(start())

    def test_goes_on_after_quitting_right_after_the_reply(self, start: Callable[..., Threaded]) -> None:
        worker = start()
        ask(worker, STORY, settled=False)
        worker.end()
        self.goes_on(start())

    def test_goes_on_after_quitting_though_there_was_no_time_to_settle(
        self, start: Callable[..., Threaded], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A long reply of a large model takes minutes to be read again."""

        def endless(chat: ChatModel, cancelled: Callable[[], bool]) -> None:
            while not cancelled():
                threading.Event().wait(0.001)

        worker = start()
        with monkeypatch.context() as slow:
            slow.setattr(ChatModel, "settle", endless)
            slow.setattr(runtime.worker, "_LEAVE_SECONDS", 0.5)
            ask(worker, STORY, settled=False)
            worker.end()
        self.goes_on(start())

    @pytest.mark.parametrize("last", [PromptProgress, Delta, Finished])
    def test_goes_on_though_the_chat_was_killed_in_the_middle_of_a_turn(
        self, start: Callable[..., Threaded], last: type[Event]
    ) -> None:
        """Both pipes break then. What was read before stays too."""
        worker = start()
        worker.send(Generate("q", "b", messages(f"{STORY} {STORY}"), SHORT, thinking=False))
        worker.until(Finished)
        worker.send(Generate("r", "a", messages(STORY), SHORT, thinking=False))
        worker.last = last
        worker.thread.join(60)
        assert not worker.thread.is_alive()
        assert worker.gone
        worker = start()
        kept = {state.conversation_id: state.tokens for state in report(worker, CacheList()).states}
        assert kept["b"] > 50
        if last is not PromptProgress:  # after the first, nothing of the prompt is read
            self.goes_on(worker)

    def test_goes_on_though_settling_failed(
        self, start: Callable[..., Threaded], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(chat: ChatModel, cancelled: Callable[[], bool]) -> None:
            raise RuntimeError("boom")

        worker = start()
        with monkeypatch.context() as failing:
            failing.setattr(ChatModel, "settle", broken)
            ask(worker, STORY, settled=False)
            report(worker, CacheList())
            worker.end()
        self.goes_on(start())

    def test_goes_on_though_another_conversation_s_turn_failed(
        self, start: Callable[..., Threaded], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before there was time to save this one."""
        generate = ChatModel.generate

        def broken(chat: ChatModel, command: Generate, *args: object, **more: object) -> Iterator[Event]:
            if command.conversation_id == "b":
                raise RuntimeError("boom")
            return generate(chat, command, *args, **more)  # type: ignore[arg-type]

        worker = start()
        with monkeypatch.context() as failing:
            failing.setattr(ChatModel, "generate", broken)
            texts = {"a": STORY, "c": "Why?", "b": "When?"}
            worker.send(*(Generate(name, name, messages(text), SHORT, thinking=False) for name, text in texts.items()))
            failed = worker.until(Failed)[-1]
            assert isinstance(failed, Failed) and failed.request_id == "b"
            worker.end()
        self.goes_on(start())

    def test_goes_on_when_another_model_was_loaded_in_between(self, start: Callable[..., Threaded]) -> None:
        worker = start()
        ask(worker, STORY, settled=False)
        worker.send(Load(str(GOLDENS / "tiny-moe.gguf"), threads=1))
        worker.until(Ready)
        self.goes_on(start())

    def test_goes_on_after_kill_9_once_the_turn_had_settled(
        self, start: Callable[..., Threaded], tmp_path: Path
    ) -> None:
        process = Process()
        try:
            process.send(load(snapshots=str(tmp_path / "states")))
            process.until(Ready)
            ask(process, STORY)
            process.child.send_signal(signal.SIGKILL)
            process.child.wait(timeout=20)
        finally:
            process.end()
        self.goes_on(start())

    def test_begins_anew_without_a_folder(self, start: Callable[..., Threaded]) -> None:
        for _ in range(2):
            worker = start(snapshots=None)
            assert ask(worker, "A long story, if you please.").stats.cached_tokens == 0
            worker.end()

    def test_does_not_mix_8_bit_states_with_others(self, start: Callable[..., Threaded]) -> None:
        worker = start()
        ask(worker, STORY)
        worker.end()
        small = start(kv_type="q8")
        assert ask(small, STORY).stats.cached_tokens == 0


def test_what_was_used_last_is_in_memory_when_the_first_turn_has_settled(start: Callable[..., Threaded]) -> None:
    worker = start()
    ask(worker, STORY, name="a")
    worker.end()
    worker = start()
    ask(worker, "Hello", name="b")
    assert {(s.conversation_id, s.in_memory) for s in report(worker, CacheList()).states} == {("a", True), ("b", True)}


@pytest.mark.slow
def test_two_processes_on_one_folder_neither_lose_nor_mix_anything(
    start: Callable[..., Threaded], tmp_path: Path
) -> None:
    """At the same time, each in a conversation of its own and both in one; then one of them is killed."""

    def words(name: str, turns: int) -> list[str]:
        return [*(word for i in range(turns) for word in (f"{name} {STORY} {i}", "Ay.")), f"{name} {STORY} {turns}"]

    processes = [Process(), Process()]
    texts: list[str] = []
    try:
        for process in processes:
            process.send(load(snapshots=str(tmp_path / "states")))
        for process in processes:
            process.until(Ready)
        for turn in range(3):
            for name in ("own", "both"):
                for number, process in enumerate(processes):
                    own = f"{name} {number}" if name == "own" else name
                    process.send(Generate("r", own, messages(*words(own, turn)), SHORT, thinking=False))
                for process in processes:
                    events = process.until(Settled)
                    assert not any(isinstance(event, Notice) for event in events)
                    texts.append("".join(event.text for event in events if isinstance(event, Delta)))
        processes[0].child.send_signal(signal.SIGKILL)
    finally:
        for process in processes:
            process.end()
    assert texts[2::4] == texts[3::4]  # what both were asked in one conversation
    alone, after = start(snapshots=None), start()
    for own in ("own 0", "own 1", "both"):
        assert ask(after, *words(own, 2), name=own).stats.prefilled_tokens <= HEADER
        alone.send(Generate("r", own, messages(*words(own, 2)), SHORT, thinking=False))
        events = alone.until(Settled)
        text = "".join(event.text for event in events if isinstance(event, Delta))
        assert text == texts[{"own 0": -4, "own 1": -3, "both": -1}[own]]


class TestReport:
    def test_without_a_model_it_is_empty(self) -> None:
        worker = Threaded()
        try:
            assert report(worker, CacheList()) == CacheReport((), 0, 0, 0, 0)
        finally:
            worker.end()

    def test_tells_states_sizes_and_budgets(self, start: Callable[..., Threaded], tmp_path: Path) -> None:
        worker = start(memory_budget=1 << 30, snapshot_budget=1 << 29)
        ask(worker, "Hello", name="a")
        ask(worker, "Why?", name="b")
        found = report(worker, CacheList())
        assert [(s.conversation_id, s.in_memory) for s in found.states] == [("b", True), ("a", True)]
        assert all(s.tokens > 5 and s.checkpoints >= 2 and s.bytes > 0 and s.on_disk_bytes > 0 for s in found.states)
        assert (found.memory_budget, found.disk_budget) == (1 << 30, 1 << 29)
        assert 0 < found.memory_bytes <= sum(s.bytes for s in found.states)
        files = [path for path in (tmp_path / "states").rglob("*") if path.is_file()]
        assert found.disk_bytes == sum(path.stat().st_size for path in files)

    def test_dropping_one_and_all(self, start: Callable[..., Threaded], tmp_path: Path) -> None:
        worker = start()
        for name in "abc":
            ask(worker, "Hello", name=name)
        assert {s.conversation_id for s in report(worker, CacheDrop("b")).states} == {"a", "c"}
        empty = report(worker, CacheDrop())
        assert empty.states == ()
        assert empty.memory_bytes == empty.disk_bytes == 0
        assert not [path for path in (tmp_path / "states").rglob("*") if path.is_file()]
        assert ask(worker, "Hello").stats.cached_tokens == 0

    def test_dropping_takes_no_model(self, start: Callable[..., Threaded], tmp_path: Path) -> None:
        worker, folder = start(), tmp_path / "states"
        for name in "ab":
            ask(worker, "Hello", name=name)
        worker.end()
        worker = Threaded()
        try:
            assert report(worker, CacheDrop("b", str(folder))) == CacheReport((), 0, 0, 0, 0)
        finally:
            worker.end()
        worker = start()
        assert [state.conversation_id for state in report(worker, CacheList()).states] == ["a"]
        worker.end()
        worker = start(snapshots=None)
        report(worker, CacheDrop(None, str(folder)))
        assert not [path for path in folder.rglob("*") if path.is_file()]

    def test_what_cannot_be_dropped_is_a_sentence(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def refuse(folder: Path) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("runtime.snapshot_folders.remove", refuse)
        (tmp_path / "model" / "conversation").mkdir(parents=True)
        worker = Threaded()
        try:
            worker.send(CacheDrop(None, str(tmp_path)))
            failed = worker.until(Failed)[-1]
        finally:
            worker.end()
        assert isinstance(failed, Failed)
        assert failed.message == "What is kept on disk could not be removed: Permission denied."


def test_forgetting_takes_nothing_that_a_model_needs() -> None:
    """A worker without a model may have nothing else to do."""
    code = "import sys, runtime.worker, runtime.snapshot_folders; assert not {'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_damaged_states_cost_a_notice_and_time(start: Callable[..., Threaded], tmp_path: Path) -> None:
    worker = start()
    ask(worker, "Hello")
    worker.end()
    for path in (tmp_path / "states").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    worker = start()
    worker.send(Generate("r", "a", messages("Hello"), SHORT, thinking=False))
    events = worker.until(Finished)
    assert sum(isinstance(event, Notice) for event in events) == 1
    assert isinstance(events[-1], Finished)
    assert events[-1].stats.cached_tokens == 0


def test_turns_wait_for_no_saving(start: Callable[..., Threaded]) -> None:
    """Questions that are already there when a turn ends are answered first, and everything is saved at the end."""
    worker = start()
    for i in range(4):
        worker.send(Generate(f"{i}", f"{i}", messages(f"Question {i}"), SHORT, thinking=False))
    for i in range(4):
        end = worker.until(Finished)[-1]
        assert isinstance(end, Finished)
        assert end.request_id == f"{i}"
    worker.end()
    found = report(start(), CacheList())
    assert {s.conversation_id for s in found.states} == {"0", "1", "2", "3"}
