"""Where the top-level blocks of Markdown begin and end, decided line by line and never taken back.

The rules are those of CommonMark, with one addition: each item of a top-level list is a block of its own, so that a
long list is finished piece by piece.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["paragraph", "fence", "item", "quote", "table", "code", "math"]

_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^\n]*)$")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(\1[ \t]*){2,}$")
_ITEM = re.compile(r"( {0,3})([-+*]|\d{1,9}[.)])( {1,4}(?=\S)| |\t|$)")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_TABLE_RULE = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")

MATH = re.compile(r" {0,3}(\$\$|\\\[)")
MATH_ENDS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)"}


@dataclass(frozen=True, slots=True)
class Step:
    """What a line does. `starts`: it begins a block, before which the open one ends. `ends`: its block ends with it.

    `spaced`: an empty row stands before the block that starts. A line that does neither while a block is open
    belongs to that block.
    """

    starts: bool = False
    ends: bool = False
    spaced: bool = True


@dataclass(frozen=True, slots=True)
class Opening:
    """The first line of a code fence."""

    indent: int
    marker: str
    language: str

    def may_close(self, line: str) -> bool:
        """Whether `line`, perhaps cut short, could be the last line of this fence."""
        text = line.strip()
        return len(line) - len(line.lstrip(" ")) <= 3 and bool(text) and not text.strip(self.marker[0])

    def closes(self, line: str) -> bool:
        """Whether the complete `line` is the last of this fence."""
        return self.may_close(line) and len(line.strip()) >= len(self.marker)

    def inner(self, line: str) -> str:
        """A line of the code, without the spaces that the fence itself is indented by."""
        spaces = len(line) - len(line.lstrip(" "))
        return line[min(spaces, self.indent) :]


def opening(line: str) -> Opening | None:
    """The fence that `line` opens, if it does."""
    match = _FENCE.match(line)
    if match is None or (match[2][0] == "`" and "`" in match[3]):
        return None
    return Opening(len(match[1]), match[2], match[3].strip())


def math_closes(line: str, opener: str, first: bool) -> bool:
    """Whether `line` holds the end of a block of mathematics; `first`: it is the line that opens it."""
    text = line.strip()
    return text.endswith(MATH_ENDS[opener]) and not (first and len(text) < 2 * len(opener))


class Splitter:
    """Call `step` with each line in turn; `kind` is that of the block that is open after it."""

    def __init__(self) -> None:
        self.kind: Kind | None = None
        self.fence: Opening | None = None
        self._lines = 0
        self._first = ""
        self._indent = 0  # of the text of a list item
        self._bullet = ""
        self._after_blank = False
        self._last_bullet = ""  # of the item that ended where the next line begins

    def step(self, line: str) -> Step:
        """What `line`, without its newline, does."""
        blank = not line.strip()
        step = self._continue(line, blank) if self.kind is not None else None
        if step is None:
            step = Step() if blank else self._start(line)
        self._after_blank = blank
        if step.ends:
            self.kind = None
        return step

    def _continue(self, line: str, blank: bool) -> Step | None:
        """The step of a line that belongs to the open block; None if it does not."""
        self._lines += 1
        if self.kind == "fence":
            assert self.fence is not None
            return Step(ends=self.fence.closes(line))
        if self.kind == "item":
            return self._continue_item(line, blank)
        if self.kind == "code":
            return Step() if blank or line.startswith(("    ", "\t")) else None
        if blank:
            return Step(ends=True)
        if self.kind == "math":
            return Step(ends=math_closes(line, self._first, False))
        if self.kind == "paragraph":
            if self._lines == 2 and "|" in self._first and "-" in line and _TABLE_RULE.match(line):
                self.kind = "table"
                return Step()
            if _SETEXT.match(line):
                return Step(ends=True)
        if self.kind == "quote" and line.lstrip(" ").startswith(">"):
            return Step()
        return None if _interrupts(line) else Step()

    def _continue_item(self, line: str, blank: bool) -> Step | None:
        if blank or _indent(line) >= self._indent:
            return Step()
        if self._after_blank or _interrupts(line) or _ITEM.match(line):
            self._last_bullet = self._bullet
            return None
        return Step()

    def _start(self, line: str) -> Step:
        last_bullet, self._last_bullet = self._last_bullet, ""
        self.kind, self._lines, self._first = "paragraph", 1, line
        self.fence = opening(line)
        if self.fence is not None:
            self.kind = "fence"
        elif _HEADING.match(line) or _RULE.match(line):
            return Step(starts=True, ends=True)
        elif math := MATH.match(line):
            self.kind, self._first = "math", math[1]
            return Step(starts=True, ends=math_closes(line, math[1], True))
        elif match := _ITEM.match(line):
            self.kind = "item"
            self._indent = len(match[1]) + len(match[2]) + max(len(match[3].expandtabs(1)), 1)
            self._bullet = match[2][-1]
            return Step(starts=True, spaced=self._bullet != last_bullet or self._after_blank)
        elif line.lstrip(" ").startswith(">") and _indent(line) <= 3:
            self.kind = "quote"
        elif _indent(line) >= 4:
            self.kind = "code"
        return Step(starts=True)


def _interrupts(line: str) -> bool:
    """Whether `line` begins a block even right after the text of another."""
    if opening(line) is not None or _HEADING.match(line) or _RULE.match(line) or MATH.match(line):
        return True
    if _indent(line) <= 3 and line.lstrip(" ").startswith(">"):
        return True
    item = _ITEM.match(line)
    return item is not None and bool(line[item.end() :].strip()) and (not item[2][0].isdigit() or item[2][:-1] == "1")


def _indent(line: str) -> int:
    expanded = line.expandtabs(4)
    return len(expanded) - len(expanded.lstrip(" "))
