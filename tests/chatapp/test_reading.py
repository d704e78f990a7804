"""Reading: a cursor over the messages, copies, links, search."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from fake_backend import FakeBackend, Gate, say, think
from harness import Chat, here, running

from chatapp import clipboard
from chatapp.blocks import ReplyBlock
from chatapp.markdown_view import MarkdownView
from chatapp.options import ChatOptions
from chatapp.rows_view import RowsView
from chatapp.search import Joined, Query
from chatapp.store import Store
from chatapp.stream import MarkdownStream
from chatapp.transcript import SHOWN

WIDE = "x = " + "1 + " * 60 + "1"
REPLY = f"""Some *text*.

```python
\tdef f():
\t\treturn "```"
```

- a list with

  ```sh
  ls
  ```

See [the docs](https://a.example/docs) or https://b.example.

```
{WIDE}
```
"""


def marked(chat: Chat) -> list[str]:
    """The text on the screen that stands out as found."""
    found = []
    for view in chat.screen.query(RowsView):
        for y, places in view._marks.items():
            row = view.lay_out(view.size.width)[y]
            found += [row.text[start:end] for start, end, _ in places]
    return found


def saved(path: Path, texts: list[str]) -> str:
    store = Store(path / "conversations.db")
    conversation, parent = store.create(), None
    with store.transaction():
        for number, text in enumerate(texts):
            parent = store.add(conversation.id, parent, "assistant" if number % 2 else "user", text).id
    store.close()
    return conversation.id


class TestCursor:
    async def test_it_goes_over_the_messages_and_back_to_the_composer(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("one")], [say("two")]), tmp_path) as chat:
            await chat.ask("first")
            await chat.ask("second")
            texts = []
            for _ in range(5):
                await chat.pilot.press("ctrl+up")
                cursor = chat.screen.transcript.cursor
                assert cursor is not None
                texts.append(cursor.texts[0])
            assert texts == ["two", "second", "one", "first", "first"]
            assert "C copy" in chat.text()
            await chat.pilot.press("down", "down", "down", "down")
            assert chat.screen.transcript.cursor is None
            assert chat.screen.composer.has_focus
            assert "C copy" not in chat.text()

    async def test_what_is_marked_is_copied(self, tmp_path: Path) -> None:
        """CASES 50: the answer as it was written, without its thought."""
        async with running(FakeBackend([think("secret"), say(REPLY)]), tmp_path) as chat:
            await chat.ask("the question")
            await chat.pilot.press("ctrl+up", "c")
            assert chat.app.clipboard == REPLY
            await chat.until(lambda: f"copied: {len(REPLY.splitlines())} lines" in chat.status())
            await chat.pilot.press("up", "c")
            assert chat.app.clipboard == "the question"

    async def test_its_code_is_copied_block_after_block_as_it_was_written(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say(REPLY)]), tmp_path) as chat:
            await chat.ask("q")
            await chat.pilot.press("ctrl+up")
            copies = []
            for _ in range(4):
                await chat.pilot.press("b")
                copies.append(chat.app.clipboard)
            first = '\tdef f():\n\t\treturn "```"'
            assert copies == [first, "ls", WIDE, first]

    @pytest.mark.parametrize("before", ["", "> ", "> > ", "- ", "> - "], ids=repr)
    async def test_a_click_on_the_word_above_code_copies_it(self, before: str, tmp_path: Path) -> None:
        after = before.replace("-", " ")
        code = f"{before}```sh\n{after}ls -l\n{after}```\n"
        async with running(FakeBackend([say(f"text\n\n{code}")]), tmp_path) as chat:
            await chat.ask("q")
            view = chat.screen.query_one(MarkdownView)
            await chat.pilot.click(view, offset=(view.size.width - 3, 2))
            await chat.until(lambda: chat.app.clipboard == "ls -l")

    async def test_without_a_cursor_its_letters_are_written(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("x")]), tmp_path) as chat:
            await chat.ask("q")
            chat.screen.transcript.focus()
            await chat.write("cbown")
            assert chat.screen.composer.text == "cbown"

    async def test_other_letters_are_written_even_with_one(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("x")]), tmp_path) as chat:
            await chat.ask("q")
            await chat.pilot.press("ctrl+up")
            await chat.write("hi")
            assert chat.screen.composer.text == "hi"
            assert chat.screen.composer.has_focus

    async def test_enter_unfolds_a_thought_and_a_message(self, tmp_path: Path) -> None:
        async with running(FakeBackend([think("the reason"), say("x")]), tmp_path, size=(100, 60)) as chat:
            chat.screen.composer.put("\n".join(f"line {number}" for number in range(40)))
            await chat.pilot.press("enter")
            await chat.idle()
            await chat.pilot.press("ctrl+up", "enter")
            await chat.until(lambda: "the reason" in chat.text())
            assert "line 39" not in chat.text()
            await chat.pilot.press("up", "enter")
            await chat.until(lambda: "line 39" in chat.text())

    async def test_code_is_unfolded_and_moved(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say(f"```\n{WIDE} Ω\n```\n")]), tmp_path) as chat:
            await chat.ask("q")
            assert "Ω" in chat.text()
            await chat.pilot.press("ctrl+up", "w")
            await chat.until(lambda: "›" in chat.text())
            assert "Ω" not in chat.text()
            await chat.pilot.press(*["right"] * 40)
            await chat.until(lambda: "Ω" in chat.text())
            await chat.pilot.press("left", "left")
            await chat.until(lambda: "Ω" not in chat.text())
            await chat.pilot.press("escape")
            await chat.send("/wrap")
            await chat.until(lambda: "Ω" in chat.text())


