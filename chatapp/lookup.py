"""Full-text search: which conversations hold some words, and where."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from chatapp.store import Conversation, Store

_START, _END = "\x02", "\x03"
_WORD = re.compile(r"[^\W_]+")
_AROUND = 40  # characters of a snippet on each side of what was found, where SQLite makes none


@dataclass(frozen=True, slots=True)
class Hit:
    """`node`: the newest message in which the words are; None: they are in the title or the tags.

    `snippet` is of that message, `marks` are the parts of it, from one index to another, that were found.
    """

    conversation: Conversation
    node: int | None = None
    snippet: str = ""
    marks: tuple[tuple[int, int], ...] = ()


def find(store: Store, query: str, limit: int = 60) -> list[Hit]:
    """The conversations that hold all the words, each word as the beginning of one; those last written to first.

    Letter case and accents do not matter. `#word` looks in the tags only. Scripts that set no spaces between words are
    searched letter by letter. Raises StoreError.
    """
    query = " ".join(query.split())
    if not query:
        return []
    everything = store.conversations(limit=-1)
    found = {} if query.startswith("#") else _spoken(store, query, limit)
    hits = []
    for each in everything:
        if each.id in found:
            node, snippet = found[each.id]
            hits.append(Hit(each, node, *_marked(snippet)))
        elif _named(each, query):
            hits.append(Hit(each))
    return hits[:limit]


def folded(text: str) -> str:
    """Without letter case and accents."""
    plain = unicodedata.normalize("NFD", text.casefold())
    return "".join(character for character in plain if not unicodedata.combining(character))


def _named(conversation: Conversation, query: str) -> bool:
    tags = [folded(tag) for tag in conversation.tags]
    if query.startswith("#"):
        return any(tag.startswith(folded(query[1:])) for tag in tags)
    text = folded(" ".join([conversation.name or "", conversation.title, *tags]))
    terms, words = _WORD.findall(folded(query)), _WORD.findall(text)
    return bool(terms) and all(
        any(word.startswith(term) for word in words) or (any(map(_has_no_spaces, term)) and term in text)
        for term in terms
    )


def _spoken(store: Store, query: str, limit: int) -> dict[str, tuple[int, str]]:
    """By conversation: its newest message that holds the words, and a snippet of it."""
    terms = _WORD.findall(query)
    if not terms:
        return {}
    if any(map(_has_no_spaces, query)):
        return _letter_by_letter(store, query.split(), limit)
    match = " ".join(f'"{term}"*' for term in terms)
    newest = (
        "SELECT max(nodes.id) FROM words JOIN nodes ON nodes.id = words.rowid"
        " JOIN conversations ON conversations.id = nodes.conversation_id"
        " WHERE words MATCH ? AND deleted IS NULL AND role <> 'system' GROUP BY conversation_id"
        " ORDER BY touched DESC LIMIT ?"
    )
    with store.reading() as sql:
        places = [place for (place,) in sql.execute(newest, (match, limit))]
        marks = ", ".join("?" * len(places))
        rows = sql.execute(
            f"SELECT conversation_id, nodes.id, snippet(words, 0, ?, ?, '…', 14) FROM words"
            f" JOIN nodes ON nodes.id = words.rowid WHERE words MATCH ? AND words.rowid IN ({marks})",
            (_START, _END, match, *places),
        ).fetchall()
    return {key: (node, snippet) for key, node, snippet in rows}


def _letter_by_letter(store: Store, words: Sequence[str], limit: int) -> dict[str, tuple[int, str]]:
    patterns = ["%" + re.sub(r"([%_\\])", r"\\\1", word) + "%" for word in words]
    held = " AND ".join(["content LIKE ? ESCAPE '\\'"] * len(patterns))
    with store.reading() as sql:
        rows = sql.execute(
            "SELECT conversation_id, max(nodes.id), content FROM nodes JOIN conversations"
            f" ON conversations.id = nodes.conversation_id WHERE deleted IS NULL AND role <> 'system' AND {held}"
            " GROUP BY conversation_id ORDER BY touched DESC LIMIT ?",
            (*patterns, limit),
        ).fetchall()
    return {key: (node, _cut(content, words)) for key, node, content in rows}


def _cut(content: str, words: Sequence[str]) -> str:
    """A snippet of `content` around the first word, the words marked."""
    place = max(content.casefold().find(words[0].casefold()), 0)
    start, end = max(place - _AROUND, 0), place + len(words[0]) + _AROUND
    text = ("…" if start else "") + content[start:end] + ("…" if end < len(content) else "")
    wanted = "|".join(map(re.escape, words))
    return re.sub(f"({wanted})", rf"{_START}\1{_END}", text, flags=re.IGNORECASE)


def _marked(snippet: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text of a snippet, and the parts of it that were found."""
    text = ""
    marks = []
    for part in re.split(f"({_START}.*?{_END})", " ".join(snippet.split())):
        if part.startswith(_START):
            part = part[1:-1]
            marks.append((len(text), len(text) + len(part)))
        text += part
    return text, tuple(marks)


def _has_no_spaces(character: str) -> bool:
    """Whether it is of a script whose words are not set apart: Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese."""
    return (
        unicodedata.east_asian_width(character) in "WF"
        or "\u0e00" <= character <= "\u0eff"
        or ("\u1000" <= character <= "\u109f" or "\u1780" <= character <= "\u17ff")
    )
