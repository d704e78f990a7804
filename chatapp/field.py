"""A line to write into; apart from `in_order`, which the first paint needs."""

from __future__ import annotations

from textual.widgets import Input

from chatapp.in_order import InOrder


class Line(InOrder, Input):
    """A line to write into, whose keys act in the order in which they were typed."""
