"""The messages that wait for their turn, above the composer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatapp.figures import plural
from chatapp.key_names import key_of
from chatapp.sanitize import clean_line

SHOWN = 3


class Waiting(Static):
    """One line per message; a click takes it back."""

    ALLOW_SELECT = False

    @dataclass
    class Withdrawn(Message):
        number: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.display = False
        self.tooltip = "Click on a message to take it back"
        self._texts: Sequence[str] = ()
        self._held = 0

    def show(self, texts: Sequence[str], held: int = 0) -> None:
        """Shows these, which may be none; the last `held` of them wait for the user."""
        if (texts, held) != (self._texts, self._held):
            self._texts, self._held = texts, held
            self.display = bool(texts)
            self.refresh(layout=True)

    def render(self) -> Content:
        texts, held = self._texts, self._held
        lines = []
        for number, text in enumerate(texts[:SHOWN]):
            sign = ("held    ", "$text-warning") if number >= len(texts) - held else ("queued  ", "$text-accent")
            lines.append(Content.assemble(sign, clean_line(text), ("  ✕", "bold")))
        words = [f"and {plural(len(texts) - SHOWN, 'more message')}"] if len(texts) > SHOWN else []
        if held:
            back = key_of(self, "composer.earlier", "Up")
            words.append(f"Enter on an empty line sends what is held, {back} takes it back")
        if words:
            lines.append(Content(" · ".join(words)))
        return Content("\n").join(lines)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.y < min(len(self._texts), SHOWN):
            self.post_message(self.Withdrawn(event.y))
