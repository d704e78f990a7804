"""What the chips in the composer stand for, above it: their size, about how many tokens, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatapp.chips import Chip
from chatapp.figures import count, plural
from chatapp.sanitize import clean_line

SHOWN = 4


class ChipRow(Vertical):
    """A line for each of the first few chips."""

    @dataclass
    class Pressed(Message):
        chip: Chip

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False
        self._shown: tuple[Sequence[Chip], int | None] = ([], None)

    def compose(self) -> ComposeResult:
        for _ in range(SHOWN):
            yield ChipLine()
        yield Static("", id="chips-more", markup=False)

    def show(self, chips: Sequence[Chip], room: int | None) -> None:
        """Show these, which may be none; `room`: the tokens of the model's whole context, if that is known."""
        if (chips, room) == self._shown:
            return
        self._shown = (chips, room)
        self.display = bool(chips)
        for number, line in enumerate(self.query(ChipLine)):
            line.show(chips[number] if number < len(chips) else None)
        more = self.query_one("#chips-more", Static)
        total = sum(chip.tokens for chip in chips)
        words = []
        if len(chips) > SHOWN:
            words.append(f"and {count(len(chips) - SHOWN)} more, ≈ {plural(total, 'token')} together")
        if too_much := room is not None and total >= room:
            words.append(f"≈ {count(total)} tokens do not fit in the context of {count(room or 0)}")
        more.update(" · ".join(words))
        more.display = bool(words)
        more.set_class(too_much, "-problem")


class ChipLine(Static):
    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._chip: Chip | None = None

    def show(self, chip: Chip | None) -> None:
        self._chip = chip
        self.display = chip is not None
        if chip is None:
            return
        self.set_class(bool(chip.problem), "-problem")
        if chip.problem:
            self.update(Content.assemble("! ", chip.problem))
            return
        hint = "  ·  Tab or click unfolds it" if chip.paste else ""
        figures = f"  {chip.detail} · ≈ {plural(chip.tokens, 'token')}"
        self.update(
            Content.assemble(
                ("▤ ", "$text-accent"), (clean_line(chip.name, 80), "bold"), figures, (hint, "$text-disabled")
            )
        )

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if self._chip is not None:
            self.post_message(ChipRow.Pressed(self._chip))
