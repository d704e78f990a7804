"""The registry of slash commands: the help, the hints and the palette are made from it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from typing import Any

from chatapp.sanitize import clean_line
from runtime.quick_dataclass import dataclass


class CommandError(Exception):
    """A command cannot be carried out; the message is a sentence for the user."""


Run = Callable[[Any, str], Awaitable[None]]
"""Takes the part of the chat that its module's Protocol names, and what follows the command."""


@dataclass(frozen=True, slots=True)
class Command:
    """`takes`: what follows the name; in brackets if it may be left out."""

    name: str
    takes: str
    help: str
    key: str
    run: Run

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.takes}".rstrip()

    @property
    def about(self) -> str:
        """The help without the marks of Markdown."""
        return self.help.replace("`", "")

    @property
    def subject(self) -> str:
        """The heading under which the help lists it: its module's name."""
        return self.run.__module__.rpartition(".")[2].capitalize()

    @property
    def alone(self) -> bool:
        """Whether it can run with nothing after it."""
        return not self.takes or self.takes.startswith("[")


COMMANDS: dict[str, Command] = {}
SHELL = ("doctor", "bench")
"""Words of the command line that have no counterpart here."""


def command(takes: str, help: str, key: str = "") -> Callable[[Run], Run]:
    """Register a function as the command of its name."""

    def register(run: Run) -> Run:
        name = run.__name__.rstrip("_")
        COMMANDS[name] = Command(name, takes, help, key, run)
        return run

    return register


@dataclass(frozen=True, slots=True)
class Call:
    """A command as the user wrote it."""

    command: Command
    argument: str


_CALL = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?$", re.DOTALL)


def parse(text: str) -> Call | str:
    """A command, or the message to send. Raises CommandError for a command that does not exist.

    Neither does one that has more after it than it takes. `/word` alone or before a space is a command;
    `/etc/passwd …` is a message, and so is what follows a doubled slash, without the first.
    """
    if text.startswith("//"):
        return text[1:]
    match = _CALL.match(text.rstrip())
    if match is None:
        return text
    name = match[1].lower()
    if name not in COMMANDS:
        if name in SHELL:
            raise CommandError(f"There is no command /{name} here: in the shell, `qwenchat {name}` does that.")
        near = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
        hint = f"Did you mean /{near[0]}?" if near else "/help lists the commands."
        raise CommandError(
            f"There is no command /{name}. {hint} To send it as a message, write /{clean_line(text.strip(), 60)}"
        )
    argument = (match[2] or "").strip()
    if argument and not COMMANDS[name].takes:
        raise CommandError(f"/{name} stands alone. To send it as a message, write /{clean_line(text.strip(), 60)}")
    return Call(COMMANDS[name], argument)


def matches(text: str) -> list[Command]:
    """The commands that an unfinished `/word` may become."""
    if not re.fullmatch(r"/[A-Za-z]*", text):
        return []
    return [known for name, known in COMMANDS.items() if name.startswith(text[1:].lower())]
