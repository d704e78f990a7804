"""What is being written."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import command


class Writing(Protocol):
    """What these commands ask of the chat."""

    async def write_in_editor(self) -> None: ...

    async def attach(self, path: str) -> None: ...


@command("", "Write the message in your editor, $VISUAL or $EDITOR", "Ctrl+G")
async def editor(chat: Writing, argument: str) -> None:
    await chat.write_in_editor()


@command("[PATH]", "Send a file along; the same as `@path` in a message")
async def attach(chat: Writing, argument: str) -> None:
    await chat.attach(argument)
