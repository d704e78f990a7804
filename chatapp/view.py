"""What turns need of the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from chatapp.block import Severity
from chatapp.branch import News, Turn

if TYPE_CHECKING:
    from chatapp.blocks import ReplyBlock


class View(Protocol):
    """Where it is shown."""

    async def make_way(self) -> None:
        """Something is about to be asked of the model: what it does by itself ends at once."""

    async def begin_turn(self, turn: Turn) -> None:
        """Show what is asked, in place of what it replaces."""

    async def begin_reply(self, turn: Turn) -> ReplyBlock:
        """The reply to it, at the end of the transcript."""

    def say(self, text: str, severity: Severity = "info") -> None: ...

    async def take_back(self, turn: Turn) -> None:
        """What was asked, or the reply alone, is no part of the conversation: there was no room for it."""

    def give_back(self, text: str) -> bool:
        """A message that could not be taken; False if there is no place for it."""

    def show_news(self, news: News) -> None:
        """What other windows have written in this conversation."""

    def context_full(self, why: str) -> None:
        """A message did not fit, as `why` says: the user has to choose what leaves."""

    def report(self, error: Exception) -> None:
        """A fault of the program itself."""

    def model_chosen(self, path: str) -> None:
        """A model that the user named is open."""

    def turns_changed(self) -> None:
        """`Turns.status` or `Turns.waiting` is not what it was."""
