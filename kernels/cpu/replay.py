"""Work on tensors that is recorded once and then run again on others, without Python between its calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.machine import Machine, Runnable

_KEPT = 3  # results whose memory is looked after; that of others is freed when they are let go of

# From input tensors to output tensors, all by ops of the table.
Work = Callable[[Sequence[Tensor]], list[Tensor]]


def _references(things: Sequence[object], index: int) -> int:
    """To an entry of the list; a tensor over it is one more."""
    return sys.getrefcount(things[index])


_UNUSED = _references([object()], 0)


def unheld(things: Sequence[object]) -> int | None:
    """The first entry of a list that nobody else holds."""
    return next((i for i in range(len(things)) if _references(things, i) == _UNUSED), None)


class Replay:
    """Recorded work by its key; the key stands for all that the work depends on besides its tensors' places."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._recorded: dict[Hashable, tuple[Runnable, list[torch.Size]]] = {}
        self._memory: list[NDArray[np.float32]] = []

    def __call__(
        self, key: Hashable, work: Work, inputs: Sequence[Tensor], tables: Sequence[list[Tensor]], position: int
    ) -> list[Tensor]:
        """What `work(inputs)` gives, in new float32 tensors. `tables` are blocks of caches, which the work may write.

        `position`: what numbers of the work that move with the sequence are counted from.
        """
        if key not in self._recorded:
            self._recorded[key] = self._record(work, inputs, tables, position)
        runnable, shapes = self._recorded[key]
        outputs = self._outputs(shapes)
        runnable.run([*inputs, *outputs], tables, position)
        return outputs

    def _outputs(self, shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Room for the results, that of earlier ones which nobody holds if there is any: fresh memory is slow."""
        sizes = [-(-shape.numel() // 16) * 16 for shape in shapes]
        needed = sum(sizes)
        kept = self._memory
        fits = (i for i in range(len(kept)) if kept[i].size >= needed and _references(kept, i) == _UNUSED)
        index = next(fits, None)
        if index is None:
            self._memory = [*self._memory[1 - _KEPT :], np.empty(needed, np.float32)]
            index = -1
        parts = torch.from_numpy(self._memory[index])[:needed].split(sizes)
        return [part[: shape.numel()].view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _record(
        self, work: Work, inputs: Sequence[Tensor], tables: Sequence[list[Tensor]], position: int
    ) -> tuple[Runnable, list[torch.Size]]:
        places = [torch.empty_like(tensor) for tensor in inputs]  # apart, where inputs may be one and the same
        with self._machine.record(places, list(tables), position) as program:
            outputs = work(places)
        program.inputs = [*places, *outputs]
        return self._machine.prepare(program), [output.shape for output in outputs]
