"""The choice of a token from logits: penalties, temperature, min-p, top-k, top-p, and noise that is hashed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu import ops as native
from kernels.cpu.ops import MOST_CANDIDATES, UNDECIDED
from kernels.op import Case, Op, random_tensors
from kernels.triton import ops as gpu

NOT_FINITE = -1
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Rules:
    """How a token is chosen. The steps and their order are vLLM's:

    1. repetition penalty r: logits of tokens in the prompt or the reply are divided by r where positive, else
       multiplied; presence penalty: subtracted once from the logit of each token of the reply.
    2. division by the temperature;
    3. min-p: tokens with less than min_p times the probability of the best are out;
    4. top-k: tokens below the k-th best are out, ties with it stay; 0: off;
    5. top-p: of what is left, the smallest set of best tokens whose probabilities reach top_p stays; of equals the
       lower id comes first.

    Temperature 0: the best token, the lowest id of equals.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0

    @property
    def few(self) -> bool:
        """Whether only a few tokens are ever in question."""
        return self.temperature == 0 or 0 < self.top_k <= MOST_CANDIDATES

    @property
    def native(self) -> bool:
        """Whether the `cpu` version decides, ties apart."""
        return self.few or self.top_k == 0

    def packed(self) -> Tensor:
        """float64 [6], in the order of the fields."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    @classmethod
    def unpacked(cls, numbers: Tensor) -> Rules:
        temperature, top_k, *rest = numbers.tolist()
        return cls(temperature, int(top_k), *rest)


def candidates(
    logits: Tensor, rules: Rules, seen: Tensor, reply: Tensor, drafted: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Ids [N], ascending, and probabilities [N], float64, both on the CPU; none if no logit is finite.

    seen, reply: bool [V], the tokens of the prompt and of the reply; `drafted` are taken for part of the reply.
    """
    logits = _penalise(logits, rules, seen, reply, drafted)
    best = float(logits.max())
    if not math.isfinite(best):
        return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.float64)
    if rules.temperature == 0:
        return (logits == best).nonzero()[:1, 0].cpu(), torch.ones(1, dtype=torch.float64)
    least = best + rules.temperature * math.log(rules.min_p) if rules.min_p > 0 else -math.inf
    total = None
    if 0 < rules.top_k < len(logits):
        least = max(least, float(torch.topk(logits, rules.top_k, sorted=False).values.min()))
    elif rules.top_p < 1:
        least, total = _nucleus(logits, rules, best, least)
    ids = (logits >= least).nonzero()[:, 0]
    weights = ((logits[ids].to("cpu", torch.float64) - best) / rules.temperature).exp()
    return _top_p(ids.cpu(), weights, rules.top_p, float(weights.sum()) if total is None else total)


def choose(ids: Tensor, probabilities: Tensor, seed: int, place: int) -> int:
    """One of `candidates` by an exponential race: the token with the least noise/probability wins.

    The noise depends on the seed, the place in the reply and the token alone, so at one place the same logits give
    the same token however often it is asked for, and similar distributions, a draft's and the model's, mostly agree.
    """
    if len(ids) == 1:
        return int(ids[0])
    return int(ids[(_exponential(seed, place, ids) / probabilities).argmin()])


def _sample(
    logits: Tensor, rules: Tensor, noise: Tensor, seen: Tensor, reply: Tensor, drafted: Tensor, out: Tensor,
    draft: bool = False,
) -> None:  # fmt: skip
    """Writes the token for `logits` [V] into `out` int64 [1], or NOT_FINITE if any of them is not finite.

    rules: `Rules.packed`; noise int64 [2]: the seed, and the reply's length, after which come the `drafted` tokens,
    int64 [n]; seen, reply: bool [V].

    `draft`: it is only a guess, token 0 in place of NOT_FINITE, and need not follow the rules in every case.

    The native versions write UNDECIDED where they would need more candidates than they keep: if more than that tie, and
    without `Rules.few`, or on the processor `Rules.native`.
    """
    if not bool(torch.isfinite(logits).all()):
        out[0] = 0 if draft else NOT_FINITE
        return
    seed, length = noise.tolist()
    found = candidates(logits, Rules.unpacked(rules), seen, reply, drafted.tolist())
    out[0] = choose(*found, seed, length + len(drafted))


