"""What turns need of the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chatapp.blocks import ReplyBlock, Severity
from chatapp.store import Node


class View(Protocol):
    """Where it is shown."""

    async def begin_reply(self) -> ReplyBlock:
        """A new reply at the end of the transcript."""

    def add_user(self, text: str) -> None: ...

    def drop_reply(self) -> None:
        """Take the last reply away: another comes in its place."""

    def say(self, text: str, severity: Severity = "info") -> None: ...

    def give_back(self, text: str) -> bool:
        """A message that could not be taken; False if there is no place for it."""

    def show_news(self, news: Sequence[Node]) -> None:
        """What other windows have written in this conversation."""

    def context_full(self, why: str) -> None:
        """A message did not fit, as `why` says: the user has to choose what leaves."""

    def report(self, error: Exception) -> None:
        """A fault of the program itself."""

    def model_chosen(self, path: str) -> None:
        """A model that the user named is open."""

    def turns_changed(self) -> None:
        """`Turns.status` or `Turns.waiting` is not what it was."""
