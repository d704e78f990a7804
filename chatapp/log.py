"""The log of the worker: what it writes to stderr, and traces that the user is spared."""

from __future__ import annotations

import time
from pathlib import Path


class Log:
    """A text file that does not grow without end: full, it is kept as `NAME.1`, and a new one begins.

    A log that cannot be written is silent: the chat goes on without it.
    """

    def __init__(self, path: Path | None, limit: int = 1_000_000) -> None:
        """`limit` in bytes; without a path nothing is kept."""
        self._path = path
        self._limit = limit

    def note(self, sentence: str) -> None:
        """Append a line of our own, with its time."""
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} chat: {sentence}")

    def write(self, text: str) -> None:
        """Append `text` as one or more lines."""
        if self._path is None or not text.strip():
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size > self._limit:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(text.rstrip("\n") + "\n")
        except OSError:
            self._path = None
