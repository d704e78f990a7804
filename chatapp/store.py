"""The conversations: a SQLite file holding, per conversation, an append-only tree of messages.

A message is never changed once it is finished, nor taken out of its tree: editing, regenerating and forking add
nodes, and `head` says which leaf is shown. Several processes may work on one file.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chatapp import database
from chatapp.database import StoreError
from runtime.protocol import Message, Role

__all__ = ["Conversation", "Node", "Status", "Store", "StoreError", "messages"]

Status = Literal["complete", "partial", "cancelled", "failed"]

_CONVERSATION = "id, title, name, created, updated, head, model"
_NODE = "id, conversation_id, parent, role, content, thought, status, thought_closed, created, meta"
_TITLE_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Conversation:
    """`created` and `updated` are seconds since 1970; `head` is the node whose thread is shown."""

    id: str
    title: str
    name: str | None
    created: float
    updated: float
    head: int | None
    model: str


@dataclass(frozen=True, slots=True)
class Node:
    """One message. `partial`: still being written, or its writer died; `thought_closed` False: it ends in its thought.

    `meta` is any JSON object, the turn's figures for one.
    """

    id: int
    conversation_id: str
    parent: int | None
    role: Role
    content: str
    thought: str = ""
    status: Status = "complete"
    thought_closed: bool = True
    created: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)


def messages(thread: Sequence[Node]) -> tuple[Message, ...]:
    """What the model is sent of a thread: the last system prompt first, then all that was asked and answered.

    A reply that never came to its answer is left out.
    """
    system = [node for node in thread if node.role == "system"][-1:]
    turns = [node for node in thread if node.role == "user" or (node.role == "assistant" and node.content.strip())]
    return tuple(Message(node.role, node.content, node.thought) for node in system + turns if node.content)


class Store:
    """All methods raise StoreError with a sentence for the user; they may be called from any thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Opens or creates the file. A damaged one is renamed, which `notice` then tells."""
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._connection, self.notice = database.open_database(path)

    def create(self, title: str = "", name: str | None = None, model: str = "") -> Conversation:
        """A new, empty conversation. A `name` that is taken raises StoreError."""
        now = self._clock()
        name = None if name is None else _clean(name)
        made = Conversation(uuid.uuid4().hex, _clean(title), name, now, now, None, _clean(model))
        with self._transaction() as sql:
            if made.name is not None and self._find("name = ?", made.name) is not None:
                raise StoreError(f"There is a conversation named {made.name!r} already.")
            sql.execute(
                f"INSERT INTO conversations ({_CONVERSATION}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (made.id, made.title, made.name, made.created, made.updated, made.head, made.model),
            )
        return made

    def get(self, conversation_id: str) -> Conversation | None:
        return self._find("id = ?", conversation_id)

    def by_name(self, name: str) -> Conversation | None:
        return self._find("name = ?", _clean(name))

    def named(self, name: str, model: str = "") -> Conversation:
        """The conversation of that name, made if there is none."""
        with self._transaction():
            return self.by_name(name) or self.create(name=name, model=model)

    def find(self, key: str) -> Conversation | None:
        """The conversation with this name, else with this id, else the only one whose id begins so."""
        if found := self.by_name(key) or self.get(key):
            return found
        matches = self._conversations("WHERE substr(id, 1, ?) = ? LIMIT 2", len(key), key) if key else []
        return matches[0] if len(matches) == 1 else None

    def latest(self) -> Conversation | None:
        """The one last written to."""
        return next(iter(self.conversations(limit=1)), None)

    def conversations(self, limit: int = 100, offset: int = 0) -> list[Conversation]:
        """Last written first."""
        return self._conversations("ORDER BY updated DESC, rowid DESC LIMIT ? OFFSET ?", limit, offset)

    def add(
        self,
        conversation_id: str,
        parent: int | None,
        role: Role,
        content: str,
        thought: str = "",
        status: Status = "complete",
        thought_closed: bool = True,
        meta: Mapping[str, Any] | None = None,
    ) -> Node:
        """Append a message under `parent` and make it the head; on return it is on the disk.

        The first user message gives a conversation without a title its title.
        """
        now = self._clock()
        with self._transaction() as sql:
            if self.get(conversation_id) is None:
                raise StoreError("This conversation was deleted.")
            row = sql.execute(
                "INSERT INTO nodes (conversation_id, parent, role, content, thought, status, thought_closed, created,"
                f" meta) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {_NODE}",
                (
                    conversation_id,
                    parent,
                    role,
                    _clean(content),
                    _clean(thought),
                    status,
                    thought_closed,
                    now,
                    json.dumps(dict(meta or {})),
                ),
            ).fetchone()
            node = _node(row)
            title = _title(node.content) if role == "user" else ""
            sql.execute(
                "UPDATE conversations SET head = ?, updated = ?, title = iif(title = '', ?, title) WHERE id = ?",
                (node.id, now, title, conversation_id),
            )
        return node

    def write_partial(self, node_id: int, content: str, thought: str) -> None:
        """What a reply holds so far; called about every second while it streams."""
        with self._transaction() as sql:
            sql.execute(
                "UPDATE nodes SET content = ?, thought = ? WHERE id = ? AND status = 'partial'",
                (_clean(content), _clean(thought), node_id),
            )

    def finish(
        self,
        node_id: int,
        content: str,
        thought: str,
        status: Status = "complete",
        thought_closed: bool = True,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """The end of a reply that was added as `partial`; a finished one stays as it is."""
        with self._transaction() as sql:
            sql.execute(
                "UPDATE nodes SET content = ?, thought = ?, status = ?, thought_closed = ?, meta = ?"
                " WHERE id = ? AND status = 'partial'",
                (_clean(content), _clean(thought), status, thought_closed, json.dumps(dict(meta or {})), node_id),
            )
            sql.execute(
                "UPDATE conversations SET updated = ? WHERE id = (SELECT conversation_id FROM nodes WHERE id = ?)",
                (self._clock(), node_id),
            )

    def thread(self, conversation_id: str, head: int | None = None) -> list[Node]:
        """The messages from the root to `head`, which is the conversation's own when None."""
        with self._reading() as sql:
            # A parent is older than its child; where damage says otherwise, going on might never end.
            rows = sql.execute(
                "WITH RECURSIVE up(node, depth) AS ("
                " SELECT ifnull(?, (SELECT head FROM conversations WHERE id = ?)), 0"
                " UNION ALL SELECT parent, depth + 1 FROM nodes JOIN up ON id = node WHERE parent < id)"
                f" SELECT {_NODE} FROM up JOIN nodes ON id = node WHERE conversation_id = ? ORDER BY depth DESC",
                (head, conversation_id, conversation_id),
            ).fetchall()
        return [_node(row) for row in rows]

    def children(self, conversation_id: str, parent: int | None) -> list[Node]:
        """The versions that follow a message, oldest first; of None, the conversation's first messages."""
        with self._reading() as sql:
            rows = sql.execute(
                f"SELECT {_NODE} FROM nodes WHERE conversation_id = ? AND parent IS ? ORDER BY id",
                (conversation_id, parent),
            ).fetchall()
        return [_node(row) for row in rows]

    def set_head(self, conversation_id: str, node_id: int | None) -> None:
        """Show another branch."""
        with self._transaction() as sql:
            sql.execute("UPDATE conversations SET head = ? WHERE id = ?", (node_id, conversation_id))

    def rename(self, conversation_id: str, title: str) -> None:
        with self._transaction() as sql:
            sql.execute("UPDATE conversations SET title = ? WHERE id = ?", (_clean(title), conversation_id))

    def delete(self, conversation_id: str) -> None:
        """The conversation and all its messages."""
        with self._transaction() as sql:
            sql.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _find(self, where: str, value: str) -> Conversation | None:
        return next(iter(self._conversations(f"WHERE {where}", value)), None)

    def _conversations(self, clauses: str, *values: object) -> list[Conversation]:
        with self._reading() as sql:
            rows = sql.execute(f"SELECT {_CONVERSATION} FROM conversations {clauses}", values).fetchall()
        return [Conversation(*row) for row in rows]

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, database.explained(self.path):
            yield self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, and the write lock from its first read on; one inside another joins it."""
        with self._reading() as sql:
            if sql.in_transaction:
                yield sql
                return
            with database.transaction(sql):
                yield sql


def _node(row: Sequence[Any]) -> Node:
    number, conversation_id, parent, role, content, thought, status, thought_closed, created, meta = row
    return Node(
        number, conversation_id, parent, role, content, thought, status, bool(thought_closed), created, json.loads(meta)
    )


def _clean(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair, as in a broken file name, becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _title(content: str) -> str:
    """The first line that says something, cut to a length that fits a list."""
    line = " ".join(next((line for line in content.splitlines() if line.strip()), "").split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
