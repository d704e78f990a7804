"""The course of a training run: how much of what, and how fast."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from runtime.builtin.corpus.mix import Stage
from runtime.builtin.model import ModelConfig

GROUP = 16  # steps packed together


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """`tokens` counts rows × length over all steps; a run goes on only with the configuration that it began with."""

    model: ModelConfig = field(default_factory=ModelConfig)
    tokens: int = 36_000_000
    rows: int = 12
    length: int = 512
    seed: int = 0
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    weight_decay: float = 0.05
    clip: float = 1.0
    warmup: int = 60
    copying: float = 0.10  # share of the steps in which short copying tasks come first
    decay: float = 0.60  # share at which the learning rate begins to fall
    long: float = 0.70  # share from which every sixth step has long rows
    finish: float = 0.94  # share from which the MTP block trains alone
    draft_weight: float = 0.3
    draft_every: int = 4  # the first draft trains along in each of so many steps
    depth: int = 3
    average: int = 300  # steps over which the weights are averaged: at one place they go round a better one

    @property
    def steps(self) -> int:
        return self.tokens // (self.rows * self.length)

    def scaled(self, rate: float) -> TrainConfig:
        """The same with all learning rates times `rate`."""
        return replace(self, muon_rate=self.muon_rate * rate, adam_rate=self.adam_rate * rate)

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> TrainConfig:
        return cls(**{**body, "model": ModelConfig(**body["model"])})


@dataclass(frozen=True, slots=True)
class Plan:
    """What a step does: its data, how many drafts it trains, whether the trunk moves, the share of the full rate."""

    stage: Stage
    group: int
    index: int
    drafts: int
    trunk: bool
    rate: float


def plan(config: TrainConfig, step: int) -> Plan:
    share = step / config.steps
    finish = share >= config.finish
    if finish:
        rate = 0.5 * (1 - share) / (1 - config.finish)
    else:
        rate = min(1.0, (step + 1) / config.warmup)
        if share > config.decay:
            rate *= max(0.03, (config.finish - share) / (config.finish - config.decay))
    stage: Stage = "copying" if share < config.copying else "all"
    drafts = config.depth if finish else int(step % config.draft_every == 0)
    if share >= config.long and step % 6 == 5:
        return Plan("long", step // (6 * GROUP), step // 6 % GROUP, drafts, not finish, rate)
    return Plan(stage, step // GROUP, step % GROUP, drafts, not finish, rate)
