"""The places of a transcript: what is shown there, whether it is on the screen now or not."""

from __future__ import annotations

from collections.abc import Callable

from chatapp.block import Block


class Entry:
    """`texts` as they were written, for a search; the widget is made when it is needed.

    `node`: the message that it shows, if it shows one.
    """

    def __init__(self, make: Callable[[], Block], *texts: str, node: int | None = None) -> None:
        self.block: Block | None = None
        self.node = node
        self._make = make
        self._texts = texts

    @classmethod
    def of(cls, block: Block) -> Entry:
        """A widget that is there already."""
        entry = cls(block.fresh, node=block.node)
        entry.block = block
        return entry

    @classmethod
    def later(cls, block: Block) -> Entry:
        """A widget that is made already, to be mounted when it is needed."""
        return cls(lambda: block, *(block.texts if block.is_message else ()), node=block.node)

    @property
    def texts(self) -> tuple[str, ...]:
        return self.block.texts if self.block is not None else self._texts

    @property
    def is_message(self) -> bool:
        """Whether somebody says it, as against what the program tells."""
        return self.block.is_message if self.block is not None else bool(self._texts)

    def made(self) -> Block:
        """The widget, to be mounted."""
        if self.block is None:
            self.block = self._make()
        return self.block

    def unload(self) -> None:
        """The widget leaves the screen."""
        if self.block is not None:
            self._make, self._texts = self.block.fresh, self.block.texts if self.block.is_message else ()
            self.block = None
