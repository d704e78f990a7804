"""The chat on a screen in memory, and what a test asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend
from served import served
from textual import events
from textual.pilot import Pilot

from chatapp.app import QwenChat
from chatapp.options import ChatOptions
from chatapp.settings import Settings, Value
from chatapp.store import Node, Store

here = pytest.mark.here
"""Marks what needs no served model, or cannot have one, and names the reason; see `conftest.source`."""
over_http = False
PATIENCE = 10.0  # seconds until a condition that never comes fails the test


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Chat:
    """The running program."""

    def __init__(self, app: QwenChat, pilot: Pilot[None], backend: FakeBackend, store: Store) -> None:
        self.app = app
        self.pilot = pilot
        self.backend = backend
        self.store = store
        self.screen = app.chat

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the program run until something is so."""

        async def wait() -> None:
            while not condition():
                await self.pilot.pause()

        await asyncio.wait_for(wait(), PATIENCE)

    async def write(self, text: str) -> None:
        """Type into the composer."""
        await self.pilot.press(*("space" if character == " " else character for character in text))

    async def send(self, text: str) -> None:
        self.screen.composer.put(text)
        await self.pilot.press("enter")

    async def ask(self, text: str) -> None:
        """Send, and wait until all is answered."""
        await self.send(text)
        await self.idle()

    async def idle(self) -> None:
        """Nothing runs and nothing waits."""
        turns = self.screen.turns
        await self.until(lambda: not turns.waiting and not turns.generating and not turns.status.busy)
        await self.pilot.pause()

    def lines(self) -> list[str]:
        """What the screen shows, row by row."""
        compositor = self.app.screen._compositor
        return ["".join(segment.text for segment in strip).rstrip() for strip in compositor.render_strips()]

    def text(self) -> str:
        return "\n".join(self.lines())

    def words(self) -> str:
        """The text of the screen in one line, for sentences that are wrapped."""
        return " ".join(self.text().split())

    def status(self) -> str:
        return self.lines()[-1].strip()

    def thread(self) -> list[Node]:
        """The latest conversation as it is stored."""
        latest = self.store.latest()
        return self.store.thread(latest.id) if latest is not None else []


def paste(chat: Chat, text: str) -> None:
    """As a terminal brings it to the composer."""
    chat.screen.composer.post_message(events.Paste(text))


@asynccontextmanager
async def running(
    backend: FakeBackend,
    path: Path,
    options: ChatOptions | None = None,
    *,
    settings: Settings | None = None,
    size: tuple[int, int] = (100, 30),
    clock: Callable[[], float] | None = None,
    keep: Callable[[Mapping[str, Value]], object] = lambda changes: None,
) -> AsyncIterator[Chat]:
    """Without options: with a model, which is open at the first line of the test."""
    store = Store(path / "conversations.db")
    chosen = options if options is not None else ChatOptions(model=MODEL.path)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(served(backend)) if over_http else backend
        app = QwenChat(source, store, settings or Settings(), chosen, clock or Clock(), keep)
        pilot = await stack.enter_async_context(app.run_test(size=size))
        chat = Chat(app, pilot, backend, store)
        if options is None:
            await chat.until(lambda: backend.model is not None)
        await pilot.pause()
        yield chat
    store.close()
