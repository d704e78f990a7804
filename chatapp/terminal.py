"""The terminal as Textual drives it, but for pastes: those of any size arrive at once, told or not."""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from contextlib import suppress

from textual import events
from textual._parser import ParseError
from textual._time import get_time
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.constants import ESCAPE_DELAY
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

READ = 65_536  # bytes at a time


class Burst(events.Event):
    """Different characters that came at once, as from a terminal that does not tell a paste from `keys`."""

    def __init__(self, text: str, keys: Sequence[events.Key]) -> None:
        super().__init__()
        self.text = text
        self.keys = keys


class PasteParser(XTermParser):
    """Takes pastes as a whole out of what comes: the parser below looks at each character by itself."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._paste: list[str] | None = None
        self._held = ""  # what may become the beginning of a paste
        self._held_until = 0.0

    def feed(self, data: str) -> Iterable[Message]:
        data, self._held = self._held + data, ""
        while data:
            if self._paste is None:
                keys, mark, data = data.partition(BRACKETED_PASTE_START)
                if mark:
                    self._paste = []
                else:
                    keys = self._hold(keys)
                if keys:
                    yield from self._typed(keys)
                continue
            # The end of a paste may come in two pieces.
            last = self._paste.pop() if self._paste else ""
            text, mark, data = (last + data).partition(BRACKETED_PASTE_END)
            if mark:
                pasted = "".join([*self._paste, text])
                self._paste = None
                yield events.Paste(pasted.replace("\x00", ""))
            else:
                split = max(len(text) - len(BRACKETED_PASTE_END) + 1, 0)
                self._paste += [text[:split], text[split:]]

    def _typed(self, text: str) -> Iterable[Message]:
        found = list(super().feed(text))
        keys = [each for each in found if isinstance(each, events.Key)]
        # A key that is held down comes more than once as well; and an escape sequence is no text.
        several = len({letter for letter in text if letter.isprintable()}) > 1
        if several and len(keys) == len(found) and "".join(key.character or "" for key in keys) == text:
            yield Burst(text, keys)
        else:
            yield from found

    def tick(self) -> Iterable[Message]:
        if self._held and get_time() >= self._held_until:
            keys, self._held = self._held, ""
            yield from super().feed(keys)
            self._timeout_time = self._timeout_time and 0.0  # it has been waited for
        yield from super().tick()

    def _hold(self, keys: str) -> str:
        """Keep the beginning of a mark back, and return what is before it."""
        for length in range(len(BRACKETED_PASTE_START) - 1, 0, -1):
            if keys.endswith(BRACKETED_PASTE_START[:length]):
                self._held, self._held_until = keys[-length:], get_time() + ESCAPE_DELAY
                return keys[:-length]
        return keys

    def end(self) -> None:
        """Nothing comes any more."""
        with suppress(EOFError, ParseError):
            for _ in super().feed(""):
                pass


class Terminal(LinuxDriver):
    """Reads what the terminal sends with the parser above."""

    def run_input_thread(self) -> None:
        parser = PasteParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        selector = selectors.SelectSelector()
        selector.register(self.fileno, selectors.EVENT_READ)

        def read(seconds: float) -> None:
            if selector.select(seconds) and (data := os.read(self.fileno, READ)):
                for event in parser.feed(decode(data)):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)

        try:
            while not self.exit_event.is_set():
                read(0.1)
            read(0.1)  # answers of the terminal that must not reach the shell
        finally:
            selector.close()
            parser.end()
