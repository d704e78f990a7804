"""A conversation from its JSON, checked before anything is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar, cast, get_args

from chatapp.exchange.export import MARK, VERSION
from chatapp.records import Conversation, Node, Status, Titled
from chatapp.remote.address import is_address
from runtime.protocol import Role

LARGEST = 200_000_000
"""Bytes of a file that is read."""
_LATEST = 253_402_300_800.0
"""Seconds from 1970 to the year 10,000, from which on no calendar tells a date."""
_MOST = 10**15
"""Of whatever is counted or measured."""
_DEEPEST = 50
"""Levels of what is known of a message, few enough for whatever reads it back."""
T = TypeVar("T")


class NotOursError(Exception):
    """A text is no conversation of this chat; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Read:
    """`nodes` have numbers for ids, from 1 on, and parents come first; `head` is one of them."""

    conversation: Conversation
    nodes: tuple[Node, ...]


def conversation(text: str) -> Read:
    """Raises NotOursError."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = "too deep" if isinstance(error, RecursionError) else "a number is too long"
        if isinstance(error, json.JSONDecodeError):
            place = f"line {error.lineno}, column {error.colno}"
        raise NotOursError(f"This is not JSON, so it is no conversation that qwenchat has written ({place}).") from None
    if not isinstance(whole, dict) or whole.get("format") != MARK:
        raise NotOursError(_stranger(whole))
    try:
        if _get(whole, "version", int) > VERSION:
            raise NotOursError("A newer qwenchat has written this conversation: please update this one.")
        if whole["version"] != VERSION:
            raise _WrongError("version")
        nodes = tuple(_node(number, message) for number, message in enumerate(_get(whole, "messages", list), start=1))
        head = _get(whole, "head", int, None)
        if head is not None and not 1 <= head <= len(nodes):
            raise _WrongError("head")
        made = Conversation(
            "",
            _get(whole, "title", str, ""),
            _get(whole, "name", str, None),
            _time(whole, "created"),
            _time(whole, "updated"),
            head,
            _get(whole, "model", str, ""),
            _get(whole, "pinned", bool, False),
            cast(Titled, _one_of(whole, "titled", get_args(Titled))),
            None,
            _tags(_get(whole, "tags", list, [])),
        )
    except _WrongError as wrong:
        raise NotOursError(f"This conversation is damaged: {wrong} is not what it should be.") from None
    return Read(made, nodes)


class _WrongError(Exception):
    """The message names what cannot be used."""


def _tags(tags: list[Any]) -> tuple[str, ...]:
    if not all(isinstance(tag, str) for tag in tags):
        raise _WrongError("tags")
    return tuple(tags)


def _node(number: int, message: Any) -> Node:
    if not isinstance(message, dict) or type(message.get("id")) is not int or message["id"] != number:
        raise _WrongError(f"message {number}")
    try:
        parent = _get(message, "parent", int, None)
        if parent is not None and not 1 <= parent < number:
            raise _WrongError("parent")
        return Node(
            number,
            "",
            parent,
            cast(Role, _one_of(message, "role", get_args(Role))),
            _get(message, "content", str),
            _get(message, "thought", str, ""),
            cast(Status, _one_of(message, "status", get_args(Status))),
            _get(message, "thought_closed", bool, True),
            _time(message, "created"),
            _meta(number, _get(message, "meta", dict, {})),
        )
    except _WrongError as wrong:
        raise _WrongError(f"{wrong} of message {number}") from None


def _meta(number: int, meta: dict[str, Any]) -> dict[str, Any]:
    """What is known of a message, if all of it that the chat reads is of the kind that it writes.

    Which server has answered is forgotten: a file must not make the chat speak to an address that the user never gave.
    """
    if not _is_storable(meta, _DEEPEST):
        raise _WrongError("meta")
    for name in ("reason", "failure", "model", "source"):
        _get(meta, name, str, "")
    continued = _get(meta, "continues", int, None)
    if continued is not None and not 1 <= continued < number:
        raise _WrongError("continues")
    for name in _get(meta, "stats", dict, {}):
        _figure(meta["stats"], name)
    if "cut" in meta:
        cut = _get(meta, "cut", dict)
        for name in ("from", "exchanges", "tokens"):
            if name in cut and (type(cut[name]) is not int or not 0 <= cut[name] <= _MOST):
                raise _WrongError(name)
    if is_address(meta.get("source") or ""):
        del meta["source"]
    return meta


def _figure(body: Mapping[str, Any], name: str) -> None:
    """Raises _WrongError unless a value is a number, or not known."""
    value = body[name]
    if value is not None and not (_is_number(value) and -_MOST <= value <= _MOST):
        raise _WrongError(name)


def _get(body: Mapping[str, Any], name: str, kind: type[T], *default: Any) -> T:
    """A value of a kind. A default may be missing or None in its place."""
    value = body.get(name)
    if value is None and default:
        return cast(T, default[0])
    if type(value) is not kind:
        raise _WrongError(name)
    return value


def _one_of(body: Mapping[str, Any], name: str, known: Sequence[str]) -> str:
    value = _get(body, name, str)
    if value not in known:
        raise _WrongError(name)
    return value


def _time(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    if not _is_number(value) or not 0 <= value < _LATEST:
        raise _WrongError(name)
    return float(value)


def _is_storable(value: Any, levels: int) -> bool:
    """Whether the store reads it back: JSON knows no infinity, though Python writes and reads one."""
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_storable(each, levels - 1) for each in inside)
    return not isinstance(value, float) or math.isfinite(value)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return type(value) in (int, float)


def _stranger(whole: Any) -> str:
    """Whose file it may be."""
    sample = whole[0] if isinstance(whole, list) and whole else whole
    known = ""
    if isinstance(sample, dict):
        if "mapping" in sample:
            known = "This looks like an export of ChatGPT. "
        elif "chat_messages" in sample:
            known = "This looks like an export of Claude. "
        elif "role" in sample or "messages" in sample or "chat" in sample:
            known = "This looks like the conversation of another program. "
    return f"{known}qwenchat reads the conversations that it has written itself, with /export NAME.json."
