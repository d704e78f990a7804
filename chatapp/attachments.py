"""Files inside a message: the text that the model is sent, and finding them in it again.

A message holds its files at its end, each in a code fence below a line with its name. So whatever keeps the message
keeps the files, and the text alone tells what they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from chatapp.figures import lines
from chatapp.sanitize import clean_line
from runtime.quick_dataclass import dataclass

_HEAD = re.compile(r"\n\nFile ([^\n]+):\n(`{3,})[^\n`]*\n")
_LANGUAGE = re.compile(r"\.(\w{1,12})")
_CHARACTERS_PER_TOKEN = 3.8
_WIDE_PER_TOKEN = 1.6  # characters of scripts that UTF-8 writes in three bytes


@dataclass(frozen=True, slots=True)
class Attached:
    """A file as it was when the message was sent."""

    path: str
    text: str

    @property
    def lines(self) -> int:
        return lines(self.text)


def attach(text: str, files: Sequence[Attached]) -> str:
    """The message: what the user wrote, and the files below it."""
    return text + "".join(_section(file) for file in files)


def detach(message: str) -> tuple[str, tuple[Attached, ...]]:
    """What the user wrote, and the files that came with it."""
    for head in _HEAD.finditer(message):
        if files := _sections(message, head.start()):
            return message[: head.start()], files
    return message, ()


def tokens(text: str) -> int:
    """About how many tokens a text is: a rule of thumb, for a text that no model has seen yet."""
    wide = min((len(text.encode("utf-8", "replace")) - len(text)) // 2, len(text)) if not text.isascii() else 0
    return round((len(text) - wide) / _CHARACTERS_PER_TOKEN + wide / _WIDE_PER_TOKEN)


def _section(file: Attached) -> str:
    longest = max((len(run) for run in re.findall("`+", file.text)), default=0)
    fence = "`" * max(longest + 1, 3)
    suffix = _LANGUAGE.fullmatch(PurePath(file.path).suffix)
    return f"\n\nFile {clean_line(file.path, 1000)}:\n{fence}{suffix[1] if suffix else ''}\n{file.text}\n{fence}"


def _sections(message: str, at: int) -> tuple[Attached, ...]:
    """The files from `at` to the end of the message; none if there is anything else."""
    files = []
    while at < len(message):
        head = _HEAD.match(message, at)
        end = message.find(f"\n{head[2]}", head.end() - 1) if head is not None else -1
        if head is None or end < 0:
            return ()
        files.append(Attached(clean_line(head[1], 1000), message[head.end() : max(end, head.end())]))
        at = end + 1 + len(head[2])
    return tuple(files)
