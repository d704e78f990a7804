"""Settings, themes of one's own, notices outside the window, and moves as in vim."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from fake_backend import FakeBackend, Gate, end, say
from harness import Clock, here, running
from textual import events
from textual.theme import Theme

from chatapp import cli, paths, settings
from chatapp.app import QwenChat
from chatapp.form import Form
from chatapp.notify import sequence
from chatapp.settings import Settings, Value
from runtime.protocol import BUILT_IN_MODEL
from themes import OwnThemes

THEME = 'primary = "#ffffff"\nbackground = "{}"\n'


class TestSettings:
    async def test_the_screen_explains_each_and_keeps_comments_in_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "settings.toml"
        path.write_text("# mine\ntop_k = 7  # few\n")
        backend = FakeBackend()
        keep = partial(settings.update, path)
        async with running(backend, tmp_path, settings=Settings(top_k=7), keep=keep, size=(100, 30)) as chat:
            await chat.send("/settings")
            await chat.until(lambda: isinstance(chat.app.screen, Form))
            await chat.pilot.press(*"top_")
            await chat.until(lambda: "as the model's makers advise" in chat.text())  # of top_p
            await chat.pilot.press("k")
            await chat.until(lambda: "Keep this many of the likeliest tokens" in chat.text())
            assert "a whole number of at least 0" in chat.text()
            await chat.pilot.press("enter", "backspace", "9", "enter")
            await chat.until(lambda: path.read_text() == "# mine\ntop_k = 9  # few\n")
            await chat.pilot.press("escape")
            await chat.ask("q")
        assert backend.requests[0].sampling.top_k == 9

    async def test_switches_go_on_to_the_next_value_and_delete_goes_back(self, tmp_path: Path) -> None:
        kept: list[Mapping[str, Value]] = []
        async with running(FakeBackend(), tmp_path, keep=kept.append) as chat:
            await chat.send("/settings")
            await chat.until(lambda: isinstance(chat.app.screen, Form))
            await chat.pilot.press(*"notify_when", "enter")
            await chat.until(lambda: kept == [{"notify_when": "always"}])
            await chat.pilot.press("delete")
            await chat.until(lambda: kept[1:] == [{"notify_when": "away"}])

    async def test_what_was_chosen_elsewhere_is_shown(self, tmp_path: Path) -> None:
        keep = partial(settings.update, tmp_path / "settings.toml")
        async with running(FakeBackend(), tmp_path, keep=keep) as chat:
            await chat.pilot.press("ctrl+t")
            await chat.send("/set top_k 30 default")
            await chat.send("/theme paper")
            await chat.until(lambda: settings.load(tmp_path / "settings.toml")[0].theme == "paper")
            await chat.send("/settings")
            await chat.until(lambda: isinstance(chat.app.screen, Form))
            shown = {entry.name: (entry.value, entry.source) for entry in chat.app.chat._entries()}
            assert shown["thinking"] == (False, "yours")
            assert shown["top_k"] == (30, "yours")
            assert shown["theme"] == ("paper", "yours")
            await chat.pilot.press(*"whether the model thinks")
            await chat.until(lambda: "thinking off yours" in chat.words())

    async def test_what_is_wrong_is_not_kept(self, tmp_path: Path) -> None:
        kept: list[Mapping[str, Value]] = []
        async with running(FakeBackend(), tmp_path, keep=kept.append) as chat:
            await chat.send("/settings")
            await chat.until(lambda: isinstance(chat.app.screen, Form))
            await chat.pilot.press(*"threads", "enter", "0", "enter")
            await chat.until(lambda: "threads takes a whole number from 1 to 1024, not '0'" in chat.words())
            await chat.pilot.press("escape", *["backspace"] * 7, *"theme", "enter", "x", "enter")
            await chat.until(lambda: "There is no theme 'x'" in chat.words())
        assert kept == []

    async def test_the_next_model_is_opened_as_they_say(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.screen._change_setting("context_length", 8192)
            await chat.screen._change_setting("system", "Be kind.")
            await chat.send("/model other.gguf")
            await chat.ask("q")
        assert backend.loads[-1].context_length == 8192
        assert backend.requests[0].messages[0].content == "Be kind."

    @here("a served model is no file")
    async def test_the_built_in_model_is_remembered_by_its_name(self, tmp_path: Path) -> None:
        kept: list[Mapping[str, Value]] = []
        async with running(FakeBackend(), tmp_path, keep=kept.append) as chat:
            await chat.send("/model built-in")
            await chat.until(lambda: kept)
            await chat.send("/model other.gguf")
            await chat.until(lambda: len(kept) == 2)
        assert chat.backend.loads[-2].path == str(BUILT_IN_MODEL)
        assert kept[0] == {"model": "built-in"}
        assert kept[1] == {"model": chat.backend.loads[-1].path}


@here("colours of the program")
class TestThemes:
    async def test_the_choice_is_remembered_and_esc_takes_the_look_back(self, tmp_path: Path) -> None:
        kept: list[Mapping[str, Value]] = []
        async with running(FakeBackend(), tmp_path, keep=kept.append) as chat:
            before = chat.app.theme
            await chat.send("/theme")
            await chat.until(lambda: "in use" in chat.text())
            assert "High contrast on black" in chat.text()
            await chat.pilot.press("down")
            await chat.until(lambda: chat.app.theme != before)
            await chat.pilot.press("escape")
            await chat.until(lambda: chat.app.theme == before)
            await chat.send("/theme paper")
            await chat.until(lambda: kept)
        assert kept == [{"theme": "paper"}]

    async def test_one_of_the_user_s_own_is_worn_as_it_is_saved(self, tmp_path: Path) -> None:
        folder = paths.themes_path()
        folder.mkdir(parents=True)
        (folder / "mine.toml").write_text(THEME.format("#101010"))
        async with running(FakeBackend(), tmp_path, settings=Settings(theme="mine")) as chat:
            assert chat.app.theme == "mine"
            assert chat.screen.styles.background.hex == "#101010"
            (folder / "mine.toml").write_text(THEME.format("#202020") + "# longer\n")
            chat.app._look_at_themes()
            await chat.until(lambda: chat.screen.styles.background.hex == "#202020")
            (folder / "mine.toml").write_text("primary = 'nonsense'\n")
            chat.app._look_at_themes()
            await chat.until(lambda: "'nonsense' as its primary" in chat.words())
            (folder / "mine.toml").write_text(THEME.format("#303030") + "[variables]\nborder = 'nocolour'\n")
            chat.app._look_at_themes()
            await chat.until(lambda: "'nocolour' as its border" in chat.words())
            assert chat.app.theme == "mine"
            assert chat.screen.styles.background.hex == "#202020"

    @pytest.mark.parametrize("colour", ["#12345678 50%", "hsl(300, 20.5%, 5%) 7.5%", "transparent"])
    async def test_whatever_one_may_say_is_taken_by_the_styles_of_all_screens(
        self, colour: str, tmp_path: Path
    ) -> None:
        folder = paths.themes_path()
        folder.mkdir(parents=True)
        lines = [
            f"{name} = '{'bold not underline' if '-style' in name else 'auto 60%' if usual[:4] == 'auto' else colour}'"
            for name, usual in Theme("usual", "red").to_color_system().generate().items()
            if "-" in name
            and not name.startswith(("primary-", "background-"))  # those are mixed, and the roles are none
        ]
        (folder / "mine.toml").write_text("primary = 'red'\n[variables]\n" + "\n".join(lines) + "\n")
        async with running(FakeBackend(), tmp_path, settings=Settings(theme="mine")) as chat:
            assert chat.app.theme == "mine"
            for command in ("/theme", "/settings"):
                await chat.send(command)
                await chat.until(lambda: chat.app.screen is not chat.screen)
                await chat.pilot.press("escape")
                await chat.until(lambda: chat.app.screen is chat.screen)

    def test_only_what_was_written_since_is_read_again(self, tmp_path: Path) -> None:
        own = OwnThemes(tmp_path)
        assert own.look() == ([], [])
        (tmp_path / "a.toml").write_text(THEME.format("#000000"))
        (tmp_path / "b.toml").write_bytes(b"\xff")
        themes, [fault] = own.look()
        assert [theme.name for theme in themes] == ["a"]
        assert "b.toml cannot be read: not UTF-8" in fault
        assert own.look() == ([], [])

    def test_the_help_tells_where_they_lie(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            cli.parse(["--help"])
        assert "themes (NAME.toml)" in capsys.readouterr().out


class TestNotices:
    async def ended(self, chosen: Settings, seconds: float, tmp_path: Path, *, away: bool = True) -> list[str]:
        """What a reply of so many seconds makes the terminal do."""
        clock, gate, told = Clock(), Gate(), list[str]()
        backend = FakeBackend([say("a"), gate, say("b"), end()])
        async with running(backend, tmp_path, settings=chosen, clock=clock) as chat:
            chat.app.bell = lambda: told.append("bell")  # type: ignore[method-assign]
            driver = chat.app._driver
            assert driver is not None
            driver.write = lambda data: told.append(data)  # type: ignore[method-assign]
            await chat.send("q")
            await gate.reached.wait()
            clock.now += seconds
            if away:
                chat.app.post_message(events.AppBlur())
                await chat.until(lambda: not chat.app.app_focus)
            gate.open()
            await chat.idle()
        return [data for data in told if data == "bell" or "]9;" in data]

    async def test_a_long_reply_rings_when_nobody_looks(self, tmp_path: Path) -> None:
        assert await self.ended(Settings(), 12, tmp_path) == ["bell"]

    async def test_a_short_one_does_not(self, tmp_path: Path) -> None:
        assert await self.ended(Settings(), 3, tmp_path) == []

    async def test_nor_one_that_is_looked_at_unless_it_is_wanted(self, tmp_path: Path) -> None:
        assert await self.ended(Settings(), 12, tmp_path, away=False) == []
        assert await self.ended(Settings(notify_when="always"), 12, tmp_path, away=False) == ["bell"]

    async def test_the_desktop_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TMUX", raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        assert await self.ended(Settings(notify="desktop"), 75, tmp_path) == [
            "\x1b]9;qwenchat: The reply is there, after 1 min 15 s.\x1b\\"
        ]

    def test_the_sequence_is_the_terminal_s_own(self) -> None:
        assert sequence("a;b", "c\x07", {"TERM": "foot"}) == "\x1b]777;notify;a,b;c␇\x1b\\"
        assert sequence("a", "b", {"TERM": "tmux", "TMUX": "x"}) == "\x1bPtmux;\x1b\x1b]9;a: b\x1b\x1b\\\x1b\\"


class TestMoves:
    async def test_vim_s_keys_scroll_once_the_composer_is_left(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("\n\n".join(f"line {n}" for n in range(60)))])
        async with running(backend, tmp_path, settings=Settings(vim_moves=True)) as chat:
            await chat.ask("q")
            transcript = chat.screen.transcript
            await chat.pilot.press("j")
            assert chat.screen.composer.text == "j"
            await chat.pilot.press("backspace", "escape")
            end_ = transcript.scroll_y
            await chat.pilot.press("k", "k")
            await chat.until(lambda: transcript.scroll_y == end_ - 2)
            await chat.pilot.press("g")
            await chat.until(lambda: transcript.scroll_y == 0)
            await chat.pilot.press("d", "j")
            await chat.until(lambda: transcript.scroll_y == transcript.size.height // 2 + 1)
            await chat.pilot.press("u", "G")
            await chat.until(lambda: transcript.at_end)
            await chat.pilot.press("i", "j")
            assert chat.screen.composer.text == "j"

    @here("it asks for no reply")
    async def test_without_the_setting_letters_are_written(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            chat.screen.transcript.focus()
            await chat.pilot.press("j")
            assert chat.screen.composer.text == "j"


@here("it asks for no reply")
async def test_reduced_motion_keeps_all_still(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path, settings=Settings(reduced_motion=True)) as chat:
        await chat.until(lambda: not chat.screen.composer.cursor_blink)
        assert chat.app.animation_level == "none"
        assert isinstance(chat.app, QwenChat)
