"""Work on tensors that is recorded once and then run again on others, without Python between its calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.machine import Machine, Runnable

_KEPT = 3  # results of the same work whose memory is looked after; others are freed when they are let go of
_UNUSED = 3  # references to memory of which no tensor is left: the list's, the loop's, and the count's own

# From input tensors to output tensors, all by ops of the table.
Work = Callable[[Sequence[Tensor]], list[Tensor]]


class Replay:
    """Recorded work by its key; the key stands for all that the work depends on besides its tensors' places."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._recorded: dict[Hashable, tuple[Runnable, list[torch.Size]]] = {}
        self._memory: dict[Hashable, list[NDArray[np.float32]]] = {}

    def __call__(
        self, key: Hashable, work: Work, inputs: Sequence[Tensor], tables: Sequence[list[Tensor]], position: int
    ) -> list[Tensor]:
        """What `work(inputs)` gives, in new float32 tensors. `tables` are blocks of caches, which the work may write.

        `position`: what numbers of the work that move with the sequence are counted from.
        """
        if key not in self._recorded:
            self._recorded[key] = self._record(work, inputs, tables, position)
        runnable, shapes = self._recorded[key]
        outputs = self._outputs(key, shapes)
        runnable.run([*inputs, *outputs], tables, position)
        return outputs

    def _outputs(self, key: Hashable, shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Room for the results, that of earlier ones which nobody holds if there is any: fresh memory is slow."""
        sizes = [-(-shape.numel() // 16) * 16 for shape in shapes]
        kept = self._memory.setdefault(key, [])
        free = next((memory for memory in kept if sys.getrefcount(memory) == _UNUSED), None)
        if free is None:
            free = np.empty(sum(sizes), np.float32)
            kept.append(free)
            del kept[:-_KEPT]
        parts = torch.from_numpy(free).split(sizes)
        return [part[: shape.numel()].view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _record(
        self, work: Work, inputs: Sequence[Tensor], tables: Sequence[list[Tensor]], position: int
    ) -> tuple[Runnable, list[torch.Size]]:
        places = [torch.empty_like(tensor) for tensor in inputs]  # apart, where inputs may be one and the same
        with self._machine.record(places, list(tables), position) as program:
            outputs = work(places)
        program.inputs = [*places, *outputs]
        return self._machine.prepare(program), [output.shape for output in outputs]
