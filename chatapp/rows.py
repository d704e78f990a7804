"""A row of styled text, as wide as a block of the transcript at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from rich.cells import cell_len

from chatapp.wrap import wrap

Span = tuple[str, str]
"""A text and the names of its styles, separated by spaces, later ones on top."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the screen.

    `skip`: characters at its start that are ornament and stay out of a copy; None: all of it is ornament.
    `glue`: what joins the row to the one before it in the text itself, None where a new line begins.
    `fill`: the styles of the cells right of its text, and under it.
    """

    spans: tuple[Span, ...] = ()
    skip: int | None = 0
    glue: str | None = None
    fill: str = ""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)

    @property
    def cells(self) -> int:
        return sum(cell_len(text) for text, _ in self.spans)


BLANK = Row()


class Rows(Protocol):
    """Rows by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Row: ...


def break_rows(
    spans: Sequence[Span], width: int, offsets: Callable[[str, int], list[int]] = wrap, fill: str = ""
) -> list[Row]:
    """One line of text, which holds no newline, as the rows that `offsets` breaks it into."""
    text = "".join(part for part, _ in spans)
    breaks = offsets(text, max(width, 1))
    if not breaks:
        return [Row(tuple(spans), fill=fill)]
    rows = []
    edges = [0, *breaks, len(text)]
    for number, (start, end) in enumerate(pairwise(edges)):
        glue = None if number == 0 else text[_trimmed(text, edges[number - 1], start) : start]
        stop = _trimmed(text, start, end) if number < len(breaks) else end
        rows.append(Row(_cut(spans, start, stop), glue=glue, fill=fill))
    return rows


def indent(rows: Iterable[Row], first: Span, rest: Span, ornament: bool) -> list[Row]:
    """`rows` behind a prefix. An ornament stays out of a copy on every row, any other on rows that go on a line."""
    indented = []
    for number, row in enumerate(rows):
        prefix = first if number == 0 else rest
        skip = row.skip
        if skip is not None:
            skip = len(prefix[0]) + skip if ornament or row.glue is not None or skip else 0
        indented.append(Row((prefix, *row.spans), skip, row.glue, row.fill))
    return indented


def copied(rows: Rows, start: tuple[int, int] | None, end: tuple[int, int] | None) -> str:
    """The text between two (row, character) positions as it was before it was broken into rows."""
    first, first_x = start or (0, 0)
    last, last_x = end or (len(rows), 0)
    parts: list[str] = []
    for number in range(max(first, 0), min(last, len(rows) - 1) + 1):
        row = rows[number]
        if row.skip is None:
            continue
        begin = max(first_x if number == first else 0, row.skip)
        piece = row.text[begin : last_x if number == last else None]
        if parts:
            parts.append("\n" if row.glue is None else row.glue)
        parts.append(piece)
    return "".join(parts)


def _trimmed(text: str, start: int, end: int) -> int:
    """Where the text of a row ends when white space at its end is left out."""
    return start + len(text[start:end].rstrip())


def _cut(spans: Sequence[Span], start: int, end: int) -> tuple[Span, ...]:
    """The spans of the characters from `start` to `end`."""
    parts = []
    position = 0
    for text, style in spans:
        if (part := text[max(start - position, 0) : max(end - position, 0)]) and position < end:
            parts.append((part, style))
        position += len(text)
    return tuple(parts)
