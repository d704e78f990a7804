"""The list of conversations, and what is done with them there or by commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from chatapp.commands import CommandError
from chatapp.parts.base import ChatBase
from chatapp.records import title_of
from chatapp.sanitize import clean_line
from chatapp.store import Conversation, Store

if TYPE_CHECKING:
    from chatapp.lookup import Hit
    from chatapp.sidebar import Sidebar

BESIDE = 70
"""Columns that the chat needs beside the list, which covers it where there are fewer."""
SHOWN = 500
"""Conversations in the list; the search looks at all."""


class SidebarPart(ChatBase):
    """Implements `commands.conversations` beside the opening."""

    _store: Store
    _listing = False  # a list is being read
    _again = False

    @property
    def sidebar(self) -> Sidebar | None:
        """The list, if it is in sight."""
        found = self._sidebar()
        return found if found is not None and found.display else None

    def _sidebar(self) -> Sidebar | None:
        """The list, if it was ever opened."""
        found = self.query("#sidebar")
        return cast("Sidebar", found.first()) if found else None

    async def toggle_sidebar(self) -> None:
        if self.sidebar is not None and (self.sidebar.has_focus_within or not self._covers):
            self.leave_sidebar(close=True)
        else:
            await self.show_sidebar()

    async def show_sidebar(self) -> None:
        from chatapp.sidebar import Sidebar

        sidebar = self._sidebar()
        if sidebar is None:
            sidebar = Sidebar(id="sidebar")
            await self.mount(sidebar, before=0)
        sidebar.display = True
        sidebar.set_class(self._covers, "-over")
        sidebar.begin()
        await self._list()

    def leave_sidebar(self, *, close: bool = False) -> None:
        """Back to the chat; what covers it goes."""
        sidebar = self.sidebar
        if sidebar is not None and (close or self._covers):
            sidebar.display = False
            sidebar.end_search()
        self.composer.focus()

    def end_list_search(self) -> None:
        """The list holds all conversations again: one that was narrowed for long looks as if the others were gone."""
        if (sidebar := self._sidebar()) is not None:
            sidebar.end_search()

    @property
    def _covers(self) -> bool:
        from chatapp.sidebar import WIDTH

        return self.size.width < WIDTH + BESIDE

    def on_resize(self) -> None:
        if (sidebar := self._sidebar()) is not None:
            sidebar.set_class(self._covers, "-over")

    def refresh_sidebar(self) -> None:
        """The conversations are not what they were."""
        if self.sidebar is not None:
            self.run_worker(self._guard(self._list), group="list", exit_on_error=False)

    async def _list(self) -> None:
        """One search at a time; the last that was asked for is shown."""
        self._again = True
        if self._listing:
            return
        self._listing = True
        try:
            while self._again and (sidebar := self.sidebar) is not None:
                self._again = False
                query = sidebar.query_text
                hits = await asyncio.to_thread(self._find, query)
                if query == sidebar.query_text:
                    open_ = self._session.conversation
                    sidebar.show(hits, open_.id if open_ is not None else None)
        finally:
            self._listing = False

    def _find(self, query: str) -> list[Hit]:
        from chatapp import lookup
        from chatapp.lookup import Hit

        if query.strip():
            return lookup.find(self._store, query)
        return [Hit(each) for each in self._store.conversations(limit=SHOWN) if self._store.holds(each)]

    def on_sidebar_searched(self) -> None:
        self.refresh_sidebar()

    def on_sidebar_left(self) -> None:
        self.leave_sidebar()

    def on_sidebar_asked(self, event: Sidebar.Asked) -> None:
        key, text = event.conversation_id, event.text

        async def do() -> None:
            match event.what:
                case "rename":
                    await self._change(lambda: self._store.rename(key, " ".join(text.split())))
                case "tags":
                    await self._change(lambda: self._store.tag(key, _tags(text)))
                case "pin":
                    await self._change(lambda: self._toggle_pin(key))
                case "delete":
                    await self._delete(key)
                case "undelete":
                    await self.undelete()

        self._in_turn(do)

    async def rename(self, title: str) -> None:
        key = self._open_one().id
        await self._change(lambda: self._store.rename(key, " ".join(title.split())))
        name = title or self._open_one().name
        self._show_hint(f"called {clean_line(name, 40) if name else 'by its first words'} from now on", 4.0)

    async def pin(self) -> None:
        key = self._open_one().id
        pinned = await self._change(lambda: self._toggle_pin(key))
        self._show_hint("pinned: it stands first in the list" if pinned else "not pinned any more")

    async def tag(self, words: str) -> None:
        key = self._open_one().id
        if words.strip():
            tags = [] if set(words.split()) == {"-"} else _tags(words)
            await self._change(lambda: self._store.tag(key, tags))
        found = await self._change(lambda: self._store.get(key))
        tags_now = " ".join(f"#{clean_line(tag, 30)}" for tag in found.tags) if found is not None else ""
        self.say(f"Tags: {tags_now}" if tags_now else "This conversation has no tags.")

    async def delete(self) -> None:
        await self._delete(self._open_one().id)

    async def _delete(self, key: str) -> None:
        def remove() -> Conversation | None:
            found = self._store.get(key)
            self._store.delete(key)
            return found

        open_ = self._session.conversation
        if open_ is not None and open_.id == key:
            self.turns.hold()  # what waits goes with it
            await self.turns.stop()
            await self.put_away()  # the search stays: more of what was found may have to go
        found = await self._change(remove)
        if found is not None:
            self._show_hint(f"deleted: {clean_line(title_of(found), 30)} · /undelete brings it back", 6.0)

    async def undelete(self) -> None:
        def bring_back() -> Conversation | None:
            deleted = self._store.deleted()
            if deleted:
                self._store.undelete(deleted[0].id)
            return deleted[0] if deleted else None

        found = await self._change(bring_back)
        if found is None:
            raise CommandError("Nothing was deleted that could be brought back.")
        self._show_hint(f"back again: {clean_line(title_of(found), 40)}", 4.0)

    async def export(self, file: str, *, thoughts: bool) -> None:
        from chatapp.exchange import files
        from chatapp.exchange.export import Exported

        key = self._open_one().id

        def write() -> Path:
            conversation = self._store.get(key)
            if conversation is None:
                raise CommandError("This conversation was deleted.")
            exported = Exported.of(self._store, conversation)
            if not file:
                return files.write_in(Path(), exported, thoughts=thoughts)
            return files.write(Path(file), exported.text(files.format_of(Path(file)), thoughts=thoughts))

        try:
            path = await asyncio.to_thread(write)
        except files.FileError as error:
            raise CommandError(str(error)) from error
        self.say(f"Written to {clean_line(str(path), 500)}")

    async def bring_in(self, file: str) -> None:
        from chatapp.exchange import files

        try:
            made = await asyncio.to_thread(files.bring_in, self._store, Path(file))
        except files.FileError as error:
            raise CommandError(str(error)) from error
        await self.switch_to(made.id)
        self.say(f"Read from {clean_line(file, 500)}: this is a conversation of its own.")

    async def _change(self, work: Callable[[], object]) -> Conversation | None:
        """What the work returns, if it is a conversation."""
        result = await asyncio.to_thread(work)
        await self._list()
        return result if isinstance(result, Conversation) else None

    def _toggle_pin(self, key: str) -> Conversation | None:
        """The conversation if it is pinned now."""
        found = self._store.get(key)
        if found is None:
            return None
        self._store.pin(key, not found.pinned)
        return None if found.pinned else found

    def _open_one(self) -> Conversation:
        if self._session.conversation is None or not self._session.thread:
            raise CommandError("This conversation is new: nothing was written in it yet.")
        return self._session.conversation

    async def switch_to(self, conversation_id: str | None, at: int | None = None) -> None:
        """Put this conversation away and show another, or with None a new one; `at`: this message in sight."""
        raise NotImplementedError

    async def put_away(self) -> None:
        """Show a new conversation in place of this one."""
        raise NotImplementedError


def _tags(text: str) -> list[str]:
    return [tag for word in text.replace(",", " ").split() if (tag := word.lstrip("#"))]
