"""Drafting with the model's own MTP block, and how many drafts pay.

A draft changes nothing of the reply: each verified row is sampled as it would be without drafts, with the noise that
belongs to its place in the reply, and a draft is accepted when it is what was sampled. Drafts are chosen with the
same noise, so that at a temperature too they agree as often as the two distributions allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.cache import SequenceState
from runtime.errors import UserError
from runtime.models.qwen35 import Qwen35
from runtime.models.slabs import ROWS
from runtime.models.stepping import Chosen
from runtime.sampling import Sampler, SamplingError

MAX_DRAFT = ROWS - 1  # tokens

_TRIALS = 4  # steps of a length before it is judged
_KEPT = 6  # steps that a length is kept before the next thought
_LEAST_GAIN = 1.03  # of speed, for which drafts are made: less may be an error of measuring
_FORGET = 1 / 32  # weight of a new value in the running averages
_REMEMBERED = 9  # costs of a length
_RETRY = 256  # tokens until a length that lost is tried again; twice as many after each time
_LONGEST_RETRY = 4096


class NumbersError(UserError):
    """The model's arithmetic went wrong (NaN or infinity); one sentence for the user."""

    kind = "numbers"


@dataclass(frozen=True)
class Step:
    """New tokens and `drafts` after them, read and staged; `choose(i)` is the token after the first i drafts.

    That is asked for in order, each time once those before it are accepted. Raises NumbersError.
    """

    drafts: list[int]
    choose: Callable[[int], int]


def step(model: Qwen35, state: SequenceState, new: Sequence[int], count: int, sampler: Sampler) -> Step:
    """Read `new` tokens and `count` drafts after them."""
    if model.stepper and model.stepper.decides(sampler.rules) and model.stepper.takes(state, len(new) + count):
        return _stepped(model.stepper.step(new, state, sampler, made=count), sampler)
    return verify(model, state, new, draft(model, state, new[-1], count, sampler), sampler)


def verify(model: Qwen35, state: SequenceState, new: Sequence[int], drafts: list[int], sampler: Sampler) -> Step:
    """Read `new` tokens and drafts that come from elsewhere."""
    if model.stepper and model.stepper.decides(sampler.rules) and model.stepper.takes(state, len(new) + len(drafts)):
        return _stepped(model.stepper.step(new, state, sampler, given=drafts), sampler)
    hidden = model.forward((*new, *drafts), state, each=bool(drafts))
    logits = model.logits(hidden[len(new) - 1 :])  # of the last new token and of each draft
    return Step(drafts, lambda row: first(logits[row], sampler))


def first(logits: Tensor, sampler: Sampler) -> int:
    """A token for `logits` [V]. Raises NumbersError."""
    check(logits)
    return sampler.sample(logits)


def check(values: Tensor) -> None:
    """Raises NumbersError."""
    if not torch.isfinite(values).all():
        raise NumbersError(
            "The model produced numbers that are not finite, so its reply would be noise; "
            "the file may be damaged or badly converted."
        )


def _stepped(chosen: Chosen, sampler: Sampler) -> Step:
    def choose(row: int) -> int:
        token = chosen.tokens[row]
        return token if token >= 0 else first(chosen.logits[row], sampler)  # which says what is wrong, or decides

    return Step(chosen.drafts, choose)


def draft(model: Qwen35, state: SequenceState, token: int, count: int, sampler: Sampler) -> list[int]:
    """`count` guesses of what follows `token`, which itself follows what `state` holds."""
    if not count or state.last_hidden is None:
        return []
    hidden = state.last_hidden[None]
    drafted: list[int] = []
    for position in range(state.length - 1, state.length - 1 + count):
        hidden = model.draft([token], hidden, state, position)
        try:
            token = sampler.sample(model.draft_logits(hidden)[0], drafted)
        except SamplingError:  # not finite: the trunk may still be sound
            return drafted
        drafted.append(token)
    return drafted


