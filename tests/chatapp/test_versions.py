"""Messages edited, made again, gone on with and taken elsewhere: each change is a version, and none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_backend import FakeBackend, Gate, end, say, think
from harness import Chat, Clock, here, running
from textual import events

from chatapp.branch import News
from chatapp.picker import Picker
from chatapp.session import Session, Turn
from chatapp.store import Store, StoreError
from chatapp.unsent import Unsent
from runtime.protocol import Failed, Message


def sent(backend: FakeBackend, number: int = -1) -> list[str]:
    return [message.content for message in backend.requests[number].messages]


async def reply(chat: Chat, key: str, count: int) -> None:
    await chat.pilot.press(key)
    await chat.until(lambda: len(chat.backend.requests) == count)
    await chat.idle()


async def answered(session: Session, turn: Turn | News | None, reply: str) -> None:
    assert isinstance(turn, Turn)
    await session.finish(turn, reply, "", "complete", True, {})


async def talked(chat: Chat) -> None:
    for text in ("first", "second"):
        await chat.ask(text)


class TestEditing:
    async def test_the_key_brings_a_message_back_and_enter_sends_it_beside_the_old_one(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("one")], [say("two")], [say("three")])
        async with running(backend, tmp_path) as chat:
            await talked(chat)
            await chat.write("draft")
            await chat.pilot.press("alt+up")
            assert chat.screen.composer.text == "second"
            assert "message 2 of 2 anew" in chat.text()
            await chat.pilot.press("alt+up")
            assert chat.screen.composer.text == "first"
            await chat.write("!")
            await reply(chat, "enter", 3)
            assert sent(backend) == ["first!"]
            assert "second" not in chat.text()
            assert "first!" in chat.text()
            assert "‹ 2/2 ›" in chat.text()
            assert chat.screen.composer.text == "draft"
            assert [node.content for node in chat.thread()] == ["first!", "three"]
            await chat.pilot.press("alt+left")
            await chat.until(lambda: "two" in chat.text())
            assert "‹ 1/2 ›" in chat.text()
            assert [node.content for node in chat.thread()] == ["first", "one", "second", "two"]

    async def test_escape_leaves_the_message_as_it_was(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await talked(chat)
            await chat.write("draft")
            await chat.pilot.press("alt+up")
            await chat.pilot.press("escape")
            assert chat.screen.composer.text == "draft"
            assert "anew" not in chat.text()
            await chat.pilot.press("alt+up", "alt+down")
            assert chat.screen.composer.text == "draft"
            assert len(backend.requests) == 2

    @pytest.mark.parametrize(
        ("command", "words"),
        [("/edit 3", "You have sent 2 messages so far."), ("/edit x", "Write /edit, or"), ("/edit 2", "")],
    )
    async def test_the_command_takes_a_number(self, command: str, words: str, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await talked(chat)
            await chat.send(command)
            await chat.until(lambda: words in chat.words() if words else chat.screen.composer.text == "first")


class TestVersions:
    async def test_another_reply_is_a_version_and_keys_and_mouse_switch(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("first try")], [say("second try")], [say("below")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/retry")
            await chat.until(lambda: "second try" in chat.text())
            await chat.idle()
            assert "‹ 2/2 ›" in chat.text()
            y = next(number for number, line in enumerate(chat.lines()) if "‹ 2/2 ›" in line)
            x = chat.lines()[y].index("‹")
            await chat.pilot.click(offset=(x, y))
            await chat.until(lambda: "first try" in chat.text())
            assert "‹ 1/2 ›" in chat.text()
            await chat.pilot.press("alt+left")
            await chat.until(lambda: "version 1 of 2 is the first one" in chat.status())
            await chat.ask("and then?")
            assert sent(backend) == ["q", "first try", "and then?"]
            await chat.send("/version next")
            await chat.until(lambda: "second try" in chat.text())
            assert "and then?" not in chat.text()

    @pytest.mark.parametrize("way", ["command", "key"])
    async def test_an_earlier_reply_is_made_anew_and_what_followed_stays_with_the_old_one(
        self, way: str, tmp_path: Path
    ) -> None:
        backend = FakeBackend([say("first reply")], [say("below it")], [say("made anew")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("one")
            await chat.ask("two")
            if way == "command":
                await chat.send("/retry 2")
            else:
                await chat.pilot.press("ctrl+up", "up", "up", "r")
            await chat.until(lambda: "made anew" in chat.text())
            await chat.idle()
            assert sent(backend) == ["one"]
            assert "‹ 2/2 ›" in chat.text()
            assert "below it" not in chat.text()
            await chat.pilot.press("alt+left")
            await chat.until(lambda: "below it" in chat.text())
            assert "first reply" in chat.text()

    @pytest.mark.parametrize(
        ("argument", "words"), [("3", "You have sent 2 messages so far."), ("x", "Write /retry, or")]
    )
    async def test_a_reply_that_is_not_there_is_told(self, argument: str, words: str, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await talked(chat)
            await chat.send(f"/retry {argument}")
            await chat.until(lambda: words in chat.words())

    async def test_without_versions_it_says_how_to_make_some_and_adds_nothing(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("q")
            entries = list(chat.screen.transcript.entries)
            for key in ("alt+right", "alt+left", "alt+right"):
                await chat.pilot.press(key)
                await chat.until(lambda: "every message has one version only" in chat.status())
            assert chat.screen.transcript.entries == entries
            await chat.send("/retry")
            await chat.idle()
            await chat.pilot.press("ctrl+up", "up", "alt+left")
            await chat.until(lambda: "this message has one version only" in chat.status())
            assert "‹ 2/2 ›" in chat.text()

    @pytest.mark.parametrize("mark", [("ctrl+up", "up"), ("alt+up",)], ids=["marked", "written anew"])
    async def test_the_message_that_is_meant_is_switched_though_its_answer_has_versions_too(
        self, mark: tuple[str, ...], tmp_path: Path
    ) -> None:
        backend = FakeBackend([say("before")], [say("answer")], [say("another")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("old")
            await chat.pilot.press("alt+up", "n", "e", "w")
            await reply(chat, "enter", 2)
            await chat.send("/retry")
            await chat.until(lambda: len(backend.requests) == 3)
            await chat.idle()
            await chat.pilot.press(*mark, "alt+left")
            await chat.until(lambda: [node.content for node in chat.thread()] == ["old", "before"])
            await chat.until(lambda: "‹ 1/2 ›" in chat.text())
            await chat.pilot.press("alt+right")  # the same message: a mark stays, and the way back is the same
            await chat.until(lambda: [node.content for node in chat.thread()] == ["oldnew", "another"])
            await chat.pilot.press("escape", "alt+left", "alt+left")
            await chat.until(lambda: "version 1 of 2 is the first one" in chat.status())
            assert [node.content for node in chat.thread()] == ["old", "before"]

    async def test_after_something_new_the_last_message_with_versions_is_meant(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("before")], [say("answer")], [say("another")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("old")
            await chat.pilot.press("alt+up", "n", "e", "w")
            await reply(chat, "enter", 2)
            await chat.pilot.press("alt+left", "alt+right")
            await chat.until(lambda: [node.content for node in chat.thread()] == ["oldnew", "answer"])
            await chat.send("/retry")
            await chat.until(lambda: len(backend.requests) == 3)
            await chat.idle()
            await chat.pilot.press("alt+left")
            await chat.until(lambda: [node.content for node in chat.thread()] == ["oldnew", "answer"])
            assert "version 1 of 2" in chat.status()

    @pytest.mark.parametrize("marked", [False, True])
    @pytest.mark.parametrize("length", [1, 40], ids=["from what fits on the screen", "from what does not"])
    async def test_what_was_switched_is_in_sight(self, length: int, marked: bool, tmp_path: Path) -> None:
        long = "\n\n".join(f"paragraph {number}" for number in range(40))
        backend = FakeBackend([say("short")], [say(long)], [say(long if length > 1 else "short")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("far above")
            await chat.ask("old")
            await chat.pilot.press("alt+up", "n", "e", "w")
            await reply(chat, "enter", 3)
            assert ("oldnew" in chat.text()) == (length == 1)
            await chat.pilot.press(*(["ctrl+up", "up"] if marked else []), "alt+left")
            await chat.until(lambda: "‹ 1/2 ›" in chat.text() and "version 1 of 2" in chat.status())
            for _ in range(5):
                await chat.pilot.pause()
            assert "▌ old" in chat.text()
            await chat.pilot.press("alt+right")
            await chat.until(lambda: "‹ 2/2 ›" in chat.text() and "version 2 of 2" in chat.status())

    async def test_a_marked_message_is_switched_by_keys_that_follow_fast(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("one")], [say("two")], [say("three")]), tmp_path) as chat:
            await chat.ask("q")
            for number in (2, 3):
                await chat.send("/retry")
                await chat.until(lambda number=number: len(chat.backend.requests) == number)
                await chat.idle()
            await chat.pilot.press("ctrl+up")
            transcript = chat.screen.transcript
            await chat.until(lambda: transcript.cursor is not None)
            before = transcript.blocks[-1]
            for _ in range(2):
                chat.app.post_message(events.Key("alt+left", None))
            await chat.until(lambda: "version 1 of 3" in chat.status())
            transcript.bring(before, 0)  # as it was to be after a refresh, by which others stood there
            await chat.until(lambda: "one" in chat.text())

    async def test_they_wait_for_a_reply_that_runs(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([say("a")], [gate, say("b")]), tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/retry")
            await gate.reached.wait()
            await chat.pilot.press("alt+left")
            await chat.until(lambda: "when this reply has ended" in chat.status())
            gate.open()
            await chat.idle()

    async def test_a_message_that_could_not_be_written_is_no_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = Store(tmp_path / "conversations.db")
        session = Session(store)
        await answered(session, await session.ask("one", "m"), "a")
        await session.keep(Unsent("", ("two",)))
        keep = session._keep_unsent

        def full(unsent: Unsent) -> None:
            keep(unsent)
            raise StoreError("The disk is full.")  # as the end of a transaction does

        with monkeypatch.context() as patch:
            patch.setattr(session, "_keep_unsent", full)
            for _ in range(2):
                with pytest.raises(StoreError):
                    await session.ask("two", "m")
        assert session._unsent == Unsent("", ("two",))
        await answered(session, await session.ask("two", "m"), "b")
        assert [session.versions(node.id) for node in session.thread] == [(1, 1)] * 4
        store.close()

    async def test_the_way_back_leads_to_the_versions_that_were_chosen_further_down(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "conversations.db")
        session = Session(store)

        def shown() -> list[str]:
            return [node.content for node in session.thread]

        await answered(session, await session.ask("one", "m"), "a")
        await answered(session, await session.ask("two", "m"), "first")
        await answered(session, await session.retry(), "second")
        await session.show_version(session.thread[-1].id, -1)
        assert shown() == ["one", "a", "two", "first"]
        await answered(session, await session.ask("anew", "m", session.thread[0].id), "b")
        await answered(session, await session.ask("below", "m"), "c")
        await session.show_version(session.thread[0].id, -1)
        assert shown() == ["one", "a", "two", "first"]
        await session.show_version(session.thread[0].id, 1)
        assert shown() == ["anew", "b", "below", "c"]
        conversation = session.conversation
        assert conversation is not None
        session.new()
        await session.open(conversation.id)
        await session.show_version(session.thread[0].id, -1)
        assert shown() == ["one", "a", "two", "first"]
        store.add(conversation.id, session.thread[-1].id, "user", "of another window")
        await session.look()
        await session.show_version(session.thread[0].id, 1)
        await session.show_version(session.thread[0].id, -1)
        assert shown() == ["one", "a", "two", "first", "of another window"]
        store.close()


class TestContinuing:
    async def test_a_stopped_reply_goes_on_in_place(self, tmp_path: Path) -> None:
        gate, second = Gate(), Gate()
        backend = FakeBackend([think("hm", 3), say("begin"), gate], [say("ning and"), second, say(" end"), end()])
        async with running(backend, tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            await chat.pilot.press("escape")
            await chat.idle()
            assert "stopped · /continue goes on" in chat.text()
            await chat.send("/continue")
            await second.reached.wait()
            await chat.until(lambda: "beginning and" in chat.text())
            assert "▸ thought" in chat.text()
            second.open()
            await chat.idle()
            assert "beginning and end" in chat.text()
            assert "/continue goes on" not in chat.text()
            assert "‹" not in chat.text()
            assert backend.requests[1].messages == (Message("user", "q"), Message("assistant", "begin", "hm"))
            last = chat.thread()[-1]
            assert (last.content, last.thought, last.status) == ("beginning and end", "hm", "complete")
            await chat.ask("more")
            assert sent(backend) == ["q", "beginning and end", "more"]

    async def test_the_stopped_part_survives_whatever_comes_after(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("begin"), end("length")], [Failed("No.", "numbers")], [say("ning")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            assert "token limit" in chat.text()
            await chat.send("/continue")
            await chat.until(lambda: "No." in chat.text())
            await chat.idle()
            assert chat.thread()[-1].content == "begin"
            await chat.send("/continue")
            await chat.until(lambda: "beginning" in chat.text())

    async def test_a_thought_before_a_failure_keeps_its_figures(self, tmp_path: Path) -> None:
        clock, gate = Clock(), Gate()
        backend = FakeBackend([think("hm", 3), gate, say("begin"), Failed("No.", "numbers")], [say("ning")])
        async with running(backend, tmp_path, clock=clock) as chat:
            await chat.send("q")
            await chat.until(lambda: "thinking…" in chat.text())
            clock.now += 2
            gate.open()
            await chat.idle()
            assert "thought 2.0 s · 3 tokens" in chat.text()
            await chat.send("/continue")
            await chat.until(lambda: "beginning" in chat.text())
            await chat.idle()
            assert "thought 2.0 s · 3 tokens" in chat.text()

    @pytest.mark.parametrize("failed", [Failed("No.", "numbers"), Failed("Too long.", "context")])
    async def test_a_reply_without_a_word_begins_anew_in_its_place(self, failed: Failed, tmp_path: Path) -> None:
        backend = FakeBackend([Failed("No.", "numbers")], [failed], [say("now")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/continue")
            await chat.until(lambda: len(backend.requests) == 2)
            if failed.kind == "context":
                await chat.until(lambda: isinstance(chat.app.screen, Picker))
                await chat.pilot.press("escape")
                await chat.until(lambda: chat.app.screen is chat.screen)
            await chat.idle()
            await chat.send("/continue")
            await chat.until(lambda: "now" in chat.text())
            await chat.idle()
            assert sent(backend) == ["q"]
            assert [node.content for node in chat.thread()] == ["q", "now"]
            assert "‹" not in chat.text()

    async def test_a_reply_that_has_ended_does_not_go_on(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/continue")
            await chat.until(lambda: "has come to its end" in chat.words())
            assert len(backend.requests) == 1

    @here("a served model cannot go on inside its thought: test_remote.py")
    async def test_thinking_goes_on_and_its_figures_add_up(self, tmp_path: Path) -> None:
        backend = FakeBackend(
            [think("a thought", 4), end("length", False, thinking_tokens=4, thinking_ms=500.0)],
            [think(" that ends", 6), say("answer"), end(thinking_tokens=6, thinking_ms=1000.0)],
        )
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/continue")
            await chat.until(lambda: "answer" in chat.text())
            await chat.idle()
            last = chat.thread()[-1]
            assert (last.thought, last.content) == ("a thought that ends", "answer")
            assert "thought 1.5 s · 10 tokens" in chat.text()


class TestWhileAnotherWaits:
    """What is asked of the reply that runs concerns that one, and not the message that would be next."""

    @pytest.mark.parametrize("way", ["/retry", "/retry 1", "key"])
    async def test_the_reply_that_runs_is_made_anew_and_the_next_message_follows(
        self, way: str, tmp_path: Path
    ) -> None:
        gate = Gate()
        backend = FakeBackend([say("begun"), gate], [say("anew")], [say("to the next")])
        async with running(backend, tmp_path) as chat:
            await chat.send("first")
            await gate.reached.wait()
            await chat.send("next")
            await chat.until(lambda: "queued  next" in chat.text())
            if way == "key":
                await chat.pilot.press("ctrl+up", "r")
            else:
                await chat.send(way)
            await chat.until(lambda: len(backend.requests) == 3)
            await chat.idle()
            assert [sent(backend, number) for number in (1, 2)] == [["first"], ["first", "anew", "next"]]
            assert [node.content for node in chat.thread()] == ["first", "anew", "next", "to the next"]

    @here("how long a stop takes")
    async def test_a_stop_that_is_late_waits_for_no_other_reply(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate, second = Gate(), Gate()
        backend = FakeBackend([say("begun"), gate], [say("anew"), second])
        cancel = backend.cancel

        async def late(request_id: str) -> None:
            monkeypatch.setattr(backend, "cancel", cancel)
            gate.open()
            await second.reached.wait()

        async with running(backend, tmp_path) as chat:
            await chat.send("first")
            await gate.reached.wait()
            monkeypatch.setattr(backend, "cancel", late)
            await chat.send("/retry")
            await second.reached.wait()
            await chat.pilot.press("escape")
            await chat.idle()
            assert [(node.content, node.status) for node in chat.thread()][1:] == [("anew", "cancelled")]

    async def test_a_fork_leaves_it_with_the_conversation_that_it_was_written_in(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([say("begun"), gate])
        async with running(backend, tmp_path) as chat:
            await chat.send("first")
            await gate.reached.wait()
            origin = chat.thread()[0].conversation_id
            await chat.send("next")
            await chat.send("/fork")
            await chat.until(lambda: "begins as the other did" in chat.words())
            assert chat.screen.turns.waiting == []
            assert [node.content for node in chat.store.thread(origin)] == ["first", "begun"]
            await chat.send(f"/resume {origin}")
            await chat.until(lambda: "held    next" in chat.text())
        assert len(backend.requests) == 1

    async def test_it_goes_with_the_conversation_that_is_deleted(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([say("begun"), gate])
        async with running(backend, tmp_path) as chat:
            await chat.send("first")
            await gate.reached.wait()
            origin = chat.thread()[0].conversation_id
            await chat.send("next")
            await chat.send("/delete")
            await chat.until(lambda: "deleted: first" in chat.status())
            assert [node.content for node in chat.store.thread(origin)] == ["first", "begun"]
        assert len(backend.requests) == 1


async def test_a_fork_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    backend = FakeBackend([say("one")], [say("two")], [say("three")])
    async with running(backend, tmp_path) as chat:
        await chat.ask("first")
        await chat.send("/fork")
        await chat.until(lambda: "begins as the other did" in chat.words())
        assert "one" in chat.text()
        await chat.ask("second")
        assert sent(backend) == ["first", "one", "second"]
        assert backend.requests[0].conversation_id != backend.requests[1].conversation_id
        forked, origin = chat.store.conversations()
        assert forked.title == "first (fork)"
        assert [node.content for node in chat.store.thread(origin.id)] == ["first", "one"]


async def test_a_fork_tells_that_it_has_the_versions_shown_alone(tmp_path: Path) -> None:
    async with running(FakeBackend([say("one")], [say("two")]), tmp_path) as chat:
        await chat.ask("first")
        await chat.send("/fork")
        await chat.until(lambda: "begins as the other did" in chat.words())
        assert "versions" not in chat.words()
        await chat.ask("/retry")
        await chat.until(lambda: "‹ 2/2 ›" in chat.text())
        await chat.send("/fork")
        await chat.until(lambda: "several versions it has the ones that were shown" in chat.words())
        forked = chat.store.conversations()[0]
        assert [node.content for node in chat.store.nodes(forked.id)] == ["first", "two"]


@here("it asks for no reply")
async def test_there_is_nothing_to_fork_or_edit_in_a_new_conversation(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        await chat.send("/fork")
        await chat.until(lambda: "nothing here yet" in chat.words())
        await chat.pilot.press("alt+up")
        await chat.until(lambda: "no message was sent yet" in chat.status())
