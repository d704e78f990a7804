"""What can go wrong for reasons that lie with a file, a request or the machine, not with the program."""

from __future__ import annotations

from typing import ClassVar

from runtime.protocol import Failure

_LONGEST_SENTENCE = 600  # characters


def printable(text: str, limit: int = 80) -> str:
    """`text` with whatever a terminal might obey or hide written as an escape, cut to about `limit` characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class UserError(Exception):
    """One sentence for the user, harmless to a terminal; `kind` says what it concerns."""

    kind: ClassVar[Failure] = "internal"

    def __init__(self, sentence: str) -> None:
        # names and values from files end up in sentences
        super().__init__(printable(sentence, _LONGEST_SENTENCE))


class Interrupted(Exception):  # noqa: N818 - not an error
    """Work was given up because it is not wanted any more, or something else is wanted first."""
