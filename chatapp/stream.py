"""Markdown that arrives piece by piece → rows, at a cost per piece that does not grow with what is already there.

A finished block is rendered once and stays. What is open is shown by `open_block`. The colours of code come later,
once per fence, from whoever calls `colour`.
"""

from __future__ import annotations

from dataclasses import dataclass

from chatapp.markdown import FENCE_BOTTOM, code_rows, fence_top, render
from chatapp.open_block import OpenFence, OpenProse, undecided
from chatapp.rows import BLANK, Row, Span
from chatapp.split import Opening, Splitter


@dataclass(slots=True, eq=False)
class Piece:
    """A finished block: its Markdown or, of a fence, its code; and the rows it takes.

    `colours`: the spans of each line of the code, once they are known.
    """

    source: str
    spaced: bool
    opening: Opening | None = None
    start: int = 0
    end: int = 0
    colours: list[tuple[Span, ...]] | None = None


class MarkdownStream:
    """`rows` and, below them, `tail` are what is shown."""

    def __init__(self, width: int, *, wrap: bool = True) -> None:
        """`wrap`: long lines of code are folded; while a fence is open they always are."""
        self.width = width
        self.wrap = wrap
        self.rows: list[Row] = []
        self.tail: list[Row] = []
        self.pieces: list[Piece] = []
        self._work = 0
        self._splitter = Splitter()
        self._partial = ""
        self._open: OpenFence | OpenProse | None = None
        self._guess = False  # the open block is not known to the splitter: its first line is unfinished
        self._start = 0  # of the open block
        self._spaced = True
        self._changed = 0

    def __len__(self) -> int:
        return len(self.rows) + len(self.tail)

    def __getitem__(self, number: int) -> Row:
        return self.rows[number] if number < len(self.rows) else self.tail[number - len(self.rows)]

    @property
    def work(self) -> int:
        """Characters parsed or laid out so far."""
        return self._work + (self._open.work if self._open is not None else 0)

    def feed(self, text: str) -> int:
        """Append text. Returns the first row that may have changed."""
        self._changed = len(self.rows)
        *lines, rest = text.split("\n")
        for line in lines:
            self._line(self._partial + line)
            self._partial = ""
        self._partial += rest
        self._show()
        return self._changed

    def close(self) -> int:
        """The text has ended. Returns the first row that may have changed."""
        self._changed = len(self.rows)
        if self._partial:
            self._line(self._partial)
            self._partial = ""
        self._finish()
        self.tail = []
        return self._changed

    def resize(self, width: int, *, wrap: bool | None = None) -> None:
        """Lay everything out again for another width, or with long lines of code folded or not."""
        self.width = width
        self.wrap = self.wrap if wrap is None else wrap
        self.rows.clear()
        for piece in self.pieces:
            self._place(piece)
        if (block := self._open) is not None:
            anew = self._begin(self._spaced, block.opening if isinstance(block, OpenFence) else None)
            for line in block.lines:
                anew.extend(line)
            self._show()

    def colour(self, piece: Piece, lines: list[tuple[Span, ...]]) -> bool:
        """Give the code of a fence its colours. Returns whether it takes more or fewer rows for it."""
        piece.colours = lines
        rows = self._rendered(piece)
        if len(rows) != piece.end - piece.start:
            self.resize(self.width)
            return True
        self.rows[piece.start : piece.end] = rows
        return False

    def _line(self, line: str) -> None:
        """A line is complete."""
        if self._guess:
            self._discard()
        step = self._splitter.step(line)
        if step.starts:
            self._finish()
            self._begin(step.spaced, self._splitter.fence)
        if self._open is not None and not (isinstance(self._open, OpenFence) and (step.starts or step.ends)):
            self._open.extend(line)
        if step.ends:
            self._finish()

    def _show(self) -> None:
        """Bring `tail` up to date with the unfinished line."""
        if self._open is None and not undecided(self._partial):
            self._begin(True, None)
            self._guess = True
        self.tail = self._open.show(self._partial) if self._open is not None else []

    def _begin(self, spaced: bool, opening: Opening | None) -> OpenFence | OpenProse:
        self._start, self._spaced = len(self.rows), spaced
        if spaced and self.rows:
            self.rows.append(BLANK)
        self._open = (
            OpenProse(self.rows, self.width, self.wrap)
            if opening is None
            else OpenFence(self.rows, self.width, opening)
        )
        return self._open

    def _finish(self) -> None:
        """The open block has ended."""
        block = self._open
        if block is None:
            return
        if isinstance(block, OpenFence):
            self._work += block.work
            self._open = None
            self.rows.append(FENCE_BOTTOM)
            self.pieces.append(piece := Piece(block.code, self._spaced, block.opening, self._start, len(self.rows)))
            if not self.wrap:
                del self.rows[self._start :]
                self._changed = min(self._changed, self._start)
                self._place(piece)
        else:
            self._discard()
            self._place(piece := Piece("\n".join(block.lines).rstrip("\n"), self._spaced))
            self.pieces.append(piece)

    def _discard(self) -> None:
        """Take back the open block and its rows."""
        assert self._open is not None
        self._work += self._open.work
        self._open = None
        self._guess = False
        del self.rows[self._start :]
        self._changed = min(self._changed, self._start)

    def _place(self, piece: Piece) -> None:
        piece.start = len(self.rows)
        self.rows += self._rendered(piece)
        piece.end = len(self.rows)

    def _rendered(self, piece: Piece) -> list[Row]:
        gap = [BLANK] if piece.spaced and piece.start else []
        self._work += len(piece.source)
        if piece.opening is None:
            return gap + render(piece.source, self.width, wrap=self.wrap)
        lines = piece.colours or [((line, ""),) for line in piece.source.split("\n")]
        code = [row for line in lines for row in code_rows(line, self.width, wrap=self.wrap)]
        return [*gap, fence_top(piece.opening.language, self.width), *code, FENCE_BOTTOM]
