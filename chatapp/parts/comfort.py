"""How the chat looks, and leaving it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

from textual.binding import Binding, BindingType

from chatapp.commands import COMMANDS, CommandError
from chatapp.parts.base import ChatBase
from chatapp.picker import Choice, Picker
from chatapp.sanitize import clean_line

LEAVE_SECONDS = 3.0
"""How long leaving waits for a reply to stop."""


class ComfortPart(ChatBase):
    """Implements `commands.comfort`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+p", "palette", "All commands in a list", id="chat.palette", priority=True, show=False),
    ]

    def action_palette(self) -> None:
        self.run_worker(self._palette(), group="palette", exclusive=True, exit_on_error=False)

    async def _palette(self) -> None:
        """Every command; one that needs more is written into the composer, to be gone on with."""
        choices = [Choice(name, known.usage, known.help) for name, known in COMMANDS.items()]
        name = await self.app.push_screen_wait(Picker("Commands", choices))
        if name not in COMMANDS:  # nothing was chosen
            return
        if COMMANDS[name].alone:
            self._run_named(name)
        else:
            self.composer.put(f"/{name} ")
            self.composer.focus()

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
        await self._keeper.flush()
        self.turns.withdraw()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.turns.stop(), LEAVE_SECONDS)
        await self._session.save_late()
        self._session.close()
        self.app.exit()
