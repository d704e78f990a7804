"""Markdown in the transcript, whole or as it streams in; and plain text beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from textual import events, work
from textual.message import Message

from chatapp.markdown import is_fence_top
from chatapp.rows import Row, Rows
from chatapp.rows_view import RowsView
from chatapp.sanitize import clean
from chatapp.stream import MarkdownStream, Piece
from chatapp.takings import Code, Link, codes_of, links_of

INLINE_CODE = 2_000
"""Characters of code that are coloured on the spot at a time; more is coloured beside the drawing."""


class MarkdownView(RowsView):
    """`append` what comes, then `close`."""

    @dataclass
    class Copying(Message):
        """The word above some code is clicked."""

        code: Code

    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._waiting = text
        self._ended = bool(text)
        self._wrap = True
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

    def on_mount(self) -> None:
        self.wrap(getattr(self.screen, "code_wraps", True))

    def wrap(self, on: bool) -> None:
        """Fold long lines of code, or leave them as they are."""
        if on == self._wrap:
            return
        self._wrap = on
        if self._stream is not None:
            before = len(self._stream)
            self._stream.resize(self._stream.width, wrap=on)
            self.rows_changed(0, before)

    def codes(self) -> list[Code]:
        """The blocks of code that have ended, in their order."""
        return [code for piece in self._pieces() for code in codes_of(piece)]

    def links(self) -> list[Link]:
        """The links in their order, each address once."""
        found = {link.address: link for piece in reversed(self._pieces()) for link in reversed(links_of(piece))}
        return list(reversed(found.values()))

    def _pieces(self) -> list[Piece]:
        if self._stream is None and self.size.width:
            self.lay_out(self.size.width)
        return self._stream.pieces if self._stream is not None else []

    def code_at(self, y: int) -> Code | None:
        """The code whose top row is `y`."""
        for piece in self._pieces():
            if piece.start <= y < piece.end:
                tops = [row for row in range(piece.start, piece.end) if is_fence_top(self._row(row))]
                codes = codes_of(piece)
                return codes[tops.index(y)] if y in tops and tops.index(y) < len(codes) else None
        return None

    def _row(self, number: int) -> Row:
        assert self._stream is not None
        return self._stream[number]

    def on_click(self, event: events.Click) -> None:
        if event.style.meta.get("copy") and (code := self.code_at(event.y)) is not None:
            event.stop()
            self.post_message(self.Copying(code))

    @property
    def stream(self) -> MarkdownStream | None:
        """None until the width is known."""
        return self._stream

    def lay_out(self, width: int) -> Rows:
        stream = self._stream
        if stream is None:
            stream = self._stream = MarkdownStream(width, wrap=self._wrap)
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
