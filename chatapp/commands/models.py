"""Which model answers."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import CommandError, command


class Models(Protocol):
    """What these commands ask of the chat."""

    async def open_model(self, path: str) -> None: ...


@command("PATH", "Open another model file")
async def model(chat: Models, argument: str) -> None:
    if not argument:
        raise CommandError("Write the path of a GGUF file after /model.")
    await chat.open_model(argument)
