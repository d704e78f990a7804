"""Keys and values of one sequence: blocks of tokens, shared with its forks as far as they agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast

import torch
from torch import Tensor

from kernels.blocks import Blocks
from kernels.cpu.memory import lasting

BLOCK = 256  # tokens

KVType = Literal["f16", "f32", "q8"]
_TYPES = {"f16": torch.float16, "f32": torch.float32, "q8": torch.int8}


def kv_type(asked: str, column: str) -> KVType:
    """Of a column of the op table; for `auto` 16 bits, and 32 in the references, which are to be exact."""
    if asked == "auto":
        return "f32" if column == "reference" else "f16"
    return cast(KVType, asked)


@dataclass(frozen=True)
class Home:
    """Where some layers' part of a sequence lies: on a `card`, or what stands for it, whose kernels find blocks by
    tables; or in memory. `name` begins the names of the tensors there.
    """

    name: str = ""
    card: torch.device | None = None


@dataclass
class KVBlock:
    """Keys and values of `BLOCK` tokens in all attention layers, by name, [layers, Hkv, BLOCK, …] each.

    Layers that lie elsewhere than others are in tensors of their own, which their home's name begins.

    `f16`, `f32`: keys and values [layers, Hkv, BLOCK, D] of that type. `q8`: the same in int8, and key_scales and
    value_scales [layers, Hkv, BLOCK], fp32: row = int8 · scale.

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
        homes: Sequence[Home] = (),
    ) -> None:
        """`homes`: of the layers, where not all of them are in memory; the layers of one are in one tensor."""
        self.shape = layers, kv_heads, BLOCK, head_dim  # of a block
        self.kind = kind
        self.blocks = list(blocks)
        self.homes = tuple(homes) or (Home(),) * layers
        self._counts: dict[Home, int] = {}  # of layers
        self._places: list[tuple[int, Home]] = []
        for home in self.homes:
            before = self._counts.get(home, 0)
            self._places.append((before, home))
            self._counts[home] = before + 1
        self._card_tables: dict[str, tuple[list[int], Tensor]] = {}

    def new_block(self) -> KVBlock:
        tensors: dict[str, Tensor] = {}
        for home, count in self._counts.items():
            tensors |= self._tensors((count, *self.shape[1:]), home)
        return KVBlock(tensors)

    def _tensors(self, shape: tuple[int, ...], home: Home) -> dict[str, Tensor]:
        kind = _TYPES[self.kind]
        new = {f"{home.name}{name}": _lasting(shape, kind, home.card) for name in ("keys", "values")}
        if self.kind == "q8":
            names = ("key_scales", "value_scales")
            new |= {f"{home.name}{name}": _lasting(shape[:-1], torch.float32, home.card) for name in names}
        return new

    def card_table(self, name: str) -> Tensor:
        """int64 [blocks], on the card where they are: where each block's tensor of that name begins."""
        parts = [block.tensors[name] for block in self.blocks]
        begins = [part.data_ptr() if not part.is_meta else 0 for part in parts]
        if self._card_tables.get(name, ([],))[0] != begins:
            self._card_tables[name] = begins, torch.tensor(begins, device=parts[0].device)
        return self._card_tables[name][1]

    def layer(self, index: int) -> LayerCache:
        return LayerCache(self, *self._places[index])

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
        return KVCache(layers, kv_heads, head_dim, self.kind, blocks, self.homes)


@dataclass(frozen=True)
class LayerCache:
    """One layer's part of a sequence's cache."""

    cache: KVCache
    index: int  # among those of its home
    home: Home

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
        name = self.home.name + name
        parts = [block.tensors[name][self.index] for block in self.cache.blocks]
        if self.home.card is None:
            return parts
        return Blocks(parts, self.cache.card_table(name), self.index * parts[0].numel())
