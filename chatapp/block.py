"""One entry of the transcript, whatever it shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from textual.message import Message
from textual.widget import Widget

if TYPE_CHECKING:
    from chatapp.rows_view import RowsView
    from chatapp.takings import Code, Link

Severity = Literal["info", "warning", "error"]
Versions = tuple[int, int]
"""The place of a message among its versions, from 1 on, and their number."""
ONLY: Versions = (1, 1)


class Block(Widget):
    """One entry of the transcript; `node` is the message that it shows, if it shows one.

    `is_message`: somebody says it, as against what the program tells.
    """

    node: int | None = None
    versions: Versions = ONLY

    @dataclass
    class Switched(Message):
        """The user wants the next (1) or the last (-1) version of a message."""

        node: int
        step: int

    is_message = False

    @property
    def is_gone(self) -> bool:
        """Whether it was taken off the screen."""
        return self._pruning or not self.is_attached

    @property
    def texts(self) -> tuple[str, ...]:
        """What it says, as it was written."""
        return ()

    @property
    def copied(self) -> str:
        """What a copy of it holds: of a reply the answer, of a message what was written."""
        return self.texts[0] if self.texts else ""

    def codes(self) -> list[Code]:
        """Its blocks of code, in their order."""
        return []

    def links(self) -> list[Link]:
        """Its links in their order, each address once."""
        return []

    def views(self) -> list[RowsView]:
        """What shows its texts, in their order; without those that are not made yet."""
        return []

    async def unfold(self, number: int) -> RowsView:
        """Show all of a text; the view that shows it."""
        return self.views()[number]

    async def fold(self) -> None:
        """Unfold what is folded, or fold it again."""

    def fresh(self) -> Block:
        """The same entry, not mounted: what is kept of one that leaves the screen."""
        raise NotImplementedError
