"""Thoughts from the user's side: shown while they come, folded, budgeted, ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_backend import FakeBackend, Gate, end, say, think
from harness import Clock, here, running

from chatapp.blocks import ReplyBlock
from chatapp.branch import Turn
from chatapp.thought import ThoughtHead, ThoughtView
from runtime.protocol import WasThought


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

    @here("it asks for no reply")
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
            lines = [line.strip() for line in chat.lines()]
            head = next(place for place, line in enumerate(lines) if "stopped while thinking" in line)
            assert lines[head + 1 : head + 3] == ["", "/continue goes on"]
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

    @here("it asks for no reply")
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
