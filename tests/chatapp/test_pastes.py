"""Pastes: large ones as chips, and characters that come at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_backend import FakeBackend, say
from harness import here, paste, running
from textual import events
from textual.constants import ESCAPE_DELAY

from chatapp.terminal import Burst, PasteParser


class TestPastes:
    async def test_ten_thousand_lines_are_one_message(self, tmp_path: Path) -> None:
        """CASES 43."""
        backend = FakeBackend()
        text = "\n".join(f"line {number}" for number in range(10_000))
        async with running(backend, tmp_path) as chat:
            await chat.write("see ")
            paste(chat, text.replace("\n", "\r"))
            await chat.until(lambda: "▤ paste 1  10,000 lines" in chat.text())
            await chat.write("!")
            await chat.pilot.press("enter")
            await chat.idle()
            assert backend.requests[0].messages[-1].content == f"see {text}!"
            assert "9,976 more lines" in chat.text()

    async def test_what_a_paste_names_is_not_sent_along(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("other.py", "photo.png"):
            (tmp_path / name).write_text("x = 1\n")
        monkeypatch.chdir(tmp_path)
        backend = FakeBackend()
        text = "\n".join(["of a page"] * 30 + ["@other.py and @photo.png"])
        async with running(backend, tmp_path) as chat:
            paste(chat, text)
            await chat.until(lambda: chat.screen.composer.text == "[paste 1: 31 lines]")
            await chat.pilot.press("enter")
            await chat.idle()
            assert backend.requests[0].messages[-1].content == text

    @here("it asks for no reply")
    async def test_they_stay_editable(self, tmp_path: Path) -> None:
        """CASES 43."""
        text = "\n".join(f"line {number}" for number in range(10_000))
        async with running(FakeBackend(), tmp_path) as chat:
            composer = chat.screen.composer
            paste(chat, text)
            await chat.until(lambda: composer.text == "[paste 1: 10,000 lines]")
            await chat.pilot.press("tab")
            await chat.until(lambda: composer.text == text)
            assert composer.size.height <= 8
            await chat.pilot.press("backspace", "x")
            assert composer.text == f"{text[:-1]}x"

    @here("it asks for no reply")
    async def test_tab_unfolds_the_last_one_before_the_cursor(self, tmp_path: Path) -> None:
        first, second = "a\n" * 30 + "a", "b\n" * 30 + "b"
        async with running(FakeBackend(), tmp_path) as chat:
            composer = chat.screen.composer
            for text in (first, second):
                paste(chat, text)
                await chat.until(lambda: composer.text.endswith("]"))
                await chat.write(" x ")
            await chat.pilot.press("tab")
            await chat.until(lambda: composer.text == f"[paste 1: 31 lines] x {second} x ")
            await chat.pilot.press("tab")
            await chat.until(lambda: composer.text == f"{first} x {second} x ")

    @here("it asks for no reply")
    async def test_a_chip_goes_and_comes_back_as_a_whole(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            composer = chat.screen.composer
            await chat.write("a")
            paste(chat, "line\n" * 50)
            await chat.until(lambda: composer.text == "a[paste 1: 50 lines]")
            await chat.pilot.press("left")
            assert composer.cursor_location == (0, 1)
            await chat.pilot.press("right", "backspace")
            assert composer.text == "a"
            await chat.pilot.press("ctrl+z")
            assert composer.text == "a[paste 1: 50 lines]"
            assert composer.message == "a" + "line\n" * 50

    @here("it asks for no reply")
    @pytest.mark.parametrize(
        ("before", "after", "keys", "text"),
        [
            ("a ", "", ["ctrl+w"], "a "),
            ("a ", " ", ["ctrl+w"], "a "),
            ("a ", "!", ["ctrl+w"], "a [paste 1: 50 lines]"),
            ("a ", " b", ["ctrl+w", "ctrl+w"], "a "),
            ("", " b", ["home", "alt+delete"], " b"),
            ("a! ", "", ["home", "right", "alt+delete"], "a[paste 1: 50 lines]"),
            ("a ", "", ["home", "right", "alt+delete"], "a"),
        ],
    )
    async def test_a_word_is_deleted_beside_a_chip_or_the_chip_whole(
        self, before: str, after: str, keys: list[str], text: str, tmp_path: Path
    ) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            composer = chat.screen.composer
            composer.insert_typed(before)
            paste(chat, "line\n" * 50)
            await chat.until(lambda: "[paste" in composer.text)
            composer.insert_typed(after)
            await chat.pilot.press(*keys)
            assert composer.text == text

    async def test_one_line_of_five_megabytes(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            paste(chat, "x" * 5_000_000)
            await chat.until(lambda: chat.screen.composer.text == "[paste 1: 5,000,000 characters]")
            await chat.pilot.press("tab")
            await chat.until(lambda: "Ctrl+G opens it in your editor" in chat.text())
            await chat.pilot.press("enter")
            await chat.idle()
            assert len(backend.requests[0].messages[-1].content) == 5_000_000
            assert "more characters" in chat.text()

    @pytest.mark.parametrize("cut", [1, 3, 7, 4096])
    def test_the_terminal_brings_them_whole_and_the_keys_around_them(self, cut: int) -> None:
        text = "é[x" * 50 + "\x1b[31m"
        data = f"ab\x1b[200~{text}\x1b[201~c\x1b[A\x1b[200~\x1b[201~d"
        parser = PasteParser()
        came = [event for at in range(0, len(data), cut) for event in parser.feed(data[at : at + cut])]
        found = [each for event in came for each in (event.keys if isinstance(event, Burst) else [event])]
        told = [event.text if isinstance(event, events.Paste) else event.key for event in found]
        assert told == ["a", "b", text, "c", "up", "", "d"]

    def test_the_escape_key_alone_is_not_waited_for_longer_than_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr("chatapp.terminal.get_time", lambda: now[0])
        parser = PasteParser()
        assert [*parser.feed("\x1b"), *parser.tick()] == []
        now[0] += ESCAPE_DELAY
        assert [event.key for event in parser.tick()] == ["escape"]


class TestBursts:
    """A paste of a terminal that does not tell of it (bracketed paste off) is no row of commands."""

    @pytest.mark.parametrize(
        ("data", "bursts"),
        [("cb", ["cb"]), ("rm x\rls\r", ["rm x\rls\r"]), ("nn", []), ("é", []), ("\x1b[1;5A", []), ("c\x1b[A", [])],
    )
    def test_different_characters_at_once_are_one(self, data: str, bursts: list[str]) -> None:
        found = list(PasteParser().feed(data))
        assert [each.text for each in found if isinstance(each, Burst)] == bursts
        assert found

    async def test_while_a_message_is_marked_it_is_written(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("one")]), tmp_path) as chat:
            await chat.ask("q")
            await chat.pilot.press("ctrl+up")
            for event in PasteParser().feed("crb\rw"):
                chat.app.post_message(event)
            await chat.until(lambda: chat.screen.composer.text == "crb\nw")
            assert chat.screen.composer.has_focus
            assert chat.app.clipboard == ""
            assert len(chat.thread()) == 2

    async def test_elsewhere_it_is_typed(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("one")]), tmp_path) as chat:
            for event in PasteParser().feed("hello you\r"):
                chat.app.post_message(event)
            await chat.until(lambda: "one" in chat.text())
            await chat.idle()
            assert chat.thread()[0].content == "hello you"
