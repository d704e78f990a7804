"""Rotary position tables: plain, three-sectioned (M-RoPE) and stretched by YaRN."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runtime.models.config import RopeConfig, YarnConfig

_LEAST_TABLE = 1024  # positions


class RotaryEmbedding:
    """cos and sin of each position's angles, as the `rope` op takes them."""

    def __init__(self, config: RopeConfig) -> None:
        # float64 until the end: at position 1,000,000 a relative error of 6e-8 in the frequency is 0.06 rad
        exponents = torch.arange(0, config.dim, 2, dtype=torch.float64) / config.dim
        self._frequencies = config.base**-exponents  # [R/2]
        self._scale = 1.0
        if config.yarn:
            self._frequencies = yarn_frequencies(self._frequencies, config.base, config.yarn)
            self._scale = config.yarn.attention_factor or 1 + 0.1 * math.log(max(config.yarn.factor, 1))
        self._section = _interleaved_sections(config)
        self._length, self._row_bytes = 0, 4 * len(self._frequencies)
        self._table: tuple[Tensor, ...] = ()
        self.addresses = 0, 0  # of cos and sin [positions, R/2]

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T], or [3, T] for temporal, height and width → cos and sin [T, R/2], fp32."""
        if positions.dim() == 1:
            angles = positions[:, None] * self._frequencies
        else:
            angles = positions[self._section].T * self._frequencies
        return (angles.cos() * self._scale).float(), (angles.sin() * self._scale).float()

    def reach(self, length: int) -> int:
        """Keep the rows of the positions from 0 to `length` − 1, at least, at `addresses`; returns bytes of a row."""
        if self._length < length:
            self._length = max(2 * length, _LEAST_TABLE)
            self._table = self(torch.arange(self._length))
            self.addresses = self._table[0].data_ptr(), self._table[1].data_ptr()
        return self._row_bytes


def _interleaved_sections(config: RopeConfig) -> Tensor:
    """Which of the three positions each frequency follows, [R/2].

    The family interleaves them T H W T H W …; where the sections of H and W end, T goes on.
    """
    section = torch.zeros(config.dim // 2, dtype=torch.long)
    for axis in (1, 2):
        section[axis : 3 * config.sections[axis] : 3] = axis
    return section


def yarn_frequencies(frequencies: Tensor, base: float, yarn: YarnConfig) -> Tensor:
    """Frequencies that turn less than `beta_slow` times in the original context are divided by the factor,
    those that turn more than `beta_fast` times stay, in between it is a ramp: [R/2] → [R/2].

    Source: Peng et al., "YaRN" (2023), section 3.2, with the ramp's ends rounded outwards as in its code.
    """
    dim = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        return dim * math.log(yarn.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(yarn.beta_fast)), 0)
    high = min(math.ceil(dimension(yarn.beta_slow)), dim - 1)
    ramp = (torch.arange(len(frequencies), dtype=frequencies.dtype) - low) / max(high - low, 0.001)
    slow = ramp.clamp(0, 1)
    return frequencies / yarn.factor * slow + frequencies * (1 - slow)
