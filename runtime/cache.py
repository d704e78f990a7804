"""What a model remembers of one sequence: KV of the attention layers, state of the DeltaNet layers.

A forward stages its rows; `commit` is the only way forward and the only rollback. KV can be cut at any token,
a recurrent state cannot: going back further than the staged rows needs a `Checkpoint`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from runtime.kv_cache import Home, KVBlock, KVCache, KVType, alone
from runtime.models.config import ModelConfig
from runtime.prefix import common_prefix

_MEMORY = torch.device("cpu")


@dataclass(frozen=True)
class RecurrentState:
    """One DeltaNet layer's memory. Never written in place, so whoever holds one may keep it."""

    window: Tensor  # [W − 1, C], the convolution's last inputs, oldest first
    state: Tensor  # [Hv, Dv, Dk] fp32

    @cached_property
    def nbytes(self) -> int:
        return self.window.nbytes + self.state.nbytes

    def alone(self) -> RecurrentState:
        """Itself in memory of its own, so that keeping it keeps no other rows and layers."""
        parts = self.window, self.state
        if all(part.nbytes == part.untyped_storage().nbytes() for part in parts):
            return self
        return RecurrentState(*(alone(part) for part in parts))


@dataclass(frozen=True)
class StagedState:
    """What a forward over T rows leaves of one DeltaNet layer.

    `states` holds the state after each row, [T, Hv, Dv, Dk], or after the last only, [1, Hv, Dv, Dk].
    """

    inputs: Tensor  # [W − 1 + T, C]: the window before, then the rows; or of all that, the last W − 1
    states: Tensor
    rows: int
    width: int  # W − 1

    def after(self, rows: int) -> RecurrentState:
        end = self.inputs.shape[0] - (self.rows - rows)
        window = self.inputs[end - self.width : end]
        if self.rows > self.width < self.inputs.shape[0]:  # of many rows: their inputs are let go
            window = alone(window)
        return RecurrentState(window, self.states[rows - 1 - self.rows])


class Row(Protocol):
    """A hidden state that lies among others."""

    def alone(self) -> Tensor:
        """[H], in memory of its own."""


class Staged(Protocol):
    """The rows of one forward, not yet part of the sequence."""

    @property
    def ids(self) -> tuple[int, ...]: ...

    @property
    def each(self) -> bool:
        """Whether any number of them can be kept."""

    def after(self, rows: int) -> Sequence[RecurrentState]:
        """Each DeltaNet layer's memory once the first `rows` rows are kept; asked once."""

    def last(self, rows: int) -> Tensor | Row:
        """The hidden state of the last of the first `rows` rows, after output_norm."""


@dataclass(frozen=True)
class StagedRows:
    """What a forward leaves op by op."""

    ids: tuple[int, ...]
    hidden: Tensor  # [T, H] after output_norm
    recurrent: list[StagedState]
    each: bool

    def after(self, rows: int) -> list[RecurrentState]:
        return [layer.after(rows) for layer in self.recurrent]

    def last(self, rows: int) -> Tensor:
        return self.hidden[rows - 1].clone()


@dataclass(frozen=True)
class Checkpoint:
    """A place to come back to. The KV rows before `length` are shared with the sequence."""

    length: int
    recurrent: tuple[RecurrentState, ...]
    last_hidden: Tensor | None

    @property
    def nbytes(self) -> int:
        return sum({id(layer): layer.nbytes for layer in self.recurrent}.values())


