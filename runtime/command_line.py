"""A command line that cannot be followed: one sentence on stderr, wherever in the program it is read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import NoReturn

from runtime.errors import printable

_QUOTE = "'"
_CHOICE = re.compile(r"(\S+) invalid choice: (.+) \(choose from (.+)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Ends the program with the exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"qwenchat: {printable(self.sentence(message), 600)}\n")

    def sentence(self, message: str) -> str:
        """What is wrong, as argparse says it, and what tells more."""
        text = re.sub(r"^argument (\S+): ", r"\1 ", message).rstrip(".")
        if choice := _CHOICE.fullmatch(text):
            text = f"{choice[1]} takes one of {choice[3].replace(_QUOTE, '')}, not {choice[2]}"
        return f"{text[:1].upper()}{text[1:]}. See {self.prog} --help."


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number of at least so many."""

    def read(word: str) -> int:
        if not word.isascii() or not word.isdecimal() or len(word) > 18 or int(word) < least:
            raise argparse.ArgumentTypeError(f"takes a whole number of at least {least}, not {word!r}")
        return int(word)

    return read
