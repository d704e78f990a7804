"""Sampling: the distributions that follow from the settings, and draws that follow the distributions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import sample as choosing
from runtime.sampling import Sampler, SamplingError, SamplingParams

LOGITS = torch.tensor([2.0, 1.5, 1.2, 0.9, 0.3, 0.0, -0.4, -1.0, -1.1, -2.5])


def distribution(params: SamplingParams, logits: torch.Tensor = LOGITS, prompt: tuple[int, ...] = ()) -> torch.Tensor:
    return Sampler(params, prompt, len(logits)).probabilities(logits)


def of_weights(*weights: float) -> torch.Tensor:
    """Logits whose softmax is in proportion to `weights`."""
    return torch.tensor(weights).log()


class TestDistribution:
    # From transformers 5.24: RepetitionPenalty, Temperature, MinP, TopK and TopP, in this order, then softmax.
    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            (
                SamplingParams(temperature=0.7),
                [
                    *(0.450139202, 0.220361892, 0.143552343, 0.093515603, 0.039685483),
                    *(0.025852673, 0.014599473, 0.00619562, 0.005370846, 0.000726865),
                ],
            ),
            (SamplingParams(top_k=3), [0.486414534, 0.295025328, 0.218560138]),
            (SamplingParams(top_p=0.8), [0.418632371, 0.253913368, 0.18810365, 0.139350611]),
            (SamplingParams(min_p=0.2), [0.418632371, 0.253913368, 0.18810365, 0.139350611]),
            (
                SamplingParams(repetition_penalty=1.3),
                [
                    *(0.256392218, 0.24671821, 0.182773345, 0.110008158, 0.074310097),
                    *(0.055050274, 0.036901302, 0.01500295, 0.018324644, 0.004518802),
                ],
            ),
            (SamplingParams(top_k=4, top_p=0.7), [0.486414534, 0.295025328, 0.218560138]),
            (
                SamplingParams(temperature=1.4, top_k=7, top_p=0.85, min_p=0.15, repetition_penalty=1.2),
                [0.285664811, 0.253603371, 0.204687781, 0.148421653, 0.107622384],
            ),
        ],
    )
    def test_is_that_of_transformers(self, params: SamplingParams, expected: list[float]) -> None:
        found = distribution(params, prompt=(0, 3, 7, 7))
        assert found.tolist() == pytest.approx(expected + [0.0] * (10 - len(expected)), abs=1e-7)

    def test_without_settings_is_the_models_own(self) -> None:
        assert distribution(SamplingParams(), of_weights(1, 2, 5)).tolist() == pytest.approx([0.125, 0.25, 0.625])

    def test_temperature_is_a_power_of_the_weights(self) -> None:
        # 1/T = 2: squares, 1 : 4 : 9
        found = distribution(SamplingParams(temperature=0.5), of_weights(1, 2, 3))
        assert found.tolist() == pytest.approx([1 / 14, 4 / 14, 9 / 14])

    @pytest.mark.parametrize("top_p", [1.0, 0.9])
    @pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-6])
    def test_a_temperature_near_zero_is_greedy_and_finite(self, temperature: float, top_p: float) -> None:
        assert distribution(SamplingParams(temperature=temperature, top_p=top_p)).tolist() == [1.0] + [0.0] * 9

    def test_min_p_is_of_the_probabilities_after_the_temperature(self) -> None:
        found = distribution(SamplingParams(temperature=0.5, min_p=0.2), of_weights(1, 2, 3))  # 1 : 4 : 9
        assert found.tolist() == pytest.approx([0, 4 / 13, 9 / 13])

    def test_top_k_keeps_ties_with_the_last(self) -> None:
        found = distribution(SamplingParams(top_k=2), of_weights(1, 2, 4, 2))
        assert found.tolist() == pytest.approx([0, 0.25, 0.5, 0.25])

    def test_top_k_beyond_the_vocabulary_is_off(self) -> None:
        assert distribution(SamplingParams(top_k=99), of_weights(1, 1)).tolist() == [0.5, 0.5]

    def test_top_p_keeps_the_smallest_set_that_reaches_it(self) -> None:
        weights = of_weights(1, 8, 2, 4, 1)  # of 16: 8, 4 and 2 are 0.875
        for top_p, kept in [(0.49, {1}), (0.51, {1, 3}), (0.74, {1, 3}), (0.76, {1, 2, 3}), (1e-9, {1})]:
            found = distribution(SamplingParams(top_p=top_p), weights)
            assert set(found.nonzero().flatten().tolist()) == kept, top_p

    def test_top_p_takes_the_lower_of_equal_ids(self) -> None:
        found = distribution(SamplingParams(top_p=0.5), torch.zeros(1024))
        assert found.tolist() == [1 / 512] * 512 + [0] * 512

    def test_top_p_is_of_what_min_p_and_top_k_leave(self) -> None:
        # The first two are 0.58 of all, but 0.67 of what min-p leaves: sigmoid(0.5) and the rest.
        first = 1 / (1 + math.exp(-0.5))
        found = distribution(SamplingParams(min_p=0.3, top_p=0.65))
        assert found.tolist() == pytest.approx([first, 1 - first] + [0] * 8)

    @pytest.mark.parametrize("size", [100, 2_000, 30_000])
    def test_top_p_alone_is_exact_in_large_vocabularies(self, size: int) -> None:
        # Geometric weights in shuffled places: the n best hold 1 − r^n, however many others there are.
        ratio = 0.99
        order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
        logits = torch.full((size,), -math.inf)
        logits[order] = (torch.arange(size) * math.log(ratio)).clamp(min=-1000).float()
        whole = 1 - ratio**size
        for top_p in (0.3, 0.6, 0.95):
            found = distribution(SamplingParams(top_p=top_p), logits)
            assert int((found > 0).sum()) == math.ceil(math.log(1 - top_p * whole) / math.log(ratio))

    def test_impossible_tokens_stay_so(self) -> None:
        found = distribution(SamplingParams(top_k=3), torch.tensor([0.0, -math.inf, 0.0, -math.inf]))
        assert found.tolist() == [0.5, 0, 0.5, 0]

    def test_half_precision_logits_are_taken(self) -> None:
        found = distribution(SamplingParams(top_k=2), torch.tensor([1.0, 0.0, 1.0], dtype=torch.bfloat16))
        assert found.dtype == torch.float32
        assert found.tolist() == [0.5, 0, 0.5]

    def test_greedy_is_the_lowest_of_the_best(self) -> None:
        sampler = Sampler(SamplingParams(temperature=0), (), 4)
        logits = torch.tensor([1.0, 3.0, 3.0, 2.0])
        assert sampler.sample(logits) == 1
        assert sampler.probabilities(logits).tolist() == [0, 1, 0, 0]

    @pytest.mark.parametrize("broken", [math.nan, math.inf])
    def test_broken_logits_are_refused_in_a_sentence(self, broken: float) -> None:
        for params in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=2, presence_penalty=1)):
            with pytest.raises(SamplingError, match="not finite"):
                Sampler(params, (), 3).sample(torch.tensor([0.0, broken, 1.0]))

    @settings(deadline=None)
    @given(
        st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
        st.floats(0.05, 3),
        st.integers(0, 10),
        st.floats(0.01, 1),
        st.floats(0, 1),
    )
    def test_is_one_of_the_best_tokens(
        self, logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
    ) -> None:
        found = distribution(SamplingParams(temperature, top_k, top_p, min_p), torch.tensor(logits))
        assert float(found.sum()) == pytest.approx(1, abs=1e-5)
        kept = [logit for logit, p in zip(logits, found.tolist(), strict=True) if p > 0]
        dropped = [logit for logit, p in zip(logits, found.tolist(), strict=True) if p == 0]
        assert min(kept) >= max(dropped, default=-math.inf) - 1e-6


class TestPenalties:
    def test_presence_counts_once_and_only_the_reply(self) -> None:
        sampler = Sampler(SamplingParams(presence_penalty=0.5), prompt_ids=(0,), vocab_size=3)
        for token in (1, 1, 1):
            sampler.accept(token)
        found = sampler.probabilities(torch.zeros(3))
        lowered = math.exp(-0.5)
        assert found.tolist() == pytest.approx([1 / (2 + lowered), lowered / (2 + lowered), 1 / (2 + lowered)])

    def test_repetition_counts_prompt_and_reply_and_always_lowers(self) -> None:
        sampler = Sampler(SamplingParams(repetition_penalty=2), prompt_ids=(0, 0), vocab_size=4)
        sampler.accept(1)
        found = sampler.probabilities(torch.tensor([2.0, -1.0, 2.0, -1.0]))
        assert found.tolist() == pytest.approx(torch.tensor([1.0, -2.0, 2.0, -1.0]).softmax(0).tolist())

    def test_repetition_comes_before_presence(self) -> None:
        sampler = Sampler(SamplingParams(repetition_penalty=2, presence_penalty=1.5), (), 2)
        sampler.accept(0)
        found = sampler.probabilities(torch.tensor([1.0, 0.0]))
        assert found.tolist() == pytest.approx(torch.tensor([-1.0, 0.0]).softmax(0).tolist())  # 1/2 − 1.5

    def test_presence_leaves_the_prompt_alone_when_both_are_on(self) -> None:
        sampler = Sampler(SamplingParams(repetition_penalty=2, presence_penalty=1), prompt_ids=(0,), vocab_size=2)
        found = sampler.probabilities(torch.tensor([2.0, 0.0]))
        assert found.tolist() == pytest.approx(torch.tensor([1.0, 0.0]).softmax(0).tolist())

    def test_drafted_tokens_count_for_one_call_only(self) -> None:
        sampler = Sampler(SamplingParams(presence_penalty=1), (), 3)
        sampler.accept(0)
        with_draft = sampler.probabilities(torch.zeros(3), drafted=(1,))
        assert with_draft.tolist() == pytest.approx(torch.tensor([-1.0, -1.0, 0.0]).softmax(0).tolist())
        after = sampler.probabilities(torch.zeros(3))
        assert after.tolist() == pytest.approx(torch.tensor([-1.0, 0.0, 0.0]).softmax(0).tolist())

    def test_change_what_is_greedy(self) -> None:
        sampler = Sampler(SamplingParams(temperature=0, presence_penalty=1.5), (), 2)
        logits = torch.tensor([1.0, 0.0])
        assert sampler.sample(logits) == 0
        sampler.accept(0)
        assert sampler.sample(logits) == 1
        assert sampler.sample(logits, drafted=(1,)) == 0

    def test_leave_the_callers_logits_alone(self) -> None:
        sampler = Sampler(SamplingParams(presence_penalty=1, repetition_penalty=2), (0,), 3)
        logits = torch.ones(3)
        sampler.sample(logits)
        assert logits.tolist() == [1, 1, 1]


def reply(params: SamplingParams, logits: torch.Tensor, length: int) -> list[int]:
    """A reply in which every place has the same logits."""
    sampler = Sampler(params, (), len(logits))
    tokens = []
    for _ in range(length):
        tokens.append(sampler.sample(logits))
        sampler.accept(tokens[-1])
    return tokens


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


class TestChoice:
    def test_follows_the_distribution(self) -> None:
        params = SamplingParams(top_k=5, top_p=0.9, seed=1)
        expected = 4_000 * distribution(params).double()
        counts = torch.bincount(torch.tensor(reply(params, LOGITS, 4_000)), minlength=len(LOGITS))
        kept = expected > 0
        assert int(kept.sum()) == 4
        assert counts[~kept].sum() == 0
        assert chi_square(counts[kept], expected[kept]) < 16.27  # 3 degrees of freedom, p = 0.001

    def test_has_no_favourite_ids_and_no_memory(self) -> None:
        tokens = torch.tensor(reply(SamplingParams(seed=2), torch.zeros(8), 6_400))
        assert chi_square(torch.bincount(tokens, minlength=8), torch.tensor(800.0)) < 24.32  # 7 degrees, p = 0.001
        pairs = torch.bincount(8 * tokens[:-1] + tokens[1:], minlength=64)
        assert chi_square(pairs, torch.tensor(6_399 / 64)) < 103.44  # 63 degrees, p = 0.001

    def test_never_hits_the_impossible(self) -> None:
        logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
        assert set(reply(SamplingParams(seed=3), logits, 200)) == {1, 3}

    def test_same_seed_same_tokens(self) -> None:
        def tokens(seed: int | None) -> list[int]:
            return reply(SamplingParams(seed=seed), LOGITS, 64)

        assert tokens(7) == tokens(7)
        assert len({tuple(tokens(seed)) for seed in (0, 1, 7, 8, 2**63 - 1, None, None)}) == 7

    def test_hashes_as_splitmix64_does(self) -> None:
        # The first outputs of the published generator for seed 1234567.
        published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
        states = np.array([1234567], np.uint64) + np.arange(3, dtype=np.uint64) * choosing._GAMMA
        assert choosing._mix(states).tolist() == published

    def test_at_one_place_is_one(self) -> None:
        sampler = Sampler(SamplingParams(seed=4), (), len(LOGITS))
        ahead = [sampler.sample(LOGITS, drafted=range(place)) for place in range(20)]
        assert ahead == reply(SamplingParams(seed=4), LOGITS, 20)
        assert [sampler.sample(LOGITS) for _ in range(3)] == [ahead[0]] * 3

    def test_of_similar_distributions_mostly_agrees(self) -> None:
        one, other = (0.5, 0.3, 0.2), (0.4, 0.4, 0.2)
        # For an exponential race with shared noise, P(both choose i) = 1 / Σⱼ max(pⱼ/pᵢ, qⱼ/qᵢ).
        agreement = sum(1 / sum(max(one[j] / one[i], other[j] / other[i]) for j in range(3)) for i in range(3))
        n = 4_000
        tokens = zip(*(reply(SamplingParams(seed=5), of_weights(*p), n) for p in (one, other)), strict=True)
        agreed = sum(a == b for a, b in tokens)
        assert agreement > 0.8
        assert abs(agreed - n * agreement) < 4 * math.sqrt(n * agreement * (1 - agreement))


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("temperature", -1.0, "temperature must be at least 0, not -1.0."),
        ("temperature", math.nan, "temperature must be at least 0, not nan."),
        ("temperature", math.inf, "temperature must be at least 0, not inf."),
        ("top_k", -1, "top_k must be at least 0, not -1."),
        ("top_p", 0.0, "top_p must be above 0 and at most 1, not 0.0."),
        ("top_p", 1.5, "top_p must be above 0 and at most 1, not 1.5."),
        ("min_p", -0.1, "min_p must be between 0 and 1, not -0.1."),
        ("min_p", 2.0, "min_p must be between 0 and 1, not 2.0."),
        ("presence_penalty", 3.0, "presence_penalty must be between -2 and 2, not 3.0."),
        ("repetition_penalty", 0.0, "repetition_penalty must be above 0, not 0.0."),
        ("repetition_penalty", math.inf, "repetition_penalty must be above 0, not inf."),
        ("seed", -1, "seed must be between 0 and 2⁶³ − 1, not -1."),
        ("seed", 2**63, "seed must be between 0 and 2⁶³ − 1, not 9223372036854775808."),
    ],
)
def test_a_setting_out_of_range_is_refused_in_a_sentence(setting: str, value: float, sentence: str) -> None:
    with pytest.raises(SamplingError) as refusal:
        replace(SamplingParams(), **{setting: value})
    assert str(refusal.value) == sentence
