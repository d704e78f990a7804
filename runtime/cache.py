"""What a model remembers of one sequence: KV of the attention layers, state of the DeltaNet layers.

A forward stages its rows; `commit` is the only way forward and the only rollback. KV can be cut at any token,
a recurrent state cannot: going back further than the staged rows needs a `Checkpoint`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from kernels.blocks import Blocks
from kernels.cpu.memory import lasting
from runtime.models.config import ModelConfig
from runtime.prefix import common_prefix

BLOCK = 256  # tokens

KVType = Literal["f32", "q8"]

_IN_MEMORY = "memory_"


@dataclass
class KVBlock:
    """Keys and values of `BLOCK` tokens in all attention layers, by name, [layers, Hkv, BLOCK, …] each.

    `f32`: keys and values [layers, Hkv, BLOCK, D]. `q8`: the same in int8, and key_scales and value_scales
    [layers, Hkv, BLOCK], fp32: row = int8 · scale.

    Several sequences may hold one block. The first `used` rows are part of one of them and are never
    written again. `digest` names the content of a full block, once a snapshot has asked for it.
    """

    tensors: dict[str, Tensor]
    used: int = 0
    digest: str | None = None

    @cached_property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Of its tensors, in their order."""
        return tuple(tensor.data_ptr() for tensor in self.tensors.values())

    def rows(self, count: int) -> dict[str, Tensor]:
        """Its first rows, views."""
        return {name: tensor[:, :, :count] for name, tensor in self.tensors.items()}

    def copy(self, rows: int) -> KVBlock:
        """A block of its own with the first rows of this one."""
        new = KVBlock({name: _lasting(t.shape, t.dtype, t.device) for name, t in self.tensors.items()}, rows)
        for name, tensor in self.rows(rows).items():
            new.tensors[name][:, :, :rows] = tensor
        return new


