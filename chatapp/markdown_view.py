"""Markdown in the transcript, whole or as it streams in; and plain text beside it."""

from __future__ import annotations

import asyncio

from textual import work

from chatapp.rows import Rows
from chatapp.rows_view import RowsView
from chatapp.sanitize import clean
from chatapp.stream import MarkdownStream, Piece

INLINE_CODE = 2_000
"""Characters of code that are coloured on the spot at a time; more is coloured beside the drawing."""


class MarkdownView(RowsView):
    """`append` what comes, then `close`."""

    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._waiting = text
        self._ended = bool(text)
        self._stream: MarkdownStream | None = None
        self._coloured = 0
        self._uncoloured: list[Piece] = []
        self._colouring = False

    def append(self, text: str) -> None:
        """More text, from anywhere: it is sanitised here."""
        if self._stream is None:
            self._waiting += text
            self.refresh(layout=True)
            return
        before = len(self._stream)
        self.rows_changed(self._stream.feed(clean(text)), before)
        self._colour_code()

    def close(self) -> None:
        """The text has ended."""
        self._ended = True
        if self._stream is not None:
            before = len(self._stream)
            self.rows_changed(self._stream.close(), before)
            self._colour_code()

    @property
    def stream(self) -> MarkdownStream | None:
        """None until the width is known."""
        return self._stream

    def lay_out(self, width: int) -> Rows:
        stream = self._stream
        if stream is None:
            stream = self._stream = MarkdownStream(width)
            stream.feed(clean(self._waiting))
            self._waiting = ""
            if self._ended:
                stream.close()
            self.call_later(self._colour_code)
        elif stream.width != width and width > 0:
            stream.resize(width)
        return stream

    def _colour_code(self) -> None:
        """Give fences that have ended their colours, the long ones in the background."""
        assert self._stream is not None
        pieces = self._stream.pieces
        new = [piece for piece in pieces[self._coloured :] if piece.opening and piece.opening.language and piece.source]
        self._coloured = len(pieces)
        budget = INLINE_CODE
        for piece in new:
            budget -= len(piece.source)
            if budget >= 0:
                self._colour(piece, _highlight(piece))
            else:
                self._uncoloured.append(piece)
        if self._uncoloured and not self._colouring:
            self._colouring = True
            self._colour_later()

    @work(exit_on_error=False)
    async def _colour_later(self) -> None:
        while self._uncoloured:
            piece = self._uncoloured.pop(0)
            self._colour(piece, await asyncio.to_thread(_highlight, piece))
        self._colouring = False

    def _colour(self, piece: Piece, colours: list[tuple[tuple[str, str], ...]] | None) -> None:
        if colours is None or self._stream is None:
            return
        before = len(self._stream)
        self._stream.colour(piece, colours)
        self.rows_changed(piece.start, before)


def _highlight(piece: Piece) -> list[tuple[tuple[str, str], ...]] | None:
    from chatapp.highlight import highlight  # the lexers are many, and the first paint needs none

    assert piece.opening is not None
    return highlight(piece.source, piece.opening.language.split()[0])
