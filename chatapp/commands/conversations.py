"""What is asked of conversations."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import command


class Conversations(Protocol):
    """What these commands ask of the chat."""

    async def new(self) -> None: ...

    async def resume(self, key: str) -> None: ...


@command("", "Begin a new conversation", "Ctrl+N")
async def new(chat: Conversations, argument: str) -> None:
    await chat.new()


@command("[NAME]", "Go on with a saved conversation", "Ctrl+R")
async def resume(chat: Conversations, argument: str) -> None:
    await chat.resume(argument)
