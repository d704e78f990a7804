"""How the chat looks, and leaving it."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import command


class Comfort(Protocol):
    """What these commands ask of the chat."""

    async def set_theme(self, name: str) -> None: ...

    async def show_settings(self) -> None: ...

    def quit(self) -> None: ...


@command("[NAME]", "Change the colours")
async def theme(chat: Comfort, argument: str) -> None:
    await chat.set_theme(argument)


@command("", "Show and change the settings")
async def settings(chat: Comfort, argument: str) -> None:
    await chat.show_settings()


@command("", "Leave", "Ctrl+Q")
async def quit(chat: Comfort, argument: str) -> None:
    chat.quit()
