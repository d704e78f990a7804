"""From ids to ids: what is generated, what is reused, and what ends a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from rewrite import GOLDENS

from runtime.engine import ContextError, Done, Engine, NewToken, Prefilled, Request, Step, Thought
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.pool import StatePool
from runtime.sampling import SamplingParams
from runtime.speculative import NumbersError

GOLDEN = np.load(GOLDENS / "tiny-dense.npz")
PROMPT = tuple(GOLDEN["greedy_prompt"].tolist())
GREEDY = GOLDEN["greedy_tokens"].tolist()
NEVER = frozenset({-1})
PLAIN = SamplingParams(temperature=0, presence_penalty=0, repetition_penalty=1)


@pytest.fixture(scope="module")
def model() -> Qwen35:
    return load_model(GOLDENS / "tiny-dense.gguf").model


@pytest.fixture
def engine(model: Qwen35) -> Engine:
    return new_engine(model, 2048)


def new_engine(model: Qwen35, context_length: int = 2048, budget: int = 1 << 30) -> Engine:
    return Engine(model, context_length, StatePool(model.new_state, budget))


def request(prompt: tuple[int, ...] = PROMPT, **changes: object) -> Request:
    values: dict[str, object] = {
        "prompt": prompt,
        "sampling": PLAIN,
        "stop_ids": NEVER,
        "max_tokens": len(GREEDY),
        "drafts": 0,
    }
    return Request(**{**values, **changes})  # type: ignore[arg-type]


def never() -> bool:
    return False


def after(count: int) -> Callable[[], bool]:
    """Cancelled from the (count + 1)th question on."""
    asked = iter([False] * count)
    return lambda: next(asked, True)


def tokens(steps: Iterator[object]) -> list[int]:
    return [step.id for step in steps if isinstance(step, NewToken)]


def last(steps: Iterator[object]) -> object:
    return list(steps)[-1]


def cached(steps: Iterator[object]) -> int:
    return next(step.cached for step in steps if isinstance(step, Prefilled))


class TestGeneration:
    def test_greedy_tokens_are_the_golden_ones(self, engine: Engine) -> None:
        assert tokens(engine.generate("a", request(), never)) == GREEDY

    def test_progress_comes_first_and_one_done_last(self, engine: Engine) -> None:
        steps = list(engine.generate("a", request(), never))
        assert steps[0] == Prefilled(0, len(PROMPT), 0)
        assert steps[1] == Prefilled(len(PROMPT), len(PROMPT), 0)
        assert [step for step in steps if isinstance(step, Done)] == [steps[-1]] == [Done("length")]

    def test_a_stop_token_ends_the_reply_and_is_the_last_seen(self, engine: Engine) -> None:
        steps = list(engine.generate("a", request(stop_ids=frozenset({GREEDY[5]})), never))
        assert tokens(iter(steps)) == GREEDY[: GREEDY.index(GREEDY[5]) + 1]
        assert steps[-1] == Done("stop")

    def test_the_end_token_may_come_first(self, engine: Engine) -> None:
        steps = list(engine.generate("a", request(stop_ids=frozenset({GREEDY[0]})), never))
        assert steps[-2:] == [NewToken(GREEDY[0]), Done("stop")]

    def test_the_context_ends_a_reply(self, model: Qwen35) -> None:
        small = new_engine(model, len(PROMPT) + 3)
        steps = list(small.generate("a", request(max_tokens=None), never))
        assert tokens(iter(steps)) == GREEDY[:3]
        assert steps[-1] == Done("length")

    def test_a_prompt_that_does_not_fit_is_refused_before_any_work(
        self, model: Qwen35, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Qwen35, "forward", lambda *args, **kwargs: pytest.fail("worked"))
        with pytest.raises(ContextError, match=r"24 tokens.*24"):
            list(new_engine(model, 24).generate("a", request(), never))

    def test_only_one_row_of_logits_is_made_at_a_time(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """At the family's vocabulary, logits of an 8,000-token prompt would be 8 GB."""
        rows: list[int] = []
        logits = Qwen35.logits

        def spy(model: Qwen35, hidden: torch.Tensor) -> torch.Tensor:
            rows.append(len(hidden))
            return logits(model, hidden)

        monkeypatch.setattr(Qwen35, "logits", spy)
        list(engine.generate("a", request(PROMPT * 20, max_tokens=4), never))
        assert rows == [1] * 4

    def test_a_long_prompt_is_prefilled_in_chunks_and_gives_the_same(self, engine: Engine, model: Qwen35) -> None:
        prompt = PROMPT * 40
        steps = list(engine.generate("a", request(prompt, max_tokens=8), never))
        assert [step.done for step in steps if isinstance(step, Prefilled)] == [0, 256, 512, 768, 960]
        state = model.new_state()
        hidden, expected = model.forward(prompt, state), []
        state.commit()
        for _ in range(8):
            expected.append(int(model.logits(hidden[-1:]).argmax()))
            hidden = model.forward(expected[-1:], state)
            state.commit()
        assert tokens(iter(steps)) == expected


