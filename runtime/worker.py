"""The process that holds the model: commands in on stdin, events out on stdout, one JSON object per line."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from runtime.errors import UserError
from runtime.fallback import FREED, TO_PROCESSOR, Said, empty, free, is_of_a_card
from runtime.protocol import (
    AnswerNow,
    CacheDrop,
    CachedState,
    CacheList,
    CacheReport,
    Cancel,
    Command,
    Event,
    Failed,
    Failure,
    Generate,
    Load,
    LoadProgress,
    Notice,
    ProtocolError,
    Ready,
    Shutdown,
    decode_command,
    encode,
)

if TYPE_CHECKING:
    from runtime.turn import ChatModel

_LEAVE_SECONDS = 1.5  # for the states' sake; the chat waits two before it uses force

_log = logging.getLogger("qwenchat.worker")


class Inbox:
    """Commands in order of arrival; what concerns a request takes effect at once, also while it still waits."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._commands: queue.Queue[Command] = queue.Queue()
        self._cancelled: set[str] = set()
        self._to_answer: set[str] = set()
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._read, daemon=True, name="inbox").start()

    def next(self) -> Command:
        """Waits for the next command; Shutdown when the pipe is closed."""
        return self._commands.get()

    def waiting(self) -> bool:
        """Whether something is asked of the worker that it has not begun."""
        return self._closed or not self._commands.empty()

    def cancelled(self, request_id: str) -> bool:
        return self._closed or request_id in self._cancelled

    def answer_now(self, request_id: str) -> bool:
        """Whether the request is to end its thought."""
        return request_id in self._to_answer

    def forget(self, request_id: str) -> None:
        self._cancelled.discard(request_id)
        self._to_answer.discard(request_id)

    def _read(self) -> None:
        for line in self._source:
            try:
                command = decode_command(line)
            except ProtocolError as error:
                _log.error("%s", error)
                continue
            if isinstance(command, Cancel):
                self._cancelled.add(command.request_id)
            elif isinstance(command, AnswerNow):
                self._to_answer.add(command.request_id)
            elif isinstance(command, Shutdown):
                break
            else:
                self._commands.put(command)
        # The chat is gone or says goodbye: what runs ends at its next step.
        self._closed = True
        self._commands.put(Shutdown())


