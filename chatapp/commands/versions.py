"""What becomes of messages that are there: edited, made again, gone on with, or taken elsewhere."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import CommandError, command


class Versions(Protocol):
    """What these commands ask of the chat."""

    def edit(self, back: int) -> None: ...

    async def retry(self) -> None: ...

    async def go_on(self) -> None: ...

    async def switch_version(self, step: int) -> None: ...

    async def fork(self) -> None: ...


@command("[N]", "Write your last message anew, or the N-th from the end", "Alt+Up")
async def edit(chat: Versions, argument: str) -> None:
    if argument and not (argument.isascii() and argument.isdigit() and int(argument) > 0):
        raise CommandError("Write /edit, or /edit and a number: 1 is your last message, 2 the one before.")
    chat.edit(int(argument or 1))


@command("", "Another reply to the last message")
async def retry(chat: Versions, argument: str) -> None:
    await chat.retry()


@command("", "Go on with a reply that was stopped, or reached its limit")
async def continue_(chat: Versions, argument: str) -> None:
    await chat.go_on()


@command("[next|back]", "Show another version of a message", "Alt+Right")
async def version(chat: Versions, argument: str) -> None:
    steps = {"": 1, "next": 1, "back": -1}
    if argument.lower() not in steps:
        raise CommandError("Write /version next or /version back.")
    await chat.switch_version(steps[argument.lower()])


@command("", "Go on in a new conversation that begins as this one")
async def fork(chat: Versions, argument: str) -> None:
    await chat.fork()