class TestReuse:
    def test_the_same_prompt_again_prefills_nothing(self, engine: Engine) -> None:
        first = tokens(engine.generate("a", request(), never))
        steps = list(engine.generate("a", request(), never))
        assert cached(iter(steps)) == len(PROMPT)
        assert tokens(iter(steps)) == first

    def test_a_prompt_that_goes_on_prefills_what_is_new(self, engine: Engine) -> None:
        generated = tokens(engine.generate("a", request(), never))
        longer = (*PROMPT, *generated, 7, 8, 9)
        steps = list(engine.generate("a", request(longer), never))
        assert cached(iter(steps)) >= len(PROMPT) + len(generated) - 1
        fresh = tokens(new_engine(engine.model, 2048).generate("b", request(longer), never))
        assert tokens(iter(steps)) == fresh

    def test_a_prompt_that_turns_off_goes_back_to_a_boundary(self, engine: Engine) -> None:
        list(engine.generate("a", request(boundaries=(12, 16)), never))
        other = (*PROMPT[:20], 7, 8, 9)
        steps = list(engine.generate("a", request(other), never))
        assert cached(iter(steps)) == 16
        fresh = tokens(new_engine(engine.model, 2048).generate("b", request(other), never))
        assert tokens(iter(steps)) == fresh

    def test_conversations_do_not_mix(self, engine: Engine) -> None:
        other = PROMPT[::-1]
        expected = tokens(new_engine(engine.model, 2048).generate("b", request(other), never))
        list(engine.generate("a", request(), never))
        assert tokens(engine.generate("b", request(other), never)) == expected
        assert tokens(engine.generate("a", request(), never)) == GREEDY

    def test_a_new_conversation_begins_with_what_another_has_read(self, engine: Engine) -> None:
        list(engine.generate("a", request(boundaries=(16,)), never))
        other = (*PROMPT[:16], 7, 8, 9)
        steps = list(engine.generate("b", request(other), never))
        assert cached(iter(steps)) == 16
        assert tokens(iter(steps)) == tokens(new_engine(engine.model).generate("b", request(other), never))
        assert cached(engine.generate("a", request(), never)) == len(PROMPT)
        assert tokens(engine.generate("a", request(), never)) == GREEDY


class TestCancel:
    @pytest.mark.parametrize("count", [0, 1, 3, 10])
    def test_takes_effect_at_the_next_step(self, engine: Engine, count: int) -> None:
        steps: list[Step] = []
        steps.extend(engine.generate("a", request(drafts=0), lambda: len(tokens(iter(steps))) >= count))
        assert tokens(iter(steps)) == GREEDY[:count]
        assert steps[-1] == Done("cancelled")

    def test_in_prefill_at_the_next_layer(self, engine: Engine) -> None:
        """A chunk of a large model takes many seconds."""
        layers = engine.model.config.layers
        steps = list(engine.generate("a", request(PROMPT * 40), after(1 + layers + 1)))  # in the second chunk
        assert [step.done for step in steps if isinstance(step, Prefilled)] == [0, 256]
        assert steps[-1] == Done("cancelled")
        steps = list(new_engine(engine.model, 2048).generate("a", request(PROMPT * 40), after(1 + 1)))
        assert [step.done for step in steps if isinstance(step, Prefilled)] == [0]
        assert steps[-1] == Done("cancelled")

    @pytest.mark.parametrize("count", [2, 4, 6, 9])
    def test_leaves_a_state_to_go_on_from(self, engine: Engine, count: int) -> None:
        list(engine.generate("a", request(PROMPT * 40), after(count)))
        steps = list(engine.generate("a", request(PROMPT * 40, max_tokens=4), never))
        assert cached(iter(steps)) == (256 if count > 5 else 0)
        fresh = tokens(new_engine(engine.model, 2048).generate("b", request(PROMPT * 40, max_tokens=4), never))
        assert tokens(iter(steps)) == fresh


