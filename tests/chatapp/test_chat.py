"""The chat from the user's side: messages, replies, stops, and the line that is written in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, end, prefill, say, think
from harness import Clock, here, running
from textual import events

from chatapp.blocks import ReplyBlock
from chatapp.branch import Turn
from chatapp.composer import Composer
from chatapp.options import ChatOptions
from runtime.protocol import Message, Ready, Sampling


async def test_a_message_is_answered_and_stored(tmp_path: Path) -> None:
    backend = FakeBackend([say("Hello "), say("**you**."), end()])
    async with running(backend, tmp_path) as chat:
        await chat.write("hi there")
        await chat.pilot.press("enter")
        await chat.idle()
        assert "hi there" in chat.text()
        assert "Hello you." in chat.text()
        assert [(node.role, node.content, node.status) for node in chat.thread()] == [
            ("user", "hi there", "complete"),
            ("assistant", "Hello **you**.", "complete"),
        ]
    assert backend.closed


async def test_the_whole_conversation_is_sent_with_the_options(tmp_path: Path) -> None:
    backend = FakeBackend([think("hm"), say("one")], [say("two")])
    sampling = Sampling(temperature=0.5, seed=7)
    options = ChatOptions(
        model=MODEL.path, system="Be brief.", sampling=sampling, thinking_budget=64, preserve_thinking=True
    )
    async with running(backend, tmp_path, options) as chat:
        await chat.ask("first")
        await chat.ask("second")
    first, second = backend.requests
    assert first.messages == (Message("system", "Be brief."), Message("user", "first"))
    assert second.messages == (*first.messages, Message("assistant", "one", "hm"), Message("user", "second"))
    assert first.conversation_id == second.conversation_id
    assert (second.sampling, second.thinking_budget, second.preserve_thinking) == (sampling, 64, True)


async def test_the_prompt_is_stored_before_anything_is_generated(tmp_path: Path) -> None:
    gate = Gate()
    async with running(FakeBackend([gate, say("x")]), tmp_path) as chat:
        await chat.send("remember me")
        await gate.reached.wait()
        assert [(node.content, node.status) for node in chat.thread()] == [("remember me", "complete"), ("", "partial")]
        gate.open()
        await chat.idle()


async def test_the_partial_answer_is_stored_while_it_comes(tmp_path: Path) -> None:
    gate = Gate()
    async with running(FakeBackend([think("why"), say("half of "), gate, say("it")]), tmp_path) as chat:
        chat.screen.turns.replies.save_every = 0.01
        await chat.send("go")
        await gate.reached.wait()
        await chat.until(lambda: chat.thread()[-1].content)
        stored = chat.thread()[-1]
        assert (stored.content, stored.thought, stored.status) == ("half of ", "why", "partial")
        gate.open()
        await chat.idle()
        assert chat.thread()[-1].content == "half of it"


async def test_a_prompt_from_the_command_line_is_sent_once_the_model_is_open(tmp_path: Path) -> None:
    backend = FakeBackend([say("answer")])
    async with running(backend, tmp_path, ChatOptions(model=MODEL.path, prompt="from outside")) as chat:
        await chat.until(lambda: "answer" in chat.text())
    assert backend.requests[0].messages == (Message("user", "from outside"),)


class TestStopping:
    @pytest.mark.parametrize("key", ["escape", "ctrl+c"])
    async def test_a_key_stops_and_keeps_what_came(self, key: str, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([say("partial answer"), gate, say("never")])
        async with running(backend, tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            await chat.pilot.press(key)
            await chat.idle()
            assert backend.cancelled == [backend.requests[0].request_id]
            assert "partial answer" in chat.text()
            assert "stopped" in chat.status()
            assert (chat.thread()[-1].content, chat.thread()[-1].status) == ("partial answer", "cancelled")

    async def test_the_command_stops(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([gate, say("never")]), tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            await chat.send("/stop")
            await chat.idle()
            assert chat.thread()[-1].status == "cancelled"

    async def test_a_stop_before_the_request_is_made_stops_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend, before = FakeBackend([say("second")]), Gate()
        async with running(backend, tmp_path) as chat:
            begin_reply = chat.screen.begin_reply

            async def held(turn: Turn) -> ReplyBlock:
                before.reached.set()
                await before.opened.wait()
                return await begin_reply(turn)

            monkeypatch.setattr(chat.screen, "begin_reply", held)
            chat.screen.turns.submit("first")
            await before.reached.wait()
            stopping = asyncio.create_task(chat.screen.turns.stop())
            await chat.until(lambda: "stopping" in chat.status())
            before.open()
            await stopping
            assert backend.requests == []
            assert chat.thread()[-1].status == "cancelled"
            await chat.ask("again")
            assert "second" in chat.text()

    async def test_leaving_keeps_what_came(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([say("partial"), gate]), tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            await chat.send("/quit")
            await chat.until(lambda: not chat.app.is_running)
            assert (chat.thread()[-1].content, chat.thread()[-1].status) == ("partial", "cancelled")


class TestInterrupt:
    """Ctrl+C: copy, else stop, else clear, else quit at the second press (CASES 44)."""

    @here("it asks for no reply")
    async def test_a_selection_in_the_composer_is_copied(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.write("take this")
            chat.screen.composer.select_all()
            await chat.pilot.press("ctrl+c")
            assert chat.app.clipboard == "take this"
            assert chat.screen.composer.text == "take this"

    async def test_a_selection_in_the_transcript_is_copied_and_the_reply_goes_on(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([say("one two"), gate, say(" three")])
        async with running(backend, tmp_path) as chat:
            await chat.send("q")
            await chat.until(lambda: "one two" in chat.text())
            y = next(number for number, line in enumerate(chat.lines()) if "one two" in line)
            x = chat.lines()[y].index("one two")
            await chat.pilot.mouse_down(offset=(x, y))
            await chat.pilot.hover(offset=(x + 3, y))
            await chat.pilot.mouse_up(offset=(x + 3, y))
            marked = [segment for segment in chat.app.screen._compositor.render_strips()[y] if "one" in segment.text]
            assert marked
            assert all(segment.style and segment.style.color != segment.style.bgcolor for segment in marked)
            await chat.pilot.press("ctrl+c")
            assert chat.app.clipboard.startswith("one")
            assert backend.cancelled == []
            gate.open()
            await chat.idle()

    @here("it asks for no reply")
    async def test_text_is_cleared_and_can_be_had_back(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.write("draft")
            await chat.pilot.press("ctrl+c")
            assert chat.screen.composer.text == ""
            await chat.pilot.press("ctrl+z")
            assert chat.screen.composer.text == "draft"

    @here("it asks for no reply")
    async def test_a_second_press_quits_but_not_a_late_one(self, tmp_path: Path) -> None:
        clock = Clock()
        async with running(FakeBackend(), tmp_path, clock=clock) as chat:
            await chat.pilot.press("ctrl+c")
            assert "Ctrl+C again quits" in chat.status()
            clock.now += 10
            await chat.pilot.press("ctrl+c")
            assert chat.app.is_running
            await chat.pilot.press("ctrl+c")
            await chat.until(lambda: not chat.app.is_running)


class TestStatus:
    async def test_nothing_is_told_before_it_is_known(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            assert chat.status().split("  ", 1)[0] == "Tiny 4M · thinking on · ready"
            assert chat.status().split("  ")[-1].strip() == "context 4,096"

    @here("the name of a file")
    @pytest.mark.parametrize("width", [60, 80, 100])
    async def test_a_long_name_leaves_room_for_the_state_and_keeps_its_end(self, width: int, tmp_path: Path) -> None:
        model = replace(MODEL, name="Qwen3.6-35B-A3B-MTP-Instruct-UD-Q4_K_XL")
        backend = FakeBackend([say("x"), end(context_used=640)], loading=[Ready(model)])
        async with running(backend, tmp_path, size=(width, 20)) as chat:
            await chat.ask("q")
            name, *rest = chat.status().split(" · ")
            assert name.endswith("Q4_K_XL")
            assert rest[0] == "thinking on"
            assert rest[1].startswith("ready ")
            assert "640 / 4,096" in rest[-1]

    @here("the name of a file")
    async def test_a_name_is_not_cut_for_a_figure_that_has_no_room_all_the_same(self, tmp_path: Path) -> None:
        backend = FakeBackend(loading=[Ready(replace(MODEL, name="qwenchat built-in"))])
        async with running(backend, tmp_path, size=(60, 20)) as chat:
            await chat.until(lambda: chat.status() == "qwenchat built-in · thinking on · ready")

    async def test_the_reading_of_the_prompt(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([prefill(1200, 8000, 300), gate, say("x")]), tmp_path) as chat:
            await chat.send("q")
            await chat.until(lambda: "prefilling 1,200/8,000" in chat.status())
            await chat.until(lambda: "reading 1,200" in chat.text())
            lines = [line.strip() for line in chat.lines()]
            assert lines[lines.index("▌ q") + 1 :][:2] == ["", "reading 1,200 of 8,000 tokens…"]
            assert "300 cached" in chat.status()
            gate.open()
            await chat.idle()
            assert "reading" not in chat.text()

    async def test_the_speed_and_the_room_while_it_generates(self, tmp_path: Path) -> None:
        clock, gate, last = Clock(), Gate(), Gate()
        backend = FakeBackend([prefill(20, 20), say("a", 1), gate, say("b", 80), last])
        async with running(backend, tmp_path, clock=clock) as chat:
            await chat.send("q")
            await chat.until(lambda: "generating" in chat.status())
            assert "tok/s" not in chat.status()
            clock.now += 2
            gate.open()
            await chat.until(lambda: "40.0 tok/s" in chat.status())
            assert "101 / 4,096" in chat.status()
            last.open()
            await chat.idle()

    @here("how long it took the chat itself measures of a served model: test_remote.py")
    async def test_the_figures_of_the_turn(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("x"), end()]), tmp_path, size=(110, 30)) as chat:
            await chat.ask("q")
            assert chat.status().endswith("first token 0.2 s · 12 cached · 41.5 tok/s · 50 / 4,096 ━─────────")
            await chat.send("/new")
            await chat.until(lambda: "cached" not in chat.status())

    async def test_the_least_important_figures_give_way(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("x"), end()]), tmp_path, size=(60, 20)) as chat:
            await chat.ask("q")
            assert chat.status().startswith("Tiny 4M · thinking on · ready")
            assert chat.status().endswith("50 / 4,096")
            assert max(map(len, chat.lines())) <= 60


class TestComposer:
    @pytest.mark.parametrize("key", ["shift+enter", "ctrl+j"])
    async def test_a_key_begins_a_new_line(self, key: str, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.write("one")
            await chat.pilot.press(key)
            await chat.write("two")
            await chat.pilot.press("enter")
            await chat.idle()
            assert backend.requests[0].messages[-1].content == "one\ntwo"

    async def test_keys_that_come_all_at_once_keep_their_order(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            for key in [*"one", "enter", *"two", "ctrl+j", *"three", "enter", *"four"]:
                chat.app.post_message(events.Key(key, key if len(key) == 1 else None))
            await chat.until(lambda: chat.screen.composer.text == "four")
            await chat.idle()
            assert [request.messages[-1].content for request in backend.requests] == ["one", "two\nthree"]

    @here("it asks for no reply")
    async def test_it_grows_to_eight_lines(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            assert chat.screen.composer.size.height == 1
            chat.screen.composer.put("\n" * 30)
            await chat.pilot.pause()
            assert chat.screen.composer.size.height == 8

    async def test_up_and_down_go_through_what_was_sent(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("one")
            await chat.ask("two")
            composer = chat.screen.composer
            await chat.write("draft")
            for key, text in [("up", "two"), ("up", "one"), ("up", "one"), ("down", "two"), ("down", "draft")]:
                await chat.pilot.press(key)
                assert composer.text == text

    async def test_inside_several_lines_the_arrows_move_the_cursor(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("sent")
            chat.screen.composer.put("a\nb")
            await chat.pilot.press("up")
            assert chat.screen.composer.text == "a\nb"
            assert chat.screen.composer.cursor_location[0] == 0
            await chat.pilot.press("up")
            assert chat.screen.composer.text == "sent"

    @here("it asks for no reply")
    async def test_what_is_typed_elsewhere_arrives_here(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            chat.screen.transcript.focus()
            await chat.pilot.pause()
            await chat.write("hi")
            assert chat.screen.query_one(Composer).text == "hi"
            assert chat.screen.composer.has_focus

    async def test_blank_text_is_not_sent(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.send(" \n ")
            await chat.pilot.pause()
            assert backend.requests == []
