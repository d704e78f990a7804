"""Work on tensors that is recorded once and then run again on others, without Python between its calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from kernels.cpu.machine import Machine, Runnable

# From input tensors to output tensors, all by ops of the table.
Work = Callable[[Sequence[Tensor]], list[Tensor]]


class Replay:
    """Recorded work by its key; the key stands for all that the work depends on besides its tensors' places."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._recorded: dict[Hashable, tuple[Runnable, list[torch.Size]]] = {}

    def __call__(
        self, key: Hashable, work: Work, inputs: Sequence[Tensor], tables: Sequence[list[Tensor]], position: int
    ) -> list[Tensor]:
        """What `work(inputs)` gives, in new float32 tensors. `tables` are blocks of caches, which the work may write.

        `position`: what numbers of the work that move with the sequence are counted from.
        """
        if key not in self._recorded:
            self._recorded[key] = self._record(work, inputs, tables, position)
        runnable, shapes = self._recorded[key]
        outputs = [torch.empty(shape) for shape in shapes]
        runnable.run([*inputs, *outputs], tables, position)
        return outputs

    def _record(
        self, work: Work, inputs: Sequence[Tensor], tables: Sequence[list[Tensor]], position: int
    ) -> tuple[Runnable, list[torch.Size]]:
        places = [torch.empty_like(tensor) for tensor in inputs]  # apart, where inputs may be one and the same
        with self._machine.record(places, list(tables), position) as program:
            outputs = work(places)
        program.inputs = [*places, *outputs]
        return self._machine.prepare(program), [output.shape for output in outputs]