@dataclass
class SequenceState:
    """The state of one sequence of `length` tokens, `ids`."""

    kv: KVCache  # of the attention layers
    mtp_kv: KVCache | None  # of the MTP block: one row less, since row t needs token t + 1
    recurrent: Sequence[RecurrentState]  # per DeltaNet layer
    ids: list[int] = field(default_factory=list)
    hidden: Tensor | Row | None = None  # `last_hidden`, or where it is
    checkpoints: list[Checkpoint] = field(default_factory=list)  # in order of length
    device: torch.device = _MEMORY  # of the hidden states

    _staged: Staged | None = None

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def last_hidden(self) -> Tensor | None:
        """[H], after output_norm, of the last token; not to be written."""
        if self.hidden is not None and not isinstance(self.hidden, Tensor):
            self.hidden = self.hidden.alone()
        return self.hidden

    @last_hidden.setter
    def last_hidden(self, hidden: Tensor | None) -> None:
        self.hidden = hidden

    @classmethod
    def empty(
        cls,
        config: ModelConfig,
        *,
        mtp: bool,
        kv: KVType = "f32",
        home: Callable[[int], Home] = lambda layer: Home(),
        device: torch.device = _MEMORY,
    ) -> SequenceState:
        """`home`: of a layer, the MTP block's being the last; `device`: of the hidden states."""
        delta = config.delta
        homes = [home(index) for index in range(config.layers)]
        first = {
            card: RecurrentState(
                torch.zeros(delta.conv_kernel - 1, delta.conv_channels, device=card),
                torch.zeros(delta.value_heads, delta.head_dim, delta.head_dim, device=card),
            )
            for card in {home.card for home in homes}
        }
        near = [home for home, recurrent in zip(homes, config.recurrent, strict=True) if not recurrent]
        shape = config.kv_heads, config.head_dim, kv
        state = cls(
            kv=KVCache(len(near), *shape, homes=near),
            mtp_kv=KVCache(1, *shape, homes=[home(config.layers)]) if mtp else None,
            recurrent=[first[home.card] for home, recurrent in zip(homes, config.recurrent, strict=True) if recurrent],
            device=device,
        )
        state.checkpoint()  # the beginning can always be reached
        return state

    @property
    def staged(self) -> Staged | None:
        """The rows of the last forward, until they are committed."""
        return self._staged

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
            self.recurrent = staged.after(accepted)
            self.hidden = staged.last(accepted)
            self.ids.extend(staged.ids[:accepted])
            self._hold()

    def rest(self) -> None:
        """Hold no more memory than is needed to go on; the rows of the last forward share theirs."""
        self._staged = None
        self.recurrent = [layer.alone() for layer in self.recurrent]
        self.hidden = self.last_hidden

    def checkpoint(self) -> None:
        """Make the present place one to come back to."""
        if not self.checkpoints or self.checkpoints[-1].length < self.length:
            self.recurrent = [layer.alone() for layer in self.recurrent]
            self.checkpoints.append(Checkpoint(self.length, tuple(self.recurrent), self.last_hidden))

    def reach(self, length: int) -> int:
        """The last place at or before `length` tokens that can be gone back to."""
        if length >= self.length:
            return self.length
        return max(place.length for place in self.checkpoints if place.length <= length)

    def rewind(self, length: int) -> int:
        """Go back to `reach(length)`, and return it. Checkpoints and KV rows beyond are dropped."""
        self._staged = None
        target = self.reach(length)
        if target < self.length:
            self.checkpoints = [place for place in self.checkpoints if place.length <= target]
            place = self.checkpoints[-1]
            del self.ids[target:]
            self.recurrent = list(place.recurrent)
            self.last_hidden = place.last_hidden
            self._hold()
        return target

    def adopt(self, other: SequenceState) -> None:
        """Come back, from now on, also to the places of a sequence that begins as this one does."""
        agreed = common_prefix(self.ids, other.ids)
        places = {place.length: place for place in other.checkpoints if place.length <= agreed}
        places |= {place.length: place for place in self.checkpoints}
        self.checkpoints = [places[length] for length in sorted(places)]

    def fork(self, length: int) -> SequenceState:
        """Another sequence that goes on from `reach(length)`; what both hold is shared, this one stays as it is."""
        other = dataclasses.replace(
            self,
            kv=self.kv.fork(self.length),
            mtp_kv=self.mtp_kv.fork(self.length) if self.mtp_kv else None,
            recurrent=list(self.recurrent),
            ids=list(self.ids),
            checkpoints=list(self.checkpoints),
            _staged=None,
        )
        other.rewind(length)
        return other

    def blocks(self) -> Iterator[KVBlock]:
        yield from self.kv.blocks
        if self.mtp_kv:
            yield from self.mtp_kv.blocks

    def parts(self) -> Iterator[KVBlock | RecurrentState]:
        """All that takes memory, of which other sequences may hold some too."""
        yield from self.blocks()
        yield from self.recurrent
        for place in self.checkpoints:
            yield from place.recurrent

    def _hold(self) -> None:
        self.kv.hold(self.length)
        if self.mtp_kv:
            self.mtp_kv.hold(max(self.length - 1, 0))


def memory(states: Iterable[SequenceState]) -> int:
    """Bytes that these sequences hold together, what they share counted once."""
    return sum({id(part): part.nbytes for state in states for part in state.parts()}.values())
