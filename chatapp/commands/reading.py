"""Looking at what was said, and taking it along."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import CommandError, command


class Reading(Protocol):
    """What these commands ask of the chat."""

    def show_drafts(self) -> None: ...

    def copy_reply(self) -> None: ...

    def show_cache(self) -> None: ...

    def drop_cache(self, *, everything: bool) -> None: ...


@command("", "Copy the last reply as Markdown")
async def copy(chat: Reading, argument: str) -> None:
    chat.copy_reply()


@command("", "Show which words of the last reply were drafted")
async def drafts(chat: Reading, argument: str) -> None:
    chat.show_drafts()


@command("[drop [all]]", "Show what is kept of conversations; drop what is kept of this one, or all")
async def cache(chat: Reading, argument: str) -> None:
    match argument.lower().split():
        case []:
            chat.show_cache()
        case ["drop"]:
            chat.drop_cache(everything=False)
        case ["drop", "all"]:
            chat.drop_cache(everything=True)
        case _:
            raise CommandError("Write /cache, /cache drop or /cache drop all.")
