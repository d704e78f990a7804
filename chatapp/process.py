"""The worker as a child process: lines in, lines out, its stderr in the log, and a certain end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Self, cast

from chatapp.log import Log
from runtime.quick_dataclass import dataclass

_MAX_LINE = 64 << 20  # bytes of a line without an end, after which it is no message
_GRACE = 0.5  # seconds for the last output of a process that has ended
_SILENT = 2.0  # seconds to end after closing its stdout
PATIENCE = (2.0, 1.0, 5.0)  # seconds to end after EOF, SIGTERM, SIGKILL


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: the exit code, −n for signal n, None if unknown; and its last line on stderr."""

    code: int | None
    last_line: str

    def sentence(self) -> str:
        """For the user."""
        if self.code == -signal.SIGKILL:
            return "The engine was killed from outside, perhaps because the machine was short of memory."
        if self.code is not None and self.code < 0:
            with suppress(ValueError):
                return f"The engine crashed ({signal.Signals(-self.code).name})."
        if self.code:
            return f"The engine stopped: {self.last_line.rstrip('.') or f'exit code {self.code}'}."
        return "The engine stopped unexpectedly."


class WorkerProcess(asyncio.SubprocessProtocol):
    """Made by `start`. `exit` is done once it has ended and all its lines have been delivered."""

    def __init__(self, on_line: Callable[[bytes], None], log: Log) -> None:
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._on_line = on_line
        self._log = log
        self._buffers = {1: bytearray(), 2: bytearray()}
        self._last_line = ""

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[bytes], None], log: Log
    ) -> Self:
        """In a session of its own, so that Ctrl+C in the terminal does not reach it. Raises OSError."""
        _, worker = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(on_line, log), *command, env=environment, start_new_session=True
        )
        return worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def send(self, line: bytes) -> None:
        """Never waits: what the worker has not read yet is kept here. Lost if the worker is gone."""
        stdin = cast(asyncio.WriteTransport | None, self._transport.get_pipe_transport(0))
        if stdin is not None and not stdin.is_closing():
            stdin.write(line)

    def kill(self) -> None:
        """At once, with whatever it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)

    async def stop(self) -> None:
        """Close its stdin, at which it ends, and use force if it does not."""
        if stdin := self._transport.get_pipe_transport(0):
            stdin.close()
        forces: tuple[Callable[[], None], ...] = (self._terminate, self.kill)
        for patience, force in zip_longest(PATIENCE, forces):
            await asyncio.wait([self.exit], timeout=patience)
            if self.exit.done():
                break
            if force is not None:
                force()
        self._transport.close()

    def _terminate(self) -> None:
        with suppress(ProcessLookupError):
            self._transport.terminate()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        buffer = self._buffers[fd]
        buffer += data
        if b"\n" in data:
            *lines, rest = buffer.split(b"\n")
            self._buffers[fd] = rest
            self._take(fd, lines)
        elif len(buffer) > _MAX_LINE:
            buffer.clear()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd in self._buffers:
            self._take(fd, [self._buffers[fd]])
            self._buffers[fd] = bytearray()
        if fd == 1:  # deaf without its stdout, if it lives
            asyncio.get_running_loop().call_later(_SILENT, self._end_silent)

    def process_exited(self) -> None:
        # Something it has started may hold its pipes open for ever.
        asyncio.get_running_loop().call_later(_GRACE, self._conclude)

    def connection_lost(self, exc: Exception | None) -> None:
        self._conclude()

    def _take(self, fd: int, lines: Sequence[bytearray]) -> None:
        if fd == 1:
            for line in lines:
                if line:
                    self._on_line(bytes(line))
            return
        text = "\n".join(line.decode("utf-8", "replace") for line in lines)
        self._log.write(text)
        self._last_line = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), self._last_line)

    def _end_silent(self) -> None:
        if not self.exit.done():
            self.kill()

    def _conclude(self) -> None:
        if not self.exit.done():
            self._transport.close()
            self.kill()  # what it has started ends with it
            self.exit.set_result(Exit(self._transport.get_returncode(), self._last_line[:200]))
