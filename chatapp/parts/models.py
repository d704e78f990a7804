"""Which model answers."""

from __future__ import annotations

import asyncio

from chatapp.parts.base import ChatBase
from chatapp.welcome import Welcome


class ModelsPart(ChatBase):
    """Implements `commands.models`."""

    async def open_model(self, path: str) -> None:
        await self.turns.stop()
        self._has_model = True
        for welcome in self.query(Welcome):
            welcome.model_opens()
        self.turns.open(path, chosen=True)

    def model_chosen(self, path: str) -> None:
        async def keep() -> None:
            await asyncio.to_thread(self._keep, {"model": path})

        self.run_worker(self._guard(keep), exit_on_error=False)
