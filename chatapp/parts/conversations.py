"""Which conversation is open."""

from __future__ import annotations

from chatapp.commands import CommandError
from chatapp.history import blocks_of, choices_of
from chatapp.parts.base import ChatBase
from chatapp.picker import Picker
from chatapp.sanitize import clean_line
from chatapp.store import StoreError
from chatapp.welcome import Welcome


class ConversationsPart(ChatBase):
    """Implements `commands.conversations`."""

    async def new(self) -> None:
        self.turns.withdraw()
        await self.turns.stop()
        await self._open(None)

    async def resume(self, key: str) -> None:
        try:
            if key:
                found = await self._session.find(key)
                chosen = found.id if found is not None else None
                if chosen is None:
                    raise CommandError(f"There is no saved conversation {clean_line(key, 60)!r}.")
            else:
                choices = choices_of(await self._session.conversations())
                if not choices:
                    raise CommandError("There are no saved conversations yet.")
                chosen = await self.app.push_screen_wait(Picker("Conversations", choices))
        except StoreError as error:
            raise CommandError(str(error)) from error
        if chosen is not None:
            self.turns.withdraw()
            await self.turns.stop()
            await self._open(chosen)

    async def _open(self, conversation_id: str | None) -> None:
        """Show a saved conversation, or a new one."""
        self._session.new()
        if conversation_id is not None:
            try:
                if not await self._session.open(conversation_id):
                    self.say("That conversation is gone: this is a new one.", "warning")
            except StoreError as error:
                self.say(str(error), "error")
        blocks = blocks_of(self._session.thread)
        await self.transcript.show(blocks or [Welcome(self._opened)])
        self.composer.forget()
        for node in self._session.thread:
            if node.role == "user":
                self.composer.remember(node.content)
        self.turns.reset()
