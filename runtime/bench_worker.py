"""A worker process for benchmarks, driven as the chat drives it."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import TypeVar

from runtime.protocol import (
    CacheReport,
    Command,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    Message,
    ModelInfo,
    Ready,
    Settled,
    Stats,
    decode_event,
    encode,
)

E = TypeVar("E", Ready, Finished, Settled, CacheReport)


class WorkerError(Exception):
    """The worker failed; its own sentence."""


class BenchWorker:
    """A context manager; leaving it lets the worker end as it does when the user quits."""

    def __init__(self, load: Load) -> None:
        """Raises WorkerError if the model cannot be loaded."""
        self._texts: dict[str, str] = {}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "runtime.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.model: ModelInfo = self._ask(load, Ready).model
        except BaseException:
            self.kill()
            raise

    def turn(self, command: Generate) -> tuple[Stats, Message]:
        """One turn, to the moment when it has settled: its figures and the reply."""
        self._texts = {"thinking": "", "answer": ""}
        stats = self._ask(command, Finished).stats
        self._until(Settled)
        return stats, Message("assistant", self._texts["answer"], self._texts["thinking"])

    def kill(self) -> None:
        self._child.kill()
        self._end()

    def _ask(self, command: Command, kind: type[E]) -> E:
        assert self._child.stdin
        self._child.stdin.write(encode(command))
        self._child.stdin.flush()
        return self._until(kind)

    def _until(self, kind: type[E]) -> E:
        assert self._child.stdout
        for line in self._child.stdout:
            event: Event = decode_event(line)
            if isinstance(event, Failed):
                raise WorkerError(event.message)
            if isinstance(event, Delta):
                self._texts[event.channel] += event.text
            if isinstance(event, kind):
                return event
        raise WorkerError("The worker ended unexpectedly.")

    def _end(self) -> None:
        self._child.communicate()

    def __enter__(self) -> BenchWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
