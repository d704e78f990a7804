"""Engines of this machine, one after the other: a new one loads while the old one answers, if memory allows."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path

from chatapp.backend import Backend
from chatapp.remote.address import label
from runtime.protocol import CacheReport, Event, Failed, Generate, Load, LoadProgress, ModelInfo, Notice, Ready

_BESIDE = 1_500_000_000  # bytes that an engine takes besides its weights, as a rule
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


class Switching:
    """Implements `chatapp.backend.Backend` over engines that `make` makes.

    Where memory does not suffice for two models, the old one goes before the new one comes. If a load fails, the model
    that was open answers again.
    """

    def __init__(self, make: Callable[[], Backend], room: Callable[[str], bool] | None = None) -> None:
        """`room`: whether a file fits into memory beside what is there."""
        self._make = make
        self._room = room or has_room
        self._listeners: list[Callable[[Event], None]] = []
        self._opened: Load | None = None  # what the engine that answers was opened with
        self._running: Counter[Backend] = Counter()  # requests of each engine
        self._ended = asyncio.Event()  # a request, of whatever engine
        self._leaving: set[asyncio.Task[None]] = set()
        self._engine = self._new()
        self._coming: Backend | None = None

    @property
    def model(self) -> ModelInfo | None:
        return self._engine.model

    def beside(self, command: Load) -> bool:
        opened = self._opened
        return (
            self.model is not None and opened is not None and opened.path != command.path and self._room(command.path)
        )

    def on_event(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    async def load(self, command: Load) -> AsyncGenerator[Event, None]:
        if self.beside(command):
            async for event in self._load_beside(command):
                yield event
            return
        before = self._opened if self.model is not None else None
        async for event in self._engine.load(command):
            if isinstance(event, Ready):
                self._opened = command
            if isinstance(event, Failed) and not event.model_kept:
                self._opened = None
                if before is not None:
                    yield Notice(f"{label(before.path)} is being opened again.")
                    async for step in self._bring_back(before, event):
                        yield step
                    return
            yield event

    async def _bring_back(self, before: Load, failed: Failed) -> AsyncGenerator[Event, None]:
        async for event in self._engine.load(before):
            if isinstance(event, LoadProgress | Notice):
                yield event
            elif isinstance(event, Ready):
                self._opened = before
                yield Failed(failed.message, failed.kind, failed.detail, model_kept=True)
            else:
                yield failed

    async def _load_beside(self, command: Load) -> AsyncGenerator[Event, None]:
        old, new = self._engine, self._new()
        self._coming = new
        ready = False
        try:
            async for event in new.load(command):
                if isinstance(event, Ready):
                    ready = True
                    self._engine, self._opened, self._coming = new, command, None
                    self._leave(old)
                if isinstance(event, Failed):
                    event = Failed(event.message, event.kind, event.detail, model_kept=old.model is not None)
                yield event
        finally:
            self._coming = None
            if not ready:
                self._leave(new)

    async def generate(self, command: Generate) -> AsyncGenerator[Event, None]:
        engine = self._engine
        self._running[engine] += 1
        try:
            async for event in engine.generate(command):
                yield event
        finally:
            self._running[engine] -= 1
            self._ended.set()

    async def cancel(self, request_id: str) -> None:
        for engine in list(self._running):
            await engine.cancel(request_id)

    async def answer_now(self, request_id: str) -> bool:
        return any([await engine.answer_now(request_id) for engine, number in list(self._running.items()) if number])

    async def cache(self) -> CacheReport | Failed | None:
        return await self._engine.cache()

    async def drop_cache(self, conversation_id: str | None) -> CacheReport | Failed | None:
        return await self._engine.drop_cache(conversation_id)

    async def close(self) -> None:
        for task in list(self._leaving):
            task.cancel()
        engines = [engine for engine in (self._engine, self._coming, *self._running) if engine is not None]
        await asyncio.gather(
            *(engine.close() for engine in dict.fromkeys(engines)), *self._leaving, return_exceptions=True
        )

    def _new(self) -> Backend:
        engine = self._make()
        engine.on_event(lambda event: self._heard(engine, event))
        return engine

    def _heard(self, engine: Backend, event: Event) -> None:
        """Only the engine that answers has something to say."""
        if engine is self._engine:
            for listener in self._listeners:
                listener(event)

    def _leave(self, engine: Backend) -> None:
        """Close an engine once its reply has ended."""

        async def leave() -> None:
            try:
                while self._running[engine]:
                    self._ended.clear()
                    await self._ended.wait()
            finally:
                await engine.close()
                del self._running[engine]

        task = asyncio.create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def has_room(path: str) -> bool:
    """Whether the weights of a file fit into the memory that is free; no where that is not known."""
    file = Path(path)
    parts = [file]
    if _PART.search(file.name):
        parts = list(file.parent.glob(_PART.sub("-*-of-*.gguf", file.name)))
    with suppress(OSError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) << 10
        return sum(part.stat().st_size for part in parts) * 1.05 + _BESIDE < available
    return False


_IMPLEMENTS: Callable[[Callable[[], Backend]], Backend] = Switching
