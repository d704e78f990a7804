"""The program as a whole: its start, its sizes, its colours, and what it lets through to the terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, end, say, think
from harness import Chat, here, running
from test_sanitize import ATTACKS, is_harmless
from textual import events
from textual.widgets import OptionList

from chatapp.commands import COMMANDS
from chatapp.options import ChatOptions
from chatapp.settings import Settings
from chatapp.store import Store
from chatapp.thought import ThoughtView
from runtime.protocol import Failed, Notice, Ready
from themes import DEFAULT

SIZES = [(60, 20), (100, 30), (250, 70)]


def test_importing_it_loads_no_torch_and_no_parser() -> None:
    code = (
        "import sys, chatapp.app; print([m for m in ('torch', 'numpy', 'markdown_it', 'pygments') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_without_a_model_it_tells_how_to_open_one(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path, ChatOptions()) as chat:
        assert "No model is open yet" in chat.text()
        assert "/model PATH" in chat.text()
        assert chat.status().startswith("no model")
        await chat.send("hello")
        await chat.send("/model tiny.gguf")
        await chat.idle()
        assert chat.backend.loads[0].path == str(Path.cwd() / "tiny.gguf")
        assert chat.backend.requests[0].messages[0].content == "hello"
        assert "No model is open yet" not in chat.text()


@here("it asks for no reply")
async def test_sentences_of_the_start_are_shown(tmp_path: Path) -> None:
    (tmp_path / "conversations.db").write_bytes(b"not a database" * 100)
    async with running(FakeBackend(), tmp_path, ChatOptions(notices=("A setting is odd.",))) as chat:
        await chat.until(lambda: "A setting is odd." in chat.text())
        assert "damaged" in chat.text()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_it_fits_every_size(size: tuple[int, int], tmp_path: Path) -> None:
    backend = FakeBackend([think("why"), say("word " * 100 + "\n\n```\n" + "code " * 60 + "\n```\n"), end()])
    async with running(backend, tmp_path, size=size) as chat:
        await chat.ask("a question that is rather long, " * 5)
        width, height = size
        assert len(chat.lines()) == height
        assert max(map(len, chat.lines())) <= width
        block = chat.screen.transcript.blocks[-1]
        assert block.region.width == min(width - 4, 100)
        assert abs(block.region.x - (width - block.region.right)) <= 2
        assert chat.screen.composer.region.width == block.region.width


async def test_a_new_size_lays_the_same_text_out_again(tmp_path: Path) -> None:
    async with running(FakeBackend([say("word " * 40 + "last.")]), tmp_path) as chat:
        await chat.ask("q")
        await chat.pilot.resize_terminal(60, 20)
        await chat.until(lambda: len(chat.lines()) == 20)
        assert "last." in chat.text()


class TestHarmless:
    """Nothing of a model, a file or a paste reaches the terminal as a control (CASES 45)."""

    def check(self, chat: Chat) -> None:
        assert all(is_harmless(line) for line in chat.lines())
        for strip in chat.app.screen._compositor.render_strips():
            for segment in strip:
                link = segment.style.link if segment.style is not None else None
                assert link is None or re.fullmatch(r"(https?://|mailto:)[!-~]+", link)

    @here("a server sends no notices")
    async def test_in_notices(self, tmp_path: Path) -> None:
        async with running(FakeBackend([Notice("\n\n".join(ATTACKS))]), tmp_path, size=(100, 100)) as chat:
            await chat.ask("q")
            assert "␛]52;c;cm0gLXJmIC8=␇" in chat.text()
            self.check(chat)

    async def test_in_replies_thoughts_and_messages(self, tmp_path: Path) -> None:
        attack = "\n\n".join(ATTACKS)
        cut = [piece for text in ATTACKS for piece in (think(text[:2]), think(text[2:]))]
        cut += [piece for text in ATTACKS for piece in (say(text[:1]), say(text[1:]))]
        backend = FakeBackend([*cut, say(f"\n```\x1b[31mpy\n{attack}\n```\n[a](http://x\x1b]0;y)"), end()])
        async with running(backend, tmp_path, size=(100, 200)) as chat:
            await chat.ask(f"look at {attack}")
            await chat.screen.query_one(ThoughtView).toggle()
            await chat.pilot.pause()
            assert "␛]52;c;cm0gLXJmIC8=␇" in chat.text()
            self.check(chat)

    async def test_in_names_of_models_titles_and_failures(self, tmp_path: Path) -> None:
        """CASES 11: what a file says of itself is only text."""
        store = Store(tmp_path / "conversations.db")
        store.add(store.create(title="\x1b[2Jtitle\x9b1m").id, None, "user", "x")
        store.close()
        from dataclasses import replace

        odd = replace(MODEL, name="\x1b]0;name\x07")
        backend = FakeBackend([Failed("\x1b[31mno", "internal")], loading=[Ready(odd)])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            self.check(chat)
            await chat.pilot.press("ctrl+r")
            await chat.until(lambda: "title" in chat.text())
            self.check(chat)

    async def test_in_names_and_texts_of_files_and_in_the_history(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "x\x1b]0;y\x07.py").write_text("x")
        (tmp_path / "x.py").write_text("text \x1b]52;c;aGk=\x07")
        monkeypatch.chdir(tmp_path)
        store = Store(tmp_path / "conversations.db")
        store.add(store.create().id, None, "user", "old \x1b[31mred")
        store.close()
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.write("@x")
            await chat.until(lambda: "▸ x.py" in chat.text())
            self.check(chat)
            await chat.pilot.press("tab", "enter")
            await chat.idle()
            await chat.pilot.press("ctrl+up", "enter", "up", "enter")
            await chat.until(lambda: "␛]52;c;aGk=␇" in chat.text())
            self.check(chat)
            chat.screen.composer.focus()
            await chat.write("y")
            await chat.pilot.press("up", "up")
            assert "old ␛[31mred" in chat.screen.composer.text
            self.check(chat)

    async def test_in_pasted_text(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            chat.screen.composer.post_message(events.Paste("a\x1b[31mb\x9bc"))
            await chat.until(lambda: "b" in chat.screen.composer.text)
            assert chat.screen.composer.text == "a␛[31mb␛[c"
            self.check(chat)

    async def test_markup_of_the_screen_library_is_only_text(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("[b]x[/b] [@click=app.quit]y[/] [/nonsense]")]), tmp_path) as chat:
            await chat.ask("[red]z[/red] [/]")
            assert "[@click=app.quit]y[/]" in chat.text()
            assert "[red]z[/red] [/]" in chat.text()


@pytest.mark.parametrize("text", ["👩‍👩‍👧 삼겹살 世界", "مرحبا بالعالم", "❤️ ☺️ ⚠️", "e\u0301e\u0301", "🇩🇪🇯🇵"])
async def test_text_of_all_scripts_breaks_no_row(text: str, tmp_path: Path) -> None:
    """CASES 46."""
    from rich.cells import cell_len

    async with running(FakeBackend([say(f"{text} " * 30)]), tmp_path) as chat:
        await chat.ask(text * 10)
        strips = chat.app.screen._compositor.render_strips()
        assert all(strip.cell_length == 100 == cell_len(strip.text) for strip in strips)
        assert text in chat.text()


@here("colours of the program")
class TestColours:
    async def test_a_theme_is_chosen_by_the_settings_and_by_the_command(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path, settings=Settings(theme="paper")) as chat:
            assert chat.app.theme == "paper"
            await chat.send("/theme moss")
            await chat.until(lambda: chat.app.theme == "moss")

    async def test_one_that_does_not_exist_is_told(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path, settings=Settings(theme="nonsense")) as chat:
            await chat.until(lambda: "no theme 'nonsense'" in chat.text())
            assert chat.app.theme == DEFAULT
            await chat.send("/theme other")
            await chat.until(lambda: "no theme 'other'" in chat.text())

    async def test_no_color_is_respected(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        async with running(FakeBackend([say("`code` **bold**")]), tmp_path) as chat:
            await chat.ask("q")
            colours = {
                colour.get_truecolor()
                for strip in chat.app.screen._compositor.render_strips()
                for segment in strip
                for colour in (segment.style and segment.style.color, segment.style and segment.style.bgcolor)
                if colour
            }
            assert all(red == green == blue for red, green, blue in colours)


@here("the list of commands")
class TestPalette:
    async def test_it_lists_every_command_and_runs_the_chosen(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path, size=(100, 30)) as chat:
            await chat.pilot.press("ctrl+p")
            await chat.until(lambda: "/resume" in chat.text())
            listed = [option.id for option in chat.app.screen.query_one(OptionList).options]
            assert listed == list(COMMANDS)
            await chat.pilot.press(*"clipboard", *["backspace"] * 9, *"saved")
            await chat.until(lambda: "/new" not in chat.text())
            await chat.pilot.press("enter")
            await chat.until(lambda: bool(chat.screen.query("Sidebar Input:focus")))

    async def test_a_command_that_needs_more_is_written_into_the_composer(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path, size=(60, 20)) as chat:
            await chat.pilot.press("ctrl+p")
            await chat.until(lambda: "/resume" in chat.text())
            await chat.pilot.press(*"/draft", "space", "auto", "enter")
            await chat.until(lambda: chat.screen.composer.text)
            assert chat.screen.composer.text == "/draft "
            assert chat.screen.composer.has_focus


@here("it asks for no reply")
async def test_help_lists_every_command_and_the_doubled_slash(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path, size=(100, 250)) as chat:  # the page begins at its top
        await chat.send("/help")
        await chat.until(lambda: "//like this" in chat.text())


@here("it asks for no reply")
async def test_help_on_a_word_shows_what_it_is_about(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        await chat.send("/help colours")
        await chat.until(lambda: "/theme" in chat.text())
        assert "/new" not in chat.text()
        await chat.send("/help xyzzy")
        await chat.until(lambda: "says nothing about 'xyzzy'" in chat.text())


async def test_copying_an_answer_gives_its_markdown_without_the_thought(tmp_path: Path) -> None:
    """CASES 50."""
    async with running(FakeBackend([think("hm"), say("**one** `two`\n- three")]), tmp_path) as chat:
        await chat.send("/copy")
        await chat.until(lambda: "no reply to copy" in chat.text())
        await chat.ask("q")
        await chat.send("/copy")
        await chat.until(lambda: chat.app.clipboard)
        assert chat.app.clipboard == "**one** `two`\n- three"


@here("it asks for no reply")
async def test_links_open_only_where_they_are_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    async with running(FakeBackend(), tmp_path) as chat:
        monkeypatch.setattr(chat.app, "open_url", opened.append)
        for address in ("https://a.example", "file:///etc/passwd", "mailto:a@b.example", "vscode://x"):
            chat.app.action_open_link(address)
    assert opened == ["https://a.example", "mailto:a@b.example"]


async def test_a_model_that_is_slow_to_load_leaves_the_composer_alive(tmp_path: Path) -> None:
    gate = Gate()
    async with running(FakeBackend(loading=[gate, Ready(MODEL)]), tmp_path, ChatOptions(model="/m.gguf")) as chat:
        await gate.reached.wait()
        await chat.write("already")
        assert chat.screen.composer.text == "already"
        gate.open()
        await chat.until(lambda: "ready" in chat.status())
