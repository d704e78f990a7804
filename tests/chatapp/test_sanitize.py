"""Nothing that a terminal obeys survives."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from fake_backend import FakeBackend
from harness import Chat, here, running
from hypothesis import given
from hypothesis import strategies as st
from textual import events

from chatapp.attachments import Attached, attach, detach
from chatapp.sanitize import clean, clean_line, shortened
from chatapp.status import Status, StatusLine
from chatapp.store import Store

ATTACKS = [
    "\x1b]52;c;cm0gLXJmIC8=\x07",  # OSC 52: writes the clipboard
    "\x1b[2J\x1b[H",  # CSI: clears the screen
    "\x1bP1$r0m\x1b\\",  # DCS
    "\x9b31m red",  # C1 CSI
    "\x9d0;title\x9c",  # C1 OSC
    "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "\x90q\x9c",
    "\x07\x08\x0e\x0f\x7f",
]


def is_harmless(text: str) -> bool:
    return all(character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs") for character in text)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_sequences_lose_their_controls(attack: str) -> None:
    assert is_harmless(clean(attack))


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_the_printable_part_of_a_sequence_stays_readable(attack: str) -> None:
    shown = iter(clean(attack))
    assert all(character in shown for character in attack if character.isprintable())


def test_an_unfinished_sequence_swallows_nothing() -> None:
    assert clean("\x1b]0;all that follows") == "␛]0;all that follows"


def test_a_c1_control_reads_like_the_two_characters_it_stands_for() -> None:
    assert clean("\x9b31m") == clean("\x1b[31m") == "␛[31m"


@given(st.text(alphabet=st.characters(), max_size=200))
def test_no_control_ever_comes_out(text: str) -> None:
    assert is_harmless(clean(text))


@given(st.lists(st.text(alphabet=st.sampled_from("\x1b[]m;0a\x9b\x9d\x07\r\n\t\u202e\ud800")), max_size=8))
def test_pieces_of_a_stream_are_as_clean_as_the_whole(pieces: list[str]) -> None:
    assert "".join(map(clean, pieces)) == clean("".join(pieces))


@given(st.text())
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize(
    "text",
    ["👩‍👩‍👧 family", "❤️ with VS16", "삼겹살 世界", "مرحبا بالعالم", "cafe\u0301", "a\tb\nc", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "\u200eleft"],
)
def test_text_of_all_scripts_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize("override", [*range(0x202A, 0x202F), *range(0x2066, 0x206A)], ids=hex)
def test_bidirectional_overrides_go(override: int) -> None:
    assert clean(f"user{chr(override)}txt.exe") == "usertxt.exe"


@pytest.mark.parametrize("ending", ["\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"], ids=repr)
def test_every_kind_of_line_end_becomes_a_newline(ending: str) -> None:
    assert clean(f"a{ending}b") == "a\nb"


def test_half_a_surrogate_pair_can_be_encoded_afterwards() -> None:
    assert clean("a\ud83d").encode() == "a\ufffd".encode()


def test_a_title_is_one_short_line() -> None:
    assert clean_line("  one\n two\t\x1b[31m three ") == "one two ␛[31m three"
    assert clean_line("x" * 300, 10) == "x" * 9 + "…"


@pytest.mark.parametrize("limit", [2, 3, 7, 18, 40])
def test_a_long_name_loses_its_middle(limit: int) -> None:
    name = "Qwen3.6-35B-A3B-MTP-Instruct-UD-Q4_K_XL-00001-of-00003"
    short = shortened(f" {name}\n", limit)
    start, dots, end = short.partition("…")
    assert (len(short), dots, bool(end)) == (limit, "…", True)
    assert name.startswith(start)
    assert name.endswith(end)
    assert len(end) >= len(start)  # the quantisation stands there
    assert shortened(name, len(name)) == name
    assert shortened("a\x1b[31m b", 20) == "a␛[31m b"


CLIPBOARD = "\x1b]52;c;QUFB\x07"
"""OSC 52, as in CASES 45."""


def controls(chat: Chat) -> set[str]:
    """What the terminal would obey of all that is on the screen."""
    return {character for line in chat.lines() for character in line if unicodedata.category(character) == "Cc"}


@here("it asks for no reply")
class TestScreen:
    """CASES 45."""

    @pytest.mark.parametrize(
        "way",
        [
            "composer",
            "ctrl+b",
            "ctrl+b,ctrl+e",
            "ctrl+f",
            "ctrl+p",
            "/settings",
            "/settings,seed,enter",
            "/persona edit x",
        ],
    )
    async def test_pastes_are_harmless_in_every_field(self, way: str, tmp_path: Path) -> None:
        store = Store(tmp_path / "conversations.db")
        store.add(store.create().id, None, "user", "hello")
        store.close()
        async with running(FakeBackend(), tmp_path) as chat:
            begin, *more = way.split(",")
            if begin.startswith("/"):
                await chat.send(begin)
                await chat.until(lambda: chat.app.screen is not chat.screen)
            elif begin != "composer":
                await chat.pilot.press(begin)
                await chat.until(lambda: not chat.screen.composer.has_focus or chat.app.screen is not chat.screen)
            for step in more:
                if begin == "ctrl+b":
                    await chat.until(lambda: "hello" in chat.text())
                await chat.pilot.press(*([step] if step in ("enter", "ctrl+e") else step))
            await chat.pilot.pause()
            chat.app.copy_to_clipboard(f"{CLIPBOARD}\x9b32m\tcopied")
            chat.app.post_message(events.Paste(f"{CLIPBOARD}\x9b31m\tpasted"))
            await chat.until(lambda: "pasted" in chat.text())
            assert "␛]52;c;QUFB␇␛[31m" in chat.text()
            await chat.pilot.press("ctrl+v")
            await chat.until(lambda: "copied" in chat.text())
            assert controls(chat) == set()

    async def test_a_title_from_elsewhere_is_harmless_where_it_is_changed(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "conversations.db")
        made = store.create()
        store.add(made.id, None, "user", "hello")
        store.rename(made.id, f"{CLIPBOARD}title")
        store.close()
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.pilot.press("ctrl+b")
            await chat.until(lambda: "title" in chat.text())
            await chat.pilot.press("ctrl+e")
            await chat.until(lambda: "New title" in chat.text())
            assert controls(chat) == set()

    async def test_a_persona_from_elsewhere_is_harmless_where_it_is_written(self, home: Path, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            (home / "personas").mkdir(parents=True)
            (home / "personas" / "pirate.md").write_text(f"Arr {CLIPBOARD}")
            await chat.send("/persona edit pirate")
            await chat.until(lambda: "Arr" in chat.text())
            assert controls(chat) == set()

    async def test_the_line_of_the_state_is_harmless(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            line = chat.screen.query_one(StatusLine)
            line.show(Status(state=f"loading {CLIPBOARD}.gguf 45 %"))
            await chat.until(lambda: "loading ␛]52;c;QUFB␇.gguf" in chat.status())
            line.hint(f"deleted: {CLIPBOARD}")
            await chat.until(lambda: "deleted: ␛]52;c;QUFB␇" in chat.status())


def test_the_name_of_a_file_in_a_message_from_elsewhere_is_harmless() -> None:
    message = attach("look", [Attached("a.txt", "text")]).replace("a.txt", f"{CLIPBOARD}a.txt")
    assert detach(message) == ("look", (Attached("␛]52;c;QUFB␇a.txt", "text"),))
