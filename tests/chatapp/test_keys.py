"""Keys: their names, what the settings change, and the help made from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_backend import FakeBackend
from harness import here, running
from textual.binding import Binding

from chatapp import keys
from chatapp.commands import COMMANDS, CommandError
from chatapp.commands.help import help_page, keys_page
from chatapp.form import Form
from chatapp.markdown import render
from chatapp.picker import Choice, Picker
from chatapp.settings import Settings
from chatapp.writing_screen import WritingScreen


def test_every_binding_has_a_name_and_says_what_it_does() -> None:
    known = keys.declared()
    assert known
    for node in keys._nodes():
        for binding in node.__dict__.get("BINDINGS", ()):
            assert isinstance(binding, Binding), node
            assert re.fullmatch(r"[a-z_]+\.[a-z_]+", binding.id or ""), f"{node.__name__}: {binding}"
            assert known[binding.id or ""].about, binding.id


def test_no_key_of_the_chat_means_two_things() -> None:
    taken: dict[str, str] = {}
    for known in keys.declared().values():
        if known.scope in ("chat", "app"):
            for key in known.keys:
                assert taken.setdefault(key, known.id) == known.id, f"{key} is {taken[key]} and {known.id}"


def test_terminals_can_send_every_key() -> None:
    for known in keys.declared().values():
        for key in known.keys:
            assert key not in keys._SENT_ALIKE, known.id
            assert not re.fullmatch(r"ctrl\+(alt|shift)\+.|shift\+[a-z]|ctrl\+\d", key), known.id


@pytest.mark.parametrize(
    ("key", "label"),
    [("ctrl+n", "Ctrl+N"), ("pageup", "PgUp"), ("escape", "Esc"), ("q", "q"), ("shift+enter", "Shift+Enter"),
     ("f2", "F2"), ("question_mark", "?"), ("alt+left", "Alt+Left")],
)  # fmt: skip
def test_keys_are_shown_as_people_write_them(key: str, label: str) -> None:
    assert keys.label(key) == label


class TestSettings:
    def test_a_key_may_be_another_or_several(self) -> None:
        assert keys.checked({"chat.new": "F2", "chat.top": "Alt+Home, ctrl+home"}) == (
            {"chat.new": "f2", "chat.top": "alt+home,ctrl+home"},
            [],
        )

    @pytest.mark.parametrize(
        ("id", "value", "says"),
        [
            ("chat.nev", "f2", "nothing called 'chat.nev'. Did you mean chat.new?"),
            ("zzz", "f2", "nothing called 'zzz'. /keys lists the names."),
            ("chat.new", "hyper+x", "'hyper+x' is no key for chat.new"),
            ("chat.new", "", "'' is no key for chat.new"),
            ("chat.new", 7, "7 is no key for chat.new"),
            ("chat.new", "ctrl+m", "terminals send Ctrl+M and Enter alike, so chat.new keeps Ctrl+N"),
            ("chat.new", "ctrl+r", "Ctrl+R is the key of chat.resume already, so chat.new keeps Ctrl+N"),
            ("picker.next", "up", "Up is the key of picker.previous already, so picker.next keeps Down"),
        ],
    )
    def test_what_cannot_be_is_told(self, id: str, value: object, says: str) -> None:
        good, [warning] = keys.checked({id: value})
        assert good == {}
        assert says in warning

    def test_two_that_change_places_do_not_clash(self) -> None:
        good, warnings = keys.checked({"chat.new": "ctrl+r", "chat.resume": "ctrl+n"})
        assert good == {"chat.new": "ctrl+r", "chat.resume": "ctrl+n"}
        assert warnings == []

    @here("it asks for no reply")
    async def test_they_hold_in_the_chat_and_in_its_help(self, tmp_path: Path) -> None:
        wanted = Settings(keys={"app.quit": "f10", "chat.palette": "f2", "nonsense": "f3"})
        async with running(FakeBackend(), tmp_path, settings=wanted) as chat:
            await chat.until(lambda: "nothing called 'nonsense'" in chat.text())
            await chat.pilot.press("ctrl+p")
            await chat.pilot.press("f2")
            await chat.until(lambda: "Type to narrow the list" in chat.text())
            await chat.pilot.press("escape")
            await chat.send("/help Leave")
            await chat.until(lambda: "F10" in chat.text())
            await chat.pilot.press("f10")
            await chat.until(lambda: not chat.app.is_running)


@here("it asks for no reply")
async def test_hints_name_the_keys_of_the_settings(tmp_path: Path) -> None:
    of_the_chat = {"chat.thinking": "f4,f5", "chat.interrupt": "f6", "composer.earlier": "f12"}
    of_dialogues = {"sidebar.pin": "f8", "form.clear": "f9", "writing.keep": "f10", "writing.close": "f11"}
    wanted = Settings(keys={**of_the_chat, **of_dialogues})
    async with running(FakeBackend(), tmp_path, settings=wanted, size=(140, 40)) as chat:
        await chat.until(lambda: "F4 thinking" in chat.text())
        assert "Ctrl+T" not in chat.text()
        await chat.pilot.press("f6")
        await chat.until(lambda: "F6 again quits" in chat.text())
        chat.screen.turns.hold(["held"])
        await chat.until(lambda: "F12 takes it back" in chat.text())
        await chat.pilot.press("ctrl+b")
        await chat.until(lambda: "F8 pin  ^E title" in chat.text())
        await chat.pilot.press("escape")
        await chat.send("/settings")
        await chat.until(lambda: "F9 takes away · Esc closes" in chat.text())
        await chat.pilot.press("escape")
        await chat.send("/persona edit pirate")
        await chat.until(lambda: "F10 keeps it · F11 leaves it as it was" in chat.text())


@here("it asks for no reply")
async def test_the_command_shows_them_all_with_their_names(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path, size=(100, 90)) as chat:
        await chat.send("/keys")
        await chat.until(lambda: "chat.interrupt" in chat.text())  # it begins at its top
        await chat.pilot.press("ctrl+end")
        await chat.until(lambda: "[keys]" in chat.text() and "picker.next" in chat.text())


@here("dialogues of the program")
async def test_keys_that_come_before_a_dialogue_is_there_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def change(name: str, value: object) -> None: ...

    dialogues = [Picker("P", [Choice("a", "a")]), Form("F", list, change), WritingScreen("W", "text")]
    for dialogue in dialogues:
        monkeypatch.setattr(type(dialogue), "compose", lambda self: [])
        monkeypatch.setattr(type(dialogue), "on_mount", lambda self: None, raising=False)
    async with running(FakeBackend(), tmp_path) as chat:
        for dialogue in dialogues:
            await chat.app.push_screen(dialogue)
            bound = [key for key, found in dialogue._bindings.key_to_bindings.items() if "leave" not in found[0].action]
            await chat.pilot.press(*bound, "x")
            assert chat.app.is_running
            assert chat.app.screen is dialogue
            await chat.app.pop_screen()


class TestPages:
    def test_the_help_has_every_command_with_its_key_and_every_key(self) -> None:
        page = help_page("", {})
        for known in COMMANDS.values():
            assert known.help in page
        assert "| `/new` | Begin a new conversation | Ctrl+N |" in page
        assert "| Ctrl+C | Copy what is selected" in page
        assert "| Keys · while writing | |" in page

    def test_a_word_narrows_it(self) -> None:
        page = help_page("CONVERSATION", {})
        assert "`/new`" in page
        assert "`/theme" not in page
        with pytest.raises(CommandError, match="says nothing about 'xyzzy'"):
            help_page("xyzzy", {})

    def test_changed_keys_are_told(self) -> None:
        assert "| `/new` | Begin a new conversation | F2 |" in help_page("", {"chat.new": "f2"})

    def test_in_sixty_columns_no_name_is_broken(self) -> None:
        rows = [row.text for row in render(keys_page({}), 52)]
        assert [id for id in keys.declared() if not any(id in row for row in rows)] == []

    def test_all_keys_are_listed_with_their_names(self) -> None:
        page = keys_page({"chat.new": "f2"})
        assert all(f"`{id}`" in page for id in keys.declared())
        assert "| F2 | Begin a new conversation | `chat.new` yours |" in page
