"""The chat from the user's side: messages, replies, thoughts, stops and faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, end, prefill, say, think
from harness import Chat, Clock, here, running
from textual import events

from chatapp.blocks import ReplyBlock
from chatapp.branch import Turn
from chatapp.composer import Composer
from chatapp.options import ChatOptions
from chatapp.settings import SettingsError, Value
from chatapp.thought import ThoughtHead, ThoughtView
from runtime.protocol import Failed, Message, Notice, Ready, Sampling, WasThought


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


class TestThought:
    @here("how long it took the chat itself measures of a served model: test_remote.py")
    async def test_it_is_folded_apart_from_the_answer(self, tmp_path: Path) -> None:
        backend = FakeBackend(
            [think("secret plan", 5), say("the answer"), end(thinking_ms=12_000.0, thinking_tokens=840)]
        )
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            assert "▸ thought 12 s · 840 tokens" in chat.text()
            assert "secret plan" not in chat.text()
            assert (chat.thread()[-1].content, chat.thread()[-1].thought) == ("the answer", "secret plan")

    async def test_a_running_thought_tells_its_time_and_tokens_and_shows_its_end(self, tmp_path: Path) -> None:
        clock, gate = Clock(), Gate()
        backend = FakeBackend([think("word " * 300, 300), gate, think("the newest idea", 40), Gate(), say("x")])
        async with running(backend, tmp_path, clock=clock) as chat:
            await chat.send("q")
            await chat.until(lambda: "thinking…" in chat.text())
            clock.now += 12
            gate.open()
            await chat.until(lambda: "thinking… 12 s · 340 tokens" in chat.text())
            await chat.until(lambda: "the newest idea" in chat.text())
            assert sum("word" in line for line in chat.lines()) <= 3
            await chat.pilot.press("escape")
            await chat.idle()

    async def test_enter_and_click_unfold_it(self, tmp_path: Path) -> None:
        async with running(FakeBackend([think("secret **plan**"), say("answer")]), tmp_path) as chat:
            await chat.ask("q")
            chat.screen.query_one(ThoughtHead).focus()
            await chat.pilot.press("enter")
            await chat.pilot.pause()
            assert "▾ thought" in chat.text()
            assert "secret plan" in chat.text()
            await chat.pilot.click(ThoughtHead)
            await chat.pilot.pause()
            assert "secret plan" not in chat.text()

    async def test_it_is_known_before_it_is_shown(self, tmp_path: Path) -> None:
        """Whoever stores the reply while the view is being mounted must find the thought."""
        async with running(FakeBackend(), tmp_path) as chat:
            reply = await chat.screen.begin_reply(Turn("", 0, ()))
            reply.feed("thinking", "hm", 1)
            drawing = asyncio.create_task(reply.draw())
            await asyncio.sleep(0)
            assert not drawing.done()
            assert reply.thought == "hm"
            await drawing

    async def test_what_turns_out_to_have_been_the_thought_is_folded_away(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([say("a plan, "), say("it seems"), gate, WasThought(""), say("the answer")])
        async with running(backend, tmp_path) as chat:
            await chat.send("q")
            await chat.until(lambda: "a plan, it seems" in chat.text())
            gate.open()
            await chat.idle()
            assert "a plan" not in chat.text()
            assert "▸ thought" in chat.text()
            assert "the answer" in chat.text()
            assert (chat.thread()[-1].content, chat.thread()[-1].thought) == ("the answer", "a plan, it seems")

    async def test_an_unfolded_thought_goes_on_growing(self, tmp_path: Path) -> None:
        gate, second = Gate(), Gate()
        async with running(FakeBackend([think("begin "), gate, think("middle"), second, say("x")]), tmp_path) as chat:
            await chat.send("q")
            await chat.until(lambda: chat.screen.query(ThoughtView))
            await chat.screen.query_one(ThoughtView).toggle()
            gate.open()
            await chat.until(lambda: "begin middle" in chat.text())
            second.open()
            await chat.idle()
            assert "begin middle" in chat.text()

    async def test_stopped_inside_it_the_answer_is_empty_and_the_thought_unfinished(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([think("half a thou"), gate, say("never")]), tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            await chat.until(lambda: "thinking…" in chat.text())
            await chat.pilot.press("escape")
            await chat.idle()
            assert "stopped while thinking" in chat.text()
            node = chat.thread()[-1]
            assert (node.content, node.thought, node.status, node.thought_closed) == (
                "",
                "half a thou",
                "cancelled",
                False,
            )

    @here("a served thought cannot be ended early, which the next test is about")
    @pytest.mark.parametrize("how", ["/answer", "ctrl+o"])
    async def test_the_answer_can_be_had_at_once(self, how: str, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([think("on and "), gate, think("on"), say("the answer"), end()])
        async with running(backend, tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            await chat.until(lambda: "thinking…" in chat.text())
            await (chat.send(how) if how.startswith("/") else chat.pilot.press(how))
            await chat.idle()
            assert backend.hurried == [backend.requests[0].request_id]
            assert (chat.thread()[-1].thought, chat.thread()[-1].content) == ("on and ", "the answer")
            await (chat.send(how) if how.startswith("/") else chat.pilot.press(how))
            await chat.until(lambda: "no thought is running" in chat.status())

    async def test_a_source_that_cannot_end_a_thought_says_so(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([think("on and "), gate, say("the answer"), end()])
        backend.can_hurry = False
        async with running(backend, tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            await chat.send("/answer")
            await chat.until(lambda: "cannot end a thought early" in chat.text())
            gate.open()
            await chat.idle()

    async def test_what_comes_while_the_thought_is_put_on_the_screen_stays_in_its_order(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            reply = ReplyBlock()
            await chat.screen.transcript.add(reply)
            reply.feed("thinking", "hm", 1)
            reply.feed("answer", "one ", 1)
            drawing = asyncio.ensure_future(reply.draw())
            await asyncio.sleep(0)
            reply.feed("answer", "two.", 1)
            await reply.finish("stop")
            await drawing
            await chat.until(lambda: "one two." in chat.text())

    async def test_a_reply_of_nothing_is_told(self, tmp_path: Path) -> None:
        async with running(FakeBackend([end()]), tmp_path) as chat:
            await chat.ask("q")
            assert "without a word" in chat.text()

    @here("a server does not tell that it kept to a budget")
    async def test_a_budget_that_closed_it_is_told(self, tmp_path: Path) -> None:
        async with running(FakeBackend([think("long"), say("answer"), end("budget")]), tmp_path) as chat:
            await chat.ask("q")
            assert "budget" in chat.text()

    @pytest.mark.parametrize(("command", "wanted"), [("/think off", False), ("/think on", True)])
    async def test_the_command_turns_it_on_and_off(self, command: str, wanted: bool, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.send(command)
            await chat.pilot.pause()
            await chat.ask("q")
            assert backend.requests[0].thinking is wanted
            assert f"thinking {'on' if wanted else 'off'}" in chat.status()

    async def test_the_key_toggles_what_the_model_does_by_itself(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            assert backend.requests[0].thinking is None
            assert "thinking on" in chat.status()
            await chat.pilot.press("ctrl+t")
            await chat.ask("q")
            assert backend.requests[1].thinking is False
            assert "thinking off" in chat.status()


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

    async def test_text_is_cleared_and_can_be_had_back(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.write("draft")
            await chat.pilot.press("ctrl+c")
            assert chat.screen.composer.text == ""
            await chat.pilot.press("ctrl+z")
            assert chat.screen.composer.text == "draft"

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


class TestFaults:
    async def test_a_failure_keeps_what_came_and_the_chat_goes_on(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("some of it"), Failed("The engine died.", "numbers")], [say("back again")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            assert "some of it" in chat.text()
            assert "The engine died." in chat.text()
            assert (chat.thread()[-1].content, chat.thread()[-1].status) == ("some of it", "failed")
            await chat.ask("again")
            assert "back again" in chat.text()

    @pytest.mark.parametrize(
        "script", [[say("x"), RuntimeError("boom")], [RuntimeError("boom")]], ids=["late", "early"]
    )
    async def test_a_fault_of_the_program_is_told_and_the_chat_goes_on(
        self, script: list[object], tmp_path: Path
    ) -> None:
        backend = FakeBackend(script, [say("fine")])  # type: ignore[arg-type]
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            assert "RuntimeError: boom" in chat.text()
            assert chat.thread()[-1].status == "failed"
            await chat.ask("again")
            assert "fine" in chat.text()

    async def test_a_model_that_does_not_load_is_told_and_another_can_be_opened(self, tmp_path: Path) -> None:
        backend = FakeBackend(loading=[Failed("This file is no model.", "load")])
        async with running(backend, tmp_path, ChatOptions(model="/models/bad.gguf")) as chat:
            await chat.until(lambda: "This file is no model." in chat.text())
            await chat.send("waits")
            backend.loading = [Ready(MODEL)]
            await chat.send("/model /models/good.gguf")
            await chat.until(lambda: backend.requests)
            await chat.idle()
            assert [load.path for load in backend.loads] == ["/models/bad.gguf", "/models/good.gguf"]
            assert backend.requests[0].messages[-1].content == "waits"

    @here("the worker is started again")
    async def test_a_dead_engine_is_told_and_so_is_its_return(self, tmp_path: Path) -> None:
        """CASES 48."""
        gate = Gate()
        backend = FakeBackend([say("half"), gate, Failed("The engine was killed.", "worker")])
        async with running(backend, tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            backend.tell(Notice("The engine is being restarted."))
            gate.open()
            await chat.until(lambda: "restarting" in chat.status())
            await chat.until(lambda: "being restarted" in chat.text())
            assert chat.text().index("was killed") < chat.text().index("being restarted")
            backend.tell(Ready(MODEL))
            await chat.until(lambda: "ready" in chat.status() and "running again" in chat.text())
            await chat.ask("again")
            assert "ok" in chat.text()

    @here("the worker is started again")
    async def test_an_engine_that_does_not_come_back_is_told(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            backend.tell(Failed("It has failed 4 times in a row.", "worker"))
            await chat.until(lambda: "4 times in a row" in chat.text() and "failed" in chat.status())

    @here("the worker is started again")
    async def test_the_next_message_opens_the_model_of_an_engine_that_was_given_up(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            backend.die()
            backend.tell(Failed("It has failed 4 times in a row.", "worker"))
            await chat.ask("q")
            assert [load.path for load in backend.loads] == [MODEL.path, MODEL.path]
            assert backend.requests[0].messages[-1].content == "q"
            assert "ready" in chat.status()

    async def test_a_store_that_cannot_be_written_gives_the_message_back(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            chat.store.close()
            await chat.send("precious words")
            await chat.until(lambda: "cannot be used" in chat.words())
            assert chat.screen.composer.text == "precious words"
            assert backend.requests == []

    @here("a server sends no notices")
    async def test_notices_of_a_reply_are_shown(self, tmp_path: Path) -> None:
        async with running(FakeBackend([Notice("Drafting is off."), say("x")]), tmp_path) as chat:
            await chat.ask("q")
            assert "Drafting is off." in chat.text()

    async def test_a_burst_of_pieces_leaves_the_keyboard_alive(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([*[say("word ")] * 2000, gate]), tmp_path) as chat:
            await chat.send("q")
            await chat.write("typed meanwhile")
            assert chat.screen.composer.text == "typed meanwhile"
            await gate.reached.wait()
            gate.open()
            await chat.idle()
            assert chat.thread()[-1].content == "word " * 2000


class TestStatus:
    async def test_nothing_is_told_before_it_is_known(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            assert chat.status().split("  ", 1)[0] == "Tiny 4M · thinking on · ready"
            assert chat.status().split("  ")[-1].strip() == "context 4,096"

    async def test_the_reading_of_the_prompt(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([prefill(1200, 8000, 300), gate, say("x")]), tmp_path) as chat:
            await chat.send("q")
            await chat.until(lambda: "prefilling 1,200/8,000" in chat.status())
            assert "reading 1,200 of 8,000 tokens…" in chat.text()
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


@here("files are opened")
class TestTheModelOfTheNextStart:
    @asynccontextmanager
    async def kept(
        self, backend: FakeBackend, path: Path, options: ChatOptions
    ) -> AsyncIterator[tuple[Chat, list[Mapping[str, Value]]]]:
        kept: list[Mapping[str, Value]] = []
        async with running(backend, path, options, keep=kept.append) as chat:
            yield chat, kept

    async def test_is_the_one_that_the_command_line_names(self, tmp_path: Path) -> None:
        options = ChatOptions(model="/models/named.gguf", model_named=True)
        async with self.kept(FakeBackend(), tmp_path, options) as (chat, kept):
            await chat.until(lambda: kept)
            assert kept == [{"model": "/models/named.gguf"}]

    async def test_or_the_one_that_the_user_opens(self, tmp_path: Path) -> None:
        async with self.kept(FakeBackend(), tmp_path, ChatOptions(model="/models/saved.gguf")) as (chat, kept):
            await chat.send("/model other.gguf")
            await chat.until(lambda: kept)
            assert kept == [{"model": str(Path.cwd() / "other.gguf")}]

    async def test_but_not_one_that_fails_or_comes_from_elsewhere(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with self.kept(backend, tmp_path, ChatOptions(model="/models/saved.gguf")) as (chat, kept):
            await chat.ask("q")
            backend.loading = [Failed("This file is no model.", "load")]
            await chat.send("/model /models/bad.gguf")
            await chat.until(lambda: "This file is no model." in chat.text())
            await chat.idle()
            assert kept == []

    async def test_settings_that_cannot_be_written_are_a_sentence(self, tmp_path: Path) -> None:
        def keep(changes: Mapping[str, Value]) -> None:
            raise SettingsError("The settings file cannot be written: Read-only file system.")

        options = ChatOptions(model=MODEL.path, model_named=True)
        async with running(FakeBackend(), tmp_path, options, keep=keep) as chat:
            await chat.until(lambda: "Read-only file system." in chat.words())
            await chat.ask("q")


async def test_a_message_that_does_not_fit_is_given_back_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    full = Failed("The conversation needs 9,000 tokens, and the context holds 4,096.", "context")
    backend = FakeBackend([say("one")], [full], [say("three")])
    async with running(backend, tmp_path) as chat:
        await chat.ask("first")
        await chat.ask("far too long")
        await chat.until(lambda: "9,000" in chat.words())
        await chat.pilot.press("escape")
        assert chat.screen.composer.text == "far too long"
        await chat.ask("short")
        sent = [message.content for message in backend.requests[-1].messages]
        assert sent == ["first", "one", "short"]
        assert [node.content for node in chat.thread()] == ["first", "one", "short", "three"]
