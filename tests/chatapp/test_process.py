"""The worker as a process: what else it starts, whose signals it hears, and that it never outlives the chat."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatapp.local import WORKER, LocalBackend
from chatapp.process import Exit
from runtime.protocol import Failed, Load

SECONDS = 20  # after which a test has hung


class Lifeline:
    """A pipe that processes hold open as long as they live; `hold` is the Python code that makes one do so."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.hold = f"import os, sys, time; line = os.open({str(path)!r}, os.O_WRONLY); os.write(line, b'x')"

    def begun(self) -> bool:
        return self._read() == b"x"

    def ended(self) -> bool:
        """Whether every process that held it has ended."""
        while rest := self._read():
            assert rest == b"x"
        return rest == b""

    def _read(self) -> bytes | None:
        return os.read(self._reader, 1) if select.select([self._reader], [], [], SECONDS)[0] else None

    def close(self) -> None:
        os.close(self._reader)


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[Lifeline]:
    with contextlib.closing(Lifeline(tmp_path / "lifeline")) as one:
        yield one


@pytest.mark.parametrize(
    ("code", "last_line", "sentence"),
    [
        (
            1,
            "ModuleNotFoundError: No module named 'torch'",
            "The engine stopped: ModuleNotFoundError: No module named 'torch'.",
        ),
        (3, "", "The engine stopped: exit code 3."),
        (-11, "Segmentation fault", "The engine crashed (SIGSEGV)."),
        (-200, "", "The engine stopped: exit code -200."),
        (None, "x", "The engine stopped unexpectedly."),
    ],
)
def test_an_end_is_explained(code: int | None, last_line: str, sentence: str) -> None:
    assert Exit(code, last_line).sentence() == sentence


async def test_a_helper_of_the_worker_that_keeps_its_pipes_open_delays_nothing_and_ends(lifeline: Lifeline) -> None:
    code = f"{lifeline.hold}\nif os.fork() == 0: time.sleep(60)\nsys.stdin.readline(); os._exit(4)"
    one = LocalBackend((sys.executable, "-c", code))
    [event] = [event async for event in one.load(Load("/m/q.gguf"))]
    assert event == Failed("The engine stopped: exit code 4.", "worker")
    assert lifeline.ended()
    await one.close()


def test_the_worker_ends_when_the_chat_is_killed(lifeline: Lifeline) -> None:
    """Its stdin closes with the chat's end, however that came."""
    chat = (
        "import asyncio, sys\n"
        "from chatapp.local import LocalBackend\n"
        "from runtime.protocol import Load\n"
        "async def main():\n"
        f"    async for event in LocalBackend((sys.executable, '-c', {lifeline.hold + '; sys.stdin.read()'!r}))"
        ".load(Load('x')): pass\n"
        "asyncio.run(main())\n"
    )
    window = subprocess.Popen((sys.executable, "-c", chat))
    assert lifeline.begun()
    window.kill()
    window.wait()
    assert lifeline.ended(), "the worker outlived the chat"


def test_the_worker_is_ours_whatever_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    command = (*WORKER[: WORKER.index("-m")], "-c", "import runtime.protocol; print(runtime.protocol.__file__)")
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not found.stdout.startswith(str(tmp_path))


async def test_ctrl_c_in_the_terminal_does_not_reach_the_worker(tmp_path: Path) -> None:
    out = tmp_path / "session"
    code = f"import os, sys; open({str(out)!r}, 'w').write(str(os.getsid(0))); sys.exit(1)"
    one = LocalBackend((sys.executable, "-c", code))
    [_] = [event async for event in one.load(Load("/m/q.gguf"))]
    await one.close()
    assert int(out.read_text()) != os.getsid(0)
