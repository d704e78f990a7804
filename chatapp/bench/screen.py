"""The screen in this process: what one frame of a reply costs, and how long a long conversation takes to open."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TypeVar

from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

from chatapp.app import QwenChat
from chatapp.bench.program import NoMeasureError
from chatapp.blocks import ReplyBlock
from chatapp.local import LocalBackend
from chatapp.options import ChatOptions
from chatapp.settings import Settings
from chatapp.store import Store

T = TypeVar("T")

SIZE = (100, 30)
PIECE = 160
"""Characters of a frame: what 500 tokens a second bring in a twelfth of a second."""
CASES: dict[str, tuple[str, str, int]] = {
    "fence": ("```python\n", "    value = call(1, 'two')  # three, and so on\n", 30_000),
    "list": ("", "- an item with **bold words** and `code` in it\n", 3_000),
    "table": ("| one | two |\n|---|---|\n", "| a cell | another with `code` |\n", 4_000),
}
"""What it begins with, what it goes on with, and how long it gets."""
MESSAGES = 2_000
_ANSWER = (
    "An answer with **bold** words.\n\n```python\ndef f(x):\n    return x + 1\n```\n\n- one\n- two\n\nAnd its end.\n"
)


class Paper(HeadlessDriver):
    """A terminal that takes everything and shows nothing: all of the drawing is done."""

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        pass


class Screen:
    """The chat on paper."""

    def __init__(self, app: QwenChat, store: Store) -> None:
        self.app = app
        self.store = store
        self.drawn = asyncio.Event()
        app.post_display_hook = self._tell  # type: ignore[method-assign]

    def _tell(self) -> None:
        self.drawn.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for the drawing that makes something so."""
        while not condition():
            self.drawn.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.drawn.wait(), 0.02)

    async def frames(self, case: str, length: int | None = None) -> list[float]:
        """Seconds of work for each frame of a reply that grows."""
        start, unit, full = CASES[case]
        text = start + unit * ((length or full) // len(unit))
        reply = ReplyBlock()
        await self.app.chat.transcript.add(reply)
        times = []
        for at in range(0, len(text), PIECE):
            begun = time.thread_time()
            reply.feed("answer", text[at : at + PIECE], 40)
            self.drawn.clear()
            await reply.draw()
            await self.drawn.wait()
            times.append(time.thread_time() - begun)
        await reply.finish("stop")
        await reply.remove()
        return times

    def write_conversation(self, messages: int) -> str:
        """A stored conversation; its name."""
        conversation, parent = self.store.create(name="bench"), None
        with self.store.transaction():
            for number in range(messages):
                role, text = ("assistant", _ANSWER) if number % 2 else ("user", f"Question {number}?")
                parent = self.store.add(conversation.id, parent, role, f"{text} ({number})").id  # type: ignore[arg-type]
        return "bench"

    async def open(self, name: str, messages: int) -> tuple[float, float]:
        """Seconds until the end of a stored conversation is on the screen, and of these the processor's."""
        chat = self.app.chat
        await chat.new()
        await self.until(lambda: not any(entry.is_message for entry in chat.transcript.entries))
        begun, worked = time.perf_counter(), time.process_time()
        await chat.resume(name)
        await self.until(lambda: f"({messages - 1})" in self.text())
        return time.perf_counter() - begun, time.process_time() - worked

    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in strips)


async def on_paper(work: Callable[[Screen], Awaitable[T]]) -> T:
    """What comes of some work with the screen, while the chat runs on it. Raises NoMeasureError."""
    done: list[T] = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "conversations.db")
        app = QwenChat(LocalBackend(["false"]), store, Settings(), ChatOptions())
        app.driver_class = Paper

        async def pilot(_: Pilot[object]) -> None:
            try:
                await app.chat.opened.wait()
                if warming := [each for each in app.workers if each.node is app]:  # with none, it waits for all others
                    await app.workers.wait_for_complete(warming)
                done.append(await work(Screen(app, store)))
            finally:
                app.exit()

        thresholds = gc.get_threshold()
        try:
            await app.run_async(size=SIZE, auto_pilot=pilot)
        finally:  # the chat is not at home in this process
            gc.set_threshold(*thresholds)
            gc.unfreeze()
        store.close()
    if not done:
        raise NoMeasureError("The chat ended by itself.")
    return done[0]


def growth(times: list[float]) -> float:
    """How much more the last frames cost than the first ones."""
    quarter = max(len(times) // 4, 1)
    return median(times[-quarter:]) / median(times[:quarter])
