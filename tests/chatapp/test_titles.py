"""Titles by the model: made while nobody waits, and gone the moment somebody does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, end, say
from harness import Chat, running

from chatapp.options import ChatOptions
from chatapp.titles import tidy
from runtime.protocol import Ready

BIG = dataclasses.replace(MODEL, parameters=4_000_000_000)


def backend(*replies: object) -> FakeBackend:
    return FakeBackend(*replies, loading=[Ready(BIG)])  # type: ignore[arg-type]


async def ready(chat: Chat) -> None:
    await chat.until(lambda: chat.backend.model is not None)
    chat.screen._titler.idle = 0.0


def title(chat: Chat) -> str:
    return chat.store.conversations()[0].title


async def test_the_model_is_asked_below_the_conversation_and_names_it(tmp_path: Path) -> None:
    engine = backend([say("Lentils and water.")], [say("\n**Title: “Lentil soup”**\n"), end()])
    async with running(engine, tmp_path) as chat:
        await ready(chat)
        await chat.ask("How do I make soup?")
        await chat.until(lambda: title(chat) == "Lentil soup")
        asked = engine.requests[1]
        assert asked.aside and not asked.awaited
        assert asked.thinking is False
        assert [message.content for message in asked.messages[:-1]] == ["How do I make soup?", "Lentils and water."]
        assert [node.content for node in chat.thread()] == ["How do I make soup?", "Lentils and water."]
        assert chat.store.conversations()[0].titled == "model"
        await chat.ask("And then?")
        await chat.pilot.pause()
        assert not any(request.aside for request in engine.requests[2:])


async def test_a_message_ends_it_at_once_and_the_first_words_stay(tmp_path: Path) -> None:
    gate = Gate()
    engine = backend([say("one")], [say("Half a ti"), gate], [say("two")], [say("A title"), end()])
    async with running(engine, tmp_path) as chat:
        await ready(chat)
        await chat.ask("first words")
        await gate.reached.wait()
        chat.screen._titler.idle = 60.0
        await chat.send("second")
        await chat.until(lambda: len(engine.requests) == 3)
        await chat.idle()
        assert engine.cancelled == [engine.requests[1].request_id]
        assert title(chat) == "first words"


async def test_a_title_of_the_user_and_a_name_stay(tmp_path: Path) -> None:
    gate = Gate()
    engine = backend([say("one")], [gate, say("A title"), end()])
    async with running(engine, tmp_path) as chat:
        await ready(chat)
        await chat.ask("first words")
        await gate.reached.wait()
        chat.store.rename(chat.store.conversations()[0].id, "Mine")
        gate.open()
        await chat.until(lambda: chat.screen._titled)
        await chat.pilot.pause()
        assert title(chat) == "Mine"


@pytest.mark.parametrize(
    "options", [ChatOptions(model=MODEL.path, auto_titles=False), ChatOptions(model=MODEL.path)], ids=["off", "small"]
)
async def test_it_is_not_asked_when_it_may_not_or_is_too_small(options: ChatOptions, tmp_path: Path) -> None:
    engine = FakeBackend(loading=[Ready(MODEL if options.auto_titles else BIG)])
    async with running(engine, tmp_path, options) as chat:
        await ready(chat)
        await chat.ask("first words")
        for _ in range(5):
            await chat.pilot.pause()
        assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("Lentil soup", "Lentil soup"),
        ('"Lentil soup."', "Lentil soup"),
        ("\n\n**Lentil soup**\nmore", "Lentil soup"),
        ("Title: Lentil soup", "Lentil soup"),
        ("# C++ or C#?", "C++ or C#?"),
        ("\x1b[31mred", "␛[31mred"),
        ("", ""),
        ("“”", ""),
        ("Here is a title for your conversation about soup and lentils and more", ""),
        ("x" * 61, ""),
    ],
)
def test_what_a_model_says_becomes_a_title_or_nothing(answer: str, wanted: str) -> None:
    assert tidy(answer) == wanted
