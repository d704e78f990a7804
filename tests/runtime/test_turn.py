"""From engine steps to the text of the two channels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest
from small_vocabulary import END_THINK, ENDOFTEXT, IM_END, IM_START, THINK, metadata

from runtime.chat_template import CHATML, ChatTemplate
from runtime.engine import Done, NewToken, Prefilled, Request, Step
from runtime.presets import presets
from runtime.protocol import Delta, Event, Finished, Generate, Message, PromptProgress, Sampling
from runtime.speculative import NumbersError
from runtime.tokenizer import Tokenizer
from runtime.turn import ChatModel

TOKENIZER = Tokenizer.from_metadata(metadata())


@dataclass
class ScriptedEngine:
    """Says what it is told to, and keeps what it was asked."""

    ids: list[int]
    reason: str = "stop"
    drafted: frozenset[int] = frozenset()  # places in `ids`
    read: float = 1  # of the prompt
    context_length: int = 1000
    requests: list[Request] = field(default_factory=list)
    settled: list[tuple[int, ...]] = field(default_factory=list)
    pool: Mock = field(default_factory=Mock)

    def generate(self, conversation: str, request: Request, cancelled: Callable[[], bool]) -> Iterator[Step]:
        self.requests.append(request)
        yield Prefilled(4, len(request.prompt), 4)
        yield Prefilled(round(self.read * len(request.prompt)), len(request.prompt), 4)
        yield from (NewToken(id, drafted=place in self.drafted) for place, id in enumerate(self.ids))
        yield Done(self.reason)  # type: ignore[arg-type]

    def settle(
        self, conversation: str, ids: tuple[int, ...], boundaries: tuple[int, ...], cancelled: Callable[[], bool]
    ) -> bool:
        self.settled.append(ids)
        return not cancelled()


def chat(engine: ScriptedEngine, source: str = "") -> ChatModel:
    template = ChatTemplate(source, TOKENIZER)
    return ChatModel(engine, TOKENIZER, template, presets({}), thinking_default=True)  # type: ignore[arg-type]


def ids(*pieces: str | int) -> list[int]:
    return [i for piece in pieces for i in ([piece] if isinstance(piece, int) else TOKENIZER.encode(piece))]


def ticking() -> Callable[[], float]:
    """A clock by which every token is a second after the last, so that each is sent at once."""
    return itertools.count().__next__


def events(engine: ScriptedEngine, thinking: bool = False, **changes: object) -> list[Event]:
    values: dict[str, object] = {"messages": (Message("user", "hello"),), "thinking": thinking}
    return list(chat(engine).generate(Generate("r", "c", **{**values, **changes}), lambda: False, ticking()))  # type: ignore[arg-type]


def text(found: list[Event], channel: str) -> str:
    return "".join(event.text for event in found if isinstance(event, Delta) and event.channel == channel)


def end(found: list[Event]) -> Finished:
    assert isinstance(found[-1], Finished)
    assert sum(isinstance(event, Finished) for event in found) == 1
    return found[-1]


class TestChannels:
    def test_an_answer(self) -> None:
        found = events(ScriptedEngine(ids("hello world", IM_END)))
        assert text(found, "answer") == "hello world"
        assert text(found, "thinking") == ""
        assert end(found).thought_closed

    def test_a_thought_and_an_answer(self) -> None:
        found = events(ScriptedEngine(ids("let me\nsee\n", END_THINK, "\n\nhello", IM_END)), thinking=True)
        assert text(found, "thinking") == "let me\nsee"
        assert text(found, "answer") == "hello"
        assert end(found).thought_closed

    def test_only_the_first_closing_tag_ends_the_thought(self) -> None:
        reply = ids("a", END_THINK, "\n\nuse ", THINK, " and ", END_THINK, " tags", IM_END)
        found = events(ScriptedEngine(reply), thinking=True)
        assert text(found, "thinking") == "a"
        assert text(found, "answer") == "use <think> and </think> tags"

    def test_tags_in_an_answer_without_thought_are_text(self) -> None:
        found = events(ScriptedEngine(ids("write ", THINK, "x", END_THINK, IM_END)))
        assert text(found, "answer") == "write <think>x</think>"

    def test_stopped_in_the_thought_there_is_no_answer(self) -> None:
        found = events(ScriptedEngine(ids("let me see"), reason="cancelled"), thinking=True)
        assert text(found, "thinking") == "let me see"
        assert text(found, "answer") == ""
        assert not end(found).thought_closed

    def test_an_empty_thought_is_no_thought(self) -> None:
        found = events(ScriptedEngine(ids("\n", END_THINK, "\n\nhello", IM_END)), thinking=True)
        assert text(found, "thinking") == ""
        assert text(found, "answer") == "hello"

    def test_indentation_at_the_start_of_an_answer_stays(self) -> None:
        assert text(events(ScriptedEngine(ids("\n\n    x = 1", IM_END))), "answer") == "    x = 1"

    def test_white_space_before_the_end_is_not_sent(self) -> None:
        assert text(events(ScriptedEngine(ids("hello \n\n", IM_END))), "answer") == "hello"


class TestEnds:
    @pytest.mark.parametrize("stop", [IM_END, ENDOFTEXT])
    def test_a_stop_token_is_never_printed(self, stop: int) -> None:
        assert text(events(ScriptedEngine(ids("hello", stop))), "answer") == "hello"

    def test_the_stop_token_at_once_is_an_empty_reply(self) -> None:
        found = events(ScriptedEngine([IM_END]))
        assert not any(isinstance(event, Delta) for event in found)
        assert end(found).stats.generated_tokens == 0

    def test_stopped_inside_an_emoji_nothing_broken_is_shown(self) -> None:
        """👩 is four bytes, and this vocabulary has a token for each."""
        whole = ids("👩")
        assert len(whole) == 4
        found = events(ScriptedEngine(ids("a ") + whole[:3], reason="cancelled"))
        assert text(found, "answer") == "a"

    def test_an_emoji_cut_over_many_tokens_arrives_whole(self) -> None:
        written = "👩‍👩‍👧 삼겹살 世a"
        assert text(events(ScriptedEngine(ids(written, IM_END))), "answer") == written

    @pytest.mark.parametrize("reason", ["stop", "length", "cancelled", "budget"])
    def test_the_reason_is_passed_on(self, reason: str) -> None:
        assert end(events(ScriptedEngine(ids("a"), reason=reason))).reason == reason


class TestRequest:
    def test_thinking_opens_the_thought_and_carries_the_budget(self) -> None:
        engine = ScriptedEngine(ids("a", IM_END))
        events(engine, thinking=True, thinking_budget=50)
        thought = engine.requests[0].thought
        assert thought
        assert thought.budget == 50
        assert TOKENIZER.decode(thought.closing) == "\n</think>\n\n"

    def test_what_asks_for_the_answer_reaches_the_thought(self) -> None:
        engine = ScriptedEngine(ids("a", IM_END))
        asked: list[bool] = []
        command = Generate("r", "c", (Message("user", "x"),), thinking=True)
        list(chat(engine).generate(command, lambda: False, answer_now=lambda: bool(asked)))
        thought = engine.requests[0].thought
        assert thought
        assert not thought.answer_now()
        asked.append(True)
        assert thought.answer_now()

    def test_without_thinking_nothing_is_watched(self) -> None:
        engine = ScriptedEngine(ids("a", IM_END))
        events(engine, thinking=False, thinking_budget=50)
        assert engine.requests[0].thought is None

    def test_the_default_of_the_model_holds_where_nothing_is_said(self) -> None:
        engine = ScriptedEngine(ids("a", IM_END))
        events(engine, thinking=None)
        assert engine.requests[0].thought

    def test_presets_follow_the_mode_and_the_user_has_the_last_word(self) -> None:
        engine = ScriptedEngine(ids("a", IM_END))
        events(engine, thinking=True)
        events(engine, thinking=False)
        events(engine, thinking=False, sampling=Sampling(temperature=0, max_tokens=5))
        on, off, own = engine.requests
        assert (on.sampling.temperature, on.sampling.top_p) == (1.0, 0.95)
        assert (off.sampling.temperature, off.sampling.top_p) == (0.7, 0.8)
        assert (own.sampling.temperature, own.sampling.top_p, own.max_tokens) == (0, 0.8, 5)

    def test_boundaries_are_where_messages_begin(self) -> None:
        engine = ScriptedEngine(ids("a", IM_END))
        written = "<|im_start|>hello"  # as text: no boundary
        events(engine, messages=(Message("system", "s"), Message("user", written)))
        request = engine.requests[0]
        assert len(request.boundaries) == 2  # the user's message and the assistant's header
        assert all(request.prompt[i] == IM_START for i in request.boundaries)


class TestFigures:
    def test_of_a_turn(self) -> None:
        found = events(ScriptedEngine(ids("ab", END_THINK, "c", IM_END)), thinking=True)
        assert next(event for event in found if isinstance(event, PromptProgress)).cached == 4
        stats = end(found).stats
        assert stats.cached_tokens == 4
        assert stats.prefilled_tokens == stats.prompt_tokens - 4
        assert stats.generated_tokens == len(ids("ab", END_THINK, "c"))
        assert stats.thinking_tokens == len(ids("ab"))
        assert stats.context_used == stats.prompt_tokens + stats.generated_tokens
        assert stats.ttft_ms is not None
        assert stats.ttft_ms > 0

    def test_every_token_is_counted_in_one_delta(self) -> None:
        found = events(ScriptedEngine(ids("hello world", IM_END)))
        counted = sum(event.n_tokens for event in found if isinstance(event, Delta))
        assert counted == end(found).stats.generated_tokens

    def test_accepted_drafts_are_marked_in_the_text(self) -> None:
        reply = ids("hello", " w", "orld", " ", IM_END)
        engine = ScriptedEngine(reply, drafted=frozenset({1, 2, 4}))
        command = Generate("r", "c", (Message("user", "x"),), thinking=False)
        found = [
            event for event in chat(engine).generate(command, lambda: False, lambda: 1.0) if isinstance(event, Delta)
        ]
        marked = "".join(delta.text[start:end] for delta in found for start, end in delta.drafted)
        assert "".join(delta.text for delta in found) == "hello world"
        assert marked == "".join(TOKENIZER.decode([reply[place]]) for place in (1, 2, 4))

    def test_tokens_close_together_come_in_one_delta(self) -> None:
        engine = ScriptedEngine(ids("hello world hello world", IM_END))
        command = Generate("r", "c", (Message("user", "x"),), thinking=False)
        deltas = [
            event for event in chat(engine).generate(command, lambda: False, lambda: 1.0) if isinstance(event, Delta)
        ]
        assert len(deltas) <= 2
        assert "".join(delta.text for delta in deltas) == "hello world hello world"


class TestSettling:
    def test_reads_the_turn_as_the_next_prompt_begins(self) -> None:
        engine = ScriptedEngine(ids("hm", END_THINK, "\n\nhello", IM_END))
        model = chat(engine)
        first = (Message("user", "one"),)
        list(model.generate(Generate("r", "c", first, thinking=True), lambda: False))
        assert model.settle(lambda: False)
        after = (*first, Message("assistant", "hello", "hm"), Message("user", "two"))
        list(model.generate(Generate("r", "c", after, thinking=True), lambda: False))
        prompt, [settled] = engine.requests[1].prompt, engine.settled
        assert prompt[: len(settled)] == settled
        rest = TOKENIZER.decode(prompt[len(settled) :])
        assert "two" in rest
        assert "hello" not in rest

    @pytest.mark.parametrize("dropped", ["c", None])
    def test_what_was_dropped_does_not_come_back(self, dropped: str | None) -> None:
        engine = ScriptedEngine(ids("hello", IM_END))
        model = chat(engine)
        list(model.generate(Generate("r", "c", (Message("user", "one"),)), lambda: False))
        model.drop(dropped)
        assert model.settle(lambda: False) is None
        assert engine.settled == []

    def test_once_is_enough(self) -> None:
        engine = ScriptedEngine(ids("hello", IM_END))
        model = chat(engine)
        assert model.settle(lambda: False) is None
        list(model.generate(Generate("r", "c", (Message("user", "one"),)), lambda: False))
        assert model.settle(lambda: False)
        assert model.settle(lambda: False) is None

    @pytest.mark.parametrize(("read", "settles"), [(0.5, False), (1, True)], ids=["half read", "read"])
    def test_a_prompt_that_was_not_read_through_is_left(self, read: float, settles: bool) -> None:
        engine = ScriptedEngine([], "cancelled", read=read)
        model = chat(engine)
        list(model.generate(Generate("r", "c", (Message("user", "one"),)), lambda: True))
        assert (model.settle(lambda: False) is not None) == settles == bool(engine.settled)

    def test_what_the_template_refuses_is_not_prepared(self) -> None:
        """Some take one turn only."""
        engine = ScriptedEngine(ids("hello", IM_END))
        one_turn = "{%- if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}"
        model = chat(engine, one_turn + CHATML)
        list(model.generate(Generate("r", "c", (Message("user", "one"),)), lambda: False))
        assert model.settle(lambda: False) is None
        assert model._unsettled is None
        assert engine.settled == []

    def test_what_the_model_cannot_read_again_is_not_said_to_be_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = ScriptedEngine(ids("hello", IM_END))
        model = chat(engine)
        list(model.generate(Generate("r", "c", (Message("user", "one"),)), lambda: False))
        monkeypatch.setattr(engine, "settle", Mock(side_effect=NumbersError("Not a number.")))
        assert model.settle(lambda: False) is None
        assert model._unsettled is None

    def test_cancelled_it_can_be_asked_again(self) -> None:
        engine = ScriptedEngine(ids("hello", IM_END))
        model = chat(engine)
        list(model.generate(Generate("r", "c", (Message("user", "one"),)), lambda: False))
        assert model.settle(lambda: True) is None
        assert model.settle(lambda: False)


@pytest.mark.parametrize("drafts", [None, 0, 3])
def test_the_engine_is_told_how_many_drafts_are_wanted(drafts: int | None) -> None:
    engine = ScriptedEngine(ids("x", IM_END))
    events(engine, drafts=drafts)
    assert engine.requests[0].drafts == drafts
