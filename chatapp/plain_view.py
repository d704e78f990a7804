"""Text in the transcript that is shown as it stands."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from chatapp.figures import plural
from chatapp.markdown import plain
from chatapp.rows import Row, Rows, indent
from chatapp.rows_view import RowsView
from chatapp.sanitize import clean


class PlainView(RowsView):
    """`limit`: the most rows shown until the user asks for all. `sign`: a character before the text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "fold", "Show all", id="text.unfold", show=False)]

    def __init__(
        self, text: str, limit: int | None = None, *, sign: str = "", id: str | None = None, classes: str | None = None
    ):
        super().__init__(id=id, classes=classes)
        self._text = clean(text).strip("\n")
        self._limit = limit
        self._sign = sign
        self._open = False
        self._rows: list[Row] = []
        self._width = 0

    def lay_out(self, width: int) -> Rows:
        if width != self._width and width > 0:
            self._width = width
            rows = plain(self._text, width - 2 if self._sign else width)
            if self._sign:
                rows = indent(rows, (f"{self._sign} ", ""), ("  ", ""), ornament=True)
            limit = self._limit
            self.can_focus = limit is not None and len(rows) > limit + 1
            if self.can_focus and limit is not None:
                label = "show less" if self._open else plural(len(rows) - limit, "more row")
                rows = [*(rows if self._open else rows[:limit]), Row(((f"… {label}", "muted"),), None)]
            self._rows = rows
        return self._rows

    def action_fold(self) -> None:
        """Show all of the text, or the beginning only."""
        self._open = not self._open
        self._width = 0
        self.refresh(layout=True)

    def on_click(self, event: events.Click) -> None:
        if self.can_focus and event.y == len(self._rows) - 1:
            event.stop()
            self.action_fold()
