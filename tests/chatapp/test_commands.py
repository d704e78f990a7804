"""Slash commands: what is one, what is a message, and what the user is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_backend import FakeBackend
from harness import here, running

from chatapp.blocks import NoticeBlock
from chatapp.commands import COMMANDS, Call, CommandError, matches, parse
from chatapp.sanitize import clean


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


@pytest.mark.parametrize(
    ("text", "hint"),
    [("/thnk on", "/think"), ("/reusme", "/resume"), ("/zzz", "/help"), ("/doctor", "`qwenchat doctor`")],
)
def test_an_unknown_command_names_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(CommandError, match=hint):
        parse(text)


@pytest.mark.parametrize("name", [name for name, known in COMMANDS.items() if not known.takes])
def test_a_command_that_takes_nothing_is_not_carried_out_with_something_after_it(name: str) -> None:
    with pytest.raises(CommandError, match=f"/{name} stands alone. .* write //{name} the notes"):
        parse(f"/{name} the notes")


@here("commands that ask for no reply")
async def test_words_without_sense_or_end_are_answered_by_a_sentence(tmp_path: Path) -> None:
    """Whatever is written after a command is no fault of the chat, and what is said of it is short."""
    words = ("9" * 5000, "~nobody-of-this-name/x.json", "\x9b31m\x1b]0;x\x07", "save " + "y" * 3000)
    async with running(FakeBackend(), tmp_path) as chat:
        await chat.ask("hello")
        busy = chat.screen._commands.locked
        for name in sorted(name for name, known in COMMANDS.items() if known.takes):
            for each in words:
                chat.screen._run(Call(COMMANDS[name], clean(each)))
                await chat.pilot.pause()
                await chat.until(lambda: not busy() or chat.app.screen is not chat.screen)
                if chat.app.screen is not chat.screen:
                    await chat.pilot.press("escape")
                    await chat.until(lambda: not busy())
            told = [block.text for block in chat.screen.query(NoticeBlock)]
            assert [text for text in told if "went wrong" in text] == [], name
            assert [text for text in told if len(text) > 600 and name != "system"] == [], name
            await chat.screen.transcript.show([])


def test_unfinished_words_have_matches() -> None:
    assert [known.name for known in matches("/re")] == ["resume", "rename", "retry"]
    assert len(matches("/")) == len(COMMANDS)
    assert matches("/new ") == matches("re") == []


def test_every_command_tells_what_it_does() -> None:
    assert all(known.help and not known.help.endswith(".") for known in COMMANDS.values())


@here("a list of the program")
async def test_nothing_of_the_palette_is_cut_where_there_is_room(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path, size=(130, 60)) as chat:
        await chat.pilot.press("ctrl+p")
        await chat.until(lambda: "Show the commands and keys, or those that a word is about" in chat.text())
        box = [line for line in chat.lines() if line.count("│") >= 2]
        assert any("its thoughts only if asked" in line for line in box)
        assert [line for line in box if "…" in line and "Message…" not in line] == []
