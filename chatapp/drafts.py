"""Which parts of a reply were drafted and accepted, on a screen of its own."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label, Static

from chatapp.draft_record import DraftRecord
from chatapp.key_names import key_of
from chatapp.markdown import plain
from chatapp.rows import BLANK, Row, Rows
from chatapp.rows_view import RowsView
from chatapp.sanitize import clean
from runtime.protocol import Channel


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
            close = key_of(self, "drafts.close", "Esc")
            yield Static(f"Marked words were drafted and accepted · {close} closes", id="drafts-help")
