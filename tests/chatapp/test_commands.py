"""Slash commands: what is one, what is a message, and what the user is told."""

from __future__ import annotations

import pytest

from chatapp.commands import COMMANDS, Call, CommandError, matches, parse


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/new", "new", ""),
        ("/NEW  ", "new", ""),
        ("/think on", "think", "on"),
        ("/model  ~/a b.gguf ", "model", "~/a b.gguf"),
        ("/system Be brief.\nBe kind.", "system", "Be brief.\nBe kind."),
    ],
)
def test_a_command_and_what_follows_it(text: str, name: str, argument: str) -> None:
    assert parse(text) == Call(COMMANDS[name], argument)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "hello"),
        ("/etc/passwd is a file", "/etc/passwd is a file"),
        ("//new is a command", "/new is a command"),
        (" /new", " /new"),
        ("/", "/"),
        ("/2 is a half", "/2 is a half"),
    ],
)
def test_what_is_sent_as_a_message(text: str, message: str) -> None:
    assert parse(text) == message


@pytest.mark.parametrize(("text", "hint"), [("/thnk on", "/think"), ("/reusme", "/resume"), ("/zzz", "/help")])
def test_an_unknown_command_names_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(CommandError, match=hint):
        parse(text)


def test_unfinished_words_have_matches() -> None:
    assert [known.name for known in matches("/re")] == ["resume", "rename", "retry"]
    assert len(matches("/")) == len(COMMANDS)
    assert matches("/new ") == matches("re") == []


def test_every_command_tells_what_it_does() -> None:
    assert all(known.help and not known.help.endswith(".") for known in COMMANDS.values())
