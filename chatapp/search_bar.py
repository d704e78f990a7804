"""The line in which the user says what to find, and how much of it there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from chatapp.field import Line
from chatapp.figures import count
from chatapp.key_names import key_of, moves


class SearchBar(Horizontal):
    BINDINGS: ClassVar[list[BindingType]] = [
        *moves("find", "Go to the last place found", "Go to the next place found", "step"),
        Binding("escape", "close", "End the search", id="find.close", priority=True, show=False),
        Binding("enter", "take", "Go to what is found", id="find.take", priority=True, show=False),
    ]

    @dataclass
    class Asked(Message):
        """What to find has changed."""

        words: str

    @dataclass
    class Stepped(Message):
        step: int

    class Closed(Message):
        pass

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static("find", id="find-name", markup=False)
        yield Line(id="find-words", select_on_focus=True)
        yield Static("", id="find-figures", markup=False)

    @property
    def words(self) -> str:
        return self.query_one(Input).value

    def open(self, words: str | None = None) -> None:
        self.display = True
        field = self.query_one(Input)
        before = field.value
        if words is not None:
            field.value = words
        if field.value == before and before.strip():  # the words of the last time are looked for again
            self.post_message(self.Asked(field.value))
        field.focus()

    def tell(self, place: int | None, found: int, *, looking: bool = False) -> None:
        """`place` among the `found`, from 1 on; `looking`: there may be more."""
        more = "…" if looking else ""
        if not self.words.strip():
            figures = ""
        elif place is None:
            figures = f"{count(found)}{more}" if found or looking else "nothing found"
        else:
            figures = f"{count(place)} of {count(found)}{more}"
        close = key_of(self, "find.close", "Esc")
        if found and self.query_one(Input).has_focus:
            back, on = key_of(self, "find.previous", "↑"), key_of(self, "find.next", "↓")
            keys = f"{back} {on} go on · {close} ends"
        else:
            on, back = key_of(self, "reading.next", "n"), key_of(self, "reading.previous", "N")
            keys = f"{on} next · {back} back · {close} ends"
        self.query_one("#find-figures", Static).update(f"{figures}  ·  {keys}" if figures and found else figures)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Asked(event.value))

    async def action_take(self) -> None:
        await self.run_action("screen.take_found")

    def action_close(self) -> None:
        self.post_message(self.Closed())

    def action_step(self, step: int) -> None:
        self.post_message(self.Stepped(step))
