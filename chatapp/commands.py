"""The slash commands. One decorated function each: the help, the hints and the palette are made from them."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from chatapp.options import Draft


class Chat(Protocol):
    """What commands can ask of the chat."""

    async def new(self) -> None: ...

    async def resume(self, key: str) -> None: ...

    async def open_model(self, path: str) -> None: ...

    async def stop(self) -> None: ...

    async def retry(self) -> None: ...

    async def set_theme(self, name: str) -> None: ...

    def set_thinking(self, on: bool | None) -> None: ...

    def set_draft(self, choice: Draft | None) -> None: ...

    def show_drafts(self) -> None: ...

    def show_cache(self) -> None: ...

    def drop_cache(self, *, everything: bool) -> None: ...

    def set_system(self, text: str) -> None: ...

    def copy_reply(self) -> None: ...

    def say(self, text: str) -> None: ...

    def show(self, markdown: str) -> None: ...

    def quit(self) -> None: ...


class CommandError(Exception):
    """A command cannot be carried out; the message is a sentence for the user."""


Run = Callable[[Chat, str], Awaitable[None]]


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
    def alone(self) -> bool:
        """Whether it can run with nothing after it."""
        return not self.takes or self.takes.startswith("[")


COMMANDS: dict[str, Command] = {}


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

    `/word` alone or before a space is a command; `/etc/passwd …` is a message, and so is what follows a doubled
    slash, without the first.
    """
    if text.startswith("//"):
        return text[1:]
    match = _CALL.match(text.rstrip())
    if match is None:
        return text
    name = match[1].lower()
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
        hint = f"Did you mean /{near[0]}?" if near else "/help lists the commands."
        raise CommandError(f"There is no command /{name}. {hint} To send it as a message, write /{text.strip()}")
    return Call(COMMANDS[name], (match[2] or "").strip())


def matches(text: str) -> list[Command]:
    """The commands that an unfinished `/word` may become."""
    if not re.fullmatch(r"/[A-Za-z]*", text):
        return []
    return [known for name, known in COMMANDS.items() if name.startswith(text[1:].lower())]


@command("", "Show the commands and keys")
async def help(chat: Chat, argument: str) -> None:
    told = [(known.usage.replace("|", "\\|"), known.help, known.key) for known in COMMANDS.values()]
    lines = ["| Command | | Key |", "|:--|:--|:--|", *(f"| `{usage}` | {what} | {key} |" for usage, what, key in told)]
    lines += ["", "| Key | |", "|:--|:--|", *(f"| {key} | {what} |" for key, what in KEYS), "", _SLASH]
    chat.show("\n".join(lines))


KEYS = (
    ("Enter", "Send; while a reply runs, the message waits for its turn"),
    ("Shift+Enter", "New line; Ctrl+J where the terminal does not tell the two apart"),
    ("Up, Down", "Earlier messages; Up in an empty line takes back a waiting one"),
    ("Esc", "Stop the reply"),
    ("Ctrl+C", "Copy what is selected, else stop, else clear the line, else twice: quit"),
    ("PgUp, PgDn", "Scroll; Ctrl+End goes back to the end and follows again"),
    ("Tab, Enter", "Go to a thought, unfold it"),
    ("Ctrl+P", "All commands in a list"),
)
_SLASH = (
    "To send a message that begins with a slash, double it: `//like this`. "
    "Paths such as `/etc/hosts` are sent as they are."
)


@command("", "Begin a new conversation", "Ctrl+N")
async def new(chat: Chat, argument: str) -> None:
    await chat.new()


@command("[NAME]", "Go on with a saved conversation", "Ctrl+R")
async def resume(chat: Chat, argument: str) -> None:
    await chat.resume(argument)


@command("on|off", "Think before answering, or answer at once", "Ctrl+T")
async def think(chat: Chat, argument: str) -> None:
    choices = {"on": True, "off": False, "": None}
    if argument.lower() not in choices:
        raise CommandError("Write /think on or /think off.")
    chat.set_thinking(choices[argument.lower()])


@command("auto|off|N", "Draft N tokens at each step, 1 to 4, or as many as pay")
async def draft(chat: Chat, argument: str) -> None:
    choices = dict(zip(words := typing.get_args(Draft), words, strict=True)) | {"": None}
    if argument.lower() not in choices:
        raise CommandError("Write /draft auto, /draft off, or /draft and a number from 1 to 4.")
    chat.set_draft(choices[argument.lower()])


@command("", "Show which words of the last reply were drafted")
async def drafts(chat: Chat, argument: str) -> None:
    chat.show_drafts()


@command("[drop [all]]", "Show what is kept of conversations; drop what is kept of this one, or all")
async def cache(chat: Chat, argument: str) -> None:
    match argument.lower().split():
        case []:
            chat.show_cache()
        case ["drop"]:
            chat.drop_cache(everything=False)
        case ["drop", "all"]:
            chat.drop_cache(everything=True)
        case _:
            raise CommandError("Write /cache, /cache drop or /cache drop all.")


@command("", "Stop the reply", "Esc")
async def stop(chat: Chat, argument: str) -> None:
    await chat.stop()


@command("", "Another reply to the last message")
async def retry(chat: Chat, argument: str) -> None:
    await chat.retry()


@command("", "Copy the last reply as Markdown")
async def copy(chat: Chat, argument: str) -> None:
    chat.copy_reply()


@command("[TEXT]", "Set the system prompt, or show it; `-` takes it away")
async def system(chat: Chat, argument: str) -> None:
    chat.set_system(argument)


@command("PATH", "Open another model file")
async def model(chat: Chat, argument: str) -> None:
    if not argument:
        raise CommandError("Write the path of a GGUF file after /model.")
    await chat.open_model(argument)


@command("[NAME]", "Change the colours")
async def theme(chat: Chat, argument: str) -> None:
    await chat.set_theme(argument)


@command("", "Leave", "Ctrl+Q")
async def quit(chat: Chat, argument: str) -> None:
    chat.quit()
