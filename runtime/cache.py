"""What a model remembers of one sequence: KV of the attention layers, state of the DeltaNet layers.

A forward stages its rows; `commit` is the only way forward and the only rollback. KV can be cut at any token,
a recurrent state cannot: going back further than the staged rows needs a `Checkpoint`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.models.config import ModelConfig

_FIRST_CAPACITY = 256  # tokens


class KVCache:
    """Keys and values of one attention layer, [Hkv, capacity, D] each; grows by doubling."""

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self.keys = torch.empty(kv_heads, 0, head_dim)
        self.values = torch.empty(kv_heads, 0, head_dim)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Put rows [T, Hkv, D] at the positions from `start`, over whatever was there."""
        end = start + keys.shape[0]
        if end > self.keys.shape[1]:
            self.keys, self.values = (self._grown(old, start, end) for old in (self.keys, self.values))
        self.keys[:, start:end] = keys.transpose(0, 1)
        self.values[:, start:end] = values.transpose(0, 1)

    @staticmethod
    def _grown(old: Tensor, used: int, needed: int) -> Tensor:
        heads, capacity, dim = old.shape
        new = old.new_empty(heads, max(needed, 2 * capacity, _FIRST_CAPACITY), dim)
        new[:, :used] = old[:, :used]
        return new


@dataclass(frozen=True)
class RecurrentState:
    """One DeltaNet layer's memory. Never written in place, so whoever holds one may keep it."""

    window: Tensor  # [W − 1, C], the convolution's last inputs, oldest first
    state: Tensor  # [Hv, Dv, Dk] fp32

    @property
    def nbytes(self) -> int:
        return self.window.nbytes + self.state.nbytes


@dataclass(frozen=True)
class StagedState:
    """What a forward over T rows leaves of one DeltaNet layer.

    `states` holds the state after each row, [T, Hv, Dv, Dk], or after the last only, [1, Hv, Dv, Dk].
    """

    inputs: Tensor  # [W − 1 + T, C]: the window before, then the rows
    states: Tensor
    rows: int

    def after(self, rows: int) -> RecurrentState:
        window = self.inputs.shape[0] - self.rows
        # clones, so that one kept row does not hold all the others in memory
        return RecurrentState(self.inputs[rows : rows + window].clone(), self.states[rows - 1 - self.rows].clone())


@dataclass(frozen=True)
class Staged:
    """The rows of one forward, not yet part of the sequence. `each`: any number of them can be kept."""

    ids: tuple[int, ...]
    hidden: Tensor  # [T, H] after output_norm
    recurrent: list[StagedState]
    each: bool


@dataclass(frozen=True)
class Checkpoint:
    """A place to come back to. The KV rows before `length` are shared with the sequence."""

    length: int
    recurrent: tuple[RecurrentState, ...]
    last_hidden: Tensor | None


@dataclass
class SequenceState:
    """The state of one sequence of `length` tokens, `ids`."""

    kv: list[KVCache]  # per attention layer
    mtp_kv: KVCache | None  # of the MTP block: one row less than the trunk's, since row t needs token t + 1
    recurrent: list[RecurrentState]  # per DeltaNet layer
    ids: list[int] = field(default_factory=list)
    last_hidden: Tensor | None = None  # [H], after output_norm, of the last token
    checkpoints: list[Checkpoint] = field(default_factory=list)  # in order of length

    _staged: Staged | None = None

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        caches = [*self.kv, *([self.mtp_kv] if self.mtp_kv else [])]
        held = {id(layer): layer.nbytes for layer in self.recurrent}
        for place in self.checkpoints:
            held |= {id(layer): layer.nbytes for layer in place.recurrent}
        return sum(cache.nbytes for cache in caches) + sum(held.values())

    @classmethod
    def empty(cls, config: ModelConfig, *, mtp: bool) -> SequenceState:
        delta = config.delta
        first = RecurrentState(
            torch.zeros(delta.conv_kernel - 1, delta.conv_channels),
            torch.zeros(delta.value_heads, delta.head_dim, delta.head_dim),
        )
        state = cls(
            kv=[KVCache(config.kv_heads, config.head_dim) for _ in range(config.attention_layers)],
            mtp_kv=KVCache(config.kv_heads, config.head_dim) if mtp else None,
            recurrent=[first] * config.recurrent.count(True),
        )
        state.checkpoint()  # the beginning can always be reached
        return state

    def stage(self, staged: Staged) -> None:
        self._staged = staged

    def commit(self, accepted: int | None = None) -> None:
        """Keep the first `accepted` of the staged rows (None: all) and forget the others."""
        staged = self._staged
        if staged is None:
            raise RuntimeError("nothing is staged")
        rows = len(staged.ids)
        accepted = rows if accepted is None else accepted
        if not 0 <= accepted <= rows or (accepted < rows and not staged.each):
            raise ValueError(f"cannot keep {accepted} of {rows} rows")
        self._staged = None
        if accepted:
            self.recurrent = [layer.after(accepted) for layer in staged.recurrent]
            self.last_hidden = staged.hidden[accepted - 1].clone()
            self.ids.extend(staged.ids[:accepted])

    def checkpoint(self) -> None:
        """Make the present place one to come back to."""
        if not self.checkpoints or self.checkpoints[-1].length < self.length:
            self.checkpoints.append(Checkpoint(self.length, tuple(self.recurrent), self.last_hidden))

    def rewind(self, length: int) -> int:
        """Go back to the last place at or before `length` tokens that can be reached; returns where that is.

        Checkpoints beyond it are dropped: their KV rows are about to be overwritten.
        """
        self._staged = None
        if length >= self.length:
            return self.length
        while self.checkpoints[-1].length > length:
            self.checkpoints.pop()
        place = self.checkpoints[-1]
        del self.ids[place.length :]
        self.recurrent = list(place.recurrent)
        self.last_hidden = place.last_hidden
        return place.length
