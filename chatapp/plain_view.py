"""Text in the transcript that is shown as it stands."""

from __future__ import annotations

from chatapp.markdown import plain
from chatapp.rows import Row, Rows, indent
from chatapp.rows_view import RowsView
from chatapp.sanitize import clean


class PlainView(RowsView):
    """`sign`: a character before the text."""

    def __init__(self, text: str, *, sign: str = "", id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._text = clean(text).strip("\n")
        self._sign = sign
        self._rows: list[Row] = []
        self._width = 0

    def lay_out(self, width: int) -> Rows:
        if width != self._width and width > 0:
            self._width = width
            rows = plain(self._text, width - 2 if self._sign else width)
            self._rows = indent(rows, (f"{self._sign} ", ""), ("  ", ""), ornament=True) if self._sign else rows
        return self._rows
