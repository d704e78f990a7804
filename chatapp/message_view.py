"""A message of the user: long text and files are folded, and cost nothing until they are unfolded."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from chatapp.attachments import Attached, detach, tokens
from chatapp.figures import count, plural
from chatapp.markdown import code_rows, plain
from chatapp.rows import BLANK, Row, Rows
from chatapp.rows_view import RowsView
from chatapp.sanitize import clean, clean_line

MESSAGE_ROWS = 24
"""Rows of a long message, until it is unfolded."""
UNFOLDED = 400_000
"""The most characters of a text that are laid out at all."""


class MessageView(RowsView):
    """`message` as it was sent, with its files; `foot`: a line below it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "fold", "Show all", id="text.unfold", show=False)]

    def __init__(self, message: str, *, foot: str = "", id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._foot = foot
        written, self.files = detach(message)
        self.written = written
        self._text = clean(written).strip("\n")
        self._open = False
        self._rows: list[Row] = []
        self._width = 0
        self._handles: set[int] = set()  # rows that fold and unfold

    def lay_out(self, width: int) -> Rows:
        if width != self._width and width > 0:
            self._width = width
            self._handles.clear()
            self._rows = []
            self._lay_text(width)
            for file in self.files:
                self._lay_file(file, width)
            if self._foot:
                self._rows.append(Row(((self._foot, "muted"),), None))
            self.can_focus = bool(self._handles)
        return self._rows

    @property
    def folded(self) -> bool:
        """Whether some of it is not shown that can be."""
        return self.can_focus and not self._open

    @property
    def is_whole(self) -> bool:
        return not self.folded

    def action_fold(self) -> None:
        """Show all of the message, or its beginning only."""
        self._open = not self._open
        self._width = 0
        self.refresh(layout=True)

    def foot_clicked(self, x: int) -> None:
        """The line below the message was clicked, at column `x` of it."""

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset_capture(self)
        if place.y in self._handles:
            event.stop()
            self.action_fold()
        elif self._foot and place.y == len(self._rows) - 1:
            event.stop()
            self.foot_clicked(place.x)

    def _handle(self, row: Row) -> None:
        """A row that folds and unfolds."""
        self._handles.add(len(self._rows))
        self._rows.append(row)

    def _lay_text(self, width: int) -> None:
        text = self._text
        rows = plain(beginning := _beginning(text, width), width)
        if len(beginning) == len(text) and len(rows) <= MESSAGE_ROWS + 1:
            self._rows += rows
        elif self._open:
            self._rows += plain(text[:UNFOLDED], width)
            rest = len(text) - UNFOLDED
            label = f"… {count(rest)} more characters are not shown" if rest > 0 else "… show less"
            self._handle(Row(((label, "muted"),), None))
        else:
            rows = rows[:MESSAGE_ROWS]
            self._rows += rows
            lines = text.count("\n") + 1 - sum(row.glue is None for row in rows)
            shown = sum(len(row.text) + len(row.glue if row.glue is not None else "\n") for row in rows) - 1
            more = plural(lines, "more line") if lines else f"{count(len(text) - shown)} more characters"
            self._handle(Row(((f"… {more}", "muted"),), None))

    def _lay_file(self, file: Attached, width: int) -> None:
        if self._rows:
            self._rows.append(BLANK)
        name = f"{'▾' if self._open else '▸'} {clean_line(file.path, max(width - 36, 12))}"
        figures = f"  {plural(file.lines, 'line')} · ≈ {plural(tokens(file.text), 'token')}"
        self._handle(Row(((name, "strong"), (figures, "muted")), None))
        if self._open:
            for line in clean(file.text[:UNFOLDED]).split("\n"):
                self._rows += code_rows([(line, "")], width)


def shown_text(message: str) -> str:
    """What is shown of a message and its files when nothing is folded, but for the names."""
    written, files = detach(message)
    return "\n".join([written.strip("\n"), *(file.text for file in files)])


def _beginning(text: str, width: int) -> str:
    """As much of a text as its first rows can hold, and a little more."""
    end = 0
    for _ in range(MESSAGE_ROWS + 2):
        newline = text.find("\n", end)
        newline = len(text) if newline < 0 else newline
        if newline - end > (most := (MESSAGE_ROWS + 2) * width):
            return text[: end + most]
        if newline == len(text):
            return text
        end = newline + 1
    return text[: end - 1]
