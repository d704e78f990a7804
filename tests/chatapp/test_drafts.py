"""Drafts: how many are asked for, how many were right, and which words they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, end, say
from harness import Chat, here, running
from test_sanitize import is_harmless

from chatapp.draft_record import DraftRecord
from chatapp.drafts import DraftsView
from chatapp.markdown import plain
from chatapp.options import ChatOptions
from runtime.protocol import Channel, Delta, Notice, Ready, Stats

DRAFTED = end(drafted=47, accepted=41, generated_tokens=63)
FIRST = Delta("", "answer", "The **sea**", 3, ((4, 7),))
REPLY = [FIRST, Delta("", "answer", " and wind", 2, ((0, 9),)), DRAFTED]


def marked(chat: Chat) -> str:
    """What stands on a ground of its own on the screen, row by row."""
    ground = chat.app.screen.query_one(DraftsView).component("drafted").bgcolor
    strips = chat.app.screen._compositor.render_strips()
    rows = ["".join(part.text for part in strip if part.style and part.style.bgcolor == ground) for strip in strips]
    return "|".join(filter(None, rows))


class TestRecord:
    def record(self, *deltas: tuple[Channel, str, tuple[tuple[int, int], ...]]) -> DraftRecord:
        record = DraftRecord()
        for channel, text, spans in deltas:
            record.add(Delta("r", channel, text, 1, spans))
        return record

    def test_pieces_keep_the_text_and_its_marks(self) -> None:
        record = self.record(("answer", "one two three", ((4, 7), (8, 10))))
        assert record.pieces("answer") == [
            ("one ", ""),
            ("two", "drafted"),
            (" ", ""),
            ("th", "drafted"),
            ("ree", ""),
        ]

    def test_neighbours_of_different_deltas_are_joined(self) -> None:
        record = self.record(("answer", "ab", ((1, 2),)), ("answer", "cd", ((0, 1),)), ("answer", "ef", ()))
        assert record.pieces("answer") == [("a", ""), ("bc", "drafted"), ("def", "")]

    def test_thought_and_answer_are_apart(self) -> None:
        record = self.record(("thinking", "hm", ((0, 2),)), ("answer", "yes", ()))
        assert (record.pieces("thinking"), record.pieces("answer")) == ([("hm", "drafted")], [("yes", "")])

    @pytest.mark.parametrize("spans", [((0, 99),), ((5, 9),), ((1, 1),)])
    def test_spans_beyond_the_text_lose_nothing(self, spans: tuple[tuple[int, int], ...]) -> None:
        record = self.record(("answer", "abc", spans))
        assert "".join(text for text, _ in record.pieces("answer")) == "abc"

    def test_the_summary(self) -> None:
        """63 tokens of which 41 came as drafts took 22 steps."""
        record = DraftRecord()
        record.stats = Stats(drafted=47, accepted=41, generated_tokens=63)
        assert record.summary() == "41 of 47 drafted tokens accepted (87 %) · 2.9 tokens per step"


def test_plain_text_in_pieces_breaks_as_it_does_in_one() -> None:
    pieces = [("a line that ", ""), ("is\tlong\n\nand", "drafted"), (" more", ""), ("\n", "drafted")]
    whole = plain("".join(text for text, _ in pieces), 8)
    assert [row.text for row in plain(pieces, 8)] == [row.text for row in whole]
    assert [row.glue for row in plain(pieces, 8)] == [row.glue for row in whole]


class TestStatus:
    async def test_acceptance_is_told_after_a_turn_with_drafts(self, tmp_path: Path) -> None:
        async with running(FakeBackend(REPLY, [say("x"), end()]), tmp_path, size=(120, 30)) as chat:
            await chat.ask("q")
            assert " s · drafts 87 % · 12 cached" in chat.status()
            await chat.ask("q")
            assert "drafts" not in chat.status()

    async def test_it_goes_when_the_next_reply_begins(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend(REPLY, [gate]), tmp_path) as chat:
            await chat.ask("q")
            await chat.send("q")
            await gate.reached.wait()
            await chat.until(lambda: "drafts" not in chat.status())
            gate.open()
            await chat.idle()

    async def test_none_accepted_is_a_figure_too(self, tmp_path: Path) -> None:
        async with running(FakeBackend([say("x"), end(drafted=4, accepted=0)]), tmp_path) as chat:
            await chat.ask("q")
            assert "drafts 0 %" in chat.status()


@here("a server is not told how many to draft")
class TestChoice:
    async def test_the_options_say_how_many(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path, ChatOptions(model=MODEL.path, drafts=3)) as chat:
            await chat.ask("q")
            assert backend.requests[0].drafts == 3

    @pytest.mark.parametrize(
        ("word", "drafts", "hint"),
        [("off", 0, "drafts: none"), ("2", 2, "drafts: 2 at each step"), ("AUTO", None, "drafts: as many as pay")],
    )
    async def test_the_command_changes_it(self, word: str, drafts: int | None, hint: str, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path, ChatOptions(model=MODEL.path, drafts=1)) as chat:
            await chat.until(lambda: backend.model)
            await chat.send(f"/draft {word}")
            await chat.until(lambda: f"{hint} from the next message on" in chat.status())
            await chat.ask("q")
            assert backend.requests[0].drafts == drafts

    @pytest.mark.parametrize("word", ["5", "-1", "some", "1 2"])
    async def test_what_is_no_number_of_drafts_is_told(self, word: str, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send(f"/draft {word}")
            await chat.until(lambda: "a number from 1 to 4" in chat.words())

    async def test_alone_it_shows_the_choice(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send("/draft")
            await chat.until(lambda: "drafts: as many as pay" in chat.status())

    async def test_a_model_that_cannot_draft_is_told(self, tmp_path: Path) -> None:
        backend = FakeBackend(loading=[Ready(replace(MODEL, has_mtp=False))])
        async with running(backend, tmp_path) as chat:
            await chat.send("/draft 2")
            await chat.until(lambda: "no MTP block" in chat.status())


@here("which words were drafted the worker alone tells")
class TestView:
    async def test_the_raw_text_is_shown_with_the_drafts_marked(self, tmp_path: Path) -> None:
        async with running(FakeBackend(REPLY), tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/drafts")
            await chat.until(lambda: chat.app.screen is not chat.screen and "**sea** and wind" in chat.text())
            assert "41 of 47 drafted tokens accepted (87 %) · 2.9 tokens per step" in chat.text()
            assert marked(chat) == "**s and wind"
            await chat.pilot.press("escape")
            await chat.until(lambda: chat.app.screen is chat.screen)
            await chat.ask("again")

    async def test_a_thought_is_shown_above_the_answer(self, tmp_path: Path) -> None:
        thought = Delta("", "thinking", "let me see", 3, ((0, 3),))
        async with running(FakeBackend([thought, FIRST, DRAFTED]), tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/drafts")
            await chat.until(lambda: chat.app.screen is not chat.screen and "let me see" in chat.text())
            shown = chat.words()
            assert shown.index("thought") < shown.index("let me see") < shown.index("answer") < shown.index("**sea**")
            assert marked(chat) == "let|**s"

    async def test_a_long_one_scrolls(self, tmp_path: Path) -> None:
        lines = "".join(f"line {number}\n" for number in range(200))
        async with running(FakeBackend([Delta("", "answer", lines, 9, ((0, 4),)), DRAFTED]), tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/drafts")
            await chat.until(lambda: chat.app.screen is not chat.screen and "line 0" in chat.text())
            await chat.pilot.press("end")
            await chat.until(lambda: "line 199" in chat.text())

    async def test_it_is_harmless(self, tmp_path: Path) -> None:
        attack = Delta("", "answer", "a\x1b]52;c;x\x07\x9b1mb\u202e", 2, ((1, 5),))
        async with running(FakeBackend([attack, DRAFTED]), tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/drafts")
            await chat.until(lambda: chat.app.screen is not chat.screen and "␛]52;c;x␇␛[1mb" in chat.text())
            assert all(is_harmless(line) for line in chat.lines())
            assert marked(chat) == "␛]52"

    async def test_without_a_reply_without_drafts_and_while_one_runs_there_is_a_sentence(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([say("x"), end()], [say("x"), gate]), tmp_path) as chat:
            await chat.send("/drafts")
            await chat.until(lambda: "There is no reply yet." in chat.words())
            await chat.ask("q")
            await chat.send("/drafts")
            await chat.until(lambda: "made without drafts" in chat.words())
            await chat.send("q")
            await gate.reached.wait()
            await chat.send("/drafts")
            await chat.until(lambda: "once they have ended" in chat.words())
            gate.open()
            await chat.idle()

    async def test_in_this_session_it_is_known_after_leaving_the_conversation_and_coming_back(
        self, tmp_path: Path
    ) -> None:
        backend = FakeBackend(REPLY)
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            key = backend.requests[0].conversation_id
            await chat.send("/new")
            await chat.send("/drafts")
            await chat.until(lambda: "There is no reply yet." in chat.words())
            await chat.send(f"/resume {key}")
            await chat.send("/drafts")
            await chat.until(lambda: chat.app.screen is not chat.screen and "**sea** and wind" in chat.text())
        async with running(FakeBackend(), tmp_path, ChatOptions(conversation_id=key)) as chat:
            await chat.until(lambda: "sea and wind" in chat.text())
            await chat.send("/drafts")
            await chat.until(lambda: "of this session only" in chat.words())


class TestTheEngineGoneForAMoment:
    async def test_the_line_says_restarting_until_it_is_back_and_messages_wait(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            backend.die()
            backend.tell(Notice("The engine was killed. The engine is being restarted."))
            await chat.until(lambda: chat.status().startswith("Tiny 4M · thinking on · restarting"))
            await chat.send("q")
            await chat.until(lambda: "queued  q" in chat.text())
            assert backend.requests == []
            backend.tell(Ready(MODEL))
            await chat.until(lambda: backend.requests)
            await chat.idle()
            assert "ready" in chat.status()
