"""The shape of a conversation: which messages are versions of one another, and where a version leads."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.protocol import Role
from runtime.quick_dataclass import standard_dataclass


@standard_dataclass(frozen=True, slots=True)
class Twig:
    """One message of the tree. `continues`: the one that it holds the whole of, and goes on from.

    `refused`: it is the place of a reply to a message that had no room in the context.
    """

    id: int
    parent: int | None
    role: Role
    continues: int | None = None
    refused: bool = False


class Tree:
    """Parents come before their children, as they were written.

    Two messages of one role are versions of each other if they follow the same message, whatever system prompts lie
    between. A reply that another one continues is no version of its own, nor is a message that was taken back, since
    there was no room for it.
    """

    def __init__(self, twigs: Iterable[Twig] = ()) -> None:
        self._twigs: dict[int, Twig] = {}
        self._after: dict[int | None, list[int]] = {}  # by the last message that is no system prompt
        self._continued: dict[int, list[int]] = {}  # by which others
        self._refused: set[int] = set()
        for twig in twigs:
            self.add(twig)

    def add(self, twig: Twig) -> None:
        self._twigs[twig.id] = twig
        if twig.continues is not None:
            self._continued.setdefault(twig.continues, []).append(twig.id)
        if twig.refused:
            self.refuse(twig.id)
        if twig.role != "system":
            self._after.setdefault(self._before(twig), []).append(twig.id)

    def refuse(self, reply: int) -> None:
        """There was no room for the message that this would have been the reply to."""
        self._refused.add(reply)

    def versions(self, id: int) -> list[int]:
        """All versions of a message, itself included, oldest first."""
        twig = self._twigs.get(id)
        if twig is None or twig.role == "system":
            return [id]
        return [
            other
            for other in self._after[self._before(twig)]
            if self._twigs[other].role == twig.role and (other == id or not self._hidden(other))
        ]

    def leaf(self, id: int) -> int:
        """Where the thread through a message ends: at the newest message below it."""
        below = {id}
        last = id
        for twig in self._twigs.values():
            if twig.parent in below:
                below.add(twig.id)
                if not self._hidden(twig.id):
                    last = twig.id
        return last

    def _hidden(self, id: int) -> bool:
        if id in self._refused or any(by not in self._refused for by in self._continued.get(id, ())):
            return True
        replies = self._after.get(id, [])
        return bool(replies) and all(reply in self._refused for reply in replies)

    def _before(self, twig: Twig) -> int | None:
        parent = twig.parent
        while parent is not None and (above := self._twigs.get(parent)) is not None and above.role == "system":
            parent = above.parent
        return parent
