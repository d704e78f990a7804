"""The conversation on the screen: what is written to the store, and what the model is sent."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from chatapp.store import Conversation, Node, Status, Store, messages
from runtime.protocol import Message, Role

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that is stored, with the place of its reply."""

    conversation_id: str
    reply_id: int
    messages: tuple[Message, ...]


class Session:
    """Writes happen beside the event loop, in their order. Methods raise StoreError."""

    def __init__(self, store: Store, default_system: str = "") -> None:
        self.conversation: Conversation | None = None
        self.thread: list[Node] = []
        self.system = default_system
        self._store = store
        self._default_system = default_system
        self._order = asyncio.Lock()

    def new(self) -> None:
        """An empty conversation, which the store learns of with its first message."""
        self.conversation, self.thread, self.system = None, [], self._default_system

    async def open(self, conversation_id: str) -> bool:
        """Go on with a saved conversation; False if there is none of that id."""

        def read() -> tuple[Conversation | None, list[Node]]:
            return self._store.get(conversation_id), self._store.thread(conversation_id)

        conversation, thread = await self._in_order(read)
        if conversation is None:
            return False
        self.conversation, self.thread = conversation, thread
        self.system = self._stored_system() if thread else self._default_system
        return True

    async def ask(self, text: str, model: str) -> Turn:
        """Store what the user says, before anything is generated."""

        def write() -> Turn:
            conversation = self.conversation or self._store.create(model=model)
            self.conversation = conversation
            if self.system != self._stored_system():
                self._add(conversation.id, "system", self.system)
            self._add(conversation.id, "user", text)
            return self._begin_reply(conversation.id)

        return await self._in_order(write)

    async def retry(self) -> Turn | None:
        """Another reply to the last message of the user, beside the one there is; None if there is no message."""
        conversation = self.conversation
        last = max((place for place, node in enumerate(self.thread) if node.role == "user"), default=None)
        if conversation is None or last is None:
            return None

        def write() -> Turn:
            self.thread = self.thread[: last + 1]
            if self.system != self._stored_system():
                self._add(conversation.id, "system", self.system)
            return self._begin_reply(conversation.id)

        return await self._in_order(write)

    async def save(self, turn: Turn, content: str, thought: str) -> None:
        """What there is of a reply so far."""
        await self._in_order(lambda: self._store.write_partial(turn.reply_id, content, thought))

    async def finish(
        self, turn: Turn, content: str, thought: str, status: Status, thought_closed: bool, meta: Mapping[str, Any]
    ) -> None:
        """A reply has ended. A message that did not fit in the context is taken back: no later one would fit either."""

        def write() -> None:
            self._store.finish(turn.reply_id, content, thought, status, thought_closed, meta)
            if meta.get("failure") == "context":
                self._take_back(turn)

        self.thread = [
            dataclasses.replace(
                node, content=content, thought=thought, status=status, thought_closed=thought_closed, meta=meta
            )
            if node.id == turn.reply_id
            else node
            for node in self.thread
        ]
        await self._in_order(write)

    def _take_back(self, turn: Turn) -> None:
        """Go on from before the message of a turn, unless it has been replied to before."""
        *before, message, reply = self.thread
        if reply.id == turn.reply_id and len(self._store.children(turn.conversation_id, message.id)) == 1:
            self._store.set_head(turn.conversation_id, before[-1].id if before else None)
            self.thread = before

    async def conversations(self) -> list[Conversation]:
        """The saved ones, last written first."""
        return await self._in_order(lambda: self._store.conversations(limit=500))

    async def find(self, key: str) -> Conversation | None:
        """A saved conversation by name or id."""
        return await self._in_order(lambda: self._store.find(key))

    async def _in_order(self, work: Callable[[], T]) -> T:
        async with self._order:
            return await asyncio.to_thread(work)

    def _add(self, conversation_id: str, role: Role, content: str, status: Status = "complete") -> Node:
        parent = self.thread[-1].id if self.thread else None
        node = self._store.add(conversation_id, parent, role, content, status=status)
        self.thread = [*self.thread, node]
        return node

    def _begin_reply(self, conversation_id: str) -> Turn:
        sent = messages(self.thread)
        return Turn(conversation_id, self._add(conversation_id, "assistant", "", "partial").id, sent)

    def _stored_system(self) -> str:
        return next((node.content for node in reversed(self.thread) if node.role == "system"), "")
