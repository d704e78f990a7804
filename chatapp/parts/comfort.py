"""How the chat looks, and leaving it."""

from __future__ import annotations

import asyncio
import contextlib

from chatapp.commands import CommandError
from chatapp.parts.base import ChatBase
from chatapp.picker import Choice, Picker
from chatapp.sanitize import clean_line

LEAVE_SECONDS = 3.0
"""How long leaving waits for a reply to stop."""


class ComfortPart(ChatBase):
    """Implements `commands.comfort`."""

    async def set_theme(self, name: str) -> None:
        names = sorted(self.app.available_themes)
        if not name:
            choices = [Choice(each, each, "in use" if each == self.app.theme else "") for each in names]
            name = await self.app.push_screen_wait(Picker("Themes", choices)) or self.app.theme
        if name not in names:
            raise CommandError(f"There is no theme {clean_line(name, 40)!r}. /theme shows those there are.")
        self.app.theme = name

    def quit(self) -> None:
        self.run_worker(self._leave(), exit_on_error=False)

    async def _leave(self) -> None:
        """What is being written is kept as far as it has come."""
        self.turns.withdraw()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.turns.stop(), LEAVE_SECONDS)
        self.app.exit()
