"""A table laid out in rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

from rich.cells import cell_len

from chatapp.rows import BLANK, Row, Span, break_rows
from chatapp.wrap import longest_word

Align = Literal["left", "center", "right"]
Cell = Sequence[Span]

_GAP = 3
_NARROWEST = 6
"""A column gets at least this many cells, or its widest text if that is less; else the table becomes a list."""


def table(lines: Sequence[Sequence[Cell]], aligns: Sequence[Align], width: int) -> list[Row]:
    """`lines[0]` is the heading. Columns too wide for `width` are wrapped; too many of them become "name: value".

    There are rules between wrapped lines unless the first column tells where one begins.
    """
    if not lines:
        return []
    columns = [[line[column] for line in lines if column < len(line)] for column in range(len(lines[0]))]
    natural = [max(map(_cells, column)) for column in columns]
    room = width - _GAP * (len(natural) - 1)
    widths = [max(cells, 1) for cells in natural] if sum(natural) <= room else _fit(natural, _whole(columns), room)
    if widths is None:
        return _listed(lines, width)
    head, *body = [_line(line, widths, aligns) for line in lines]
    rule = Row(((("─" * _GAP).join("─" * column for column in widths), "rule"),), None)
    unclear = any(not 0 < _cells(line[0]) <= widths[0] for line in lines[1:])
    between = [rule] if unclear and any(len(rows) > 1 for rows in body) else []
    rows = [_headed(row) for row in head] + [rule]
    for number, line in enumerate(body):
        rows += (between if number else []) + line
    return rows


def _whole(columns: Sequence[Sequence[Cell]]) -> list[int]:
    """What each column needs so that no word in it is broken."""
    return [max(longest_word("".join(text for text, _ in cell)) for cell in column) for column in columns]


def _fit(natural: Sequence[int], whole: Sequence[int], room: int) -> list[int] | None:
    """Column widths within `room`: the widest give way first, words are broken last; None if it has no place for them.

    `whole`: the widths below which words are broken.
    """
    least = [min(cells, _NARROWEST) for cells in natural]
    if sum(least) > room:
        return None
    floors = whole if sum(whole) <= room else least

    def capped(cap: int) -> list[int]:
        return [max(min(cells, cap), floor, 1) for cells, floor in zip(natural, floors, strict=True)]

    low, high = 1, max(natural, default=1)
    while low < high:
        cap = (low + high + 1) // 2
        low, high = (cap, high) if sum(capped(cap)) <= room else (low, cap - 1)
    return capped(low)


def _line(cells: Sequence[Cell], widths: Sequence[int], aligns: Sequence[Align]) -> list[Row]:
    """One line of the table, as tall as its tallest cell."""
    columns = [break_rows(cell, width) for cell, width in zip(cells, widths, strict=False)]
    rows = []
    for parts in zip_longest(*columns, fillvalue=BLANK):
        spans: list[Span] = []
        for number, (part, width, align) in enumerate(zip(parts, widths, aligns, strict=False)):
            if number:
                spans.append((" " * _GAP, ""))
            space = max(width - part.cells, 0)
            left = {"left": 0, "center": space // 2, "right": space}[align]
            spans += [(" " * left, ""), *part.spans, (" " * (space - left), "")]
        while spans and not spans[-1][0].strip():
            spans.pop()
        rows.append(Row(tuple(span for span in spans if span[0])))
    return rows


def _headed(row: Row) -> Row:
    return Row(tuple((text, f"strong {style}".rstrip()) for text, style in row.spans), row.skip)


def _listed(lines: Sequence[Sequence[Cell]], width: int) -> list[Row]:
    """A table that has no room: each line as "heading: text" rows, with an empty row between lines."""
    head, *body = lines
    rows: list[Row] = []
    for line in body:
        if rows:
            rows.append(BLANK)
        for name, cell in zip(head, line, strict=False):
            named = [(text, f"strong {style}".rstrip()) for text, style in name]
            rows += break_rows([*named, (": ", "strong"), *cell], width)
    return rows


def _cells(cell: Cell) -> int:
    return sum(cell_len(text) for text, _ in cell)
