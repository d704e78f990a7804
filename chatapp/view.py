"""What turns need of the screen."""

from __future__ import annotations

from typing import Protocol

from chatapp.blocks import ReplyBlock, Severity


class View(Protocol):
    """Where it is shown."""

    async def begin_reply(self) -> ReplyBlock:
        """A new reply at the end of the transcript."""

    def add_user(self, text: str) -> None: ...

    def drop_reply(self) -> None:
        """Take the last reply away: another comes in its place."""

    def say(self, text: str, severity: Severity = "info") -> None: ...

    def give_back(self, text: str) -> None:
        """A message that could not be taken."""

    def report(self, error: Exception) -> None:
        """A fault of the program itself."""

    def model_chosen(self, path: str) -> None:
        """A model that the user named is open."""

    def turns_changed(self) -> None:
        """`Turns.status` or `Turns.waiting` is not what it was."""
