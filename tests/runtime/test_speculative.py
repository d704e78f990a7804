"""Drafts change the speed and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from rewrite import GOLDENS, rewrite, tensor_names

from kernels.op import Column
from runtime.cache import SequenceState
from runtime.engine import Done, Engine, NewToken, Request, Thought
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.pool import StatePool
from runtime.sampling import Sampler, SamplingParams
from runtime.speculative import MAX_DRAFT, Average, DraftLength, Step, StepCosts, verify

GREEDY = SamplingParams(temperature=0)
PROMPT = tuple(int(i) for i in np.random.default_rng(3).integers(0, 300, 30))
NEVER = frozenset({-1})


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe", "tiny-dense cpu", "tiny-moe cpu"])
def model(request: pytest.FixtureRequest) -> Qwen35:
    name, *column = request.param.split()
    if column:
        pytest.importorskip("llvmlite")
    return load_model(GOLDENS / f"{name}.gguf", *column, threads=1).model


def engine(model: Qwen35) -> Engine:
    return Engine(model, 2048, StatePool(model.new_state, 1 << 30))


def run(model: Qwen35, drafts: int | None, *, prompt: tuple[int, ...] = PROMPT, **changes: object) -> list[object]:
    values: dict[str, object] = {"sampling": GREEDY, "stop_ids": NEVER, "max_tokens": 42, "drafts": drafts}
    request = Request(prompt=prompt, **{**values, **changes})  # type: ignore[arg-type]
    return list(engine(model).generate("a", request, lambda: False))


def tokens(steps: Sequence[object]) -> list[int]:
    return [step.id for step in steps if isinstance(step, NewToken)]


def forced(monkeypatch: pytest.MonkeyPatch, guesses: Iterator[list[int]]) -> None:
    """Drafts from elsewhere in place of the MTP block's."""

    def step(model: Qwen35, state: SequenceState, new: Sequence[int], count: int, sampler: Sampler) -> Step:
        return verify(model, state, new, next(guesses)[:count], sampler)

    monkeypatch.setattr("runtime.engine.step", step)


def half_right(truth: list[int], seed: int) -> Iterator[list[int]]:
    """Drafts of 0 to 4 that are right for a random part of their length, given the reply that will come."""
    rng = random.Random(seed)
    done = 1
    while True:
        length, right = rng.randint(0, 4), rng.randint(0, 4)
        guess = [*truth[done : done + min(length, right)], *(rng.randrange(300) for _ in range(length))][:length]
        yield guess
        matched = 0
        while matched < len(guess) and truth[done + matched : done + matched + 1] == [guess[matched]]:
            matched += 1
        done += matched + 1


