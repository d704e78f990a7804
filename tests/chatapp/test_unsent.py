"""What was written and not sent survives every end of the chat, and what is held back waits for the user."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, say
from harness import Chat, here, running

from chatapp import unsent
from chatapp.options import ChatOptions
from chatapp.session import Session
from chatapp.store import Store
from chatapp.unsent import Unsent
from runtime.protocol import Failed, LoadProgress, Ready


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path / "conversations.db")
    yield one
    one.close()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from chatapp.session import Session
from chatapp.store import Store
from chatapp.unsent import Unsent

async def main():
    session = Session(Store(Path(sys.argv[1])))
    if sys.argv[2]:
        await session.open(sys.argv[2])
        await session.unsent()
    await session.keep(Unsent(sys.argv[3], tuple(sys.argv[4:])))
    print(session.conversation.id, flush=True)
    if sys.stdin.readline():
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def window(path: Path, conversation_id: str, draft: str, *queue: str) -> tuple[subprocess.Popen[str], str]:
    """Another window that has kept this, and the id of its conversation; a line makes it kill itself."""
    command = [sys.executable, "-c", KILLED, str(path), conversation_id, draft, *queue]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.communicate("\n")
    assert process.returncode == -signal.SIGKILL


async def test_a_killed_window_leaves_its_words_to_the_next_one(store: Store) -> None:
    process, key = window(store.path, "", "half a tho😀ught", "first", "second")
    session = Session(store)
    assert await session.open(key)
    assert await session.unsent() == Unsent()  # its owner lives
    kill(process)
    await session.open(key)
    assert await session.unsent() == Unsent("half a tho😀ught", ("first", "second"))
    assert store.conversations()[0].title == "half a tho😀ught"


async def test_the_words_of_two_dead_windows_are_all_kept(store: Store) -> None:
    first, key = window(store.path, "", "draft one", "queued one")
    second, _ = window(store.path, key, "draft two")
    kill(first)
    kill(second)
    session = Session(store)
    await session.open(key)
    found = await session.unsent()
    assert sorted([found.draft, *found.queue]) == ["draft one", "draft two", "queued one"]
    assert found.draft.startswith("draft")


async def test_a_new_conversation_without_a_word_is_not_kept(store: Store) -> None:
    session = Session(store)
    await session.keep(Unsent("a"))
    assert len(store.conversations()) == 1
    assert store.latest() is not None
    await session.keep(Unsent())
    assert store.latest() is None  # and is not gone on with, should the chat end here
    await session.leave()
    assert store.conversations() == []


async def test_a_message_leaves_the_queue_as_it_enters_the_conversation(store: Store) -> None:
    session = Session(store)
    await session.keep(Unsent("draft", ("one", "two")))
    await session.ask("one", "m")
    assert session.conversation is not None
    assert unsent.take(store, session.conversation.id, session._window.key) == Unsent("draft", ("two",))


async def test_draft_and_queue_stay_with_their_conversation(tmp_path: Path) -> None:
    gate = Gate()
    backend = FakeBackend([say("one"), gate])
    async with running(backend, tmp_path) as chat:
        await chat.send("first")
        await gate.reached.wait()
        await chat.send("queued up")
        await chat.write("a draft")
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: "first" not in chat.text())
        assert chat.screen.composer.text == ""
        assert "queued up" not in chat.text()
        await chat.idle()
        latest = chat.store.latest()
        assert latest is not None
        await chat.send(f"/resume {latest.id}")
        await chat.until(lambda: "a draft" in chat.text())
        await chat.write("!")
        await chat.pilot.press("ctrl+z", "ctrl+z")
        assert chat.screen.composer.text == "a draft"  # what was kept is not to be undone
        assert "held    queued up" in chat.text()
        assert len(backend.requests) == 1
        await chat.pilot.press("ctrl+c", "enter")
        await chat.until(lambda: len(backend.requests) == 2)
        await chat.idle()
        assert backend.requests[1].messages[-1].content == "queued up"
        assert "held" not in chat.text()


async def test_they_are_there_after_the_chat_has_ended(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path, ChatOptions()) as chat:
        await chat.send("waits for a model")
        await chat.write("draft")
        chat.screen.quit()
        await chat.until(lambda: not chat.app.is_running)
        latest = chat.store.latest()
    assert latest is not None
    backend = FakeBackend()
    async with running(backend, tmp_path, ChatOptions(model=MODEL.path, conversation_id=latest.id)) as chat:
        await chat.until(lambda: chat.screen.composer.text == "draft")
        assert chat.screen.turns.waiting == ["waits for a model"]
        await chat.until(lambda: backend.model is not None)
        await chat.pilot.pause()
        assert backend.requests == []


async def kept(chat: Chat) -> Unsent:
    """What the store holds of the words that are not sent, and shows after another conversation was open."""
    latest = chat.store.latest()
    assert latest is not None
    await chat.pilot.press("ctrl+n")
    await chat.until(lambda: chat.screen._session.conversation is None)
    assert chat.screen.composer.text == ""
    await chat.send(f"/resume {latest.id}")
    await chat.until(lambda: chat.screen._session.conversation is not None and not chat.screen._keeper._paused)
    return chat.screen._unsent()


class TestEarlierMessages:
    """What was being written when an earlier message was brought back is not lost."""

    async def test_the_draft_behind_one_is_kept(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("first")
            await chat.write("my draft")
            await chat.pilot.press("up")
            assert chat.screen.composer.text == "first"
            assert await kept(chat) == Unsent("my draft")
            assert chat.screen.composer.text == "my draft"

    async def test_so_are_both_once_it_is_changed(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("first")
            await chat.write("my draft")
            await chat.pilot.press("up", "!")
            assert await kept(chat) == Unsent("first!", ("my draft",))

    async def test_one_alone_is_no_draft(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("first")
            await chat.pilot.press("up")
            assert await kept(chat) == Unsent()

    @pytest.mark.parametrize("key", ["ctrl+c", "alt+up"])
    async def test_what_is_written_in_its_place_is_not_written_over(self, key: str, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            for text in ("first", "second"):
                await chat.ask(text)
            await chat.pilot.press("up", "up", key)
            await chat.write("fresh")
            words = chat.screen.composer.text
            await chat.pilot.press("down")
            assert chat.screen.composer.text == words

    async def test_writing_one_anew_gives_back_the_draft_behind_it(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("first")
            await chat.write("my draft")
            await chat.pilot.press("up", "alt+up", "escape")
            assert chat.screen.composer.text == "my draft"

    async def test_one_that_is_written_anew_stays_with_its_conversation(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("first")
            await chat.write("my draft")
            await chat.pilot.press("alt+up", "!")
            assert await kept(chat) == Unsent("first!", ("my draft",))

    async def test_its_file_comes_back_as_it_was_sent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (file := tmp_path / "other.py").write_text("x = 1\n")
        monkeypatch.chdir(tmp_path)
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.ask("read @other.py ")
            file.unlink()
            await chat.pilot.press("alt+up", "!")
            await kept(chat)
            assert chat.screen.composer.text == "read @other.py !"
            await chat.pilot.press("enter")
            await chat.idle()
            first, second = (request.messages[-1].content for request in backend.requests)
            assert "x = 1" in second
            assert second == first.replace("@other.py ", "@other.py !")


class TestWaiting:
    async def test_messages_wait_while_the_model_loads_and_are_sent_in_order(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend(loading=[LoadProgress(45, 100, "weights"), gate, Ready(MODEL)])
        async with running(backend, tmp_path, ChatOptions(model=MODEL.path)) as chat:
            await gate.reached.wait()
            await chat.send("first")
            await chat.send("second")
            await chat.pilot.pause()
            assert chat.status().startswith("tiny · loading 45 %")
            assert "queued  first" in chat.text()
            assert backend.requests == []
            gate.open()
            await chat.until(lambda: len(backend.requests) == 2)
            await chat.idle()
            assert [request.messages[-1].content for request in backend.requests] == ["first", "second"]
            assert "queued" not in chat.text()

    @here("a file is opened")
    @pytest.mark.parametrize("command", ["/model /models/other.gguf", "/context 8192"])
    async def test_they_wait_for_the_model_that_is_opened_in_the_middle_of_a_reply(
        self, command: str, tmp_path: Path
    ) -> None:
        gate, loads = Gate(), Gate()
        backend = FakeBackend([say("begun"), gate])
        async with running(backend, tmp_path) as chat:
            await chat.send("first")
            await gate.reached.wait()
            await chat.send("next")
            backend.loading = [loads, Ready(MODEL)]
            await chat.send(command)
            await loads.reached.wait()
            assert len(backend.requests) == 1
            loads.open()
            await chat.until(lambda: len(backend.requests) == 2)
            await chat.idle()
            assert [node.content for node in chat.thread()] == ["first", "begun", "next", "ok"]

    async def test_they_wait_while_a_reply_runs_and_can_be_taken_back(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([say("x"), gate])
        async with running(backend, tmp_path) as chat:
            await chat.send("now")
            await gate.reached.wait()
            await chat.send("later")
            await chat.send("never")
            await chat.until(lambda: "queued  never" in chat.text())
            await chat.pilot.press("up")
            assert chat.screen.composer.text == "never"
            assert chat.screen.turns.waiting == ["later"]
            gate.open()
            await chat.idle()
            assert [node.content for node in chat.thread() if node.role == "user"] == ["now", "later"]

    async def test_a_click_takes_one_back(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([gate]), tmp_path) as chat:
            await chat.send("now")
            await gate.reached.wait()
            await chat.send("later")
            await chat.until(lambda: "queued  later" in chat.text())
            y = next(number for number, line in enumerate(chat.lines()) if "queued" in line)
            await chat.pilot.click(offset=(12, y))
            await chat.pilot.pause()
            assert chat.screen.turns.waiting == []
            assert chat.screen.composer.text == "later"
            gate.open()
            await chat.idle()

    async def test_one_that_is_taken_back_while_something_is_written_is_not_lost(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("first")
            chat.screen.turns.hold(["held since the last start"])
            await chat.write("my draft")
            await chat.until(lambda: "held    held since" in chat.text())
            await chat.pilot.press("up")
            assert chat.screen.composer.text == "first"
            y = next(number for number, line in enumerate(chat.lines()) if "held    held since" in line)
            await chat.pilot.click(offset=(12, y))
            await chat.until(lambda: "taken back" in chat.status())
            assert chat.screen.turns.waiting == []
            assert chat.screen.composer.text == "first"
            await chat.pilot.press("down")
            assert chat.screen.composer.text == "held since the last start"
            await chat.pilot.press("down")
            assert chat.screen.composer.text == "my draft"


@here("it asks for no reply")
async def test_a_command_on_its_way_begins_no_conversation_and_a_path_does(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        for draft, kept in [("/", 0), ("/ren", 0), ("/rename a", 0), ("/etc/hosts is a file", 1)]:
            chat.screen.composer.put(draft)
            await chat.pilot.pause()
            await chat.screen._keeper.flush()
            chat.screen._keeper.resume()
            assert len(chat.store.conversations()) == kept


class TestHolding:
    async def test_a_stop_holds_what_is_queued_until_an_empty_enter(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([gate], [say("two")], [say("three")])
        async with running(backend, tmp_path) as chat:
            await chat.send("now")
            await gate.reached.wait()
            await chat.send("later")
            await chat.pilot.press("escape")
            await chat.until(lambda: "held    later" in chat.text())
            assert "Enter on an empty line sends what is held" in chat.words()
            await chat.until(lambda: not chat.screen.turns.generating)
            await chat.send("a better one")
            await chat.until(lambda: "two" in chat.text())
            assert chat.screen.turns.waiting == ["later"]
            await chat.pilot.press("enter")
            await chat.until(lambda: "three" in chat.text())
            asked = [request.messages[-1].content for request in backend.requests]
            assert asked == ["now", "a better one", "later"]

    async def test_what_is_held_can_be_taken_back(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([gate]), tmp_path) as chat:
            await chat.send("now")
            await gate.reached.wait()
            await chat.send("later")
            await chat.pilot.press("escape")
            await chat.until(lambda: not chat.screen.turns.generating)
            await chat.pilot.press("up")
            assert chat.screen.composer.text == "later"
            assert chat.screen.turns.waiting == []

    async def test_a_failure_holds_too(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([gate, Failed("No.", "numbers")])
        async with running(backend, tmp_path) as chat:
            await chat.send("now")
            await gate.reached.wait()
            await chat.send("later")
            gate.open()
            await chat.until(lambda: "held    later" in chat.text())
            assert len(backend.requests) == 1


async def test_a_full_disk_loses_no_word_of_a_reply(tmp_path: Path) -> None:
    """The end that could not be written is, once there is room."""
    first, gate = Gate(), Gate()
    words = "many words " * 4000
    async with running(FakeBackend([first, say(words), gate, say("the end")]), tmp_path) as chat:
        chat.screen.turns.replies.save_every = 0.01
        await chat.send("q")
        await first.reached.wait()
        sql = chat.store._connection
        [pages] = sql.execute("PRAGMA page_count").fetchone()
        sql.execute(f"PRAGMA max_page_count = {pages}")
        first.open()
        await chat.until(lambda: "The reply goes on, unsaved for now." in chat.words())
        assert "the disk is full" in chat.words()
        gate.open()
        await chat.until(lambda: "saved as soon as it can be" in chat.words())
        assert chat.thread()[-1].status == "partial"
        sql.execute("PRAGMA max_page_count = 1000000")
        await chat.until(lambda: "The reply is saved now." in chat.words())
        assert (chat.thread()[-1].content, chat.thread()[-1].status) == (words + "the end", "complete")


async def test_a_conversation_stays_open_whose_words_cannot_be_kept(tmp_path: Path) -> None:
    gate = Gate()
    async with running(FakeBackend([gate, say("one")]), tmp_path) as chat:
        await chat.send("first")
        await gate.reached.wait()
        sql = chat.store._connection
        sql.execute("PRAGMA query_only = 1")
        await chat.send("queued up")
        await chat.write("a draft")
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: "So this conversation stays open" in chat.words())
        assert chat.screen.composer.text == "a draft"
        assert chat.screen.turns.waiting == ["queued up"]
        assert chat.screen.turns.generating
        sql.execute("PRAGMA query_only = 0")
        await chat.write("!")
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: chat.screen.composer.text == "")
        key = chat.store.conversations()[0].id
        await chat.send(f"/resume {key}")
        await chat.until(lambda: chat.screen.composer.text == "a draft!")
        assert chat.screen.turns.waiting == ["queued up"]


def test_the_latest_conversation_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    now = iter(range(2000, 0, -1))
    store = Store(tmp_path / "conversations.db", lambda: float(next(now)))
    first, second = store.create(), store.create()
    for each in (first, second, first, second):
        node = store.add(each.id, None, "assistant", "", status="partial")
        latest = store.latest()
        assert latest is not None
        assert latest.id == each.id
        store.finish(node.id, "x", "")
    store.close()


@here("it asks for no reply")
async def test_what_is_written_is_known_also_when_the_screen_is_gone(tmp_path: Path) -> None:
    """A write that is due when the chat ends still finds it."""
    async with running(FakeBackend(), tmp_path) as chat:
        await chat.write("half")
    assert chat.screen._unsent() == Unsent("half")


async def test_what_waits_leaves_room_to_write_in_the_smallest_of_windows(tmp_path: Path) -> None:
    gate = Gate()
    async with running(FakeBackend([gate, say("x")]), tmp_path, size=(20, 5)) as chat:
        await chat.send("a")
        await gate.reached.wait()
        for text in ("b", "c", "d", "e"):
            await chat.send(text)
        await chat.until(lambda: "queued  b" in chat.text())
        assert "Message…" in chat.text()
        gate.open()
        await chat.idle()
