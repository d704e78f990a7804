"""The local backend over a scripted worker, which is a real child process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from chatapp.local import LocalBackend
from runtime.protocol import (
    Delta,
    Event,
    Generate,
    Message,
)

FAKE = str(Path(__file__).parents[1] / "fake_worker.py")
SECONDS = 20  # after which a test has hung


class Heard:
    """What the listener of a backend has heard."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, kind: type[Event], count: int = 1) -> Event:
        """The event that makes it `count` of this kind."""
        async with asyncio.timeout(SECONDS):
            while len(found := [event for event in self.events if isinstance(event, kind)]) < count:
                self._changed.clear()
                await self._changed.wait()
        return found[count - 1]


class Workers:
    """Makes backends of a script; `close` closes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[LocalBackend] = []

    def __call__(self, patience: float = SECONDS, snapshots: Path | None = None, **script: Any) -> LocalBackend:
        command = (sys.executable, FAKE, json.dumps({"record": str(self._folder / "received"), **script}))
        self._made.append(LocalBackend(command, self._folder / "log" / "worker.log", patience, snapshots))
        return self._made[-1]

    async def close(self) -> None:
        for one in self._made:
            await one.close()


async def everything(events: AsyncIterator[Event]) -> list[Event]:
    async with asyncio.timeout(SECONDS):
        return [event async for event in events]


def ask(text: str = "hi", request_id: str = "r1", **choices: Any) -> Generate:
    return Generate(request_id, "c1", (Message("user", text),), **choices)


def answer(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.channel == "answer")


def received(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "received").read_text("utf-8").splitlines()]


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]
