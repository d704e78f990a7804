"""How the next reply is made."""

from __future__ import annotations

import re
import typing
from typing import Protocol

from chatapp.commands.registry import CommandError, command
from chatapp.options import Draft


class Talk(Protocol):
    """What these commands ask of the chat."""

    async def stop(self) -> None: ...

    async def answer_now(self) -> None: ...

    async def set_thinking(self, on: bool | None) -> None: ...

    async def set_budget(self, tokens: int | None, *, off: bool = False) -> None: ...

    def show_budget(self) -> None: ...

    async def set_draft(self, choice: Draft | None) -> None: ...

    def set_system(self, text: str) -> None: ...

    async def show_parameters(self) -> None: ...

    async def set_parameter(self, name: str, word: str, *, everywhere: bool) -> None: ...

    async def show_context(self) -> None: ...

    async def drop_oldest(self) -> None: ...

    async def summarise(self) -> None: ...

    async def enlarge(self, tokens: int) -> None: ...

    async def use_preset(self, name: str) -> None: ...

    async def save_preset(self, name: str) -> None: ...

    async def use_persona(self, name: str) -> None: ...

    async def edit_persona(self, name: str) -> None: ...

    async def save_persona(self, name: str) -> None: ...

    async def delete_persona(self, name: str) -> None: ...


@command("on|off", "Think before answering, or answer at once", "Ctrl+T")
async def think(chat: Talk, argument: str) -> None:
    choices = {"on": True, "off": False, "": None}
    if argument.lower() not in choices:
        raise CommandError("Write /think on or /think off.")
    await chat.set_thinking(choices[argument.lower()])


@command("N|off", "Close a thought after N tokens, in this conversation")
async def budget(chat: Talk, argument: str) -> None:
    if not argument:
        chat.show_budget()
    elif argument.lower() == "off":
        await chat.set_budget(None, off=True)
    elif argument == "-":
        await chat.set_budget(None)
    elif (tokens := _count(argument)) is not None:
        await chat.set_budget(tokens)
    else:
        raise CommandError("Write /budget and a number of tokens, or /budget off; /budget - leaves it to the settings.")


@command("auto|off|N", "Draft N tokens at each step, 1 to 4, or as many as pay")
async def draft(chat: Talk, argument: str) -> None:
    choices = dict(zip(words := typing.get_args(Draft), words, strict=True)) | {"": None}
    if argument.lower() not in choices:
        raise CommandError("Write /draft auto, /draft off, or /draft and a number from 1 to 4.")
    await chat.set_draft(choices[argument.lower()])


@command("", "Stop the reply", "Esc")
async def stop(chat: Talk, argument: str) -> None:
    await chat.stop()


@command("", "End the thought and answer now", "Ctrl+O")
async def answer(chat: Talk, argument: str) -> None:
    await chat.answer_now()


@command("[TEXT]", "Set the system prompt, or show it; `-` takes it away")
async def system(chat: Talk, argument: str) -> None:
    chat.set_system(argument)


@command("[VERB] [NAME]", "Take on a saved system prompt; edit, save, delete one")
async def persona(chat: Talk, argument: str) -> None:
    verb, _, name = argument.partition(" ")
    verbs = {"edit": chat.edit_persona, "save": chat.save_persona, "delete": chat.delete_persona}
    if verb not in verbs:
        await chat.use_persona(argument)
    elif not name.strip():
        raise CommandError(f"Write the name of a persona after /persona {verb}.")
    else:
        await verbs[verb](name.strip())


@command("[NAME [VALUE]]", "Set what replies are made with; `default` after it: in all")
async def set_(chat: Talk, argument: str) -> None:
    """`default`: in every conversation, and in the settings."""
    name, _, rest = argument.partition(" ")
    words = rest.split()
    everywhere = words[-1:] == ["default"]
    if not name:
        await chat.show_parameters()
        return
    await chat.set_parameter(name, " ".join(words[:-1] if everywhere else words), everywhere=everywhere)


@command("[save] [NAME]", "Take a whole set of sampling values, or save those here")
async def preset(chat: Talk, argument: str) -> None:
    verb, _, name = argument.partition(" ")
    if verb != "save":
        await chat.use_preset(argument)
    elif not name.strip():
        raise CommandError("Write a name for the preset after /preset save.")
    else:
        await chat.save_preset(name.strip())


@command("[CHOICE]", "See how full the context is, and make room in it")
async def context(chat: Talk, argument: str) -> None:
    match argument.lower():
        case "":
            await chat.show_context()
        case "drop":
            await chat.drop_oldest()
        case "summarise" | "summarize":
            await chat.summarise()
        case number if (tokens := _count(number)) is not None:
            await chat.enlarge(tokens)
        case _:
            raise CommandError("Write /context, /context summarise, /context drop, or /context and a number of tokens.")


def _count(word: str) -> int | None:
    """A number of tokens, with or without commas between its thousands; None: it is none, or beyond all counting."""
    return int(word.replace(",", "")) if re.fullmatch(r"\d{1,12}|\d{1,3}(,\d{3}){1,3}", word, re.ASCII) else None
