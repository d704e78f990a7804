"""What the chips in the composer stand for, above it: their size, about how many tokens, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatapp.chips import Chip
from chatapp.figures import count, plural
from chatapp.key_names import key_of
from chatapp.sanitize import clean_line

SHOWN = 4


class ChipRow(Static):
    """A line for each of the first few chips."""

    ALLOW_SELECT = False

    @dataclass
    class Pressed(Message):
        chip: Chip

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.display = False
        self._chips: Sequence[Chip] = ()
        self._room: int | None = None

    def show(self, chips: Sequence[Chip], room: int | None) -> None:
        """Show these, which may be none; `room`: the tokens of the model's whole context, if that is known."""
        if (list(chips), room) != (list(self._chips), self._room):
            self._chips, self._room = chips, room
            self.display = bool(chips)
            self.refresh(layout=True)

    def render(self) -> Content:
        chips, room = self._chips, self._room
        key = key_of(self, "composer.complete", "Tab")
        lines = [_line(chip, key) for chip in chips[:SHOWN]]
        total = sum(chip.tokens for chip in chips)
        words = []
        if len(chips) > SHOWN:
            words.append(f"and {count(len(chips) - SHOWN)} more, ≈ {plural(total, 'token')} together")
        if too_much := room is not None and total >= room:
            words.append(f"≈ {count(total)} tokens do not fit in the context of {count(room or 0)}")
        if words:
            lines.append(Content.styled(" · ".join(words), "$text-warning" if too_much else ""))
        return Content("\n").join(lines)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.y < min(len(self._chips), SHOWN):
            self.post_message(self.Pressed(self._chips[event.y]))


def _line(chip: Chip, key: str) -> Content:
    if chip.problem:
        return Content.styled(f"! {chip.problem}", "$text-warning")
    hint = f"  ·  {key} or click unfolds it" if chip.paste else ""
    figures = f"  {chip.detail} · ≈ {plural(chip.tokens, 'token')}"
    return Content.assemble(
        ("▤ ", "$text-accent"), (clean_line(chip.name, 80), "bold"), figures, (hint, "$text-disabled")
    )
