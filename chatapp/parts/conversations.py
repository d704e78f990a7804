"""Which conversation is open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from textual import on

from chatapp.branch import News
from chatapp.commands import CommandError
from chatapp.composer import Composer
from chatapp.figures import plural
from chatapp.parts.sidebar import SidebarPart
from chatapp.parts.versions import VersionsPart
from chatapp.sanitize import clean_line
from chatapp.store import StoreError
from chatapp.thread import source_of
from chatapp.unsent import Unsent
from chatapp.welcome import Welcome
from runtime.protocol import Failed

if TYPE_CHECKING:
    from chatapp.sidebar import Sidebar
    from chatapp.titles import Titler

KEPT_SECONDS = 7 * 86_400.0
"""How long what was deleted can be brought back."""
LOOK_SECONDS = 1.0
"""Between two looks at what other windows write."""


class ConversationsPart(VersionsPart, SidebarPart):
    """Implements `commands.conversations`."""

    @cached_property
    def _titler(self) -> Titler:
        from chatapp.titles import Titler

        return Titler(self._backend)

    def on_mount(self) -> None:
        self._titled: set[str] = set()  # conversations that the model was asked about
        self._was_generating = False
        self.set_interval(LOOK_SECONDS, self._look)

    async def _purge(self) -> None:
        """What was deleted a week ago is gone for good, its states too.

        They first: without its id nobody finds them. What fails is tried again when the chat starts the next time.
        """
        expired = await asyncio.to_thread(self._store.expired, KEPT_SECONDS)
        for key in expired:
            if isinstance(await self._backend.drop_cache(key), Failed):
                return
        await asyncio.to_thread(self._store.purge, KEPT_SECONDS, expired)

    def turns_changed(self) -> None:
        super().turns_changed()
        generating = self.turns.generating
        if self.is_mounted and self._was_generating and not generating:
            self.refresh_sidebar()
            self._ask_for_title()
        self._was_generating = generating

    def _ask_for_title(self) -> None:
        """The model names a conversation once, after its first answer."""
        open_, thread = self._session.conversation, self._session.thread
        if open_ is None or open_.id in self._titled or not self._options.auto_titles or self.turns.waiting:
            return
        if not thread or thread[-1].role != "assistant" or thread[-1].status != "complete":
            return

        def named(title: str) -> None:
            self._titled.add(open_.id)
            self.run_worker(self._guard(lambda: self._give_title(open_.id, title)), group="list", exit_on_error=False)

        self._titler.begin(open_.id, thread, named)

    async def _give_title(self, key: str, title: str) -> None:
        def write() -> None:
            found = self._store.get(key)
            if found is not None and not found.titled and found.name is None:
                self._store.rename(key, title, "model")

        await asyncio.to_thread(write)
        self.refresh_sidebar()

    async def make_way(self) -> None:
        await self._titler.stop()

    @on(Composer.Changed)
    def _draft_changed(self) -> None:
        self._keeper.changed()

    async def new(self) -> None:
        await self.switch_to(None)

    async def switch_to(self, conversation_id: str | None, at: int | None = None) -> None:
        """Put this conversation away and show another, or with None a new one; `at`: this message in sight."""
        self.end_list_search()
        await self._leave_conversation()
        await self._open(conversation_id, at)

    async def put_away(self) -> None:
        """Show a new conversation in place of this one."""
        await self._leave_conversation()
        await self._open(None)

    async def resume(self, key: str) -> None:
        if not key:
            await self.show_sidebar()
            return
        try:
            found = await self._session.find(key)
        except StoreError as error:
            raise CommandError(str(error)) from error
        if found is None:
            raise CommandError(f"There is no saved conversation {clean_line(key, 60)!r}.")
        await self.switch_to(found.id)

    def on_sidebar_opened(self, event: Sidebar.Opened) -> None:
        async def open_() -> None:
            await self.switch_to(event.conversation_id, event.node)

        self.leave_sidebar()
        self._in_turn(open_)

    async def _leave_conversation(self) -> None:
        """What is written and not sent stays with it, and what is being replied is stopped.

        Raises CommandError, and nothing is left, if what is written cannot be kept.
        """
        try:
            await self._keeper.flush()
        except StoreError as error:
            raise CommandError(
                f"{error} So this conversation stays open: what is written here and not sent would be lost."
            ) from error
        self.leave_edit()
        self.composer.put("")
        self.turns.withdraw()
        await self.turns.stop()
        with suppress(StoreError):  # an empty one that is not forgotten now is later
            await self._session.leave()

    async def _open(self, conversation_id: str | None, at: int | None = None) -> None:
        """Show a saved conversation, or a new one; `at`: in the version in which this message is, and there."""
        self._session.new()
        unsent = Unsent()
        if conversation_id is not None:
            try:
                if not await self._session.open(conversation_id):
                    self.say("That conversation is gone: this is a new one.", "warning")
                if at is not None:
                    await self._session.show_branch(at)
                unsent = await self._keeper.restore()
            except StoreError as error:
                self.say(str(error), "error")
        self.leave_edit()
        self.end_search()
        await self.transcript.show(self._entries_of(self._session.thread) or [Welcome(self._opened)], at=at)
        self.turns.reset()
        self.go_back_to(source_of(self._session.thread))
        if unsent.draft:  # above what was typed while the conversation opened
            typed = self.composer.text
            self.composer.put(unsent.draft)  # by itself: the files that it was sent with stand at its end
            if typed:
                self.composer.insert(f"\n{typed}", self.composer.document.end)
            self.composer.history.clear()  # Ctrl+Z takes back what is written now, and not what was kept
        if unsent.queue:
            self.turns.hold(unsent.queue)
        self._keeper.resume()
        self.refresh_sidebar()

    async def _look(self) -> None:
        """Show what another window has written here."""
        if self.turns.generating or self._commands.locked():
            return

        async def look() -> None:
            self.show_news(await self._session.look())

        async with self._commands:
            await self._guard(look)

    def show_news(self, news: News) -> None:
        """What other windows have written in this conversation."""
        if news.aside:
            self.say("Another window goes on with another version of this conversation. Both are kept.")
        if not news.nodes:
            return
        for welcome in self.query(Welcome):
            welcome.remove()
        self.say(f"Another window has added {plural(len(news.nodes), 'message')}.")
        for block, node in zip(self._blocks(news.nodes), news.nodes, strict=True):
            self._add(block)
            if node.role == "user":
                self.composer.remember_beside(node.content)
