"""Finding words in a conversation: in what is shown, and in what is folded or not on the screen."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from chatapp.entries import Entry
from chatapp.message_view import shown_text
from chatapp.rows import Rows
from chatapp.rows_view import Marks
from chatapp.sanitize import clean
from chatapp.stream import MarkdownStream

Span = tuple[int, int, int]
"""A row, and the characters of it from one to another."""


@dataclass(frozen=True, slots=True)
class Match:
    """The `number`-th in one of the texts of an entry."""

    entry: Entry
    text: int
    number: int


class Query:
    """Words to find, as they stand, large or small."""

    def __init__(self, words: str) -> None:
        self.words = words
        self._pattern = re.compile(r"\s+".join(map(re.escape, words.split())), re.IGNORECASE)
        # Marks of Markdown may stand between the words: this much must be there in any case.
        longest = max(re.findall(r"\w+", words), key=len, default="")
        self._hint = re.compile(re.escape(longest), re.IGNORECASE) if longest else None

    def may_be_in(self, source: str) -> bool:
        """Whether it is worth while to lay a text out and look."""
        return self._hint is None or self._hint.search(source) is not None

    def spans(self, rows: Rows) -> list[list[Span]]:
        """Where it is found: for each place, the parts of the rows that it covers."""
        joined = Joined(rows)
        return [joined.spans(match.start(), match.end()) for match in self._pattern.finditer(joined.text)]

    def count(self, source: str, width: int, *, markdown: bool) -> int:
        """How often it is in a text that is not on the screen."""
        if not self.may_be_in(source):
            return 0
        if not markdown:
            return sum(1 for _ in self._pattern.finditer(clean(shown_text(source))))
        stream = MarkdownStream(width)
        stream.feed(clean(source))
        stream.close()
        return len(self.spans(stream))


class Joined:
    """The text of rows as it was before it was broken into rows, and the way back."""

    def __init__(self, rows: Rows) -> None:
        parts: list[str] = []
        self._starts: list[int] = []
        self._rows: list[tuple[int, int, int]] = []  # row, characters of ornament, characters of text
        place = 0
        for number in range(len(rows)):
            row = rows[number]
            if row.skip is None:
                continue
            if parts:
                parts.append("\n" if row.glue is None else row.glue)
                place += len(parts[-1])
            text = row.text[row.skip :]
            self._starts.append(place)
            self._rows.append((number, row.skip, len(text)))
            parts.append(text)
            place += len(text)
        self.text = "".join(parts)

    def spans(self, start: int, end: int) -> list[Span]:
        spans = []
        for place in range(max(bisect_right(self._starts, start) - 1, 0), len(self._starts)):
            first = self._starts[place]
            if first >= end:
                break
            row, skip, length = self._rows[place]
            left, right = max(start - first, 0), min(end - first, length)
            if left < right:
                spans.append((row, skip + left, skip + right))
        return spans


def marks(found: list[list[Span]], current: int | None) -> Marks:
    """What is found in a text, as the view shows it; `current`: which of them is looked at."""
    marks: dict[int, list[tuple[int, int, bool]]] = {}
    for number, spans in enumerate(found):
        for row, start, end in spans:
            marks.setdefault(row, []).append((start, end, number == current))
    return marks


def matches_of(entry: Entry, query: Query, width: int) -> list[Match]:
    """All matches in an entry, in the order of the screen: those in a thought before those in its answer."""
    views = entry.block.views() if entry.block is not None else []
    matches = []
    for text in reversed(range(len(entry.texts))):
        source = entry.texts[text]
        if not query.may_be_in(source):
            continue
        view = views[text] if text < len(views) else None
        if view is not None and view.is_whole and view.size.width:
            number = len(query.spans(view.lay_out(view.size.width)))
        else:
            number = query.count(source, width, markdown=len(entry.texts) > 1)
        matches += [Match(entry, text, each) for each in range(number)]
    return matches
