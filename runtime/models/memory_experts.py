"""Routed experts that stay in memory, beside a layer on the card: those that are chosen often are on the card too."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.moe import experts
from kernels.op import OpTable
from kernels.quants import QuantTensor
from kernels.triton.layouts import Packed, pack_into, stack_for
from runtime.placement import HotExperts

_NOTED = 8  # rows of a prompt, its last ones, that tell which experts are chosen often


class MemoryExperts:
    """The card computes the chosen experts that it holds, the processor the others, at the same time."""

    def __init__(
        self, stacks: tuple[QuantTensor, QuantTensor, QuantTensor], ops: OpTable, memory: OpTable, room: int
    ) -> None:
        """`stacks`: gate and up [E, F, H], down [E, H, F]; `room`: bytes of the card for some of them."""
        assert ops.card is not None
        self._ops, self._memory, self._stacks, self._card = ops, memory, stacks, ops.card
        count = stacks[0].shape[0]
        each = sum(stack_for(stack, 16, torch.device("meta")).data.numel() for stack in stacks) // 16
        self.hot = HotExperts(count, min(room // each, count))
        self._slots = [self._reserve(stack, min(room // each, count)) for stack in stacks] if room >= each else []
        self.hits = self.misses = 0  # pairs of token and expert

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Σ wᵢ·expertᵢ(x): x [T, H], weights and ids [T, used] on the card → [T, H] there."""
        chosen = ids.tolist()  # waits for the card
        pairs = [(token, expert) for token, row in enumerate(chosen) for expert in row]
        places: tuple[list[int], list[int]] = [], []  # of pairs that are missed, and held
        for place, (_, expert) in enumerate(pairs):
            places[expert in self.hot.held].append(place)
        missed, held = places
        self.hits, self.misses = self.hits + len(held), self.misses + len(missed)
        out = torch.zeros_like(x)
        if held:
            slots = [self.hot.held[pairs[place][1]] for place in held]
            out += self._part(self._ops, [stack for stack, _ in self._slots], x, weights, held, slots)
        if missed:
            some = [pairs[place][1] for place in missed]
            near = x.to(self._memory.device), weights.to(self._memory.device)
            out += self._part(self._memory, self._stacks, *near, missed, some).to(out.device)
        for row in chosen[-_NOTED:]:
            for expert, slot in self.hot.choose(row)[1]:
                for stack, (_, packed) in zip(self._stacks, self._slots, strict=True):
                    pack_into(packed, slot, stack.select(expert))
        return out

    def _part(
        self, table: OpTable, stacks: list[QuantTensor] | tuple[QuantTensor, ...], x: Tensor, weights: Tensor,
        places: list[int], ids: list[int],
    ) -> Tensor:  # fmt: skip
        """What some pairs of token and expert give, of [T·used]; `ids` number the experts in `stacks`."""
        used = weights.shape[1]
        at, chosen = (torch.tensor(numbers, device=table.device) for numbers in (places, ids))
        factor = weights.flatten()[at]
        if len(x) == 1:
            return table[experts](x, factor[None], chosen[None], *stacks)
        rows = table[experts](x[at // used], factor[:, None], chosen[:, None], *stacks)
        return torch.zeros_like(x).index_add_(0, at // used, rows)

    def _reserve(self, stack: QuantTensor, count: int) -> tuple[QuantTensor, Packed]:
        """Room for some of a stack's experts, and what stands for them in ops."""
        shape = count, *stack.shape[1:]
        name = QuantTensor(
            torch.empty(count, *stack.data.shape[1:], dtype=torch.uint8, device="meta"), stack.type, shape
        )
        packed = stack_for(stack, count, self._card.device)
        self._card.hold(name, packed)
        return name, packed