@dataclass
class Average:
    """A running average, the plain one of its first values."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * max(1 / self.count, _FORGET)


class Typical:
    """The median of the last values: one that another program or a first time made long does not count."""

    def __init__(self) -> None:
        self.value, self.count = 0.0, 0
        self._last: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, value: float) -> None:
        self.count += 1
        self._last.append(value)
        self.value = sorted(self._last)[(len(self._last) - 1) // 2]


class StepCosts:
    """What a step with 0, 1, … drafts costs, in steps without any when that was first known.

    A fact of model and machine, shared by all conversations. Only steps that follow each other are compared, since
    the machine has other work now and then, and a context grows.
    """

    def __init__(self) -> None:
        self._costs = [Typical() for _ in range(MAX_DRAFT + 1)]
        self._costs[0].add(1.0)

    def compare(self, drafts: int, seconds: float, other: int, other_seconds: float) -> None:
        """A step with `drafts` drafts and the one after it, whose cost is known."""
        self._costs[drafts].add(self._costs[other].value * seconds / other_seconds)

    def known(self, drafts: int) -> bool:
        return self._costs[drafts].count > 0

    def __getitem__(self, drafts: int) -> float:
        """Of a known length. More drafts never cost less, whatever was measured."""
        return max(cost.value for cost in self._costs[: drafts + 1])


@dataclass(frozen=True)
class FixedLength:
    """The user's choice of drafts per step."""

    length: int

    def choose(self) -> int:
        return self.length

    def record(self, drafted: int, accepted: int, seconds: float) -> None:
        pass


@dataclass
class DraftLength:
    """Chooses 0 to MAX_DRAFT drafts for each step of a conversation.

    A step with k drafts yields 1 + a₁ + a₁a₂ + … + a₁…a_k tokens, aᵢ being how often draft i is accepted when those
    before it were, and costs c_k. The k with the most tokens for its cost wins, 0 included. A length is tried in turn
    with the best one so far: a longer one when it promises more, and now and then the one next to the best.
    """

    costs: StepCosts
    accepted: list[Average] = field(default_factory=lambda: [Average() for _ in range(MAX_DRAFT)])
    _best: int = 0
    _trial: deque[int] = field(default_factory=deque)  # lengths of the steps to come: tried, best, tried, best …
    _seconds: float = 0.0  # of the tried one's last step
    _since: int = 0  # tokens since the last trial
    _retry: int = _RETRY
    _tried: int = 0
    _left: int = 0  # steps until the next thought, which takes a percent of a small model's step
    _longer: bool = True  # the one next to the best that is tried next

    def choose(self) -> int:
        if self._trial:
            return self._trial[0]
        if self._left:
            self._left -= 1
            return self._best
        return self._think()

    def _think(self) -> int:
        if not self.costs.known(1) or not self.accepted[0].count:
            return self._try(1)
        best = self._find_best()
        if best != self._best:
            self._best, self._retry = best, _RETRY
        longer = best + 1
        if longer <= MAX_DRAFT and not self.costs.known(longer) and self._promise(longer) > self._speed(best):
            return self._try(longer)
        if self._since >= self._retry:
            self._retry = min(2 * self._retry, _LONGEST_RETRY)
            up = best == 0 or (self._longer and best < MAX_DRAFT)
            self._longer = not self._longer
            return self._try(longer if up else best - 1)
        self._left = _KEPT - 1
        return best

    def record(self, drafted: int, accepted: int, seconds: float) -> None:
        """What one step with `drafted` drafts brought."""
        for i in range(min(accepted + 1, drafted)):
            self.accepted[i].add(float(i < accepted))
        self._since += accepted + 1
        if not self._trial or drafted != self._trial[0]:
            return  # near a reply's end there are fewer drafts than were wanted
        self._trial.popleft()
        if len(self._trial) % 2:
            self._seconds = seconds
        else:
            self.costs.compare(self._tried, self._seconds, drafted, seconds)

    def _try(self, k: int) -> int:
        self._tried, self._since = k, 0
        self._trial.extend([k, self._best] * _TRIALS)
        return k

    def _find_best(self) -> int:
        known = [k for k in range(MAX_DRAFT + 1) if self.costs.known(k)]
        best = max(known, key=self._speed)
        return best if self._speed(best) > _LEAST_GAIN * self._speed(0) else 0

    def _speed(self, k: int) -> float:
        return self._tokens(k) / self.costs[k]

    def _promise(self, k: int) -> float:
        """The speed of a length not tried yet, if one more draft costs what the last one did."""
        one_more = self.costs[k - 1] - self.costs[k - 2] if k >= 2 else 0.0
        return self._tokens(k) / (self.costs[k - 1] + one_more)

    def _tokens(self, k: int) -> float:
        total = chance = 1.0
        last = 0.0
        for average in self.accepted[:k]:
            last = average.value if average.count else last  # unknown: as good as the draft before it
            chance *= last
            total += chance
        return total
