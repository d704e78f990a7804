"""Keeps what is written and not sent in the store, so that no end of the chat loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chatapp.session import Session
from chatapp.store import StoreError
from chatapp.unsent import Unsent

KEEP_SECONDS = 0.3
"""The least time between two writes while the user types."""


class Keeper:
    """`changed` is told of each change; the first is written at once, those that follow soon after."""

    def __init__(self, session: Session, now: Callable[[], Unsent], failed: Callable[[StoreError], None]) -> None:
        """`now` tells what there is; `failed` hears of a store that cannot be written, once until it can."""
        self._session = session
        self._now = now
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._dirty = False
        self._paused = False
        self._told = False

    def changed(self) -> None:
        if self._paused:
            return
        self._dirty = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def flush(self) -> None:
        """Write what there is now; until `resume`, changes are not the user's and are not written.

        Raises StoreError, after which everything is as before.
        """
        if not self._paused:
            await self._session.keep(self._now())
        self._paused = True
        self._dirty = False

    async def restore(self) -> Unsent:
        """What was kept of the conversation that is now open; `resume` when it is shown. Raises StoreError."""
        return await self._session.unsent()

    def resume(self) -> None:
        """What changes from here on is the user's."""
        self._paused = False

    async def _run(self) -> None:
        while self._dirty and not self._paused:
            self._dirty = False
            await self._write()
            await asyncio.sleep(KEEP_SECONDS)

    async def _write(self) -> None:
        if self._paused:
            return
        try:
            await self._session.keep(self._now())
            self._told = False
        except StoreError as error:
            if not self._told:
                self._failed(error)
            self._told = True
