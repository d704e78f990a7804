"""The program as a terminal has it: from its start to its first paint, and from a key to the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

COLUMNS, ROWS = 100, 30
PATIENCE = 30.0
"""Seconds without what is waited for, after which there is no measure."""
BETWEEN_KEYS = 0.07
KEYS = [chr(code) for code in range(0x100, 0x17F) if chr(code).isalpha()]
"""Letters that nothing else on the screen has."""


PLACEHOLDER = "essage…"
"""What the empty composer shows, but for the letter that the cursor is on."""


class NoMeasureError(Exception):
    """The program did not do what is measured; the message is a sentence."""


class Terminal:
    """The other end of a program's terminal."""

    def __init__(self, file: int, process: int) -> None:
        self.process = process
        self._file = file

    def send(self, text: str) -> None:
        os.write(self._file, text.encode())

    def until(self, wanted: str) -> float:
        """The time at which the program has written this."""
        mark, seen, end = wanted.encode(), b"", time.perf_counter() + PATIENCE
        while time.perf_counter() < end:
            seen = seen[-len(mark) :] + self._read(0.05)
            if mark in seen:
                return time.perf_counter()
        raise NoMeasureError(f"The program showed no {wanted!r} in {PATIENCE:.0f} s.")

    def drain(self, seconds: float) -> None:
        """Read for so long."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self._read(left)

    def _read(self, seconds: float) -> bytes:
        if not select.select([self._file], [], [], seconds)[0]:
            return b""
        try:
            return os.read(self._file, 65_536)
        except OSError as error:
            raise NoMeasureError("The program has ended.") from error


@contextmanager
def started(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """`qwenchat` in a terminal and a home of its own, ended with all that it has started."""
    with tempfile.TemporaryDirectory() as home:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("QWENCHAT_")}
        variables |= {"QWENCHAT_HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program is compiled
        child, file = pty.fork()
        if child == 0:
            os.execve(sys.executable, [sys.executable, "-m", "chatapp", *words], variables | dict(environment or {}))
        try:
            fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            yield Terminal(file, child)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(file)


def first_paint() -> tuple[float, float | None]:
    """Seconds from the start of the program to the composer on the screen, and of these the processor's.

    The latter are known on Linux only, to a hundredth; they leave out what other programs took of the machine.
    """
    begun = time.perf_counter()
    with started([]) as terminal:
        seconds = terminal.until(PLACEHOLDER) - begun
        return seconds, _processor_seconds(terminal.process)


def _processor_seconds(process: int) -> float | None:
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, in ticks


def key_times(keys: int) -> list[float]:
    """Seconds from each key to the screen while a reply streams."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as model:
        worker = {"QWENCHAT_WORKER": f"{sys.executable} -m chatapp.bench.worker"}
        with started([str(Path(model.name))], worker) as terminal:
            terminal.until("ready")
            terminal.send("go\r")
            terminal.until("tok/s")
            times = []
            for key in KEYS[:keys]:
                terminal.drain(BETWEEN_KEYS)
                sent = time.perf_counter()
                terminal.send(key)
                times.append(terminal.until(key) - sent)
            return times
