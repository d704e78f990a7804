"""When the context fills up: it is said before, and the user chooses what leaves (CASES 34)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, end, say
from harness import Chat, running
from hypothesis import given
from hypothesis import strategies as st

from chatapp import context
from chatapp.picker import Picker
from chatapp.status import METER, Status, StatusLine, _meter
from chatapp.store import Node
from chatapp.thread import kept, messages
from chatapp.tree import Tree
from runtime.protocol import Failed, Message, Ready

SMALL = replace(MODEL, context_length=100, trained_context=400)
FULL = "The conversation needs 130 tokens, and the context holds 100 including the reply."


def thread(*lengths: int) -> list[Node]:
    """Exchanges whose messages have so many characters."""
    nodes = [Node(1, "c", None, "system", "s")]
    for length in lengths:
        for role in ("user", "assistant"):
            nodes.append(Node(len(nodes) + 1, "c", len(nodes), role, "x" * length))  # type: ignore[arg-type]
    return nodes


class TestPlan:
    def test_as_many_of_the_oldest_leave_as_make_half_of_it_free(self) -> None:
        what = context.plan(thread(10, 10, 10, 10), tokens=80, length=100)
        assert what == context.Plan(first=6, exchanges=2, tokens=40)

    def test_the_last_exchange_stays_whatever_its_length(self) -> None:
        what = context.plan(thread(1, 1, 1000), tokens=100, length=100)
        assert what is not None
        assert what.exchanges == 2

    @pytest.mark.parametrize("nodes", [[], thread(), thread(50)])
    def test_of_one_exchange_nothing_can_leave(self, nodes: list[Node]) -> None:
        assert context.plan(nodes, 100, 100) is None

    @given(st.lists(st.integers(0, 500), min_size=2, max_size=30), st.integers(1, 4000), st.integers(50, 4000))
    def test_whatever_the_lengths_whole_exchanges_leave_and_one_stays(
        self, lengths: list[int], tokens: int, length: int
    ) -> None:
        nodes = thread(*lengths)
        what = context.plan(nodes, tokens, length)
        assert what is not None
        [first] = [node for node in nodes if node.id == what.first]
        assert first.role == "user"
        assert 1 <= what.exchanges < len(lengths)
        assert 0 <= what.tokens <= tokens

    def test_what_has_left_is_not_counted_again(self) -> None:
        nodes = thread(10, 10, 10)
        what = context.plan(nodes, 60, 60)
        assert what is not None
        nodes.append(Node(99, "c", 7, "system", "", meta=what.meta(summary=False)))
        assert [node.id for node in kept(nodes)] == [1, *range(what.first, 8)]
        assert context.plan(nodes, 30, 60) == (None if what.exchanges == 2 else context.plan(nodes, 30, 60))


class TestMessages:
    def test_after_a_cut_whole_turns_are_missing_and_nothing_else(self) -> None:
        nodes = thread(1, 2, 3)
        nodes.append(Node(9, "c", 7, "system", "", meta={"cut": {"from": 4}}))
        assert messages(nodes) == (
            Message("system", "s"),
            *(Message(role, "x" * n) for n in (2, 3) for role in ("user", "assistant")),
        )

    def test_a_summary_stands_below_the_system_prompt(self) -> None:
        nodes = [*thread(1, 2), Node(9, "c", 5, "system", "They met.", meta={"cut": {"from": 4}})]
        assert messages(nodes)[0] == Message("system", "s\n\nWhat was said before, in short:\nThey met.")

    def test_a_later_cut_takes_the_place_of_an_earlier(self) -> None:
        nodes = [*thread(1, 2, 3), Node(9, "c", 7, "system", "one", meta={"cut": {"from": 4}})]
        nodes.append(Node(10, "c", 9, "system", "", meta={"cut": {"from": 6}}))
        assert [message.content for message in messages(nodes)] == ["s", "xxx", "xxx"]


class TestChat:
    async def start(self, chat: Chat) -> None:
        for text in ("first question", "second question", "third question"):
            await chat.ask(text)

    def backend(self, *replies: list[object]) -> FakeBackend:
        full = [say("an answer of some words"), end(context_used=90, context_length=100)]
        return FakeBackend(full, full, full, *replies, loading=[Ready(SMALL)])  # type: ignore[arg-type]

    async def test_it_is_told_once_before_it_overflows(self, tmp_path: Path) -> None:
        async with running(self.backend(), tmp_path) as chat:
            await self.start(chat)
            assert chat.words().count("The context is 90 % full: 90 of 100 tokens.") == 1

    async def test_the_oldest_are_left_out_which_the_transcript_shows(self, tmp_path: Path) -> None:
        backend = self.backend([say("ok")])
        async with running(backend, tmp_path) as chat:
            await self.start(chat)
            await chat.send("/context drop")
            await chat.until(lambda: "no longer sent to the model" in chat.words())
            await chat.ask("fourth")
            shown = chat.words()
            await chat.send(f"/resume {chat.store.conversations()[0].id}")
            await chat.until(lambda: "no longer sent to the model" in chat.words())
        sent = [message.content for message in backend.requests[-1].messages]
        assert sent[-1] == "fourth"
        assert "first question" not in sent
        assert sent[0].endswith("question")
        assert "fourth" in shown

    async def test_a_summary_by_the_model_takes_their_place(self, tmp_path: Path) -> None:
        backend = self.backend([say("They asked "), say("a thing.")], [say("ok")])
        async with running(backend, tmp_path) as chat:
            await self.start(chat)
            await chat.send("/context summarise")
            await chat.until(lambda: "They asked a thing." in chat.text())
            await chat.ask("fourth")
        asked, after = backend.requests[-2:]
        assert asked.aside and asked.awaited
        assert asked.thinking is False
        assert asked.messages[0].content == "first question"
        assert "Summarise" in asked.messages[-1].content
        assert after.messages[0] == Message("system", "What was said before, in short:\nThey asked a thing.")

    @pytest.mark.parametrize("step", [Failed("No luck.", "memory"), say("")])
    async def test_without_a_summary_nothing_is_left_out(self, step: object, tmp_path: Path) -> None:
        backend = self.backend([step], [say("ok")])
        async with running(backend, tmp_path) as chat:
            await self.start(chat)
            await chat.send("/context summarise")
            await chat.until(lambda: "nothing was left out" in chat.words())
            await chat.ask("fourth")
        assert backend.requests[-1].messages[0].content == "first question"

    async def test_a_summary_can_be_stopped(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(self.backend([say("half"), gate, say("more")]), tmp_path) as chat:
            await self.start(chat)
            await chat.send("/context summarise")
            await gate.reached.wait()
            assert "summarising" in chat.status()
            await chat.pilot.press("escape")
            await chat.until(lambda: "It was stopped." in chat.words())

    async def test_a_message_that_is_sent_while_a_summary_is_made_comes_after_it(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = self.backend([say("They asked "), gate, say("a thing.")])
        async with running(backend, tmp_path) as chat:
            await self.start(chat)
            await chat.send("/context summarise")
            await gate.reached.wait()
            await chat.send("fourth")
            gate.open()
            await chat.until(lambda: len(backend.requests) == 5)
            await chat.ask("fifth")
            assert backend.requests[-2].messages[0].content.endswith("They asked a thing.")
            said = [node.content for node in chat.thread()[-5:]]
            assert said == ["They asked a thing.", "fourth", "ok", "fifth", "ok"]

    async def test_what_leaves_while_a_reply_runs_leaves_after_it(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = self.backend([gate, say("whole")])
        async with running(backend, tmp_path) as chat:
            await self.start(chat)
            await chat.send("fourth")
            await gate.reached.wait()
            await chat.send("fifth")
            await chat.send("/context drop")
            await chat.until(lambda: "told after this reply" in chat.status())
            assert "no longer sent" not in chat.words()
            assert chat.store.claimed(chat.store.conversations()[0].id)
            gate.open()
            await chat.until(lambda: len(backend.requests) == 5)
            await chat.idle()
            assert "cut" in chat.thread()[-3].meta
            assert [node.content for node in chat.thread()[-4:]] == ["whole", "", "fifth", "ok"]

    async def test_a_larger_context_keeps_the_conversation(self, tmp_path: Path) -> None:
        backend = self.backend([say("ok")])
        async with running(backend, tmp_path) as chat:
            await self.start(chat)
            await chat.send("/context 200")
            await chat.ask("fourth")
        assert backend.loads[-1].context_length == 200
        assert len(backend.requests[-1].messages) == 7

    async def test_a_message_that_does_not_fit_brings_the_choices(self, tmp_path: Path) -> None:
        backend = self.backend([Failed(FULL, "context")], [say("ok")])
        async with running(backend, tmp_path) as chat:
            await self.start(chat)
            await chat.send("fourth")
            await chat.until(lambda: isinstance(chat.app.screen, Picker))
            await chat.until(lambda: "Leave out the first 2 exchanges" in chat.text())
            assert all(words in chat.text() for words in ("200 tokens of", "400 tokens of"))
            await chat.pilot.press(*"leave", "enter")
            await chat.until(lambda: "2 exchanges above" in chat.words())
            assert FULL in chat.words()
            assert "There is room again: Enter sends what is written below." in chat.words()
            assert chat.screen.composer.text == "fourth"
            await chat.pilot.press("enter")
            await chat.idle()
        assert backend.requests[-1].messages[-1].content == "fourth"
        assert len(backend.requests[-1].messages) < 7

    async def test_a_message_that_does_not_fit_is_no_part_of_the_conversation(self, tmp_path: Path) -> None:
        backend = self.backend([Failed(FULL, "context")], [Failed(FULL, "context")], [say("there is room")])
        async with running(backend, tmp_path) as chat:
            await self.start(chat)
            for _ in range(2):
                await chat.send("the fourth")
                await chat.until(lambda: isinstance(chat.app.screen, Picker))
                await chat.pilot.press("escape")
                await chat.until(lambda: chat.app.screen is chat.screen)
                await chat.until(lambda: chat.screen.composer.text == "the fourth")
                assert "▌ the fourth" not in chat.text()
                assert " ready" in chat.status()
                assert chat.thread()[-1].content == "an answer of some words"
            await chat.pilot.press("enter")
            await chat.idle()
            assert "▌ the fourth" in chat.text()
            assert "‹" not in chat.text()
            assert chat.text().count("there is room") == 1

    async def test_an_edit_that_does_not_fit_leaves_the_message_as_it_was(self, tmp_path: Path) -> None:
        async with running(self.backend([Failed(FULL, "context")]), tmp_path) as chat:
            await self.start(chat)
            before = chat.thread()
            await chat.send("/edit 2")
            await chat.until(lambda: chat.screen.editing is not None)
            await chat.send("a second question of many words")
            await chat.until(lambda: isinstance(chat.app.screen, Picker))
            await chat.pilot.press("escape")
            await chat.until(lambda: "▌ third question" in chat.text())
            assert chat.thread() == before
            assert chat.screen.composer.text == "a second question of many words"
            assert "‹" not in chat.text()
            await chat.send(f"/resume {chat.store.conversations()[0].id}")
            await chat.until(lambda: FULL not in chat.words() and "▌ third question" in chat.text())
            assert "‹" not in chat.text()

    async def test_a_reply_that_had_begun_is_kept_where_the_context_ends(self, tmp_path: Path) -> None:
        broken = [say("many words"), Failed(FULL, "context")]
        async with running(self.backend(broken, [Failed(FULL, "context")]), tmp_path) as chat:
            await self.start(chat)
            for line in ("fourth", "/continue"):
                await chat.send(line)
                await chat.until(lambda: isinstance(chat.app.screen, Picker))
                await chat.pilot.press("escape")
                await chat.until(lambda: chat.app.screen is chat.screen)
                await chat.idle()
                assert "▌ fourth" in chat.text()
                assert [node.content for node in chat.thread()[-2:]] == ["fourth", "many words"]
                assert chat.screen.composer.text == ""
            again = Tree(chat.store.twigs(chat.store.conversations()[0].id))
            assert again.versions(chat.thread()[-2].id) == [chat.thread()[-2].id]
            assert again.versions(chat.thread()[-1].id) == [chat.thread()[-1].id]

    async def test_another_reply_that_has_no_room_leaves_the_one_that_was_there(self, tmp_path: Path) -> None:
        async with running(self.backend([Failed(FULL, "context")]), tmp_path) as chat:
            await self.start(chat)
            before = chat.thread()
            await chat.send("/retry")
            await chat.until(lambda: isinstance(chat.app.screen, Picker))
            await chat.pilot.press("escape")
            await chat.until(lambda: chat.app.screen is chat.screen)
            await chat.idle()
            assert chat.thread() == before
            assert chat.text().count("an answer of some words") == 3
            assert chat.screen.composer.text == ""

    async def test_a_message_that_has_no_room_while_another_is_written_is_held(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(self.backend([gate, Failed(FULL, "context")]), tmp_path) as chat:
            await self.start(chat)
            await chat.send("fourth")
            await gate.reached.wait()
            chat.screen.composer.put("a draft")
            gate.open()
            await chat.until(lambda: isinstance(chat.app.screen, Picker))
            await chat.pilot.press("escape")
            await chat.until(lambda: "held    fourth" in chat.text())
            assert chat.screen.composer.text == "a draft"

    @pytest.mark.parametrize(("tokens", "offered"), [(90, False), (3_600, True)])
    async def test_a_summary_is_offered_of_what_is_longer_than_one(
        self, tokens: int, offered: bool, tmp_path: Path
    ) -> None:
        full = [say("an answer of some words"), end(context_used=tokens, context_length=4_000)]
        backend = FakeBackend(full, full, loading=[Ready(replace(MODEL, context_length=4_000))])
        async with running(backend, tmp_path) as chat:
            await chat.ask("first question")
            await chat.ask("second question")
            await chat.send("/context")
            await chat.until(lambda: "Leave out the first exchange" in chat.text())
            assert ("Summarise the first exchange" in chat.text()) is offered

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("/context drop", "one exchange at most"),
            ("/context summarise", "one exchange at most"),
            ("/context 401", "contexts of 400 tokens at most"),
            ("/context 3", "context_length takes"),
            ("/context much", "Write /context"),
        ],
    )
    async def test_what_cannot_be_is_told(self, text: str, says: str, tmp_path: Path) -> None:
        async with running(self.backend(), tmp_path) as chat:
            await chat.send(text)
            await chat.until(lambda: says in chat.words())


class TestMeter:
    @given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
    def test_it_is_as_wide_whatever_the_figures(self, used: int, cached: int, length: int) -> None:
        meter = _meter(Status(context_used=used, cached=cached, context_length=length))
        assert meter is not None
        assert meter.cell_length == METER
        assert 1 <= meter.plain.count("━") <= METER

    async def test_it_stands_beside_the_figures_where_there_is_room(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("a"), end(context_used=2048)]), tmp_path) as chat:
            await chat.ask("q")
            assert chat.status().endswith("2,048 / 4,096 ━━━━━─────")
            await chat.pilot.resize_terminal(60, 20)
            await chat.until(lambda: chat.app.screen.query_one(StatusLine).size.width < 60)
            assert "2,048 / 4,096" in chat.status()

    async def test_it_is_known_of_another_version_and_of_a_conversation_opened_again(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("a"), end(context_used=1000)], [say("b"), end(context_used=2000)])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            await chat.ask("/retry")
            await chat.until(lambda: "2,000 / 4,096" in chat.status())
            await chat.pilot.press("alt+left")
            await chat.until(lambda: "1,000 / 4,096" in chat.status())
            await chat.send("/new")
            await chat.until(lambda: "1,000 / 4,096" not in chat.status())
            await chat.send(f"/resume {chat.store.conversations()[0].id}")
            await chat.until(lambda: "1,000 / 4,096" in chat.status())
