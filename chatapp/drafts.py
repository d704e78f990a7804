"""Which parts of a reply were drafted and accepted: kept as the reply comes, and shown on a screen of its own."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label

from chatapp.figures import count, percent
from chatapp.markdown import plain
from chatapp.rows import BLANK, Row, Rows, Span
from chatapp.rows_view import RowsView
from chatapp.sanitize import clean
from runtime.protocol import Channel, Delta, Stats

_MARK = "drafted"


class DraftRecord:
    """The text of a reply in pieces, drafted and not."""

    def __init__(self) -> None:
        self.stats = Stats()  # of the whole reply, once it has ended
        self._pieces: dict[Channel, list[Span]] = {"thinking": [], "answer": []}

    def add(self, delta: Delta) -> None:
        pieces = self._pieces[delta.channel]
        at = 0
        for start, end in delta.drafted:
            pieces += [(delta.text[at:start], ""), (delta.text[start:end], _MARK)]
            at = end
        pieces.append((delta.text[at:], ""))

    def was_thought(self) -> None:
        """All of the answer so far belongs to the thought."""
        self._pieces = {"thinking": self._pieces["thinking"] + self._pieces["answer"], "answer": []}

    def pieces(self, channel: Channel) -> list[Span]:
        """The text of a channel; neighbours differ in their marks."""
        pieces = [piece for piece in self._pieces[channel] if piece[0]]
        return [("".join(text for text, _ in group), mark) for mark, group in groupby(pieces, key=itemgetter(1))]

    def summary(self) -> str:
        """How many drafts were right, and what that made of a step."""
        stats = self.stats
        share = percent(stats.accepted / stats.drafted)
        steps = max(stats.generated_tokens - stats.accepted, 1)
        return (
            f"{count(stats.accepted)} of {count(stats.drafted)} drafted tokens accepted ({share}) · "
            f"{stats.generated_tokens / steps:.1f} tokens per step"
        )


class DraftsView(RowsView):
    """The raw text of a reply, its thought first, with what was drafted on a ground of its own."""

    def __init__(self, record: DraftRecord) -> None:
        super().__init__()
        self._record = record
        self._rows: list[Row] = []
        self._width = 0

    def lay_out(self, width: int) -> Rows:
        if width != self._width and width > 0:
            self._width = width
            self._rows = []
            thought, answer = (self._part(channel, width) for channel in ("thinking", "answer"))
            self._rows = [_heading("thought"), *thought, BLANK, _heading("answer"), *answer] if thought else answer
        return self._rows

    def _part(self, channel: Channel, width: int) -> list[Row]:
        pieces = [(clean(text), mark) for text, mark in self._record.pieces(channel)]
        return plain(pieces, width) if pieces else []


def _heading(text: str) -> Row:
    return Row(((text, "muted"),), None)


class DraftsScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,q", "dismiss", "Close", id="drafts.close", priority=True, show=False),
    ]

    def __init__(self, record: DraftRecord) -> None:
        super().__init__()
        self._record = record

    def compose(self) -> ComposeResult:
        with Vertical(id="drafts"):
            yield Label(self._record.summary(), id="drafts-title", markup=False)
            with VerticalScroll(id="drafts-text"):
                yield DraftsView(self._record)
