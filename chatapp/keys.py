"""The keys: every binding of the chat as it is declared, and as the settings change it."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import Keys

import chatapp

Keymap = Mapping[str, str]
"""From the id of a binding to its keys, as Textual names them, joined by commas."""

SCOPES: Mapping[str, str] = {
    "chat": "In the chat",
    "composer": "While writing",
    "thought": "On a thought",
    "reading": "On a marked message",
    "find": "While searching",
    "app": "Everywhere",
}
"""What the id of a binding begins with, and the heading of such keys; others get their own name."""
TAUGHT = ("chat", "composer", "thought", "reading", "find", "app")
"""The scopes of the chat itself, beside those of lists and dialogues."""
_NAMES = {"escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn", "delete": "Del", "question_mark": "?", "slash": "/"}
_KEY = re.compile(r"((ctrl|alt|shift|super|meta)\+)*[a-z0-9_]+")
_SENT_ALIKE = {"ctrl+m": "Enter", "ctrl+i": "Tab", "ctrl+h": "Backspace", "ctrl+left_square_bracket": "Esc"}


@dataclass(frozen=True, slots=True)
class Key:
    """One binding: `keys` as Textual names them, `action` as it was declared."""

    id: str
    keys: tuple[str, ...]
    about: str
    action: str

    @property
    def scope(self) -> str:
        return self.id.partition(".")[0]

    @property
    def label(self) -> str:
        return ", ".join(map(label, self.keys))


def label(key: str) -> str:
    """A key as people write it: `Ctrl+N`, `PgUp`."""
    *modifiers, last = key.split("+")
    shown = _NAMES.get(last) or (last.upper() if len(last) == 1 and modifiers else last)
    shown = shown if len(shown) == 1 or not shown.islower() else shown.replace("_", " ").title()
    return "+".join([*(modifier.title() for modifier in modifiers), shown])


@functools.cache
def declared() -> Mapping[str, Key]:
    """All bindings by id, of every widget and screen there is. Slow the first time, since it imports them all."""
    for module in pkgutil.walk_packages(chatapp.__path__, "chatapp."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: dict[str, Key] = {}
    for node in _nodes():
        for binding in node.__dict__.get("BINDINGS", ()):
            if isinstance(binding, Binding) and binding.id is not None:
                keys = tuple(key.strip() for key in binding.key.split(","))
                known = found.get(binding.id)
                found[binding.id] = Key(
                    binding.id,
                    (*known.keys, *keys) if known else keys,
                    known.about if known else binding.description,
                    binding.action,
                )
    order = list(SCOPES)
    return MappingProxyType(dict(sorted(found.items(), key=lambda item: (*order, item[1].scope).index(item[1].scope))))


def mapped(keymap: Keymap) -> dict[str, Key]:
    """All bindings by id, with the keys that the settings give them."""
    keys = declared()
    return {
        id: Key(id, tuple(keymap[id].split(",")), key.about, key.action) if id in keymap else key
        for id, key in keys.items()
    }


def of_command(name: str, default: str, keymap: Keymap) -> str:
    """The keys that run the command of this name, as people write them; `default`: the key that its registry tells."""
    for known in declared().values():
        if known.action == f"command('{name}')" or (default and label(known.keys[0]) == default):
            return mapped(keymap)[known.id].label
    return default


def checked(wanted: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """The part of `[keys]` that can be used, and a sentence for each part that cannot."""
    known = declared()
    good: dict[str, str] = {}
    warnings = []
    for id, value in wanted.items():
        keys = [_normal(key) for key in value.split(",")] if isinstance(value, str) else []
        if id not in known:
            near = difflib.get_close_matches(id, known, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else " /keys lists the names."
            warnings.append(f"[keys] of the settings: there is nothing called {id!r}.{hint}")
        elif not keys or any(not _is_key(key) for key in keys):
            warnings.append(
                f"[keys] of the settings: {value!r} is no key for {id}. Keys are written as ctrl+n, alt+enter or f5."
            )
        elif alike := next((key for key in keys if key in _SENT_ALIKE), None):
            warnings.append(
                f"[keys] of the settings: terminals send {label(alike)} and {_SENT_ALIKE[alike]} alike, so {id} keeps "
                f"{known[id].label}."
            )
        else:
            good[id] = ",".join(keys)
    for one, other, key in _clashes(known, good):
        changed = other if other in good else one
        if good.pop(changed, None) is not None:
            kept = one if changed == other else other
            warnings.append(
                f"[keys] of the settings: {label(key)} is the key of {kept} already, so {changed} keeps "
                f"{known[changed].label}."
            )
    return good, warnings


def _clashes(known: Mapping[str, Key], good: Keymap) -> Iterator[tuple[str, str, str]]:
    """Two bindings that would have the same key where both can be pressed, one of them by the settings."""
    together = [id for id, key in known.items() if key.scope in TAUGHT]
    now = {id: good[id].split(",") if id in good else list(known[id].keys) for id in known}
    for place, one in enumerate(together):
        for other in together[place + 1 :]:
            if not (one in good or other in good):
                continue
            for key in set(now[one]) & set(now[other]):
                if not (key in known[one].keys and key in known[other].keys):
                    yield one, other, key
    for scope in {key.scope for key in known.values()} - set(TAUGHT):
        ids = [id for id, key in known.items() if key.scope == scope]
        for place, one in enumerate(ids):
            for other in ids[place + 1 :]:
                if (one in good or other in good) and (same := set(now[one]) & set(now[other])):
                    yield one, other, min(same)


def _normal(key: str) -> str:
    return {"esc": "escape", "pgup": "pageup", "pgdn": "pagedown", "pagedn": "pagedown"}.get(
        key := key.strip().lower().replace(" ", ""), key
    )


def _is_key(key: str) -> bool:
    """Whether Textual may send such a key: a letter, a digit, or one of its names, with modifiers or without."""
    last = key.rpartition("+")[2]
    named = {each.value for each in Keys} | {"space", "question_mark", "slash", "comma", "full_stop", "minus", "plus"}
    return _KEY.fullmatch(key) is not None and (len(last) == 1 or last in named)


def _nodes() -> Iterator[type[DOMNode]]:
    """Our widgets and screens in the order of their definition."""
    waiting: list[type[DOMNode]] = [DOMNode]
    seen = set()
    while waiting:
        node = waiting.pop(0)
        waiting += node.__subclasses__()
        if node.__module__.startswith("chatapp.") and node not in seen:
            seen.add(node)
            yield node
