"""The conversations beside the chat: searched, opened, pinned, tagged, named, deleted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from chatapp.field import Line
from chatapp.key_names import key_of, moves
from chatapp.lookup import Hit
from chatapp.records import title_of
from chatapp.sanitize import clean_line
from chatapp.store import Conversation

WIDTH = 36
"""Columns."""
DAY = 86_400.0
_SOFT = "$foreground 55%"
_MODES = {"search": "Search", "rename": "New title", "tags": "Tags, with spaces between"}

Mode = Literal["search", "rename", "tags"]


class Keys(Static):
    """What the keys do here."""

    def render(self) -> Content:
        named = (
            ("", "Enter", "open"),
            ("pin", "^S", "pin"),
            ("rename", "^E", "title"),
            ("tags", "^L", "tags"),
            ("delete", "^D", "delete"),
            ("undelete", "^Z", "undo"),
        )
        keys = [(key_of(self, f"sidebar.{id}", usual).replace("Ctrl+", "^"), what) for id, usual, what in named]
        told = [Content.assemble((key, "bold"), f" {what}") for key, what in keys]
        return Content("\n").join([Content("  ").join(told[:3]), Content("  ").join(told[3:])])


class Sidebar(Vertical):
    """Shows what `show` is given, and asks for everything by messages."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *moves("sidebar", "The conversation above", "The conversation below"),
        Binding("escape", "leave", "Back to the chat", id="sidebar.leave", priority=True, show=False),
        Binding("ctrl+s", "ask('pin')", "Pin it, or not", id="sidebar.pin", priority=True, show=False),
        Binding("ctrl+e", "write('rename')", "Give it a title", id="sidebar.rename", priority=True, show=False),
        Binding("ctrl+l", "write('tags')", "Give it tags", id="sidebar.tags", priority=True, show=False),
        Binding("ctrl+d", "ask('delete')", "Delete it", id="sidebar.delete", priority=True, show=False),
        Binding("ctrl+z", "ask('undelete')", "Bring it back", id="sidebar.undelete", priority=True, show=False),
    ]

    @dataclass
    class Searched(Message):
        query: str

    @dataclass
    class Opened(Message):
        """`node`: the message that was found."""

        conversation_id: str
        node: int | None

    @dataclass
    class Asked(Message):
        """`what`: pin, delete or undelete; or rename or tags, with a text."""

        what: str
        conversation_id: str
        text: str = ""

    class Left(Message):
        """The user goes back to the chat."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._mode: Mode = "search"
        self._written = ""  # the conversation whose title or tags are written
        self._query = ""
        self._shown: dict[str, Hit] = {}
        self._shown_query = ""

    def compose(self) -> ComposeResult:
        yield Static("Conversations", id="sidebar-title", markup=False)
        yield Line(placeholder="Search", id="sidebar-input")
        yield OptionList(id="sidebar-list", markup=False)
        yield Keys(id="sidebar-keys")

    @property
    def query_text(self) -> str:
        """What is searched for; "" shows all."""
        return self._query

    def show(self, hits: Sequence[Hit], current: str | None, now: float | None = None) -> None:
        """These conversations, in groups by time unless they were searched for; `current` is the one in the chat."""
        options = self.query_one(OptionList)
        before = self._highlighted()
        self._shown = {hit.conversation.id: hit for hit in hits}
        options.clear_options()
        width = WIDTH - 5  # the frame's columns and that of the scrollbar are none of a row
        rows: list[Option] = []
        for heading, group in _grouped(hits, time.time() if now is None else now, searched=bool(self._query)):
            if heading:
                label = Content.styled(heading, f"{_SOFT} bold")
                rows.append(Option(label if not rows else Content("\n").join([Content(""), label]), disabled=True))
            rows += [Option(_row(hit, current, width), id=hit.conversation.id) for hit in group]
        if not rows:
            empty = "Nothing found." if self._query else "No conversations yet."
            rows = [Option(Content.styled(empty, _SOFT), disabled=True)]
        options.add_options(rows)
        keys = [option.id for option in rows]
        if self._query != self._shown_query:
            before = None  # what is found first is meant
        self._shown_query = self._query
        wanted = before if before in keys else current if current in keys and not self._query else None
        place = keys.index(wanted) if wanted is not None else next((i for i, key in enumerate(keys) if key), None)
        options.highlighted = place

    def begin(self) -> None:
        """The user comes here."""
        self._set_mode("search", self._query)
        self.query_one(Input).focus()

    def end_search(self) -> None:
        """All are meant again."""
        self._query = ""
        self._set_mode("search", "")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self._mode == "search" and event.value != self._query:
            self._query = event.value
            self.post_message(self.Searched(event.value))

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        if self._mode != "search":
            self.post_message(self.Asked(self._mode, self._written, event.value))
            self._set_mode("search", self._query)
        elif (key := self._highlighted()) is not None:
            self._open(key)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id is not None:
            self._open(event.option.id)

    def _open(self, key: str) -> None:
        self.post_message(self.Opened(key, self._shown[key].node))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a title or tags are written, the keys are the field's."""
        return self._mode == "search" or action not in ("move", "ask", "write")

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_leave(self) -> None:
        if self._mode != "search":
            self._set_mode("search", self._query)
        elif self._query:
            self.query_one(Input).value = ""
        else:
            self.post_message(self.Left())

    def action_ask(self, what: str) -> None:
        key = self._highlighted()
        if what == "undelete" or key is not None:
            self.post_message(self.Asked(what, key or ""))

    def action_write(self, mode: Mode) -> None:
        key = self._highlighted()
        if key is not None:
            conversation = self._shown[key].conversation
            self._written = key
            self._set_mode(mode, " ".join(conversation.tags) if mode == "tags" else title_of(conversation))

    def _highlighted(self) -> str | None:
        options = self.query_one(OptionList)
        if options.highlighted is None or options.highlighted >= options.option_count:
            return None
        return options.get_option_at_index(options.highlighted).id

    def _set_mode(self, mode: Mode, value: str) -> None:
        self._mode = mode
        field = self.query_one(Input)
        field.placeholder = _MODES[mode]
        field.value = value
        field.cursor_position = len(value)
        field.set_class(mode != "search", "-writing")
        self.query_one("#sidebar-title", Static).update("Conversations" if mode == "search" else _MODES[mode])

    def on_click(self, event: events.Click) -> None:
        event.stop()


