"""Which model answers."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import command


class Models(Protocol):
    """What these commands ask of the chat."""

    async def open_model(self, path: str) -> None: ...

    async def choose_model(self) -> bool: ...

    async def choose_anew(self) -> None: ...

    async def open_server(self, word: str) -> None: ...


@command("[PATH]", "Open a model file; on a server, another of its models")
async def model(chat: Models, argument: str) -> None:
    if argument:
        await chat.open_model(argument)
    elif not await chat.choose_model():
        await chat.choose_anew()


@command("", "Find, download and open models; see what suits this machine")
async def models(chat: Models, argument: str) -> None:
    await chat.choose_anew()


@command("[URL|NAME|local]", "Talk to a model on a server, or come back to this machine")
async def server(chat: Models, argument: str) -> None:
    await chat.open_server(argument)
