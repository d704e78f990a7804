"""The blocks of a cache, as they are given to ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import torch
from torch import Tensor


class Position(int):
    """A number of tokens that also lies on a device, int64 [1], where kernels read it."""

    tensor: Tensor

    def __new__(cls, value: int, tensor: Tensor) -> Position:
        self = super().__new__(cls, value)
        self.tensor = tensor
        return self


class Blocks(Sequence[Tensor]):
    """One layer's part of a list of blocks, [heads, positions, …] each, with what a GPU needs to find it.

    `table` int64 [blocks or more]: an address in each block, from which the layer's part lies `offset` numbers on.
    """

    def __init__(self, parts: Sequence[Tensor], table: Tensor, offset: int) -> None:
        self._parts, self.table, self.offset = parts, table, offset

    @classmethod
    def of(cls, parts: Sequence[Tensor], device: torch.device) -> Blocks:
        """`parts` themselves, or with a table made for this once."""
        if isinstance(parts, Blocks):
            return parts
        addresses = [0 if part.is_meta else part.data_ptr() for part in parts]
        return cls(parts, torch.tensor(addresses, device=device), 0)

    @property
    def size(self) -> int:
        """Positions of a block."""
        return self._parts[0].shape[1]

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        return self._parts[index]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._parts)
