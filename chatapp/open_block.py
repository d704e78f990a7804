"""The block of Markdown that is still being written: what to show of it now, cheaply."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from chatapp.markdown import FENCE_BOTTOM, code_rows, fence_top, render
from chatapp.rows import Row, break_rows
from chatapp.split import Opening
from chatapp.wrap import fold, wrap

LIVE_LIMIT = 1_500
"""The most characters of an open block that are parsed again each time it is shown."""

# A last line of these alone may become a list, a heading, a rule or a fence: it waits for more, but not for ever.
_UNDECIDED = re.compile(r"[\s\-=*+_#>~|:]{0,200}|\s*\d{1,9}[.)]?\s*|\s*`+[^`\s]*")


class Tail:
    """Plain text that only grows: a row goes to `rows` as soon as nothing can change it any more."""

    def __init__(
        self, rows: list[Row], lay_out: Callable[[str], list[Row]], breaks: Callable[[str], list[int]]
    ) -> None:
        self.work = 0  # characters laid out so far
        self._rows = rows
        self._lay_out = lay_out
        self._breaks = breaks
        self._last = ""
        self._glue: str | None = None

    def feed(self, text: str) -> None:
        """Append text."""
        text = self._last + text.replace("\t", "    ")
        self.work += len(text)
        *lines, rest = text.split("\n")
        for line in lines:
            self._rows += self._made(line)
            self._glue = None
        if breaks := self._breaks(rest):
            done = rest[: breaks[-1]]
            self._rows += self._made(done)
            self._glue = done[len(done.rstrip()) :]
            rest = rest[breaks[-1] :]
        self._last = rest

    def last(self) -> list[Row]:
        """The row that may still change."""
        return self._made(self._last) if self._last else []

    def _made(self, line: str) -> list[Row]:
        first, *others = self._lay_out(line)
        return [first if self._glue is None else replace(first, glue=self._glue), *others]


class OpenFence:
    """A code fence without its end: lines are appended, and nothing is laid out twice."""

    def __init__(self, rows: list[Row], width: int, opening: Opening) -> None:
        self.opening = opening
        self.lines: list[str] = []  # as they came, so that they can be laid out anew
        rows.append(fence_top(opening.language, width))
        self._tail = Tail(
            rows,
            lambda text: code_rows([(text, "")], width),
            lambda text: fold(text, max(width - 2, 1)),
        )
        self._fed = 0

    @property
    def work(self) -> int:
        return self._tail.work

    @property
    def code(self) -> str:
        return "\n".join(map(self.opening.inner, self.lines))

    def extend(self, line: str) -> None:
        """A line is complete."""
        self.lines.append(line)
        line = self.opening.inner(line)
        self._tail.feed(line[self._fed :] + "\n")
        self._fed = 0

    def show(self, partial: str) -> list[Row]:
        """The rows below those that are settled, with a line that is not complete yet."""
        if not self.opening.may_close(partial):
            partial = self.opening.inner(partial)
            self._tail.feed(partial[self._fed :])
            self._fed = max(self._fed, len(partial))
        return [*self._tail.last(), FENCE_BOTTOM]


class OpenProse:
    """Any other block without its end: rendered anew while it is short, and continued as plain text once it is long."""

    def __init__(self, rows: list[Row], width: int, wrap: bool = True) -> None:
        self.lines: list[str] = []
        self._rows = rows
        self._width = width
        self._wrap = wrap
        self._size = 0
        self._tail: Tail | None = None
        self._fed = 0
        self._parsed = 0

    @property
    def work(self) -> int:
        return self._parsed + (self._tail.work if self._tail is not None else 0)

    def extend(self, line: str) -> None:
        """A line is complete."""
        self.lines.append(line)
        self._size += len(line) + 1
        if self._tail is not None:
            self._tail.feed(line[self._fed :] + "\n")
        self._fed = 0

    def show(self, partial: str) -> list[Row]:
        """The rows below those that are settled, with a line that is not complete yet."""
        if self._tail is None and self._size + len(partial) > LIVE_LIMIT:
            self._tail = self._overflow(partial)
        if self._tail is not None:
            self._tail.feed(partial[self._fed :])
            self._fed = max(self._fed, len(partial))
            return self._tail.last()
        lines = self.lines if undecided(partial) else [*self.lines, _closed(partial)]
        return self._render("\n".join(lines).rstrip("\n"))

    def _overflow(self, partial: str) -> Tail:
        """Settle what has been shown, up to the last line or word, and hand the rest to a tail."""
        text = "\n".join([*self.lines, partial])
        limit = min(len(text), LIVE_LIMIT)
        cut = max(text.rfind("\n", 0, limit), 0) or max(text.rfind(" ", 0, limit), 0) or limit
        self._rows += self._render(text[:cut])
        tail = Tail(
            self._rows,
            lambda line: break_rows([(line, "")], self._width),
            lambda line: wrap(line, self._width),
        )
        tail.feed(text[cut:].removeprefix("\n").removeprefix(" "))
        self._fed = len(partial)
        return tail

    def _render(self, source: str) -> list[Row]:
        self._parsed += len(source)
        return render(source, self._width, wrap=self._wrap)


def undecided(line: str) -> bool:
    """Whether it is too early to tell what an unfinished line will be."""
    return _UNDECIDED.fullmatch(line) is not None


def _closed(line: str) -> str:
    """An unfinished line with the marks closed that are still open in it."""
    if line.count("`") % 2:
        return line + "`"
    bold = line.count("**") % 2
    if not bold:
        return line
    text = line.rstrip("* ")
    return text + "**" if text.count("**") % 2 else text
