"""A model spread over cards and memory: which op table each of its parts runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kernels.op import OpTable
from kernels.quants import QuantTensor
from runtime.kv_cache import Home
from runtime.placement import Placement, Where, layer_of


@dataclass(frozen=True)
class Spread:
    """`table` runs embeddings, head and, without a `placement`, all the rest; with one, `tables` run what lies where.

    `table` is one of `tables`, the one where the head lies.
    """

    table: OpTable
    tables: Mapping[Where, OpTable] = field(default_factory=dict)
    placement: Placement | None = None

    @classmethod
    def over(cls, placement: Placement, tables: Mapping[Where, OpTable]) -> Spread:
        """`tables`: of the cards, by their numbers, and of memory, more perhaps than are needed."""
        used = {placement.head, *placement.layers, *placement.experts}
        return cls(tables[placement.head], {where: tables[where] for where in tables if where in used}, placement)

    @property
    def memory(self) -> OpTable | None:
        """Of what is not on a card while others are."""
        return self.tables.get("memory")

    def layer(self, index: int) -> OpTable:
        """Of a layer; the MTP block's comes after the trunk's."""
        return self.tables[self.placement.layers[index]] if self.placement else self.table

    def experts(self, index: int) -> OpTable:
        return self.tables[self.placement.experts[index]] if self.placement else self.table

    def room(self, index: int) -> int:
        """Bytes of a layer's card for those of its experts that are chosen often, where they lie in memory."""
        if self.placement is None:
            return 0
        pairs = list(zip(self.placement.layers, self.placement.experts, strict=True))
        card, experts = pairs[index]
        if card == "memory" or experts != "memory":
            return 0
        return self.placement.cached.get(card, 0) // pairs.count((card, "memory"))

    def home(self, index: int) -> Home:
        """Where a layer's part of a sequence lies."""
        where = self.placement.layers[index] if self.placement else 0
        table = self.layer(index)
        name = "memory_" if where == "memory" else f"card{where}_" if where else ""
        return Home(name, table.device if table.card else None)

    @property
    def pattern(self) -> str:
        """How states lie: another one's cannot be read. Nothing where all layers are in one place."""
        layers = self.placement.layers if self.placement else ()
        return "".join(f" {where}" for where in layers) if len(set(layers)) > 1 else ""

    def of(self, name: str) -> OpTable:
        """Of a tensor, by its name in the file."""
        index = layer_of(name)
        if index is None:
            return self.table
        return self.experts(index) if "_exps." in name else self.layer(index)

    def take_in(self, name: str, weight: QuantTensor) -> bool:
        """Pack a weight for where it is used; whether it is not read any more where it lies."""
        table = self.of(name)
        if table.machine:
            return table.machine.take_in(weight)
        return table.card.take_in(weight) if table.card else False

    def device(self, name: str) -> torch.device:
        return self.of(name).device
