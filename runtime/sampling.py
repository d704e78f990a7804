"""From logits to a token: penalties, temperature, min-p, top-k, top-p, seeded choice."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sample import Rules, candidates, choose
from runtime.errors import UserError


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
    """Chooses the tokens of one reply, as `Rules` says; what an op needs for it lies in tensors."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], vocab_size: int) -> None:
        p = params
        self.rules = Rules(p.temperature, p.top_k, p.top_p, p.min_p, p.presence_penalty, p.repetition_penalty)
        self.reply = torch.zeros(vocab_size, dtype=torch.bool)
        self.seen = torch.zeros(vocab_size, dtype=torch.bool)
        if params.repetition_penalty != 1:
            self.seen[torch.tensor(prompt_ids, dtype=torch.long)] = True
        seed = int.from_bytes(os.urandom(7), "little") if params.seed is None else params.seed
        self.packed_rules = self.rules.packed()
        self.noise = torch.tensor([seed, 0])  # and the reply's length
        self._noise, self._reply = self.noise.numpy(), self.reply.numpy()  # the same memory, quicker to write
        self.addresses = [part.data_ptr() for part in (self.packed_rules, self.noise, self.seen, self.reply)]

    @staticmethod
    def places(vocab_size: int) -> list[Tensor]:
        """Tensors as those whose `addresses` a sampler has: what the op `sample` takes after the logits."""
        marks = (torch.empty(vocab_size, dtype=torch.bool) for _ in range(2))
        return [torch.empty(6, dtype=torch.float64), torch.empty(2, dtype=torch.long), *marks]

    def accept(self, token: int) -> None:
        """`token` is now part of the reply."""
        self._reply[token] = True
        self._noise[1] += 1

    def sample(self, logits: Tensor, drafted: Sequence[int] = ()) -> int:
        """A token for `logits` [V], of the place after the reply and `drafted`. Raises SamplingError.

        `drafted`: tokens taken for accepted, after those that are; they count for the penalties. The noise depends on
        the seed, the place in the reply and the token alone, so at one place the same logits give the same token.
        """
        ids, probabilities = self._candidates(logits, drafted)
        seed, length = self.noise.tolist()
        return choose(ids, probabilities, seed, length + len(drafted))

    def probabilities(self, logits: Tensor, drafted: Sequence[int] = ()) -> Tensor:
        """The distribution [V] that `sample` draws from, float32, on the device of `logits`. Raises SamplingError."""
        ids, probabilities = self._candidates(logits, drafted)
        distribution = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
        distribution[ids.to(logits.device)] = probabilities.to(logits.device, torch.float32)
        return distribution

    def _candidates(self, logits: Tensor, drafted: Sequence[int]) -> tuple[Tensor, Tensor]:
        marks = self.seen.to(logits.device), self.reply.to(logits.device)
        ids, probabilities = candidates(logits, self.rules, *marks, drafted)
        if not len(ids):
            raise SamplingError("The model produced numbers that are not finite, so no token can be chosen.")
        return ids, probabilities


def _require(satisfied: bool, requirement: str, value: float | None) -> None:
    if not satisfied or (value is not None and not math.isfinite(value)):
        raise SamplingError(f"{requirement}, not {value}.")
