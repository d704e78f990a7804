"""The messages that wait for their turn, above the composer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatapp.figures import plural
from chatapp.sanitize import clean_line

SHOWN = 3


class Waiting(Vertical):
    """One line per message; a click takes it back."""

    @dataclass
    class Withdrawn(Message):
        number: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False

    def compose(self) -> ComposeResult:
        for number in range(SHOWN):
            yield WaitingLine(number)
        yield Static("", id="waiting-more", markup=False)

    def show(self, texts: Sequence[str], held: int = 0) -> None:
        """Shows these, which may be none; the last `held` of them wait for the user."""
        self.display = bool(texts)
        for number, line in enumerate(self.query(WaitingLine)):
            line.display = number < len(texts)
            if line.display:
                sign = ("held    ", "$text-warning") if number >= len(texts) - held else ("queued  ", "$text-accent")
                line.update(Content.assemble(sign, clean_line(texts[number]), ("  ✕", "bold")))
        more = self.query_one("#waiting-more", Static)
        more.display = len(texts) > SHOWN or held > 0
        words = [f"and {plural(len(texts) - SHOWN, 'more message')}"] if len(texts) > SHOWN else []
        words += ["Enter on an empty line sends what is held, Up takes it back"] if held else []
        more.update(" · ".join(words))


class WaitingLine(Static):
    ALLOW_SELECT = False

    def __init__(self, number: int) -> None:
        super().__init__(markup=False)
        self._number = number
        self.tooltip = "Click to take this message back"

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(Waiting.Withdrawn(self._number))
