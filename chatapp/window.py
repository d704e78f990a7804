"""This window among others on the same conversations: its name, and its right to write in one of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from chatapp import unsent
from chatapp.claim import Claim
from chatapp.store import Store

POLL_SECONDS = 0.2
"""Between two looks whether another window has ended its reply."""


class Window:
    """Nobody else writes in a conversation from `begin` or `take` to `release`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = uuid.uuid4().hex
        self._alive: Claim | None = None
        self._writing: Claim | None = None

    @property
    def key(self) -> str:
        """This window's name, under which nobody takes what it keeps for left behind."""
        if self._alive is None:
            self._alive = self._store.claim(unsent.WINDOW + self._key)
        return self._key

    @property
    def writing(self) -> bool:
        return self._writing is not None

    async def begin(self, conversation_id: str, waits: Callable[[], None], gives_up: Callable[[], bool]) -> bool:
        """Wait for the right to write, which `waits` is told once; False if it then `gives_up`."""
        tries = 0
        while self._writing is None:
            self._writing = await asyncio.to_thread(self._store.claim, conversation_id)
            if self._writing is None:
                if gives_up():
                    return False
                tries += 1
                if tries == 2:  # at the first somebody may just have looked
                    waits()
                await asyncio.sleep(POLL_SECONDS)
        return True

    def take(self, conversation_id: str) -> None:
        """The right to write in a conversation that nobody else knows of yet."""
        self._writing = self._writing or self._store.claim(conversation_id)

    def release(self) -> None:
        if self._writing is not None:
            self._writing.release()
            self._writing = None

    def close(self) -> None:
        """It ends: what it keeps is for the next one."""
        self.release()
        if self._alive is not None:
            self._alive.release()
            self._alive = None
