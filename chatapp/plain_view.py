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
    """`limit`: the most rows shown until the user asks for all. `sign`: before the text, `foot`: a line below it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "fold", "Show all", id="text.unfold", show=False)]

    def __init__(
        self,
        text: str,
        limit: int | None = None,
        *,
        sign: str = "",
        foot: str = "",
        id: str | None = None,
        classes: str | None = None,
    ):
        super().__init__(id=id, classes=classes)
        self._text = clean(text).strip("\n")
        self._limit = limit
        self._sign = sign
        self._foot = foot
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
            if self._foot:
                rows = [*rows, Row(((self._foot, "muted"),), None)]
            self._rows = rows
        return self._rows

    def action_fold(self) -> None:
        """Show all of the text, or the beginning only."""
        self._open = not self._open
        self._width = 0
        self.refresh(layout=True)

    def foot_clicked(self, x: int) -> None:
        """The line below the text was clicked, at column `x` of it."""

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset_capture(self)
        if self._foot and place.y == len(self._rows) - 1:
            event.stop()
            self.foot_clicked(place.x)
        elif self.can_focus and place.y == len(self._rows) - 1 - bool(self._foot):
            event.stop()
            self.action_fold()
