"""Finding words in the conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from chatapp.entries import Entry
from chatapp.parts.base import ChatBase

if TYPE_CHECKING:
    from chatapp.search import Match, Query
    from chatapp.search_bar import SearchBar

SLICE = 0.01
"""Seconds of searching between two looks at the keyboard."""
_WIDTH = 96  # of text that is not on the screen


class FindingPart(ChatBase):
    """Ctrl+F."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+f", "find", "Find words in the conversation", id="chat.find", priority=True, show=False),
    ]

    _query: Query | None = None
    _found: Sequence[Match] = ()
    _at: Match | None = None

    @property
    def search_bar(self) -> SearchBar:
        """Raises NoMatches before it was first asked for."""
        from chatapp.search_bar import SearchBar

        return self.query_one(SearchBar)

    async def action_find(self) -> None:
        await self.find("")

    async def find(self, words: str) -> None:
        """Ask what to find, or look for it at once."""
        from chatapp.search_bar import SearchBar

        if not self.query(SearchBar):
            await self.query_one("#desk").mount(SearchBar(id="find"), before=0)
        self.search_bar.open(words or None)

    def on_search_bar_asked(self, event: SearchBar.Asked) -> None:
        self.run_worker(self._search(event.words), group="find", exclusive=True, exit_on_error=False)

    def on_search_bar_stepped(self, event: SearchBar.Stepped) -> None:
        self.action_found(event.step)

    def action_take_found(self) -> None:
        """From now on n and N go through what is found."""
        self.transcript.focus(scroll_visible=False)
        self.search_bar.tell(self._place(), len(self._found))

    def on_search_bar_closed(self) -> None:
        self.end_search()
        self.composer.focus()

    def end_search(self) -> None:
        if not self.query("#find"):
            return
        if self.search_bar.has_focus_within:
            self.composer.focus()
        self.workers.cancel_group(self, "find")
        self._query, self._found, self._at = None, [], None
        for block in self.transcript.blocks:
            for view in block.views():
                view.mark({})
        self.search_bar.display = False

    @property
    def finding(self) -> bool:
        return self._query is not None

    def action_found(self, step: int) -> None:
        """Go to the next or the last place found, round the ends."""
        if self._query is None or not self._found:
            return
        place = self._found.index(self._at) + step if self._at in self._found else -1
        self._at = self._found[place % len(self._found)]
        self.run_worker(self._show_place(), group="find", exclusive=True, exit_on_error=False)

    async def _search(self, words: str) -> None:
        """Look through the conversation from its end, and show the last place first."""
        from chatapp.search import Query, matches_of

        self._query = Query(words) if words.strip() else None
        self._found, self._at = [], None
        self._mark_all()
        bar = self.search_bar
        bar.tell(None, 0)
        query = self._query
        if query is None:
            return
        until = time.monotonic() + SLICE
        for entry in reversed(self.transcript.entries):
            if found := matches_of(entry, query, _WIDTH):
                first = not self._found
                self._found = [*found, *self._found]
                if first:
                    self._at = self._found[-1]
            if time.monotonic() > until:
                bar.tell(self._place(), len(self._found), looking=True)
                await asyncio.sleep(0)
                until = time.monotonic() + SLICE
        bar.tell(self._place(), len(self._found))
        if self._at is not None:
            await self._show_place()

    async def _show_place(self) -> None:
        """Bring the place that is looked at into sight."""
        match, query = self._at, self._query
        if match is None or query is None or match.entry not in self.transcript.entries:
            return
        block = await self.transcript.reach(match.entry)
        view = await block.unfold(match.text)
        self.search_bar.tell(self._place(), len(self._found))
        laid_out = asyncio.Event()
        self.call_after_refresh(laid_out.set)
        await laid_out.wait()
        self._mark_all()
        spans = query.spans(view.lay_out(view.size.width)) if view.size.width else []
        if match.number < len(spans) and spans[match.number]:
            self.transcript.bring(view, spans[match.number][0][0])

    def _mark_all(self) -> None:
        for entry in self.transcript.entries:
            if entry.block is not None:
                self._mark_found(entry)

    def _mark_found(self, entry: Entry) -> None:
        from chatapp.search import marks

        assert entry.block is not None
        for number, (view, source) in enumerate(zip(entry.block.views(), entry.texts, strict=False)):
            width = view.size.width
            if self._query is None or not width or not self._query.may_be_in(source):
                view.mark({})
                continue
            here = self._at
            current = here.number if here is not None and here.entry is entry and here.text == number else None
            view.mark(marks(self._query.spans(view.lay_out(width)), current))

    def _place(self) -> int | None:
        """Which of the places is looked at, from 1 on."""
        return self._found.index(self._at) + 1 if self._at in self._found else None

    def on_resize(self) -> None:
        if self.finding:
            self.call_after_refresh(self._mark_all)
