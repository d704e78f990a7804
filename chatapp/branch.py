"""The version of a conversation that is shown: its thread, and where it stands in the stored tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from chatapp.store import Conversation, Node, Status, Store, StoreError
from chatapp.thread import messages, system_prompt
from chatapp.tree import Tree, Twig
from runtime.protocol import Message, Role
from runtime.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class News:
    """What other windows have written in a conversation since, now a part of the thread.

    `aside`: they go on with another version of it.
    """

    nodes: tuple[Node, ...] = ()
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that is stored, with the place of its reply.

    `asked`: the question's node, if it is new, and `before` the last message that was shown before it. `begun`: the
    reply goes on from this one. `cut`: the thread above is not what it was, since the question or the reply is another
    version of one further up. `news`: what stands above it by now.
    """

    conversation_id: str
    reply_id: int
    messages: tuple[Message, ...]
    asked: Node | None = None
    before: int | None = None
    begun: Node | None = None
    cut: bool = False
    news: News = field(default_factory=News)


@dataclass(frozen=True, slots=True)
class Cut:
    """From this message on the model is sent less; `news`: what stands above it by now."""

    marker: Node
    news: News


class Branch:
    """What is added goes below the last message of the thread. Its methods are called one at a time."""

    def __init__(self, store: Store, default_system: str = "") -> None:
        self.conversation: Conversation | None = None
        self.thread: list[Node] = []
        self.system = default_system
        self.tree = Tree()
        self._store = store
        self._default_system = default_system
        self._stored_head: int | None = None  # as last seen
        self._ends: dict[int, int] = {}  # of the thread through each message, when it was last put aside
        self._grown: list[Twig] = []  # what the tree gets once it is written for good

    def _catch_up(self) -> News:
        """Go on from the stored head if it lies below this thread."""
        if self.conversation is None:
            return News()
        with self._store.transaction():
            conversation = self._store.get(self.conversation.id)
            stored = self._store.thread(self.conversation.id)
        if conversation is None or conversation.head == self._stored_head:
            return News()
        self.tree = Tree(self._store.twigs(self.conversation.id))
        self.conversation, self._stored_head = conversation, conversation.head
        places = {node.id: place for place, node in enumerate(stored)}
        own = self._end
        if own is not None and own not in places:
            return News(aside=True)
        news = stored[places[own] + 1 :] if own is not None else stored
        follows = self.system == (self._stored_system() if self.thread else self._default_system)
        self.thread = stored
        if follows and stored:
            self.system = self._stored_system()
        return News(tuple(news))

    def _take_back(self, turn: Turn) -> bool:
        """Show what was shown before a turn; False if something else is shown by now."""
        self.tree.refuse(turn.reply_id)
        if self._end != turn.reply_id:
            return False
        self._store.set_head(turn.conversation_id, turn.before)
        self._stored_head = turn.before
        self.thread = self._store.thread(turn.conversation_id)
        return True

    @property
    def _end(self) -> int | None:
        """The last message of the thread."""
        return self.thread[-1].id if self.thread else None

    def _place(self, node: int) -> int:
        """Where a message stands in the thread. Raises StoreError if it is not shown any more."""
        place = next((place for place, each in enumerate(self.thread) if each.id == node), None)
        if place is None:
            raise StoreError("That message is not in the version of the conversation that is shown now.")
        return place

    def _cut(self, node: int) -> None:
        place = self._place(node)
        self._put_aside()
        self.thread = self.thread[:place]

    def _put_aside(self) -> None:
        """Another version is shown from here on; the way back leads to this one, with the choices further down."""
        for node in self.thread:
            self._ends[node.id] = self.thread[-1].id

    def _leaf(self, node: int) -> int:
        """Where the thread through a message ends: below where it ended last."""
        return self.tree.leaf(self._ends.get(node, node))

    def _add(
        self,
        conversation_id: str,
        role: Role,
        content: str,
        status: Status = "complete",
        thought: str = "",
        closed: bool = True,
        meta: Mapping[str, Any] | None = None,
    ) -> Node:
        parent = self._end
        node = self._store.add(conversation_id, parent, role, content, thought, status, closed, meta)
        self.thread = [*self.thread, node]
        self._grown.append(Twig(node.id, parent, role, node.meta.get("continues")))
        self._stored_head = node.id
        return node

    def _renew_system(self, conversation_id: str) -> None:
        if self.system != self._stored_system():
            self._add(conversation_id, "system", self.system)

    def _begin_reply(self, conversation_id: str) -> Turn:
        sent = messages(self.thread)
        return Turn(conversation_id, self._add(conversation_id, "assistant", "", "partial").id, sent)

    def _stored_system(self) -> str:
        return system_prompt(self.thread)
