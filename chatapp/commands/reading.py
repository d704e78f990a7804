"""Looking at what was said, and taking it along."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import CommandError, command


class Reading(Protocol):
    """What these commands ask of the chat."""

    def show_drafts(self) -> None: ...

    def copy_reply(self, what: str) -> None: ...

    async def find(self, words: str) -> None: ...

    async def open_links(self) -> None: ...

    def wrap_code(self) -> None: ...

    def show_cache(self) -> None: ...

    def drop_cache(self, *, everything: bool) -> None: ...


@command("[code]", "Copy the last reply as Markdown, or its code")
async def copy(chat: Reading, argument: str) -> None:
    if argument not in ("", "code"):
        raise CommandError("Write /copy or /copy code.")
    chat.copy_reply(argument)


@command("[WORDS]", "Find words in this conversation", "Ctrl+F")
async def find(chat: Reading, argument: str) -> None:
    await chat.find(argument)


@command("", "Open a link of this conversation")
async def links(chat: Reading, argument: str) -> None:
    await chat.open_links()


@command("", "Fold long lines of code, or let them run out of sight")
async def wrap(chat: Reading, argument: str) -> None:
    chat.wrap_code()


@command("", "Show which words of the last reply were drafted")
async def drafts(chat: Reading, argument: str) -> None:
    chat.show_drafts()


@command("[drop [all]]", "Show or drop what is kept of this conversation, or of all")
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
