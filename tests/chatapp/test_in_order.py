"""Keys that arrive together, as over a slow line or from a macro, act in the order in which they were typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_backend import FakeBackend
from harness import Chat, here, running
from textual import events
from textual.widgets import Input

pytestmark = here("asks for no reply")


def together(chat: Chat, *keys: str) -> None:
    """All at once, before any of them has been handled."""
    for key in keys:
        character = {"space": " "}.get(key, key if len(key) == 1 else None)
        chat.app.post_message(events.Key(key, character))


BURSTS = [
    (["a", "b", "c", "backspace", "backspace", "d", "e", "left", "left", "X"], "aXde"),
    ([*"hello", "space", *"wrold", "left", "left", "left", "backspace", "backspace", "o", "r"], "hello orold"),
    (["b", "home", "a", "end", "c"], "abc"),
    ([*"one", "space", *"two", "ctrl+w", "x"], "one x"),
]


@pytest.mark.parametrize(("keys", "text"), BURSTS)
async def test_in_the_composer(keys: list[str], text: str, tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        together(chat, *keys, "end", "!")
        await chat.until(lambda: "!" in chat.screen.composer.text)
        assert chat.screen.composer.text == text + "!"


@pytest.mark.parametrize(("keys", "text"), BURSTS)
async def test_in_a_line(keys: list[str], text: str, tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: isinstance(chat.app.screen.focused, Input))
        together(chat, *keys, "end", "!")
        field = chat.app.screen.focused
        assert isinstance(field, Input)
        await chat.until(lambda: "!" in field.value)
        assert field.value == text + "!"
