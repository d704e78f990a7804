"""Where a line of text breaks into rows of a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len, split_graphemes

# Scripts written without spaces break between any two characters: CJK, kana, hangul, full-width forms.
_WIDE = "\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_WIDE}]\s*|[^\s{_WIDE}]+\s*|\s+")


def fold(text: str, width: int) -> list[int]:
    """Offsets in `text` where each row after the first starts when it breaks anywhere; a grapheme stays whole."""
    if text.isascii():
        return list(range(width, len(text), width))
    if cell_len(text) <= width:
        return []
    return [start for start, _ in _folds(text, width, 0)]


def wrap(text: str, width: int) -> list[int]:
    """Offsets in `text` where each row after the first starts when it breaks between words.

    A word longer than a row starts a row of its own and is folded. Rows before the last stay as they are when text
    is added at the end, so a stream needs to wrap its last row only. White space at the end of a row may stand out.
    """
    if len(text) <= width and text.isascii():
        return []
    breaks: list[int] = []
    used = 0
    for word in _WORD.finditer(text):
        token = word.group()
        cells = cell_len(token.rstrip())
        if used and used + cells > width:
            breaks.append(word.start())
            used = 0
        if cells > width:
            for offset, left in _folds(token, width, used):
                breaks.append(word.start() + offset)
                used = left
        used += cell_len(token) if cells <= width else 0
    return breaks


def longest_word(text: str) -> int:
    """The cells of the widest part of a text that `wrap` would rather not break."""
    return max((cell_len(word.group().rstrip()) for word in _WORD.finditer(text)), default=0)


def _folds(text: str, width: int, used: int) -> Iterator[tuple[int, int]]:
    """Pairs of an offset and the cells of what follows it up to the next."""
    spans, _ = split_graphemes(text)
    starts: list[tuple[int, int]] = []
    for start, _, cells in spans:
        if used + cells > width:
            starts.append((start, 0))
            used = 0
        used += cells
        if starts:
            starts[-1] = (starts[-1][0], used)
    yield from starts
