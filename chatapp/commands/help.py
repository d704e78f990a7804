"""The help, made from the registry and from the bindings."""

from __future__ import annotations

import asyncio
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from chatapp.commands.registry import COMMANDS, Command, CommandError, command
from chatapp.sanitize import clean_line

if TYPE_CHECKING:
    from chatapp.keys import Key, Keymap


class Pages(Protocol):
    """What these commands ask of the chat."""

    @property
    def keymap(self) -> Keymap:
        """The keys that the settings have changed."""

    def show(self, markdown: str) -> None: ...


@command("[WORD]", "Show the commands and keys, or those that a word is about")
async def help(chat: Pages, argument: str) -> None:
    chat.show(await asyncio.to_thread(help_page, argument, chat.keymap))


@command("", "Show every key with its name in the settings")
async def keys_(chat: Pages, argument: str) -> None:
    chat.show(await asyncio.to_thread(keys_page, chat.keymap))


def help_page(word: str, keymap: Keymap) -> str:
    """All of it, or what `word` occurs in. Raises CommandError if it occurs in nothing."""
    from chatapp import keys
    from chatapp.keys import SCOPES, TAUGHT

    word = word.casefold().strip()
    commands = [known for known in COMMANDS.values() if word in f"{known.usage} {known.help}".casefold()]
    taught = [key for key in keys.mapped(keymap).values() if key.scope in TAUGHT]
    if word:
        taught = [key for key in taught if word in f"{key.label} {key.about}".casefold()]
    if not commands and not taught:
        raise CommandError(f"The help says nothing about {clean_line(word, 40)!r}. /help alone shows all of it.")
    parts = []
    for subject, group in groupby(commands, attrgetter("subject")):
        parts.append(_table(subject, [_told(known, keymap) for known in group]))
    writing = [] if word and not any(word in " ".join(row).casefold() for row in WRITING) else list(WRITING)
    for scope in TAUGHT:
        told: dict[str, str] = {}
        for key in taught:
            if key.scope == scope:
                told[key.about] = f"{told[key.about]}, {key.label}" if key.about in told else key.label
        rows = [(labels, about, "") for about, labels in told.items()]
        if rows := [*(writing if scope == "composer" else []), *rows]:
            parts.append(_table(f"Keys · {SCOPES[scope].lower()}", rows))
    return "\n\n".join([*parts, *([] if word else [_SLASH])])


def keys_page(keymap: Keymap) -> str:
    """Every binding there is, dialogues included."""
    from chatapp import keys
    from chatapp.keys import SCOPES

    parts = []
    for scope, group in groupby(keys.mapped(keymap).values(), attrgetter("scope")):
        rows = [(key.label, key.about, _code(key.id) + " yours" * (key.id in keymap)) for key in group]
        parts.append(_table(SCOPES.get(scope, scope.capitalize()), rows))
    return "\n\n".join([*parts, _KEYS])


def _told(known: Command, keymap: Keymap) -> tuple[str, str, str]:
    from chatapp import keys

    return _code(known.usage), known.help, keys.of_command(known.name, known.key, keymap)


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    if any(third for _, _, third in rows):
        lines = [f"| {first} | {second} | {third} |" for first, second, third in rows]
        return "\n".join([f"| {title} | | |", "|:--|:--|:--|", *lines])
    return "\n".join([f"| {title} | |", "|:--|:--|", *(f"| {first} | {second} |" for first, second, _ in rows)])


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


# Keys that the composer reads itself, since they must not wait for those typed before them.
WRITING: tuple[tuple[str, str, str], ...] = (
    ("Enter", "Send the message; while a reply runs, it waits for its turn", ""),
    ("Shift+Enter", "Begin a new line; in any terminal, Ctrl+J does so too", ""),
    ("@", "Send a file along: its name follows, and Tab completes it", ""),
)
_SLASH = (
    "To send a message that begins with a slash, double it: `//like this`. "
    "Paths such as `/etc/hosts` are sent as they are."
)
_KEYS = (
    "To give one another key, write its name into the table `[keys]` of the settings file, for instance "
    '`"chat.new" = "f2"`; several keys are joined by commas.'
)


def taught_keys(keymap: Keymap | None = None) -> list[Key]:
    """The keys of the chat itself, those that the composer reads first."""
    from chatapp import keys
    from chatapp.keys import TAUGHT, Key

    own = [Key(f"composer.{name}", (name.lower(),), about, "") for name, about, _ in WRITING]
    return [*own, *(key for key in keys.mapped(keymap or {}).values() if key.scope in TAUGHT)]