class Worker:
    """Answers commands one after the other."""

    def __init__(self, inbox: Inbox, emit: Callable[[Event], None]) -> None:
        self._inbox = inbox
        self._emit = emit
        self._chat: ChatModel | None = None
        self._loaded: Load | None = None
        self._cold = False  # nothing has run since the model was loaded
        self._fresh = False  # nothing has been brought from disk since then

    def run(self) -> None:
        """Returns at a Shutdown, and when the chat has gone."""
        try:
            while self._answer(self._inbox.next()):
                self._rest()
        except BrokenPipeError:
            self._emit = lambda event: None  # nobody hears it
        self._leave()

    def _answer(self, command: Command) -> bool:
        """Whether there may be more to answer."""
        match command:
            case Load():
                self._guard(partial(self._load, command), None)
            case Generate():
                self._guard(partial(self._generate, command), command.request_id)
                self._inbox.forget(command.request_id)
            case CacheDrop():
                self._guard(partial(self._drop, command), None)
            case CacheList():
                self._guard(self._report, None)
            case Shutdown():
                return False
        return True

    def _load(self, command: Load) -> None:
        from runtime import lean_torch
        from runtime.ahead import bring_in

        ahead = bring_in(command) if self._chat is None else None
        if command.ops != "triton":
            lean_torch.load()
        from runtime.loading import check, open_chat_model

        if self._chat is not None:
            check(command)  # before the old model goes
        self._leave()
        self._chat = None  # the old model's memory is free before the new one needs it
        last = -1

        def progress(done: int, total: int) -> None:
            nonlocal last
            percent = 100 * done // max(total, 1)
            if percent != last:
                last = percent
                self._emit(LoadProgress(done, total, "reading the weights"))

        try:
            self._chat, info, notices = open_chat_model(
                command, progress, lambda sentence: self._emit(Notice(sentence)), ahead
            )
        finally:
            if ahead:
                ahead.take()  # so that it ends, whatever became of the load
        self._loaded = command
        for notice in notices:
            self._emit(Notice(notice))
        self._cold = self._fresh = True
        self._emit(Ready(info))

    def _generate(self, command: Generate) -> None:
        if self._chat is None:
            self._emit(Failed("No model is loaded.", "load", request_id=command.request_id))
            return
        self._cold = False
        key, said, freed = command.request_id, Said(), False
        while True:
            try:
                events = self._chat.generate(
                    said.rest(command),
                    lambda: self._inbox.cancelled(key),
                    answer_now=lambda: self._inbox.answer_now(key),
                )
                with closing(events):  # if nobody hears the next one, the state goes back to the pool at once
                    for event in events:
                        said.follow(event)
                        self._emit(event)
                return
            except Exception as error:
                if not is_of_a_card(error, self._chat):
                    raise
            # Not before the error is gone, which holds what the step had made.
            if not freed:
                free(self._chat)
                self._emit(FREED)
            else:
                self._to_processor()
            freed = True

    def _to_processor(self) -> None:
        from runtime.loading import open_chat_model

        assert self._loaded
        self._chat = None
        empty()
        self._loaded = replace(self._loaded, ops="cpu")
        self._chat, _, _ = open_chat_model(
            self._loaded, lambda done, total: None, lambda told: self._emit(Notice(told))
        )
        self._emit(TO_PROCESSOR)

    def _drop(self, command: CacheDrop) -> None:
        if self._chat is not None:
            self._chat.drop(command.conversation_id)
        if command.snapshots is not None:
            from runtime.snapshot_folders import forget

            try:
                forget(Path(command.snapshots), command.conversation_id)
            except OSError as error:
                raise UserError(f"What is kept on disk could not be removed: {error.strerror}.") from error
        self._report()

    def _report(self) -> None:
        pool = self._chat.engine.pool if self._chat else None
        if pool is None:
            self._emit(CacheReport((), 0, 0, 0, 0))
            return
        states = tuple(
            CachedState(h.conversation, h.tokens, h.checkpoints, h.memory_bytes, h.disk_bytes, h.memory_bytes > 0)
            for h in pool.holdings()
        )
        disk = (pool.snapshots.nbytes, pool.snapshots.budget) if pool.snapshots else (0, 0)
        self._emit(CacheReport(states, pool.nbytes, pool.budget, *disk))

    def _rest(self) -> None:
        """Use the time in which the user reads; whatever goes wrong costs only the head start."""
        self._prepare(self._inbox.waiting, self._emit)

    def _leave(self) -> None:
        """Keep what can be kept of this model's states, as far as there is time."""
        self._cold = False
        deadline = time.monotonic() + _LEAVE_SECONDS
        self._prepare(lambda: time.monotonic() > deadline, lambda event: None, leaving=True)

    def _prepare(self, cancelled: Callable[[], bool], emit: Callable[[Event], None], *, leaving: bool = False) -> None:
        """Warm up a new model, settle the last turn, and bring states to disk."""
        if self._chat is None or cancelled():
            return
        try:
            if self._cold:
                self._cold = False
                self._chat.warm_up()
            if leaving:  # there may be no time to settle, and the turn as it was generated is most of what is wanted
                self._chat.save(cancelled)
            settled = self._chat.settle(cancelled)
            self._chat.save(cancelled)
            if self._fresh and not leaving:
                self._fresh = not self._chat.preload(cancelled)
            if settled:  # said only now, so that a turn that is known to have settled survives whatever happens
                emit(settled)
        except BrokenPipeError:
            raise
        except Exception:
            _log.exception("preparing failed")
            self._let_go(cancelled if leaving else lambda: False)

    def _guard(self, work: Callable[[], None], request_id: str | None) -> None:
        """Whatever goes wrong ends the request, not the process, and is said in one sentence."""
        try:
            work()
        except BrokenPipeError:  # the chat has gone, and what it asked for is kept as far as it came
            raise
        except Exception as error:
            message, kind = explain(error)
            kept = request_id is None and self._chat is not None
            self._emit(Failed(message, kind, traceback.format_exc(), request_id, model_kept=kept))
            if kind in ("internal", "memory"):
                self._let_go(lambda: False)

    def _let_go(self, cancelled: Callable[[], bool]) -> None:
        """After an error of ours: clear the memory of states, those that can be saved being saved first."""
        if self._chat is None:
            return
        try:
            self._chat.save(cancelled)
        except Exception:
            _log.exception("saving failed")
        self._chat.engine.pool.clear()


def explain(error: Exception) -> tuple[str, Failure]:
    """One sentence for the user, and what kind of failure it is."""
    if isinstance(error, UserError):
        return str(error), error.kind
    if isinstance(error, MemoryError) or "memory" in str(error).lower():
        return "There is not enough memory for this; a smaller model, file or context would fit.", "memory"
    return f"An unexpected error stopped this ({type(error).__name__}); the log has the details.", "internal"


def main() -> NoReturn:
    # A stray print anywhere, in C too, must not end up between the events.
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in the terminal is the chat's to interpret
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")

    inbox = Inbox(sys.stdin.buffer)
    inbox.start()
    try:
        Worker(inbox, lambda event: _write(events, encode(event))).run()
    finally:
        with suppress(OSError):  # whoever reads the log may have gone too
            sys.stderr.flush()
    # The reader thread may hold stdin's lock, and nothing here needs an orderly interpreter exit.
    os._exit(0)


def _write(events: BinaryIO, line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[events.write(view) :]


if __name__ == "__main__":
    main()
