"""What is asked of conversations."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import CommandError, command


class Conversations(Protocol):
    """What these commands ask of the chat."""

    async def new(self) -> None: ...

    async def resume(self, key: str) -> None: ...

    async def toggle_sidebar(self) -> None: ...

    async def rename(self, title: str) -> None: ...

    async def pin(self) -> None: ...

    async def tag(self, words: str) -> None: ...

    async def delete(self) -> None: ...

    async def undelete(self) -> None: ...

    async def export(self, file: str, *, thoughts: bool) -> None: ...

    async def bring_in(self, file: str) -> None: ...


@command("", "Begin a new conversation", "Ctrl+N")
async def new(chat: Conversations, argument: str) -> None:
    await chat.new()


@command("[NAME]", "Go on with a saved conversation", "Ctrl+R")
async def resume(chat: Conversations, argument: str) -> None:
    await chat.resume(argument)


@command("", "Show or hide the conversations beside the chat", "Ctrl+B")
async def sidebar(chat: Conversations, argument: str) -> None:
    await chat.toggle_sidebar()


@command("[TITLE]", "Give this conversation a title; without one, its first words")
async def rename(chat: Conversations, argument: str) -> None:
    await chat.rename(argument)


@command("", "Keep this conversation at the top of the list, or not")
async def pin(chat: Conversations, argument: str) -> None:
    await chat.pin()


@command("[WORDS]", "Give this conversation tags, or show them; `-` takes them away")
async def tag(chat: Conversations, argument: str) -> None:
    await chat.tag(argument)


@command("", "Delete this conversation")
async def delete(chat: Conversations, argument: str) -> None:
    await chat.delete()


@command("", "Bring back the conversation that was deleted last")
async def undelete(chat: Conversations, argument: str) -> None:
    await chat.undelete()


@command("[FILE] [thoughts]", "Write this conversation to a .md, .html or .json file, its thoughts only if asked")
async def export(chat: Conversations, argument: str) -> None:
    *words, last = argument.split(" ") if argument else [""]
    thoughts = last.lower() in ("thoughts", "--thoughts")
    await chat.export(" ".join(words).strip() if thoughts else argument, thoughts=thoughts)


@command("FILE", "Read a conversation from a .json file that /export has written")
async def import_(chat: Conversations, argument: str) -> None:
    if not argument:
        raise CommandError("Write the name of a .json file after /import.")
    await chat.bring_in(argument)
