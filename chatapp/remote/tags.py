"""A served reply in its two channels, also where the server leaves the tags of the thought in the text."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from runtime.protocol import Channel

OPEN, CLOSE = "<think>", "</think>"
_LINE_CLOSE = "\n" + CLOSE


class Mark(Enum):
    """What `Channels` tells beside text."""

    WAS_THOUGHT = "all of the answer so far was the thought"


Part = tuple[Channel, str] | Mark


class Channels:
    """Feed it the two fields of the stream.

    Some servers take the thought apart themselves (`reasoning_content`, `reasoning`); others leave `<think>` and
    `</think>` in the text; and where the template has opened the thought already, only `</think>` comes, at the
    beginning of a line. `bare`: whether that is so here; None: not known yet, so that a first such reply begins as an
    answer, and its `</think>` tells. `hold`: what may turn out to be the thought is not let out before it is known.
    """

    def __init__(self, *, bare: bool | None, hold: bool = False) -> None:
        self.bare = bare
        self._hold = hold
        self._state: Literal["start", "thinking", "undecided", "answer"] = "start"
        self._waiting = ""
        self._before = "\n"  # what stands before what waits: at first a line's beginning
        self._searched = 0  # characters of both in which there is no tag
        self._strip = False  # the empty lines between the thought and the answer
        self._thought = False  # the server itself has told some of it

    def reasoning(self, text: str) -> list[Part]:
        """What the server itself calls the thought."""
        parts = self.end()
        self.bare = False
        self._state, self._strip = "answer", True
        if not self._thought:  # where thinking is off, some servers call the lines between the empty tags a thought
            text = text.lstrip("\n")
        self._thought = self._thought or bool(text)
        return [*parts, ("thinking", text)] if text else parts

    def content(self, text: str) -> list[Part]:
        """What the server calls the content."""
        self._waiting += text
        parts: list[Part] = []
        if self._state == "start":
            self._begin()
        if self._state == "thinking":
            parts += self._think()
        if self._state == "undecided":
            parts += self._undecided()
        if self._state == "answer":
            parts += self._answer()
        return parts

    def end(self) -> list[Part]:
        """What is left, at the end of the reply."""
        text, self._waiting = self._waiting, ""
        if self._strip:
            text = text.lstrip("\n")
        return [("thinking" if self._state == "thinking" else "answer", text)] if text else []

    def _begin(self) -> None:
        begun = self._waiting.lstrip()
        if begun.startswith(OPEN):
            self._waiting = begun.removeprefix(OPEN)
            self._state, self._strip = "thinking", True
        elif begun and not OPEN.startswith(begun) and (begun == CLOSE or not CLOSE.startswith(begun)):
            self._state = "thinking" if self.bare else "answer" if self.bare is False else "undecided"

    def _think(self) -> list[Part]:
        if self._strip:
            self._waiting = self._waiting.lstrip("\n")
            self._strip = not self._waiting
        thought, tag, rest = self._waiting.partition(CLOSE)
        if not tag:
            return self._let_out("thinking", _LINE_CLOSE, CLOSE)
        thought = thought.removesuffix("\n")
        self._state, self._waiting, self._strip = "answer", rest, True
        return [("thinking", thought)] if thought else []

    def _undecided(self) -> list[Part]:
        text = self._before + self._waiting
        begin = max(0, self._searched - len(_LINE_CLOSE))
        closed, opened = text.find(_LINE_CLOSE, begin), text.find(OPEN, begin)
        if opened >= 0 and not 0 <= closed < opened:  # it writes about the tags
            self._state = "answer"
            return []
        if closed < 0:
            self._searched = len(text)
            if self._hold:
                return []
            self._before, self._searched = "", 0
            return self._let_out("answer", _LINE_CLOSE, OPEN)
        thought = text[len(self._before) : closed]
        self.bare = True
        self._state, self._waiting, self._strip = "answer", text[closed + len(_LINE_CLOSE) :], True
        if self._hold:
            return [("thinking", thought)] if thought else []
        return [("answer", thought), Mark.WAS_THOUGHT] if thought else [Mark.WAS_THOUGHT]

    def _answer(self) -> list[Part]:
        if self._strip:
            self._waiting = self._waiting.lstrip("\n")
            self._strip = not self._waiting
        text, self._waiting = self._waiting, ""
        return [("answer", text)] if text else []

    def _let_out(self, channel: Channel, *tags: str) -> list[Part]:
        """All but what may be the beginning of a tag."""
        keep = max((n for tag in tags for n in range(1, len(tag)) if self._waiting.endswith(tag[:n])), default=0)
        cut = len(self._waiting) - keep
        text, self._waiting = self._waiting[:cut], self._waiting[cut:]
        return [(channel, text)] if text else []
