"""How the next reply is made."""

from __future__ import annotations

import typing
from typing import Protocol

from chatapp.commands.registry import CommandError, command
from chatapp.options import Draft


class Talk(Protocol):
    """What these commands ask of the chat."""

    async def stop(self) -> None: ...

    async def answer_now(self) -> None: ...

    async def retry(self) -> None: ...

    def set_thinking(self, on: bool | None) -> None: ...

    def set_draft(self, choice: Draft | None) -> None: ...

    def set_system(self, text: str) -> None: ...


@command("on|off", "Think before answering, or answer at once", "Ctrl+T")
async def think(chat: Talk, argument: str) -> None:
    choices = {"on": True, "off": False, "": None}
    if argument.lower() not in choices:
        raise CommandError("Write /think on or /think off.")
    chat.set_thinking(choices[argument.lower()])


@command("auto|off|N", "Draft N tokens at each step, 1 to 4, or as many as pay")
async def draft(chat: Talk, argument: str) -> None:
    choices = dict(zip(words := typing.get_args(Draft), words, strict=True)) | {"": None}
    if argument.lower() not in choices:
        raise CommandError("Write /draft auto, /draft off, or /draft and a number from 1 to 4.")
    chat.set_draft(choices[argument.lower()])


@command("", "Stop the reply", "Esc")
async def stop(chat: Talk, argument: str) -> None:
    await chat.stop()


@command("", "End the thought and answer now", "Ctrl+G")
async def answer(chat: Talk, argument: str) -> None:
    await chat.answer_now()


@command("", "Another reply to the last message")
async def retry(chat: Talk, argument: str) -> None:
    await chat.retry()


@command("[TEXT]", "Set the system prompt, or show it; `-` takes it away")
async def system(chat: Talk, argument: str) -> None:
    chat.set_system(argument)