class TestLinks:
    async def test_one_is_opened_and_several_are_shown_with_their_addresses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[str] = []
        monkeypatch.setenv("DISPLAY", ":0")
        backend = FakeBackend([say("[a](https://a.example)")], [say(REPLY)])
        async with running(backend, tmp_path, size=(100, 60)) as chat:
            monkeypatch.setattr(chat.app, "open_url", opened.append)
            await chat.ask("q")
            await chat.send("/links")
            await chat.until(lambda: opened == ["https://a.example"])
            await chat.ask("q")
            await chat.pilot.press("ctrl+up", "o")
            await chat.until(lambda: "https://a.example/docs" in chat.text())
            await chat.pilot.press("down", "enter")
            await chat.until(lambda: opened[1:] == ["https://b.example"])

    async def test_an_address_of_several_replies_is_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []
        monkeypatch.setenv("DISPLAY", ":0")
        backend = FakeBackend([say("[a](https://a.example/)")], [say("<https://a.example/>")], [say(REPLY)])
        async with running(backend, tmp_path) as chat:
            monkeypatch.setattr(chat.app, "open_url", opened.append)
            await chat.ask("one")
            await chat.ask("two")
            await chat.send("/links")
            await chat.until(lambda: opened == ["https://a.example/"])
            await chat.ask("three")
            await chat.send("/links")
            await chat.until(lambda: "https://b.example" in chat.text())
            await chat.pilot.press("up", "enter")
            await chat.until(lambda: opened[1:] == ["https://a.example/"])

    async def test_they_reach_the_terminal_only_where_they_are_harmless(self, tmp_path: Path) -> None:
        text = "[a](https://a.example/x_1) [b](vscode://y) [c](<https://c.example/\u202e>) [d](mailto:d@d.example)"
        async with running(FakeBackend([say(text)]), tmp_path) as chat:
            await chat.ask("q")
            strips = chat.app.screen._compositor.render_strips()
            links = {segment.style.link for strip in strips for segment in strip if segment.style is not None}
            assert links - {None} == {"https://a.example/x_1", "https://c.example/", "mailto:d@d.example"}

    async def test_an_address_that_is_none_is_shown_again_and_copied(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DISPLAY", ":0")
        text = "Open the [Dashboard](http://[your-ip:8080]/) now."
        async with running(FakeBackend([say(text)]), tmp_path) as chat:
            await chat.ask("q")
            assert "Open the Dashboard now." in chat.text()
            conversation = chat.thread()[0].conversation_id
        async with running(FakeBackend(), tmp_path, ChatOptions(conversation_id=conversation)) as chat:
            await chat.until(lambda: "Open the Dashboard now." in chat.text())
            await chat.send("/links")
            await chat.until(lambda: chat.app.clipboard == "http://[your-ip:8080]/")


class TestThoughts:
    async def test_tab_goes_to_the_newest_first(self, tmp_path: Path) -> None:
        backend = FakeBackend([think("old reason"), say("a")], [think("new reason"), say("b")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            await chat.ask("r")
            await chat.pilot.press("tab", "enter")
            await chat.until(lambda: "new reason" in chat.text())
            assert "old reason" not in chat.text()
            await chat.pilot.press("tab", "enter")
            await chat.until(lambda: "old reason" in chat.text())
            await chat.pilot.press("tab")
            assert chat.screen.composer.has_focus


class TestSearch:
    @here("it asks for no reply")
    async def test_enter_before_anything_is_searched_for_finds_nothing(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.pilot.press("ctrl+f")
            await chat.until(lambda: "find" in chat.text())
            await chat.pilot.press("enter", "n", "N", "escape")
            assert chat.app.is_running
            await chat.write("goes on")
            await chat.until(lambda: "goes on" in chat.text())

    async def test_matches_are_counted_and_marked_and_gone_through(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("A fox and a **Fox**.")], [say("no such animal\n\n> a fox")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("Where is the fox?")
            await chat.ask("And the hen?")
            await chat.pilot.press("ctrl+f")
            await chat.write("fox")
            await chat.until(lambda: "4 of 4" in chat.text())
            assert sorted(marked(chat)) == ["Fox", "fox", "fox", "fox"]
            await chat.pilot.press("enter", "n")
            await chat.until(lambda: "1 of 4" in chat.text())
            await chat.pilot.press("N", "N")
            await chat.until(lambda: "3 of 4" in chat.text())
            await chat.pilot.press("escape")
            await chat.until(lambda: not marked(chat))
            assert chat.screen.composer.has_focus
            await chat.pilot.press("ctrl+f")
            await chat.until(lambda: "4 of 4" in chat.text())

    @pytest.mark.parametrize(
        ("way", "found"),
        [("ctrl+n", "nothing found"), ("alt+left", "2 of 2"), ("/retry", "1 of 1"), ("edit", "1 of 1")],
    )
    async def test_it_ends_where_what_was_found_is_gone(self, way: str, found: str, tmp_path: Path) -> None:
        async with running(FakeBackend([say("a fox")], [say("the fox")]), tmp_path) as chat:
            await chat.ask("Where is the fox?")
            await chat.send("/retry")
            await chat.until(lambda: "‹ 2/2 ›" in chat.text())
            await chat.idle()
            if way == "edit":
                await chat.pilot.press("alt+up")
            await chat.pilot.press("ctrl+f")
            await chat.write("fox")
            await chat.until(lambda: "2 of 2" in chat.text())
            if way in ("/retry", "edit"):
                chat.screen.composer.focus()
                await chat.send(way if way == "/retry" else "Where is the fox now?")
            else:
                await chat.pilot.press(way)
            await chat.until(lambda: " of 2" not in chat.text() and not chat.screen.search_bar.display)
            await chat.idle()
            assert not chat.screen.finding
            assert chat.screen.composer.has_focus
            await chat.pilot.press("ctrl+f")
            await chat.until(lambda: found in chat.text())

    @here("it asks for no reply")
    async def test_a_version_shown_while_the_messages_have_the_focus_leaves_it_there(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "conversations.db")
        made = store.create()
        asked = store.add(made.id, None, "user", "Where is the fox?")
        for text in ("a fox", "the fox"):
            store.add(made.id, asked.id, "assistant", text)
        store.close()
        options = ChatOptions(conversation_id=made.id, model="/m.gguf")
        async with running(FakeBackend(), tmp_path, options) as chat:
            await chat.until(lambda: "‹ 2/2 ›" in chat.text())
            await chat.send("/find fox")
            await chat.until(lambda: "2 of 2" in chat.text())
            await chat.pilot.press("enter", "alt+left")
            await chat.until(lambda: "‹ 1/2 ›" in chat.text())
            assert not chat.screen.search_bar.display
            assert chat.screen.transcript.has_focus

    async def test_it_finds_what_is_folded_and_unfolds_it(self, tmp_path: Path) -> None:
        async with running(FakeBackend([think("a hidden reason"), say("an answer")]), tmp_path) as chat:
            await chat.ask("\n".join([*(f"line {number}" for number in range(60)), "the hidden end"]))
            await chat.send("/find hidden")
            await chat.until(lambda: "2 of 2" in chat.text() and "a hidden reason" in chat.text())
            await chat.pilot.press("up")
            await chat.until(lambda: "1 of 2" in chat.text() and "the hidden end" in chat.text())

    @here("it asks for no reply")
    async def test_it_finds_what_is_far_above_and_the_end_comes_back(self, tmp_path: Path) -> None:
        texts = [f"message {number}" + " needle" * (number == 41) for number in range(400)]
        options = ChatOptions(conversation_id=saved(tmp_path, texts))
        async with running(FakeBackend(), tmp_path, options) as chat:
            await chat.until(lambda: "message 399" in chat.text())
            await chat.send("/find needle")
            await chat.until(lambda: "1 of 1" in chat.text() and "message 41 needle" in chat.text())
            transcript = chat.screen.transcript
            assert len(transcript.blocks) < 3 * SHOWN
            assert "needle" in marked(chat)
            await chat.pilot.press("escape", "ctrl+end")
            await chat.until(lambda: "message 399" in chat.text())
            assert len(transcript.blocks) == SHOWN
            assert transcript.earlier == 400 - SHOWN

    @here("it asks for no reply")
    async def test_what_lies_between_comes_when_it_is_reached(self, tmp_path: Path) -> None:
        texts = [f"message {number}" for number in range(400)]
        options = ChatOptions(conversation_id=saved(tmp_path, texts))
        async with running(FakeBackend(), tmp_path, options, size=(100, 60)) as chat:
            await chat.until(lambda: "message 399" in chat.text())
            await chat.send("/find 'message 41'".replace("'", ""))
            await chat.until(lambda: "message 41" in chat.text())
            transcript = chat.screen.transcript
            before = len(transcript.blocks)
            transcript.scroll_relative(y=60, animate=False)
            await chat.until(lambda: len(transcript.blocks) > before)
            numbers = [int(block.texts[0].split()[1]) for block in transcript.blocks]
            assert numbers == sorted(numbers)

    async def test_a_reply_that_begins_meanwhile_moves_nothing(self, tmp_path: Path) -> None:
        """CASES 42: also where the view is far above."""
        texts = [f"message {number}" for number in range(400)]
        gate = Gate()
        options = ChatOptions(conversation_id=saved(tmp_path, texts), model="/m.gguf")
        async with running(FakeBackend([gate, say("late answer")]), tmp_path, options) as chat:
            await chat.until(lambda: "message 399" in chat.text())
            await chat.send("a question")
            await gate.reached.wait()
            await chat.send("/find message 41")
            await chat.until(lambda: any("message 41" in line for line in chat.lines()[:20]))
            seen = [line[:90].rstrip() for line in chat.lines()[:10]]
            gate.open()
            await chat.until(lambda: not chat.screen.turns.generating)
            await chat.pilot.pause()
            assert [line[:90].rstrip() for line in chat.lines()[:10]] == seen
            await chat.pilot.press("ctrl+end")
            await chat.until(lambda: "late answer" in chat.text())

    @pytest.mark.parametrize(
        ("words", "text", "found"),
        [
            ("one two", "x " * 30 + "one\ntwo", ["one", "two"]),
            ("bold word", "a **bold** word", ["bold word"]),
            ("a.c", "abc a.c", ["a.c"]),
            ("STRASSE", "straße Strasse", ["Strasse"]),
            ("f(", "```\nf(x)\n```", ["f("]),
            ("cell", "| cell |\n|---|\n| x |", ["cell"]),
        ],
    )
    def test_words_are_found_as_they_are_shown(self, words: str, text: str, found: list[str]) -> None:
        stream = MarkdownStream(60)
        stream.feed(text)
        stream.close()
        spans = [span for place in Query(words).spans(stream) for span in place]
        assert [stream[row].text[start:end] for row, start, end in spans] == found
        assert Query(words).may_be_in(text)

    def test_the_joined_text_is_that_of_a_copy(self) -> None:
        stream = MarkdownStream(20)
        stream.feed("A paragraph of several rows, that is.\n\n- an item of several rows\n\n```\ncode\n```\n")
        stream.close()
        assert "A paragraph of several rows, that is." in Joined(stream).text
        assert "an item of several rows" in Joined(stream).text


class TestClipboard:
    def program(self, folder: Path, name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)

    @pytest.mark.parametrize(
        ("environment", "platform", "programs"),
        [
            ({"WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}, "linux", ["wl-copy"]),
            ({"DISPLAY": ":0", "TMUX": "t"}, "linux", ["xclip", "tmux"]),
            ({"TMUX": "t"}, "linux", ["tmux"]),
            ({}, "darwin", ["pbcopy"]),
            ({"WSL_DISTRO_NAME": "u"}, "linux", ["clip.exe"]),
            ({}, "linux", []),
        ],
    )
    def test_the_programs_of_each_system(
        self,
        environment: dict[str, str],
        platform: str,
        programs: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name in ("wl-copy", "xclip", "tmux", "pbcopy", "clip.exe"):
            self.program(tmp_path, name, "")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert [words[0] for words in clipboard.commands(environment, platform)] == programs

    @here("it asks for no reply")
    async def test_they_get_the_text_and_the_terminal_gets_what_it_can_take(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.program(tmp_path, "wl-copy", f"exec cat > {tmp_path}/taken")
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setenv("WAYLAND_DISPLAY", "w")
        async with running(FakeBackend(), tmp_path) as chat:
            chat.screen.copy("é short")
            await chat.until(lambda: (tmp_path / "taken").exists() and (tmp_path / "taken").read_text() == "é short")
            assert chat.app.clipboard == "é short"
            chat.screen.copy("x" * 200_000)
            await chat.until(lambda: (tmp_path / "taken").read_text() == "x" * 200_000)
            assert chat.app.clipboard == "é short"

    async def test_one_that_fails_or_hangs_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clipboard, "_SECONDS", 0.2)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setenv("WAYLAND_DISPLAY", "w")
        for script in ("exit 1", "exec sleep 60"):
            self.program(tmp_path, "wl-copy", script)
            assert not await asyncio.wait_for(clipboard.copy("x"), 10)


async def test_the_command_copies_the_code(tmp_path: Path) -> None:
    async with running(FakeBackend([say("none")], [say(REPLY)]), tmp_path) as chat:
        await chat.ask("q")
        await chat.send("/copy code")
        await chat.until(lambda: "There is no code in the last reply." in chat.text())
        await chat.ask("q")
        await chat.send("/copy code")
        await chat.until(lambda: chat.app.clipboard.endswith(f"\n\nls\n\n{WIDE}"))
        assert isinstance(chat.screen.transcript.last_reply(), ReplyBlock)
