"""A line to write into; apart from `in_order`, which the first paint needs."""

from __future__ import annotations

from textual.widgets import Input

from chatapp.in_order import InOrder
from chatapp.sanitize import clean

_BLANKS = str.maketrans("\n\t", "  ")


class Line(InOrder, Input):
    """A line to write into, whose keys act in order, and which holds nothing that a terminal obeys."""

    def validate_value(self, value: str) -> str:
        return clean(value).translate(_BLANKS)