class TestNumbers:
    def test_nan_in_a_layer_fails_the_turn_and_drops_the_state(self, engine: Engine) -> None:
        list(engine.generate("a", request(), never))
        weight = engine.model.trunk.blocks[1].post_attention_norm
        before = weight.clone()
        weight[3] = torch.nan
        try:
            with pytest.raises(NumbersError, match="not finite"):
                list(engine.generate("a", request((*PROMPT, 5)), never))
        finally:
            weight.copy_(before)
        steps = list(engine.generate("a", request(), never))
        assert cached(iter(steps)) == 0
        assert tokens(iter(steps)) == GREEDY

    def test_nan_while_decoding_gives_no_further_token(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        logits, calls = Qwen35.logits, iter(range(100))

        def poisoned(model: Qwen35, hidden: torch.Tensor) -> torch.Tensor:
            out = logits(model, hidden)
            return out * torch.nan if next(calls) == 3 else out

        monkeypatch.setattr(Qwen35, "logits", poisoned)
        seen: list[int] = []
        with pytest.raises(NumbersError):
            seen.extend(step.id for step in engine.generate("a", request(), never) if isinstance(step, NewToken))
        assert seen == GREEDY[:3]


class TestThought:
    CLOSE = 319  # none of the golden tokens

    def thought(self, budget: int | None) -> Thought:
        return Thought(self.CLOSE, (10, self.CLOSE, 11), budget)

    def test_a_budget_closes_the_thought_and_an_answer_follows(self, engine: Engine) -> None:
        found = tokens(engine.generate("a", request(thought=self.thought(6)), never))
        assert found[:9] == [*GREEDY[:6], 10, self.CLOSE, 11]
        assert len(found) == len(GREEDY)
        prompt = (*PROMPT, *found[:9])
        fresh = new_engine(engine.model, 2048)
        assert found[9:] == tokens(fresh.generate("b", request(prompt, max_tokens=len(GREEDY) - 9), never))

    def test_a_thought_closed_by_its_budget_ends_the_turn_with_that_reason(self, engine: Engine) -> None:
        found = tokens(engine.generate("a", request(thought=self.thought(6)), never))
        stop = frozenset({found[12]})
        assert last(engine.generate("b", request(thought=self.thought(6), stop_ids=stop), never)) == Done("budget")

    def test_asked_for_the_answer_the_thought_is_closed_there_and_the_turn_ends_by_itself(self, engine: Engine) -> None:
        seen: list[int] = []
        thought = Thought(self.CLOSE, (10, self.CLOSE, 11), None, lambda: len(seen) >= 6)

        def ids(request: Request) -> Iterator[Step]:
            for step in engine.generate("a", request, never):
                if isinstance(step, NewToken):
                    seen.append(step.id)
                yield step

        list(ids(request(thought=thought)))
        assert seen[:6] == GREEDY[:6]
        at = seen.index(self.CLOSE)
        assert seen[at - 1 : at + 2] == [10, self.CLOSE, 11]
        assert at <= 6 + 1 + 4  # what one step can hold: the drafts that were under way, and the line break
        stop, seen[:] = frozenset({seen[at + 4]}), []
        assert list(ids(request(thought=thought, stop_ids=stop)))[-1] == Done("stop")

    def test_a_budget_not_reached_changes_nothing(self, engine: Engine) -> None:
        close = GREEDY[4]
        thought = Thought(close, (10, close, 11), 20)
        assert tokens(engine.generate("a", request(thought=thought), never)) == GREEDY

    def test_a_thought_in_circles_is_closed(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """A model that says the same three tokens for ever: the thought ends, and something follows."""
        circle = iter([1, 2, 3] * 1000)

        def turning(model: Qwen35, hidden: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.tensor([next(circle)]), 320).float()

        monkeypatch.setattr(Qwen35, "logits", turning)
        found = tokens(engine.generate("a", request(thought=self.thought(None), max_tokens=300), never))
        assert found.index(self.CLOSE) < 250
        assert len(found) == 300
