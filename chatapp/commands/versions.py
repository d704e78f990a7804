"""What becomes of messages that are there: edited, made again, gone on with, or taken elsewhere."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import CommandError, command


class Versions(Protocol):
    """What these commands ask of the chat."""

    def edit(self, back: int) -> None: ...

    async def retry(self, back: int = 1) -> None: ...

    async def go_on(self) -> None: ...

    async def switch_version(self, step: int) -> None: ...

    async def fork(self) -> None: ...


@command("[N]", "Write your last message anew, or the N-th from the end", "Alt+Up")
async def edit(chat: Versions, argument: str) -> None:
    chat.edit(_number(argument, "Write /edit, or /edit and a number: 1 is your last message, 2 the one before."))


@command("[N]", "Another reply to your last message, or the N-th from the end")
async def retry(chat: Versions, argument: str) -> None:
    wrong = "Write /retry, or /retry and a number: 1 is the reply to your last message, 2 the one before."
    await chat.retry(_number(argument, wrong))


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


def _number(word: str, wrong: str) -> int:
    """Which from the end on is meant: the last one if nothing is said."""
    if word and not (word.isascii() and word.isdigit() and len(word) < 10 and int(word) > 0):
        raise CommandError(wrong)
    return int(word or 1)
