"""From logits to a token: penalties, temperature, min-p, top-k, top-p, seeded choice."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.errors import UserError

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


class SamplingError(UserError):
    """A setting out of its range, or logits that give no distribution; one sentence for the user."""

    kind = "prompt"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose a token. The defaults change nothing: plain samples from the model's own distribution.

    `temperature` 0: greedy. `top_k` 0: off. `top_p` 1, `min_p` 0, `presence_penalty` 0, `repetition_penalty` 1: off.
    `seed` None: another one each time. Raises SamplingError.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(self.temperature >= 0, "temperature must be at least 0", self.temperature)
        _require(self.top_k >= 0, "top_k must be at least 0", self.top_k)
        _require(0 < self.top_p <= 1, "top_p must be above 0 and at most 1", self.top_p)
        _require(0 <= self.min_p <= 1, "min_p must be between 0 and 1", self.min_p)
        _require(abs(self.presence_penalty) <= 2, "presence_penalty must be between -2 and 2", self.presence_penalty)
        _require(self.repetition_penalty > 0, "repetition_penalty must be above 0", self.repetition_penalty)
        _require(self.seed is None or 0 <= self.seed < 2**63, "seed must be between 0 and 2⁶³ − 1", self.seed)


class Sampler:
    """Chooses the tokens of one reply.

    The steps and their order are vLLM's:
    1. repetition penalty r: logits of tokens in the prompt or the reply are divided by r where positive, else
       multiplied; presence penalty: subtracted once from the logit of each token of the reply.
    2. division by the temperature;
    3. min-p: tokens with less than min_p times the probability of the best are out;
    4. top-k: tokens below the k-th best are out, ties with it stay;
    5. top-p: of what is left, the smallest set of best tokens whose probabilities reach top_p stays; of equals the
       lower id comes first.

    The choice is an exponential race: the token with the least noise/probability wins. The noise depends on the seed,
    the place in the reply and the token alone, so at one place the same logits give the same token however often it is
    asked for, and similar distributions, a draft's and the model's, mostly agree.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self.params = params
        self._reply = torch.zeros(vocab_size, dtype=torch.bool)
        self._seen = torch.zeros(vocab_size, dtype=torch.bool)
        if params.repetition_penalty != 1:
            self._seen[torch.tensor(prompt_ids, dtype=torch.long)] = True
        self._penalised = params.repetition_penalty != 1 or params.presence_penalty != 0
        self._seed = int.from_bytes(os.urandom(7), "little") if params.seed is None else params.seed
        self._length = 0

    def accept(self, token: int) -> None:
        """`token` is now part of the reply."""
        self._reply[token] = True
        self._length += 1

    def sample(self, logits: Tensor, drafted: Sequence[int] = ()) -> int:
        """A token for `logits` [V], of the place after the reply and `drafted`. Raises SamplingError.

        `drafted`: tokens taken for accepted, after those that are; they count for the penalties. Greedy at temperature
        0, the lowest id of equals.
        """
        ids, probabilities = self._candidates(logits, drafted)
        if len(ids) == 1:
            return int(ids[0])
        noise = _exponential(self._seed, self._length + len(drafted), ids)
        return int(ids[(noise / probabilities).argmin()])

    def probabilities(self, logits: Tensor, drafted: Sequence[int] = ()) -> Tensor:
        """The distribution [V] that `sample` draws from, float32, on the device of `logits`. Raises SamplingError."""
        ids, probabilities = self._candidates(logits, drafted)
        distribution = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
        distribution[ids.to(logits.device)] = probabilities.to(logits.device, torch.float32)
        return distribution

    def _candidates(self, logits: Tensor, drafted: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Ids, ascending, and probabilities, float64, both on the CPU."""
        params = self.params
        logits = self._penalise(logits, drafted)
        best = float(logits.max())
        if not math.isfinite(best):
            raise SamplingError("The model produced numbers that are not finite, so no token can be chosen.")
        if params.temperature == 0:
            return (logits == best).nonzero()[:1, 0].cpu(), torch.ones(1, dtype=torch.float64)
        least = best + params.temperature * math.log(params.min_p) if params.min_p > 0 else -math.inf
        total = None
        if 0 < params.top_k < len(logits):
            least = max(least, float(torch.topk(logits, params.top_k, sorted=False).values.min()))
        elif params.top_p < 1:
            least, total = self._nucleus(logits, best, least)
        ids = (logits >= least).nonzero()[:, 0]
        weights = ((logits[ids].to("cpu", torch.float64) - best) / params.temperature).exp()
        return _top_p(ids.cpu(), weights, params.top_p, float(weights.sum()) if total is None else total)

    def _penalise(self, logits: Tensor, drafted: Sequence[int]) -> Tensor:
        """Float32 logits after the penalties."""
        params = self.params
        if not self._penalised:
            return logits.float()
        self._reply, self._seen = self._reply.to(logits.device), self._seen.to(logits.device)
        reply = self._reply
        if drafted:
            reply = reply.clone()
            reply[torch.tensor(drafted, dtype=torch.long)] = True
        ids = (self._seen | reply).nonzero()[:, 0]
        values = logits[ids].float()
        values = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        values -= params.presence_penalty * reply[ids]
        return logits.to(torch.float32, copy=True).index_copy_(0, ids, values)

    def _nucleus(self, logits: Tensor, best: float, least: float) -> tuple[float, float]:
        """A logit at or below the smallest one that top-p keeps, and the weight of all from `least` on.

        Weights are relative to the best token's. Found without sorting the whole vocabulary.
        """
        scaled = (logits - best) / self.params.temperature
        total = float(scaled.exp().masked_fill(logits < least, 0).sum())
        for k in (64, 1024, 16384):
            if k < len(logits):
                top = torch.topk(scaled, k)
                # A little more than needed, since float32 sums round.
                if float(top.values.exp().sum()) >= (self.params.top_p + 1e-4) * total:
                    return max(least, float(logits[top.indices[-1]])), total
        return least, total


def _top_p(ids: Tensor, weights: Tensor, top_p: float, total: float) -> tuple[Tensor, Tensor]:
    """The nucleus, of `weights` [N] that are the largest of `total`: its ids, and its probabilities."""
    if top_p < 1:
        descending, order = torch.sort(weights, descending=True, stable=True)
        before = (descending.cumsum(0) - descending) / total
        keep = order[before < top_p].sort().values
        ids, weights = ids[keep], weights[keep]
    return ids, weights / weights.sum()


def _exponential(seed: int, place: int, ids: Tensor) -> Tensor:
    """Standard exponential noise [N], float64, for tokens `ids` [N] at a place of the reply: hashed, not drawn in turn.

    The hash is SplitMix64 (Steele, Lea, Flood 2014), its starting point mixed from seed and place.
    """
    start = _mix(_mix(np.array([seed], np.uint64)) + np.uint64(place))
    bits = _mix(start + ids.numpy().astype(np.uint64) * _GAMMA)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return torch.from_numpy(-np.log(uniform))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _require(satisfied: bool, requirement: str, value: float | None) -> None:
    if not satisfied or (value is not None and not math.isfinite(value)):
        raise SamplingError(f"{requirement}, not {value}.")
