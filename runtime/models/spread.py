"""A model spread over a card and memory: which column of the op table each of its parts runs on."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from kernels.op import OpTable
from kernels.quants import QuantTensor
from runtime.placement import Placement

_LAYER = re.compile(r"blk\.(\d+)\.(?!nextn\.(?:embed_tokens|shared_head))")


@dataclass(frozen=True)
class Spread:
    """`table` runs all that `placement` does not leave in memory, and `memory` that; None: everything is on `table`.

    Embeddings and head are always on `table`.
    """

    table: OpTable
    memory: OpTable | None = None
    placement: Placement | None = None

    def layer(self, index: int) -> OpTable:
        """Of a layer; the MTP block's comes after the trunk's."""
        if self.memory and self.placement and self.placement.layers[index] == "memory":
            return self.memory
        return self.table

    def experts(self, index: int) -> OpTable:
        if self.memory and self.placement and self.placement.experts[index] == "memory":
            return self.memory
        return self.table

    def room(self, index: int) -> int:
        """Bytes of the card for those experts of a layer that are chosen often, where they lie in memory."""
        if self.placement is None:
            return 0
        pairs = zip(self.placement.layers, self.placement.experts, strict=True)
        sharing = [i for i, (layer, experts) in enumerate(pairs) if layer != experts == "memory"]
        return sum(self.placement.cached.values()) // len(sharing) if index in sharing else 0

    @property
    def in_memory(self) -> frozenset[int]:
        """The layers that are."""
        layers = self.placement.layers if self.memory and self.placement else ()
        return frozenset(index for index, where in enumerate(layers) if where == "memory")

    def of(self, name: str) -> OpTable:
        """Of a tensor, by its name in the file."""
        found = _LAYER.match(name)
        if found is None:
            return self.table
        return self.experts(int(found[1])) if "_exps." in name else self.layer(int(found[1]))

    def take_in(self, name: str, weight: QuantTensor) -> bool:
        """Pack a weight for where it is used; whether it is not read any more where it lies."""
        table = self.of(name)
        if table.machine:
            return table.machine.take_in(weight)
        return table.card.take_in(weight) if table.card else False

    def device(self, name: str) -> torch.device:
        return self.of(name).device
