"""Both places where models live, as one backend: this machine and servers. The last model opened answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

from chatapp.backend import Backend
from chatapp.remote.address import is_address
from runtime.protocol import CacheReport, Event, Failed, Generate, Load, ModelInfo, Ready


class Backends:
    """Implements `chatapp.backend.Backend`: a `Load` of an address connects to its server, of a path opens the file.

    A model of this machine stays open while a server answers, so that coming back to it takes no time.
    """

    def __init__(self, local: Backend, remote: Callable[[], Backend]) -> None:
        """`remote` is called when a server is first asked for."""
        self._local = local
        self._make_remote = remote
        self._remote: Backend | None = None
        self._active = local
        self._opened: Load | None = None  # on this machine
        self._listeners: list[Callable[[Event], None]] = []
        local.on_event(self._heard)

    @property
    def model(self) -> ModelInfo | None:
        return self._active.model

    def on_event(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    async def load(self, command: Load) -> AsyncGenerator[Event, None]:
        served = is_address(command.path)
        if served and self._remote is None:
            self._remote = self._make_remote()
        target = self._remote if served and self._remote is not None else self._local
        if target is self._local and target is not self._active and command == self._opened and target.model:
            self._active = target
            yield Ready(target.model)
            return
        async for event in target.load(command):
            if isinstance(event, Ready):
                self._active = target
                self._opened = self._opened if served else command
            yield event

    def beside(self, command: Load) -> bool:
        return not is_address(command.path) and self._active is self._local and self._local.beside(command)

    def generate(self, command: Generate) -> AsyncIterator[Event]:
        return self._active.generate(command)

    async def cancel(self, request_id: str) -> None:
        await self._active.cancel(request_id)

    async def answer_now(self, request_id: str) -> bool:
        return await self._active.answer_now(request_id)

    async def cache(self) -> CacheReport | Failed | None:
        return await self._active.cache()

    async def drop_cache(self, conversation_id: str | None) -> CacheReport | Failed | None:
        """What this machine keeps is dropped whoever answers now."""
        return await self._local.drop_cache(conversation_id)

    async def close(self) -> None:
        if self._remote is not None:
            await self._remote.close()
        await self._local.close()

    def _heard(self, event: Event) -> None:
        """The engine's restarts; nobody waits for it while a server answers."""
        if self._active is self._local:
            for listener in self._listeners:
                listener(event)