class TestGreedy:
    @pytest.mark.parametrize(
        "drafts", [pytest.param(1, marks=pytest.mark.slow), 2, 3, pytest.param(4, marks=pytest.mark.slow), None]
    )
    def test_the_reply_is_the_same(self, model: Qwen35, drafts: int | None) -> None:
        assert tokens(run(model, drafts, max_tokens=80)) == tokens(run(model, 0, max_tokens=80))

    @pytest.mark.slow
    def test_512_tokens_are_the_same(self, model: Qwen35) -> None:
        assert tokens(run(model, 3, max_tokens=512)) == tokens(run(model, 0, max_tokens=512))

    @pytest.mark.slow
    def test_random_drafts_leave_no_trace(self, model: Qwen35, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = tokens(run(model, 0, max_tokens=512))
        rng = random.Random(1)
        forced(monkeypatch, iter(lambda: [rng.randrange(300) for _ in range(4)], None))
        assert tokens(run(model, 4, max_tokens=512)) == plain

    @pytest.mark.parametrize("seed", range(4))
    def test_drafts_right_in_part_are_accepted_in_part(
        self, model: Qwen35, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        plain = tokens(run(model, 0, max_tokens=120))
        forced(monkeypatch, half_right(plain, seed))
        steps = run(model, 4, max_tokens=120)
        assert tokens(steps) == plain
        done = steps[-1]
        assert isinstance(done, Done)
        assert 0 < done.accepted < done.drafted
        assert done.accepted == sum(step.drafted for step in steps if isinstance(step, NewToken))

    def test_edits_and_cancels_leave_no_trace(self, model: Qwen35) -> None:
        plain = tokens(run(model, 0))

        def replies(drafts: int) -> list[list[int]]:
            """To a prompt, which is cancelled; to one that goes on from a part of that; to the first one edited."""
            found: list[list[int]] = []
            cached = engine(model)
            for prompt in (PROMPT, (*PROMPT, *plain[:4], 7, 8), (*PROMPT[:20], 9, 9)):
                said: list[int] = []
                found.append(said)
                request = Request(prompt, GREEDY, NEVER, max_tokens=30, drafts=drafts, boundaries=(15, 20))
                for one in cached.generate("a", request, lambda: len(found) == 1 and len(found[0]) > 6):
                    said += tokens([one])
            return found

        (cut, *after), (cut_too, *after_too) = replies(0), replies(3)
        assert 0 < len(cut) < 30
        assert 0 < len(cut_too) < 30
        assert cut == plain[: len(cut)]
        assert cut_too == plain[: len(cut_too)]
        assert after == after_too

    @pytest.mark.slow
    @pytest.mark.parametrize("column", ["reference", "cpu"])
    def test_the_learnt_model_accepts_most_of_its_drafts_and_says_the_same(
        self, fixtures: Path, column: Column
    ) -> None:
        learnt = load_model(fixtures / "learnt-f16.gguf", column, threads=1).model
        prompt = tuple(range(300, 340))
        plain = run(learnt, 0, prompt=prompt, max_tokens=512)
        assert tokens(run(learnt, 3, prompt=prompt, max_tokens=512)) == tokens(plain)

    def test_a_model_without_the_block_does_without(self, tmp_path: Path) -> None:
        source = GOLDENS / "tiny-dense.gguf"
        gone = {name: None for name in tensor_names(source) if name.startswith("blk.4.")}
        bare = load_model(rewrite(source, tmp_path / "m.gguf", tensors=gone)).model
        steps = run(bare, 3)
        assert steps[-1] == Done("length", drafted=0, accepted=0)
        assert tokens(steps) == tokens(run(load_model(source).model, 0))


class TestSampled:
    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize(
        "params",
        [
            {"temperature": 1.0},
            {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "presence_penalty": 1.5},
            {"temperature": 1.3, "min_p": 0.05, "repetition_penalty": 1.2},
        ],
        ids=["plain", "preset", "penalties"],
    )
    def test_a_seed_gives_the_same_reply_with_and_without_drafts(
        self, model: Qwen35, params: dict[str, float], seed: int
    ) -> None:
        sampling = SamplingParams(**params, seed=seed)  # type: ignore[arg-type]
        plain = tokens(run(model, 0, sampling=sampling, max_tokens=40))
        assert tokens(run(model, 3, sampling=sampling, max_tokens=40)) == plain

    @pytest.mark.parametrize("column", ["reference", "cpu"])
    def test_the_distribution_is_the_models(self, monkeypatch: pytest.MonkeyPatch, column: Column) -> None:
        """The second token after a fixed first, over many seeds, against the model's own probabilities (χ²)."""
        model = load_model(GOLDENS / "tiny-dense.gguf", column, threads=1).model
        params = {"temperature": 1.0, "top_k": 6}
        state = model.new_state()
        first = tokens(run(model, 0, max_tokens=1))[0]
        hidden = model.forward((*PROMPT, first), state)
        expected = Sampler(SamplingParams(**params), PROMPT, 320).probabilities(model.logits(hidden[-1:])[0])
        counts = torch.zeros(320)
        likeliest = int(expected.argmax())
        forced(monkeypatch, iter(lambda: [likeliest], None))
        cached = engine(model)
        trials = 1500
        for seed in range(trials):
            sampling = SamplingParams(**params, seed=seed)
            request = Request((*PROMPT, first), sampling, NEVER, max_tokens=1, drafts=1)
            [token] = tokens(list(cached.generate("a", request, lambda: False)))
            counts[token] += 1
        likely = expected > 0
        assert not counts[~likely].any()
        wanted = expected[likely] * trials
        statistic = float(((counts[likely] - wanted) ** 2 / wanted).sum())
        assert statistic < 20.5  # 5 degrees of freedom: one in a thousand

    @pytest.mark.slow
    def test_drafts_at_a_temperature_are_often_accepted(self, fixtures: Path) -> None:
        """The same noise chooses drafts and tokens: a good block is accepted far more often than by chance."""
        learnt = load_model(fixtures / "learnt-f16.gguf").model
        sampling = SamplingParams(temperature=1.0, top_k=20, seed=1)
        done = run(learnt, 1, prompt=tuple(range(300, 340)), sampling=sampling, max_tokens=300)[-1]
        assert isinstance(done, Done)
        assert done.accepted > 0.5 * done.drafted


class TestEnds:
    """Stop tokens, limits and budgets inside a run of accepted drafts."""

    @pytest.fixture
    def plain(self, model: Qwen35) -> list[int]:
        return tokens(run(model, 0, max_tokens=42))

    @pytest.fixture(autouse=True)
    def all_right(self, plain: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        forced(monkeypatch, (plain[i + 1 : i + 5] for i in range(0, 1000, 5)))

    @pytest.mark.parametrize("at", [1, 2, 4, 5, 6, 9, 10])
    def test_a_stop_token(self, model: Qwen35, plain: list[int], at: int) -> None:
        at = plain.index(plain[at])
        steps = run(model, 4, stop_ids=frozenset({plain[at]}))
        assert tokens(steps) == plain[: at + 1]
        # all but the first and the one after each four drafts were drafts, the last too
        assert steps[-1] == Done("stop", -(-at // 5) * 4, at - at // 5)

    @pytest.mark.parametrize("limit", [1, 2, 4, 5, 6, 9, 10])
    def test_the_most_tokens_wanted(self, model: Qwen35, plain: list[int], limit: int) -> None:
        steps = run(model, 4, max_tokens=limit)
        assert tokens(steps) == plain[:limit]
        assert isinstance(steps[-1], Done)
        assert steps[-1].reason == "length"

    @pytest.mark.parametrize("budget", [1, 2, 4, 5, 6, 9])
    def test_a_thinking_budget(self, model: Qwen35, plain: list[int], budget: int) -> None:
        thought = Thought(319, (10, 319, 11), budget)
        found = tokens(run(model, 4, thought=thought, max_tokens=40))
        assert found[: budget + 3] == [*plain[:budget], 10, 319, 11]
        assert found == tokens(run(model, 0, thought=thought, max_tokens=40))

    @pytest.mark.parametrize("limit", [3, 7, 12])
    def test_the_state_afterwards_is_that_of_the_reply(self, model: Qwen35, plain: list[int], limit: int) -> None:
        both = engine(model)
        list(both.generate("a", Request(PROMPT, GREEDY, NEVER, limit, drafts=4), lambda: False))
        after = (*PROMPT, *plain[:limit], 7, 8)
        goes_on = list(both.generate("a", Request(after, GREEDY, NEVER, 12, drafts=0), lambda: False))
        assert tokens(goes_on) == tokens(run(model, 0, prompt=after, max_tokens=12))


class Clockwork:
    """Steps of known cost and acceptance: what a controller is judged by."""

    def __init__(self, times: Sequence[float], acceptance: Sequence[float], seed: int = 0) -> None:
        self.times, self.acceptance, self.rng = times, acceptance, random.Random(seed)

    def step(self, length: DraftLength) -> tuple[int, float]:
        """Tokens and seconds of one step."""
        drafted, accepted = length.choose(), 0
        while accepted < drafted and self.rng.random() < self.acceptance[accepted]:
            accepted += 1
        length.record(drafted, accepted, self.times[drafted])
        return accepted + 1, self.times[drafted]

    def run(self, length: DraftLength, tokens: int) -> float:
        """Seconds for that many tokens."""
        done, seconds = 0, 0.0
        while done < tokens:
            more, time = self.step(length)
            done, seconds = done + more, seconds + time
        return seconds

    def best(self) -> float:
        """Seconds per token of the best fixed length."""
        found = []
        for k, time in enumerate(self.times):
            chances = [float(np.prod(self.acceptance[:i])) for i in range(k + 1)]
            found.append(time / sum(chances))
        return min(found)


class TestLength:
    @pytest.mark.parametrize("cost", [1.2, 1.5, 2.0])
    def test_drafts_never_accepted_are_given_up_within_64_tokens(self, cost: float) -> None:
        clock = Clockwork([1, *(cost + 0.2 * k for k in range(4))], [0.0] * 4)
        length = DraftLength(StepCosts())
        clock.run(length, 64)
        assert clock.run(length, 64) == pytest.approx(64, abs=1)

    @pytest.mark.parametrize("cost", [1.2, 1.5, 2.0])
    def test_drafts_never_accepted_cost_two_percent_at_most(self, cost: float) -> None:
        clock = Clockwork([1, *(cost + 0.2 * k for k in range(4))], [0.0] * 4)
        assert clock.run(DraftLength(StepCosts()), 1024) <= 1.02 * 1024

    @pytest.mark.parametrize(
        ("times", "acceptance"),
        [
            ([1, 1.1, 1.2, 1.3, 1.4], [0.95, 0.9, 0.9, 0.9]),
            ([1, 1.3, 1.6, 1.9, 2.2], [0.8, 0.7, 0.6, 0.5]),
            ([1, 1.6, 2.2, 2.8, 3.4], [0.5, 0.4, 0.3, 0.3]),
            ([1, 1.2, 1.25, 1.3, 2.5], [0.9, 0.9, 0.9, 0.9]),
            ([1, 1.9, 2.8, 3.7, 4.6], [0.85, 0.8, 0.8, 0.8]),
        ],
    )
    @pytest.mark.parametrize("seed", range(3))
    def test_comes_near_the_best_fixed_length(self, times: list[float], acceptance: list[float], seed: int) -> None:
        clock = Clockwork(times, acceptance, seed)
        length = DraftLength(StepCosts())
        clock.run(length, 256)
        assert clock.run(length, 4096) <= 1.05 * 4096 * clock.best()

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("phase", [7, 40, 300])
    def test_a_machine_with_other_work_now_and_then_makes_no_length_look_better(self, seed: int, phase: int) -> None:
        """Everything takes three times as long for a while, and single steps take far longer."""
        times, rng = [1, 1.5, 1.9, 2.3, 2.7], random.Random(seed)
        clock, length, steps, cost, slow = Clockwork(times, [0.02] * 4), DraftLength(StepCosts()), 0, 0.0, False
        done = 0
        while done < 2048:
            slow ^= rng.random() < 1 / phase
            pace = (3 if slow else 1) * (10 if rng.random() < 0.02 else rng.uniform(0.9, 1.1))
            drafted = length.choose()
            accepted = int(drafted > 0 and clock.rng.random() < 0.02)
            length.record(drafted, accepted, pace * times[drafted])
            done, cost, steps = done + 1 + accepted, cost + times[drafted], steps + 1
        assert cost <= 1.03 * 2048

    def test_follows_a_text_that_changes(self) -> None:
        times = [1, 1.2, 1.4, 1.6, 1.8]
        length = DraftLength(StepCosts())
        Clockwork(times, [0.95] * 4).run(length, 500)
        assert Clockwork(times, [0.0] * 4).run(length, 500) <= 1.1 * 500
        code = Clockwork(times, [0.95] * 4)
        code.run(length, 2000)
        assert code.run(length, 1000) <= 1.05 * 1000 * code.best()

    def test_never_more_than_it_may(self) -> None:
        length = DraftLength(StepCosts())
        clock = Clockwork([1.0] * 5, [1.0] * 4)
        for _ in range(200):
            assert 0 <= length.choose() <= MAX_DRAFT
            clock.step(length)

    def test_costs_are_shared_and_acceptance_is_not(self) -> None:
        costs = StepCosts()
        Clockwork([1, 1.1, 1.2, 1.3, 1.4], [0.95] * 4).run(DraftLength(costs), 200)
        other = DraftLength(costs)
        assert all(average.count == 0 for average in other.accepted)
        assert costs.known(1)

    def test_an_average_forgets(self) -> None:
        average = Average()
        for value in [0.0] * 100 + [1.0] * 200:
            average.add(value)
        assert average.value > 0.99
