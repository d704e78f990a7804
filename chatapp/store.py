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
from pathlib import Path
from typing import Any

from chatapp import database
from chatapp.claim import Claim
from chatapp.database import StoreError
from chatapp.records import (
    CONVERSATION,
    NODE,
    Conversation,
    Node,
    Status,
    Titled,
    called,
    conversation_of,
    copied,
    first_words,
    node_of,
    refused,
    several,
    storable,
)
from chatapp.tree import Twig
from runtime.protocol import Role

__all__ = ["AmbiguousError", "Conversation", "Node", "Status", "Store", "StoreError"]

_VOID = (
    "name IS NULL AND titled <> 'user' AND NOT EXISTS (SELECT * FROM nodes WHERE conversation_id = conversations.id)"
    " AND NOT EXISTS (SELECT * FROM unsent WHERE conversation_id = conversations.id)"
)
_NEXT_TOUCH = "(SELECT ifnull(max(touched), 0) + 1 FROM conversations)"


class AmbiguousError(StoreError):
    """Several conversations are called so; the sentence lists their ids."""


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
        name = None if name is None else storable(name)
        titled: Titled = "user" if title else ""
        made = Conversation(uuid.uuid4().hex, storable(title), name, now, now, None, storable(model), titled=titled)
        with self.transaction() as sql:
            if made.name is not None and self._find("name = ?", made.name) is not None:
                raise StoreError(f"There is a conversation named {made.name!r} already.")
            sql.execute(
                "INSERT INTO conversations (id, title, titled, name, created, updated, model, touched)"
                f" VALUES (?, ?, ?, ?, ?, ?, ?, {_NEXT_TOUCH})",
                (made.id, made.title, titled, made.name, made.created, made.updated, made.model),
            )
        return made

    def get(self, conversation_id: str) -> Conversation | None:
        return self._find("id = ?", conversation_id)

    def by_name(self, name: str) -> Conversation | None:
        return self._find("name = ?", storable(name))

    def named(self, name: str, model: str = "") -> Conversation:
        """The conversation of that name, made if there is none."""
        with self.transaction():
            return self.by_name(name) or self.create(name=name, model=model)

    def find(self, key: str) -> Conversation | None:
        """The conversation with this name, else this id, else this title or beginning of one, else this one of an id.

        Raises AmbiguousError if there are several of that title.
        """
        if found := self.by_name(key) or self.get(key):
            return found
        matches = called(key, self.conversations(limit=-1))
        if len(matches) > 1:
            raise AmbiguousError(several(key, matches))
        if not matches and key:
            where = "WHERE deleted IS NULL AND substr(id, 1, ?) = ? LIMIT 2"
            matches = self._conversations(where, len(key), storable(key))
        return matches[0] if len(matches) == 1 else None

    def latest(self) -> Conversation | None:
        """The one last written to, whatever the clock said then."""
        found = self._conversations(f"WHERE deleted IS NULL AND NOT ({_VOID}) ORDER BY touched DESC LIMIT 1")
        return found[0] if found else None

    def conversations(self, limit: int = 100, offset: int = 0) -> list[Conversation]:
        """Last written first."""
        return self._conversations("WHERE deleted IS NULL ORDER BY touched DESC LIMIT ? OFFSET ?", limit, offset)

    def asked(self, limit: int, longest: int = 100_000) -> list[str]:
        """The last messages of the user in all conversations, oldest first; none longer than `longest` characters."""
        with self.reading() as sql:
            rows = sql.execute(
                "SELECT content FROM nodes WHERE role = 'user' AND length(content) <= ? ORDER BY id DESC LIMIT ?",
                (longest, limit),
            ).fetchall()
        return [content for (content,) in reversed(rows)]

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
        with self.transaction() as sql:
            if self.get(conversation_id) is None:
                raise StoreError("This conversation was deleted.")
            row = sql.execute(
                "INSERT INTO nodes (conversation_id, parent, role, content, thought, status, thought_closed, created,"
                f" meta) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {NODE}",
                (
                    conversation_id,
                    parent,
                    role,
                    storable(content),
                    storable(thought),
                    status,
                    thought_closed,
                    now,
                    _json(meta or {}),
                ),
            ).fetchone()
            node = node_of(row)
            title = first_words(node.content) if role == "user" else ""
            sql.execute(
                "UPDATE conversations SET head = ?, updated = ?, title = iif(? = '' OR titled <> '' OR title <> '' AND"
                " EXISTS (SELECT * FROM nodes WHERE conversation_id = conversations.id AND role = 'user' AND id <> ?),"
                f" title, ?), touched = {_NEXT_TOUCH} WHERE id = ?",
                (node.id, now, title, node.id, title, conversation_id),
            )
        return node

    def write_partial(self, node_id: int, content: str, thought: str) -> None:
        """What a reply holds so far; called about every second while it streams."""
        with self.transaction() as sql:
            sql.execute(
                "UPDATE nodes SET content = ?, thought = ? WHERE id = ? AND status = 'partial'",
                (storable(content), storable(thought), node_id),
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
        with self.transaction() as sql:
            sql.execute(
                "UPDATE nodes SET content = ?, thought = ?, status = ?, thought_closed = ?, meta = ?"
                " WHERE id = ? AND status = 'partial'",
                (storable(content), storable(thought), status, thought_closed, _json(meta or {}), node_id),
            )
            sql.execute(
                f"UPDATE conversations SET updated = ?, touched = {_NEXT_TOUCH}"
                " WHERE id = (SELECT conversation_id FROM nodes WHERE id = ?)",
                (self._clock(), node_id),
            )

    def thread(self, conversation_id: str, head: int | None = None) -> list[Node]:
        """The messages from the root to `head`, which is the conversation's own when None."""
        with self.reading() as sql:
            # A parent is older than its child; where damage says otherwise, going on might never end.
            rows = sql.execute(
                "WITH RECURSIVE up(node, depth) AS ("
                " SELECT ifnull(?, (SELECT head FROM conversations WHERE id = ?)), 0"
                " UNION ALL SELECT parent, depth + 1 FROM nodes JOIN up ON id = node WHERE parent < id)"
                f" SELECT {NODE} FROM up JOIN nodes ON id = node WHERE conversation_id = ? ORDER BY depth DESC",
                (head, conversation_id, conversation_id),
            ).fetchall()
        return [node_of(row) for row in rows]

    def children(self, conversation_id: str, parent: int | None) -> list[Node]:
        """The versions that follow a message, oldest first; of None, the conversation's first messages."""
        with self.reading() as sql:
            rows = sql.execute(
                f"SELECT {NODE} FROM nodes WHERE conversation_id = ? AND parent IS ? ORDER BY id",
                (conversation_id, parent),
            ).fetchall()
        return [node_of(row) for row in rows]

    def set_head(self, conversation_id: str, node_id: int | None) -> None:
        """Show another branch."""
        with self.transaction() as sql:
            sql.execute("UPDATE conversations SET head = ? WHERE id = ?", (node_id, conversation_id))

    def nodes(self, conversation_id: str) -> list[Node]:
        """Every message of a conversation, oldest first."""
        with self.reading() as sql:
            rows = sql.execute(
                f"SELECT {NODE} FROM nodes WHERE conversation_id = ? ORDER BY id", (conversation_id,)
            ).fetchall()
        return [node_of(row) for row in rows]

    def bring_in(self, conversation: Conversation, nodes: Sequence[Node]) -> Conversation:
        """A conversation from elsewhere, as a new one. The ids of `nodes` are numbers of its own, parents first.

        It keeps its name if that is free, and its times, and is the last written to.
        """
        with self.transaction() as sql:
            name = conversation.name
            made = self.create(conversation.title, None if name is None or self.by_name(name) else name)
            copies: dict[Any, int] = {}
            for node in nodes:
                parent = copies.get(node.parent)
                meta = copied(node.meta, copies)
                copies[node.id] = self.add(
                    made.id, parent, node.role, node.content, node.thought, node.status, node.thought_closed, meta
                ).id
                sql.execute("UPDATE nodes SET created = ? WHERE id = ?", (node.created, copies[node.id]))
            head = copies.get(conversation.head)
            sql.execute(
                "UPDATE conversations SET head = ?, created = ?, updated = ?, titled = ?, pinned = ?, model = ?,"
                " title = iif(? = '', title, ?) WHERE id = ?",
                (
                    head,
                    conversation.created,
                    conversation.updated,
                    conversation.titled,
                    conversation.pinned,
                    storable(conversation.model),
                    storable(conversation.title),
                    storable(conversation.title),
                    made.id,
                ),
            )
            self.tag(made.id, conversation.tags)
            return self.get(made.id) or made

    def twigs(self, conversation_id: str) -> list[Twig]:
        """The shape of the tree, oldest first."""
        with self.reading() as sql:
            rows = sql.execute(
                "SELECT id, parent, role, json_extract(meta, '$.continues'), json_extract(meta, '$.failure'),"
                " substr(content, 1, 1), substr(thought, 1, 1) FROM nodes WHERE conversation_id = ? ORDER BY id",
                (conversation_id,),
            ).fetchall()
        return [Twig(key, parent, role, begun, refused(*reply)) for key, parent, role, begun, *reply in rows]

    def fork(self, thread: Sequence[Node], title: str, model: str = "") -> Conversation:
        """A new conversation that begins with the messages of another one."""
        with self.transaction():
            made = self.create(title, model=model)
            parent = None
            copies: dict[Any, int] = {}
            for node in thread:
                status: Status = "cancelled" if node.status == "partial" else node.status
                meta = copied(node.meta, copies)
                closed = node.thought_closed
                parent = self.add(made.id, parent, node.role, node.content, node.thought, status, closed, meta).id
                copies[node.id] = parent
            return self.get(made.id) or made

    def rename(self, conversation_id: str, title: str, by: Titled = "user") -> None:
        """A title by the model never replaces one by the user; an empty one is that of the first words again."""
        with self.transaction() as sql:
            if not title:
                first = "SELECT content FROM nodes WHERE conversation_id = ? AND role = 'user' ORDER BY id LIMIT 1"
                row = sql.execute(first, (conversation_id,)).fetchone()
                title, by = first_words(row[0]) if row else "", ""
            sql.execute(
                "UPDATE conversations SET title = ?, titled = ? WHERE id = ? AND (titled <> 'user' OR ? <> 'model')",
                (storable(title), by, conversation_id, by),
            )

    def pin(self, conversation_id: str, pinned: bool) -> None:
        with self.transaction() as sql:
            sql.execute("UPDATE conversations SET pinned = ? WHERE id = ?", (pinned, conversation_id))

    def tag(self, conversation_id: str, tags: Sequence[str]) -> None:
        """These tags, and no others."""
        with self.transaction() as sql:
            sql.execute("DELETE FROM tags WHERE conversation_id = ?", (conversation_id,))
            known = dict.fromkeys(" ".join(storable(tag).split()) for tag in tags)
            sql.executemany("INSERT INTO tags VALUES (?, ?)", [(conversation_id, tag) for tag in known if tag])

    def delete(self, conversation_id: str) -> None:
        """Out of sight, with its name free for another; `undelete` brings it back until `purge`."""
        with self.transaction() as sql:
            sql.execute(
                "UPDATE conversations SET deleted = ?, former_name = name, name = NULL WHERE id = ?",
                (self._clock(), conversation_id),
            )

    def undelete(self, conversation_id: str) -> None:
        """With its name, if no other has it by now."""
        free = "iif(former_name IN (SELECT name FROM conversations), NULL, former_name)"
        with self.transaction() as sql:
            sql.execute(f"UPDATE conversations SET deleted = NULL, name = {free} WHERE id = ?", (conversation_id,))

    def deleted(self) -> list[Conversation]:
        """Those that can be brought back, last deleted first."""
        return self._conversations("WHERE deleted IS NOT NULL ORDER BY deleted DESC, touched DESC")

    def expired(self, seconds: float) -> list[str]:
        """The ids of those that were deleted that long ago."""
        with self.reading() as sql:
            found = sql.execute(
                "SELECT id FROM conversations WHERE deleted <= ?", (self._clock() - seconds,)
            ).fetchall()
        return [key for (key,) in found]

    def purge(self, seconds: float, expired: Sequence[str]) -> None:
        """Remove for good those of the `expired` that are, and new conversations in which nothing was written."""
        old = self._clock() - seconds
        with self.transaction() as sql:
            sql.executemany("DELETE FROM conversations WHERE id = ? AND deleted <= ?", [(key, old) for key in expired])
            sql.execute(f"DELETE FROM conversations WHERE {_VOID} AND updated <= ?", (old,))

    def holds(self, conversation: Conversation) -> bool:
        """Whether anything was written in a conversation, sent or not."""
        if conversation.head is not None:
            return True
        with self.reading() as sql:
            void = sql.execute(f"SELECT 1 FROM conversations WHERE id = ? AND {_VOID}", (conversation.id,)).fetchone()
        return void is None

    def drop_if_void(self, conversation_id: str) -> None:
        """Forget a new conversation in which nothing was written."""
        with self.transaction() as sql:
            sql.execute(f"DELETE FROM conversations WHERE id = ? AND {_VOID}", (conversation_id,))

    def claim(self, name: str) -> Claim | None:
        """The right to write in a conversation, or to be a window; None while another window has it."""
        return Claim.take(self._claim_path(name))

    def claimed(self, name: str) -> bool:
        """Whether a window, this one included, has that right."""
        return Claim.taken(self._claim_path(name))

    def version(self) -> int:
        """A number that changes when another window, and not this one, has written."""
        with self.reading() as sql:
            return int(sql.execute("PRAGMA data_version").fetchone()[0])

    def choices(self, conversation_id: str) -> dict[str, Any]:
        """The settings that a conversation has of its own."""
        with self.reading() as sql:
            row = sql.execute("SELECT chosen FROM choices WHERE conversation_id = ?", (conversation_id,)).fetchone()
        return dict(json.loads(row[0])) if row is not None else {}

    def keep_choices(self, conversation_id: str, choices: Mapping[str, Any]) -> None:
        """In place of those before. A conversation that is gone keeps none."""
        with self.transaction() as sql:
            sql.execute(
                "INSERT INTO choices SELECT id, ? FROM conversations WHERE id = ?"
                " ON CONFLICT (conversation_id) DO UPDATE SET chosen = excluded.chosen",
                (_json(choices), conversation_id),
            )

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _claim_path(self, name: str) -> Path:
        return self.path.with_name("open") / name

    def _find(self, where: str, value: str) -> Conversation | None:
        return next(iter(self._conversations(f"WHERE {where} AND deleted IS NULL", value)), None)

    def _conversations(self, clauses: str, *values: object) -> list[Conversation]:
        with self.reading() as sql:
            rows = sql.execute(f"SELECT {CONVERSATION} FROM conversations {clauses}", values).fetchall()
        return [conversation_of(row) for row in rows]

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, database.explained(self.path):
            yield self._connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, and the write lock from its first read on; one inside another joins it."""
        with self.reading() as sql:
            if sql.in_transaction:
                yield sql
                return
            with database.transaction(sql):
                yield sql


def _json(known: Mapping[str, Any]) -> str:
    return storable(json.dumps(dict(known), ensure_ascii=False))
