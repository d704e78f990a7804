"""Which conversation is open."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on

from chatapp.commands import CommandError
from chatapp.composer import Composer
from chatapp.figures import plural
from chatapp.history import blocks_of, choices_of
from chatapp.parts.base import ChatBase
from chatapp.picker import Picker
from chatapp.sanitize import clean_line
from chatapp.store import Node, StoreError, source_of
from chatapp.turns import ASIDE
from chatapp.unsent import Unsent
from chatapp.welcome import Welcome

LOOK_SECONDS = 1.0
"""Between two looks at what other windows write."""


class ConversationsPart(ChatBase):
    """Implements `commands.conversations`."""

    def on_mount(self) -> None:
        self.set_interval(LOOK_SECONDS, self._look)

    @on(Composer.Changed)
    def _draft_changed(self) -> None:
        self._keeper.changed()

    async def new(self) -> None:
        await self._leave_conversation()
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
            await self._leave_conversation()
            await self._open(chosen)

    async def _leave_conversation(self) -> None:
        """What is written and not sent stays with it, and what is being replied is stopped."""
        await self._keeper.flush()
        self.composer.put("")
        self.turns.withdraw()
        await self.turns.stop()
        await self._session.leave()

    async def _open(self, conversation_id: str | None) -> None:
        """Show a saved conversation, or a new one."""
        self._session.new()
        unsent = Unsent()
        if conversation_id is not None:
            try:
                if not await self._session.open(conversation_id):
                    self.say("That conversation is gone: this is a new one.", "warning")
                unsent = await self._keeper.restore()
            except StoreError as error:
                self.say(str(error), "error")
        blocks = blocks_of(self._session.thread)
        await self.transcript.show(blocks or [Welcome(self._opened)])
        self.composer.forget()
        for node in self._session.thread:
            if node.role == "user":
                self.composer.remember(node.content)
        self.turns.reset()
        self.go_back_to(source_of(self._session.thread))
        if unsent.draft:  # above what was typed while the conversation opened
            self.composer.put("\n".join(text for text in (unsent.draft, self.composer.text) if text))
        if unsent.queue:
            self.turns.hold(unsent.queue)
        self._keeper.resume()

    async def _look(self) -> None:
        """Show what another window has written here."""
        if self.turns.generating or self._commands.locked():
            return

        async def look() -> None:
            news, aside = await self._session.look()
            self.show_news(news)
            if aside:
                self.say(ASIDE)

        async with self._commands:
            await self._guard(look)

    def show_news(self, news: Sequence[Node]) -> None:
        """What other windows have written in this conversation."""
        if not news:
            return
        for welcome in self.query(Welcome):
            welcome.remove()
        self.say(f"Another window has added {plural(len(news), 'message')}.")
        for block, node in zip(blocks_of(news), news, strict=True):
            self._add(block)
            if node.role == "user":
                self.composer.remember(node.content)
