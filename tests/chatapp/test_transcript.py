"""The transcript: following, scrolling back, and conversations of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend, Gate, say
from harness import Chat, here, running
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.widget import Widget

from chatapp.blocks import ReplyBlock, UserBlock
from chatapp.options import ChatOptions
from chatapp.store import Store
from chatapp.transcript import MOST, PAGE, SHOWN

LONG = "".join(f"Line {number} of the reply.\n\n" for number in range(60))


def saved(path: Path, turns: int, more: str = "") -> str:
    store = Store(path / "conversations.db")
    conversation, parent = store.create(), None
    for number in range(turns):
        parent = store.add(conversation.id, parent, "user", f"question {number}{more}").id
        parent = store.add(conversation.id, parent, "assistant", f"answer {number}{more}").id
    store.close()
    return conversation.id


async def test_a_short_conversation_begins_at_the_top(tmp_path: Path) -> None:
    async with running(FakeBackend([say("short")]), tmp_path) as chat:
        await chat.ask("q")
        assert chat.screen.transcript.scroll_y == 0
        assert any(line.strip() for line in chat.lines()[:4])


async def test_nothing_points_to_an_end_that_has_come_into_sight(tmp_path: Path) -> None:
    """Another version may be short, and then nothing is scrolled."""
    async with running(FakeBackend([say(LONG)], [say("short")]), tmp_path) as chat:
        await chat.ask("q")
        await chat.send("/retry")
        await chat.idle()
        await chat.pilot.press("alt+left")
        await chat.until(lambda: "Line 5 " in chat.text() or "Line 59" in chat.text())
        await chat.pilot.press("ctrl+home")
        await chat.until(lambda: "↓ end" in chat.text())
        await chat.pilot.press("alt+right")
        await chat.until(lambda: "short" in chat.text())
        await chat.until(lambda: "↓ end" not in chat.text())


async def test_it_follows_a_reply_that_grows(tmp_path: Path) -> None:
    async with running(FakeBackend([say(LONG), say("The end.")]), tmp_path) as chat:
        await chat.ask("q")
        assert "The end." in chat.text()
        assert chat.screen.transcript.at_end


class TestScrolledUp:
    """The view stays where the user put it (CASES 42)."""

    async def started(self, chat: Chat, gate: Gate) -> None:
        await chat.send("q")
        await gate.reached.wait()
        await chat.until(lambda: "Line 59" in chat.text())
        await chat.pilot.press("pageup")
        await chat.pilot.pause()

    async def test_more_text_does_not_move_it_and_a_hint_appears(self, tmp_path: Path) -> None:
        gate, last = Gate(), Gate()
        async with running(FakeBackend([say(LONG), gate, say(LONG), last, say("x")]), tmp_path) as chat:
            await self.started(chat, gate)
            place, seen = chat.screen.transcript.scroll_y, [line[:90].rstrip() for line in chat.lines()[:20]]
            height = chat.screen.transcript.virtual_size.height
            gate.open()
            await chat.until(lambda: chat.screen.transcript.virtual_size.height > height + 100)
            assert chat.screen.transcript.scroll_y == place
            assert [line[:90].rstrip() for line in chat.lines()[:20]] == seen
            assert "↓ new" in chat.text()
            last.open()
            await chat.idle()

    async def test_what_a_command_answers_is_seen_all_the_same(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say(LONG)]), tmp_path) as chat:
            await chat.ask("q")
            for command, answer in [("/system", "There is no system prompt."), ("/help drafted", "Show which words")]:
                await chat.pilot.press("ctrl+home")
                await chat.until(lambda: chat.screen.transcript.scroll_y == 0)
                await chat.send(command)
                await chat.until(lambda answer=answer: answer in chat.text())

    async def test_ctrl_end_follows_again(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([say(LONG), gate, say(LONG), say("The end.")]), tmp_path) as chat:
            await self.started(chat, gate)
            await chat.pilot.press("ctrl+end")
            gate.open()
            await chat.idle()
            assert "The end." in chat.text()
            assert "↓" not in chat.text()

    async def test_scrolling_down_to_the_end_follows_again(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([say(LONG), gate, say(LONG), say("The end.")]), tmp_path) as chat:
            await self.started(chat, gate)
            await chat.pilot.press("pagedown", "pagedown")
            await chat.pilot.pause()
            gate.open()
            await chat.idle()
            assert "The end." in chat.text()

    async def test_a_message_of_ones_own_follows_again(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say(LONG)], [say("second reply")]), tmp_path) as chat:
            await chat.ask("q")
            await chat.pilot.press("ctrl+home")
            await chat.ask("again")
            assert "second reply" in chat.text()


class TestLongConversations:
    @here("it asks for no reply")
    async def test_only_the_newest_messages_are_mounted(self, tmp_path: Path) -> None:
        options = ChatOptions(conversation_id=saved(tmp_path, 60))
        async with running(FakeBackend(), tmp_path, options) as chat:
            await chat.until(lambda: "answer 59" in chat.text())
            assert len(chat.screen.transcript.blocks) == SHOWN
            assert chat.screen.transcript.earlier == 120 - SHOWN

    @here("it asks for no reply")
    async def test_of_long_messages_those_that_fill_a_few_screens_are_mounted(self, tmp_path: Path) -> None:
        options = ChatOptions(conversation_id=saved(tmp_path, 20, "\n\nline" * 20))
        async with running(FakeBackend(), tmp_path, options) as chat:
            await chat.until(lambda: chat.screen.transcript.max_scroll_y > 0)
            await chat.pilot.pause()
            transcript = chat.screen.transcript
            assert 3 <= len(transcript.blocks) <= 6
            assert "answer 19" in transcript.entries[-1].texts[0]
            assert transcript.virtual_size.height > 2 * transcript.size.height
            await chat.pilot.press("ctrl+home")
            await chat.until(lambda: len(transcript.blocks) >= PAGE)

    @here("it asks for no reply")
    async def test_messages_that_take_fewer_rows_than_they_have_lines_fill_the_screen_all_the_same(
        self, tmp_path: Path
    ) -> None:
        options = ChatOptions(conversation_id=saved(tmp_path, 50, " a\n" * 60))
        async with running(FakeBackend(), tmp_path, options, size=(100, 80)) as chat:
            transcript = chat.screen.transcript
            await chat.until(lambda: transcript.max_scroll_y > 0 and transcript.at_end)
            assert 0 < transcript.earlier < 100

    @here("it asks for no reply")
    async def test_older_ones_come_when_the_beginning_is_reached_and_nothing_jumps(self, tmp_path: Path) -> None:
        options = ChatOptions(conversation_id=saved(tmp_path, 100))
        async with running(FakeBackend(), tmp_path, options) as chat:
            await chat.until(lambda: "answer 99" in chat.text())
            first = (200 - SHOWN) // 2
            await chat.pilot.press("ctrl+home")
            await chat.until(lambda: len(chat.screen.transcript.blocks) == SHOWN + PAGE)
            await chat.until(lambda: f"question {first}" in chat.text())
            assert f"question {first - PAGE // 2}" not in chat.text()
            assert chat.screen.transcript.earlier == 200 - SHOWN - PAGE
            await chat.pilot.press("ctrl+home")
            await chat.until(lambda: len(chat.screen.transcript.blocks) == SHOWN + 2 * PAGE)

    @pytest.mark.slow
    @here("it asks for no reply")
    async def test_the_oldest_are_unmounted_as_it_grows_and_can_be_seen_again(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            for number in range(MOST + 5):
                chat.screen.transcript.add(UserBlock(f"message {number}"))
                await chat.pilot.pause()
            assert len(chat.screen.transcript.blocks) <= MOST
            assert "message 64" in chat.text()
            await chat.pilot.press("ctrl+home")
            await chat.until(lambda: chat.screen.transcript.earlier < MOST + 5 - SHOWN)
            mounted = [block.text for block in chat.screen.transcript.blocks if isinstance(block, UserBlock)]
            assert mounted == [f"message {number}" for number in range(MOST + 5 - len(mounted), MOST + 5)]


@here("it asks for no reply")
async def test_a_reply_that_left_the_screen_comes_back_as_it_was(tmp_path: Path) -> None:
    reply = ReplyBlock("**text**", "thought", "cancelled", thought_closed=True, thinking_ms=3000.0, thinking_tokens=7)
    async with running(FakeBackend(), tmp_path) as chat:
        chat.screen.transcript.add(reply)
        await chat.until(lambda: "thought 3.0 s · 7 tokens" in chat.text())
        before = [line for line in chat.lines() if line.strip()]
        await reply.remove()
        chat.screen.transcript.add(reply.fresh())
        await chat.until(lambda: "thought 3.0 s · 7 tokens" in chat.text())
        assert [line for line in chat.lines() if line.strip()] == before


@here("it asks for no reply")
async def test_the_looks_of_the_rows_are_not_looked_up_for_each_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[DOMNode] = []
    apply = Stylesheet.apply

    def counted(sheet: Stylesheet, node: DOMNode, *rest: Any, **named: Any) -> None:
        nodes.append(node)
        apply(sheet, node, *rest, **named)

    async with running(FakeBackend(), tmp_path, ChatOptions()) as chat:
        key = saved(tmp_path, 30, "\n\n**bold** `code`\n\n```python\nx = 1\n```")
        monkeypatch.setattr(Stylesheet, "apply", counted)
        await chat.screen.switch_to(key)
        await chat.until(lambda: "answer 29" in chat.text())
        await chat.pilot.pause()
        parts = [str(each.classes) for each in nodes if not isinstance(each, Widget)]
        rows = [each for each in parts if "rows--" in each]
        assert rows
        assert len(rows) == len(set(rows))  # each at most once, however many blocks have it
        assert len(nodes) < 8 * len(chat.screen.transcript.blocks)
