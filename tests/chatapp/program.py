"""The real program as a child process, with the scripted worker behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from chatapp.store import Node, Store

FAKE = str(Path(__file__).parents[1] / "fake_worker.py")
SECONDS = 20  # after which a test has hung

Result = subprocess.CompletedProcess[str]


class Program:
    """`qwenchat` with a home of its own; `script` is what the engine plays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script: dict[str, Any] = {}
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("QWENCHAT_")},
            "QWENCHAT_HOME": str(folder / "home"),
            "QWENCHAT_WORKER": f"{sys.executable} {FAKE} {folder / 'script.json'}",
        }
        (folder / "q.gguf").touch()

    def replies(self, *steps: dict[str, Any]) -> None:
        self.script = {"replies": [list(steps)]}

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[Any]:
        """The model is given unless a word names one."""
        script = {"record": str(self.folder / "received"), **self.script}
        (self.folder / "script.json").write_text(json.dumps(script))
        return subprocess.Popen(
            [sys.executable, "-m", "chatapp", *words],
            cwd=self.folder,
            env={"QWENCHAT_MODEL": str(self.folder / "q.gguf"), **self.environment},
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            | streams,
        )

    def __call__(self, *words: str, text: str | None = None) -> Result:
        process = self.start(*words, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE)
        out, err = process.communicate(text, timeout=SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def request(self) -> dict[str, Any]:
        """The last Generate that the engine received."""
        return self._received("Generate")

    def load(self) -> dict[str, Any]:
        """The last Load that the engine received."""
        return self._received("Load")

    def prompt(self) -> str:
        return str(self.request()["messages"][-1]["content"])

    def _received(self, kind: str) -> dict[str, Any]:
        lines: list[dict[str, Any]] = [json.loads(line) for line in (self.folder / "received").read_text().splitlines()]
        return [line for line in lines if line["type"] == kind][-1]

    def thread(self, name: str) -> list[Node]:
        with closing(Store(self.folder / "home" / "conversations.db")) as store:
            conversation = store.by_name(name)
            assert conversation is not None
            return store.thread(conversation.id)


def wait_for(condition: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Something another process does, which tells nobody."""
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (FileNotFoundError, AssertionError):
            pass
        assert time.monotonic() < end
        time.sleep(0.02)
