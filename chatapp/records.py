"""Conversations and their messages as they are stored, and as rows of the tables."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from chatapp.sanitize import clean_line
from runtime.protocol import Role
from runtime.quick_dataclass import standard_dataclass

Status = Literal["complete", "partial", "cancelled", "failed"]
Titled = Literal["", "model", "user"]

CONVERSATION = (
    "id, title, name, created, updated, head, model, pinned, titled, deleted,"
    " (SELECT group_concat(tag, char(10)) FROM tags WHERE conversation_id = conversations.id)"
)
NODE = "id, conversation_id, parent, role, content, thought, status, thought_closed, created, meta"
_TITLE_LENGTH = 80
_SHORT_ID = 8
_LISTED = 5


@standard_dataclass(frozen=True, slots=True)
class Conversation:
    """`created`, `updated` and `deleted` are seconds since 1970; `head` is the node whose thread is shown.

    `titled`: who gave it its title; "" stands for the first words of its first message.
    """

    id: str
    title: str
    name: str | None
    created: float
    updated: float
    head: int | None
    model: str
    pinned: bool = False
    titled: Titled = ""
    deleted: float | None = None
    tags: tuple[str, ...] = ()


@standard_dataclass(frozen=True, slots=True)
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


def refused(failure: object, content: str, thought: str) -> bool:
    """Whether a reply is but the place of one, to a message that had no room in the context."""
    return failure == "context" and not content and not thought


def copied(meta: Mapping[str, Any], copies: Mapping[Any, int]) -> dict[str, Any]:
    """What is known of a message, for its copy: messages that it names are those of `copies`."""
    made = dict(meta)
    if isinstance(cut := made.get("cut"), dict):
        made["cut"] = {**cut, "from": copies.get(cut.get("from"), 0)}
    if "continues" in made:
        made["continues"] = copies.get(made["continues"])
    return made


def conversation_of(row: Sequence[Any]) -> Conversation:
    key, title, name, created, updated, head, model, pinned, titled, deleted, tags = row
    known = tuple(tags.split("\n")) if tags else ()
    return Conversation(key, title, name, created, updated, head, model, bool(pinned), titled, deleted, known)


def node_of(row: Sequence[Any]) -> Node:
    number, conversation_id, parent, role, content, thought, status, thought_closed, created, meta = row
    return Node(
        number, conversation_id, parent, role, content, thought, status, bool(thought_closed), created, json.loads(meta)
    )


def title_of(conversation: Conversation) -> str:
    """What it is called in a list: as the user called it last, by a title or else by its name."""
    given = conversation.title if conversation.titled == "user" else ""
    return given or conversation.name or conversation.title or "(untitled)"


def called(key: str, conversations: Sequence[Conversation]) -> list[Conversation]:
    """Those with this title or name, in any case; if there are none, those whose title or name begins so.

    A list may have cut the title: an ellipsis at the end of `key` stands for the rest.
    """
    wanted = _plain(key)
    begun = wanted.removesuffix("…").rstrip()
    titles = [(each, {_plain(each.title), _plain(each.name or "")}) for each in conversations]
    whole = [each for each, known in titles if wanted and wanted in known]
    return whole or [each for each, known in titles if begun and any(one.startswith(begun) for one in known)]


def several(key: str, found: Sequence[Conversation]) -> str:
    """The sentence that lists conversations with the same title, or the same beginning of it."""
    listed = []
    for each in found[:_LISTED]:
        when = time.strftime("%d %b %H:%M", time.localtime(each.updated))
        listed.append(f"{each.id[:_SHORT_ID]} ({clean_line(title_of(each), 40)}, {when})")
    more = [f"{len(found) - _LISTED} more"] if len(found) > _LISTED else []
    *others, last = listed + more
    return (
        f"{clean_line(key, 60)!r} fits {len(found)} conversations: {', '.join(others)} and {last}."
        " Give the id in place of the title."
    )


def _plain(title: str) -> str:
    """As titles are compared: in one case, as one line, with characters composed."""
    return " ".join(unicodedata.normalize("NFC", storable(title)).casefold().split())


def storable(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair, as in a broken file name, becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def first_words(content: str) -> str:
    """The first line that says something, cut to a length that fits a list."""
    line = " ".join(next((line for line in content.splitlines() if line.strip()), "").split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
