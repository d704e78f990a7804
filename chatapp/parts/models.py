"""Which model answers."""

from __future__ import annotations

import asyncio

from chatapp.parts.base import ChatBase
from chatapp.paths import model_path
from chatapp.welcome import Welcome


class ModelsPart(ChatBase):
    """Implements `commands.models`."""

    async def open_model(self, path: str) -> None:
        await self.turns.stop()
        self._opened = path = model_path(path)
        for welcome in self.query(Welcome):
            welcome.model_opens(path)
        self.turns.open(path, chosen=True)

    def model_chosen(self, path: str) -> None:
        async def keep() -> None:
            await asyncio.to_thread(self._keep, {"model": path})

        self.run_worker(self._guard(keep), exit_on_error=False)