def _grouped(hits: Sequence[Hit], now: float, *, searched: bool) -> list[tuple[str, list[Hit]]]:
    """Headings and what stands below them, in the order of the list, which is that of the writing."""
    if searched:
        return [("", list(hits))] if hits else []
    pinned = [hit for hit in hits if hit.conversation.pinned]
    groups: list[tuple[str, list[Hit]]] = [("Pinned", pinned)] if pinned else []
    reached = 0
    for hit in hits:
        if hit.conversation.pinned:
            continue
        age = _age(hit.conversation.updated, now)
        reached = max(reached, age)  # a clock that was wrong for a while begins no group twice
        heading = _HEADINGS[reached]
        if not groups or groups[-1][0] != heading:
            groups.append((heading, []))
        groups[-1][1].append(hit)
    return groups


_HEADINGS = ("Today", "Yesterday", "Last 7 days", "Last 30 days", "Earlier")


def _age(moment: float, now: float) -> int:
    """The index of the heading under which a moment falls."""
    local = time.localtime(now)
    midnight = time.mktime((local.tm_year, local.tm_mon, local.tm_mday, 0, 0, 0, 0, 0, -1))
    days = (midnight - moment) / DAY
    return 0 if days <= 0 else next((index for index, limit in ((1, 1), (2, 7), (3, 30)) if days <= limit), 4)


def _when(moment: float, now: float) -> str:
    local = time.localtime(moment)
    age = _age(moment, now)
    if age == 0:
        return time.strftime("%H:%M", local)
    if age <= 2:
        return time.strftime("%a", local)
    return f"{local.tm_mday} {time.strftime('%b', local)}"


def _row(hit: Hit, current: str | None, width: int) -> Content:
    conversation: Conversation = hit.conversation
    when = "draft" if conversation.head is None else _when(conversation.updated, time.time())
    tags = "".join(f" #{clean_line(tag, 20)}" for tag in conversation.tags)
    room = width - cell_len(when) - 1
    title = Content.styled(
        clean_line(title_of(conversation), 120), "bold $primary" if conversation.id == current else ""
    )
    line = Content("").join([title, Content.styled(tags, "$text-accent")]).truncate(room, ellipsis=True)
    gap = Content(" " * (width - line.cell_length - cell_len(when)))
    first = Content("").join([line, gap, Content.styled(when, _SOFT)])
    if not hit.snippet:
        return first
    text, marks = _around(hit.snippet, hit.marks, width)
    snippet = Content.styled(text, _SOFT)
    for start, end in marks:
        snippet = snippet.stylize("$text-accent bold", start, end)
    return Content("\n").join([first, snippet.truncate(width, ellipsis=True)])


def _around(text: str, marks: Sequence[tuple[int, int]], width: int) -> tuple[str, list[tuple[int, int]]]:
    """The part of a snippet that fits, so that the first mark is in it."""
    first, last = marks[0] if marks else (0, 0)
    start = max(min(first - (width - (last - first)) // 3, len(text) - width), 0) if last > width else 0
    text = ("…" if start else "") + clean_line(text[start:], 400)
    shift = start - bool(start)
    return text, [(max(a - shift, 0), b - shift) for a, b in marks if b > shift]