def _penalise(logits: Tensor, rules: Rules, seen: Tensor, reply: Tensor, drafted: Sequence[int]) -> Tensor:
    """Float32 logits after the penalties."""
    if not rules.penalised:
        return logits.float()
    if drafted:
        reply = reply.clone()
        reply[torch.tensor(drafted, dtype=torch.long)] = True
    ids = (seen | reply).nonzero()[:, 0]
    values = logits[ids].float()
    values = torch.where(values > 0, values / rules.repetition_penalty, values * rules.repetition_penalty)
    values -= rules.presence_penalty * reply[ids]
    return logits.to(torch.float32, copy=True).index_copy_(0, ids, values)


def _nucleus(logits: Tensor, rules: Rules, best: float, least: float) -> tuple[float, float]:
    """A logit at or below the smallest one that top-p keeps, and the weight of all from `least` on.

    Weights are relative to the best token's. Found without sorting the whole vocabulary.
    """
    scaled = (logits - best).double() / rules.temperature  # in float32 a small temperature would be 0
    total = float(scaled.exp().masked_fill(logits < least, 0).sum())
    for k in (64, 1024, 16384):
        if k < len(logits):
            top = torch.topk(scaled, k)
            # A little more than needed, since float32 sums round.
            if float(top.values.exp().sum()) >= (rules.top_p + 1e-4) * total:
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


def _cases() -> Iterator[Case]:
    """`out` is the result, so each case is for one use."""
    randn = random_tensors(21)
    settings = {
        "greedy": Rules(temperature=0),
        "greedy-penalised": Rules(temperature=0, repetition_penalty=1.5, presence_penalty=1.0),
        "top-20": Rules(temperature=0.7, top_k=20, top_p=0.8, presence_penalty=1.5),
        "top-1": Rules(top_k=1),
        "min-p": Rules(temperature=1.3, top_k=100, min_p=0.05, repetition_penalty=1.2),
        "cold": Rules(temperature=1e-300, top_k=20),
        "all": Rules(),
        "all-hot-penalised": Rules(temperature=2.5, presence_penalty=1.5, repetition_penalty=1.3),
        "all-top-p": Rules(temperature=1.5, top_p=0.9),
        "all-small-top-p": Rules(top_p=0.01),
        "all-top-p-min-p": Rules(temperature=1.2, top_p=0.95, min_p=0.02),
        "all-cold": Rules(temperature=1e-300, top_p=0.5),
    }
    for name, rules in settings.items():
        for size in (37, 1000):
            for place, drafted in ((0, []), (7, [3, 3, 11])):
                seen, reply = (randn(size) > 1 for _ in range(2))
                noise = torch.tensor([2**62 + 12345 * place, place])
                out = torch.empty(1, dtype=torch.long)
                yield Case(
                    f"{name}-{size}+{len(drafted)}",
                    (4 * randn(size), rules.packed(), noise, seen, reply, torch.tensor(drafted, dtype=torch.long), out),
                )
    nobody, none = torch.zeros(50, dtype=torch.bool), torch.empty(0, dtype=torch.long)
    equal = torch.zeros(50).index_fill_(0, torch.tensor([17, 40]), 1.0)
    for name, logits in (("equals", equal), ("nan", equal.clone().index_fill_(0, torch.tensor([49]), torch.nan))):
        out = torch.empty(1, dtype=torch.long)
        yield Case(name, (logits, Rules(temperature=0).packed(), torch.tensor([1, 0]), nobody, nobody, none, out))


sample = Op(_sample, _cases, tolerance=0.0, cpu=native.sample, triton=gpu.sample)

__all__ = ["NOT_FINITE", "UNDECIDED", "Rules", "candidates", "choose", "sample"]
