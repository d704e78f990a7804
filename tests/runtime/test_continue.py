"""A reply that was stopped, or reached its limit, goes on as if nothing had been, and nothing is read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from states import never
from test_reuse import opened

from runtime.models.config import ModelConfig
from runtime.protocol import Delta, Finished, Generate, Message, PromptProgress, Sampling
from runtime.turn import ChatModel

GREEDY = Sampling(temperature=0, presence_penalty=1.0, repetition_penalty=1.1, max_tokens=24)
ASKED = (Message("system", "You are on a ship."), Message("user", "Tell me of the sea."))


@pytest.fixture(scope="module")
def model() -> ChatModel:
    return opened()


@dataclass
class Said:
    """What came of a request."""

    answer: str = ""
    thought: str = ""
    deltas: list[Delta] = field(default_factory=list)
    end: Finished | None = None

    @property
    def message(self) -> Message:
        return Message("assistant", self.answer, self.thought)

    @property
    def prefilled(self) -> int:
        assert self.end is not None
        return self.end.stats.prefilled_tokens


def run(
    chat: ChatModel,
    messages: tuple[Message, ...],
    sampling: Sampling = GREEDY,
    cancelled: Callable[[], bool] = never,
    name: str = "a",
    **changes: object,
) -> Said:
    said = Said()
    for event in chat.generate(Generate("r", name, messages, sampling, **changes), cancelled):  # type: ignore[arg-type]
        if isinstance(event, Delta):
            said.deltas.append(event)
        if isinstance(event, Finished):
            said.end = event
    said.answer = "".join(delta.text for delta in said.deltas if delta.channel == "answer")
    said.thought = "".join(delta.text for delta in said.deltas if delta.channel == "thinking")
    return said


def go_on(chat: ChatModel, begun: Said, asked: tuple[Message, ...] = ASKED, **changes: object) -> Said:
    """The reply as it is after it has gone on, with the figures of the second part."""
    more = run(chat, (*asked, begun.message), **changes)  # type: ignore[arg-type]
    return Said(begun.answer + more.answer, begun.thought + more.thought, more.deltas, more.end)


def after(count: int) -> Callable[[], bool]:
    asked = iter([False] * count)
    return lambda: next(asked, True)


@pytest.mark.parametrize("sampling", [GREEDY, replace(GREEDY, temperature=1.0, seed=7)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("thinking", [True, False], ids=["thought", "answer"])
def test_it_says_what_it_would_have_said_in_one_go(model: ChatModel, thinking: bool, sampling: Sampling) -> None:
    whole = run(model, ASKED, sampling, name="whole", thinking=thinking)
    begun = run(model, ASKED, replace(sampling, max_tokens=9), thinking=thinking)
    assert begun.end is not None
    assert begun.end.reason == "length"
    model.settle(never)
    done = go_on(model, begun, sampling=replace(sampling, max_tokens=15), thinking=thinking)
    assert (done.answer, done.thought) == (whole.answer, whole.thought)
    assert done.prefilled <= 1
    assert done.end is not None
    assert whole.end is not None
    assert 9 + done.end.stats.generated_tokens == whole.end.stats.generated_tokens


def test_a_stop_at_any_token_leaves_no_trace(model: ChatModel) -> None:
    whole = run(model, ASKED, name="whole", thinking=False)
    for count in (3, 4, 5, 11):
        begun = run(model, ASKED, cancelled=after(count), thinking=False)
        assert begun.end is not None
        assert begun.end.reason == "cancelled"
        left = 24 - begun.end.stats.generated_tokens
        done = go_on(model, begun, sampling=replace(GREEDY, max_tokens=left), thinking=False)
        assert done.answer == whole.answer
        assert done.prefilled <= 1


def test_another_conversation_in_between_costs_nothing(model: ChatModel) -> None:
    begun = run(model, ASKED, replace(GREEDY, max_tokens=9), thinking=False)
    model.settle(never)
    run(model, (Message("user", "Hello"),), name="b", thinking=False)
    model.settle(never)
    assert go_on(model, begun, thinking=False).prefilled <= 1


def test_it_can_go_on_twice_and_the_next_turn_reads_only_what_is_new(model: ChatModel) -> None:
    short = replace(GREEDY, max_tokens=5)
    begun = run(model, ASKED, short, thinking=False)
    begun = go_on(model, begun, sampling=short, thinking=False)
    assert begun.prefilled <= 1
    begun = go_on(model, begun, sampling=short, thinking=False)
    assert begun.prefilled <= 1
    assert begun.answer == run(model, ASKED, replace(GREEDY, max_tokens=15), name="whole", thinking=False).answer
    assert model.settle(never)
    following = (*ASKED, begun.message, Message("user", "x"))
    fresh = run(opened(), following, short, thinking=False)
    assert run(model, following, short, thinking=False).prefilled < 16 < fresh.prefilled


@pytest.mark.parametrize("thinking", [True, False], ids=["thought", "answer"])
def test_a_reply_that_is_not_remembered_goes_on_from_its_text(thinking: bool) -> None:
    """After a restart only the reply is read again, if at all, and what it says is not said twice."""
    model = opened()
    begun = run(model, ASKED, replace(GREEDY, max_tokens=9), thinking=thinking)
    done = go_on(opened(), begun, thinking=thinking)
    assert done.answer.startswith(begun.answer)
    assert done.thought.startswith(begun.thought)
    assert done.end is not None
    assert done.end.stats.prompt_tokens == done.end.stats.prefilled_tokens
    assert done.end.thought_closed is not thinking


def test_the_budget_of_a_thought_counts_what_was_thought_before(model: ChatModel) -> None:
    begun = run(model, ASKED, replace(GREEDY, max_tokens=9), thinking=True)
    done = go_on(model, begun, thinking=True, thinking_budget=12)
    assert done.end is not None
    assert done.end.stats.thinking_tokens <= 3 + 1  # and the line break before its end
    assert done.end.thought_closed


def test_an_aside_leaves_the_conversation_as_it_is(model: ChatModel) -> None:
    model.drop(None)
    reply = run(model, ASKED, thinking=False)
    model.settle(never)
    states = dict(model.engine.pool._states)
    lengths = {name: state.length for name, state in states.items()}
    titled = run(model, (*ASKED, reply.message, Message("user", "Title?")), name="t", aside=True, thinking=False)
    assert titled.end is not None
    assert titled.end.stats.cached_tokens > 0
    assert model.engine.pool._states["a"] is states["a"]
    assert {name: state.length for name, state in model.engine.pool._states.items()} == lengths


def test_an_aside_does_not_keep_a_turn_from_settling(model: ChatModel) -> None:
    reply = run(model, ASKED, thinking=False)
    run(model, (*ASKED, reply.message, Message("user", "Title?")), aside=True, thinking=False)
    assert model.settle(never)


@pytest.mark.parametrize(("awaited", "read"), [(False, 16), (True, 64)])
def test_an_aside_that_nobody_waits_for_gives_way_within_a_few_tokens_of_its_prompt(
    model: ChatModel, monkeypatch: pytest.MonkeyPatch, awaited: bool, read: int
) -> None:
    monkeypatch.setattr(ModelConfig, "prefill_chunk", 64)
    model.drop(None)
    asked = (Message("user", "word " * 200),)
    begun: list[int] = []
    ended = None
    command = Generate("r", "a", asked, GREEDY, aside=True, awaited=awaited, thinking=False)
    for event in model.generate(command, lambda: any(begun)):
        if isinstance(event, PromptProgress):
            begun.append(event.done)
        elif isinstance(event, Finished):
            ended = event
    assert ended is not None
    assert (ended.reason, ended.stats.prefilled_tokens) == ("cancelled", read)


def test_a_dropped_conversation_leaves_nothing_to_go_on_from(model: ChatModel) -> None:
    model.drop(None)
    begun = run(model, ASKED, replace(GREEDY, max_tokens=9), thinking=False)
    model.drop("a")
    assert go_on(model, begun, thinking=False).end is not None
    model.drop(None)
    assert len(model.engine.pool) == 0