def _lasting(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None) -> Tensor:
    if device is None or device.type == "cpu":
        return lasting(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def alone(part: Tensor) -> Tensor:
    """A copy in memory of its own."""
    return _lasting(part.shape, part.dtype, part.device).copy_(part)


class KVCache:
    """One sequence's keys and values: a list of blocks, shared with its forks as far as they agree."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        kind: KVType = "f32",
        blocks: Sequence[KVBlock] = (),
        card: torch.device | None = None,
        memory: frozenset[int] = frozenset(),
    ) -> None:
        """`card`: the GPU, or what stands for it, whose kernels find the blocks by tables; `memory`: of its layers,
        those whose rows are not there. Their tensors have names of their own.
        """
        self.memory = memory
        self.shape = layers, kv_heads, BLOCK, head_dim  # of a block
        self.kind = kind
        self.blocks = list(blocks)
        self.card = card
        self._card_tables: dict[str, tuple[list[int], Tensor]] = {}

    def new_block(self) -> KVBlock:
        layers, *rest = self.shape
        tensors = self._tensors((layers - len(self.memory), *rest), "", self.card)
        if self.memory:
            tensors |= self._tensors((len(self.memory), *rest), _IN_MEMORY, None)
        return KVBlock(tensors)

    def _tensors(self, shape: tuple[int, ...], prefix: str, device: torch.device | None) -> dict[str, Tensor]:
        kind = torch.float32 if self.kind == "f32" else torch.int8
        new = {f"{prefix}{name}": _lasting(shape, kind, device) for name in ("keys", "values")}
        if self.kind == "q8":
            names = ("key_scales", "value_scales")
            new |= {f"{prefix}{name}": _lasting(shape[:-1], torch.float32, device) for name in names}
        return new

    def card_table(self, name: str) -> Tensor:
        """int64 [blocks] on the card: where each block's tensor of that name begins."""
        begins = [block.tensors[name].data_ptr() if not block.tensors[name].is_meta else 0 for block in self.blocks]
        if self._card_tables.get(name, ([],))[0] != begins:
            self._card_tables[name] = begins, torch.tensor(begins, device=self.card)
        return self._card_tables[name][1]

    def layer(self, index: int) -> LayerCache:
        before = sum(other < index for other in self.memory)
        if index in self.memory:
            return LayerCache(self, before, _IN_MEMORY)
        return LayerCache(self, index - before)

    def reserve(self, start: int, rows: int) -> None:
        """Make the positions from `start` free to be written; what another sequence relies on is copied first."""
        end = start + rows
        while len(self.blocks) * BLOCK < end:
            self.blocks.append(self.new_block())
        for index in range(start // BLOCK, -(-end // BLOCK)):
            row = max(start - index * BLOCK, 0)
            if row < self.blocks[index].used:
                self.blocks[index] = self.blocks[index].copy(row)

    @property
    def tables(self) -> list[list[Tensor]]:
        """For each tensor of a block, all blocks'. There is a block."""
        return [[block.tensors[name] for block in self.blocks] for name in self.blocks[0].tensors]

    @property
    def addresses(self) -> list[list[int]]:
        """Those of `tables`."""
        of_blocks = [block.addresses for block in self.blocks]
        return [[addresses[i] for addresses in of_blocks] for i in range(len(of_blocks[0]))]

    def hold(self, length: int) -> None:
        """The first `length` rows are now part of the sequence, and what lies beyond is not."""
        del self.blocks[-(-length // BLOCK) :]
        for index in reversed(range(len(self.blocks))):
            block, used = self.blocks[index], min(length - index * BLOCK, BLOCK)
            if block.used >= used:
                break  # and so all before it
            block.used = used

    def fork(self, length: int) -> KVCache:
        """Another sequence's cache that begins with the first `length` rows of this one."""
        layers, kv_heads, _, head_dim = self.shape
        blocks = self.blocks[: -(-length // BLOCK)]
        return KVCache(layers, kv_heads, head_dim, self.kind, blocks, self.card, self.memory)


@dataclass(frozen=True)
class LayerCache:
    """One layer's part of a sequence's cache."""

    cache: KVCache
    index: int  # among those whose tensors have names with this prefix
    prefix: str = ""

    @property
    def kind(self) -> KVType:
        return self.cache.kind

    @property
    def keys(self) -> Sequence[Tensor]:
        return self._all("keys")

    @property
    def values(self) -> Sequence[Tensor]:
        return self._all("values")

    @property
    def key_scales(self) -> Sequence[Tensor]:
        return self._all("key_scales")

    @property
    def value_scales(self) -> Sequence[Tensor]:
        return self._all("value_scales")

    def _all(self, name: str) -> Sequence[Tensor]:
        """Per block [Hkv, BLOCK, …]."""
        name = self.prefix + name
        parts = [block.tensors[name][self.index] for block in self.cache.blocks]
        if self.cache.card is None or self.prefix:
            return parts
        return Blocks(parts, self.cache.card_table(name), self.index * parts[0].numel())


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
        card: torch.device | None = None,
        memory: frozenset[int] = frozenset(),
    ) -> SequenceState:
        """`memory`: of the layers, the MTP block's last, those that are not on the card."""
        delta = config.delta
        first = {
            device: RecurrentState(
                torch.zeros(delta.conv_kernel - 1, delta.conv_channels, device=device),
                torch.zeros(delta.value_heads, delta.head_dim, delta.head_dim, device=device),
            )
            for device in {card, None}
        }
        attention = [index for index, recurrent in enumerate(config.recurrent) if not recurrent]
        far = frozenset(place for place, index in enumerate(attention) if index in memory)
        mtp_card = None if config.layers in memory else card
        state = cls(
            kv=KVCache(len(attention), config.kv_heads, config.head_dim, kv, card=card, memory=far),
            mtp_kv=KVCache(1, config.kv_heads, config.head_dim, kv, card=mtp_card) if mtp else None,
            recurrent=[
                first[None if index in memory else card]
                for index, recurrent in enumerate(config.recurrent)
                if recurrent
            ],
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
