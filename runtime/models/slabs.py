"""What a step of decoding leaves: the states of the DeltaNet layers, and what its rows did to them.

That is not a state per row, but the state before the rows and what the rows did to it (k, v, g, β and the convolution's
inputs): whatever number of rows is kept, the next step does those again first, part by part in the nearest cache. So
verifying reads and writes the states once, as one token does. And the states can be brought further where they are, in
memory that is there once: what changes them is part of the sequence already.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

import torch
from torch import Tensor

from kernels.cpu.memory import streamed
from runtime.cache import RecurrentState
from runtime.models.config import ModelConfig

if TYPE_CHECKING:
    from runtime.models.qwen35 import Qwen35

ROWS = 5  # of a step at most: a token, and the drafts after it


class Left(NamedTuple):
    """What the rows of a step leave of one DeltaNet layer: `state` is that before them, or after them all."""

    inputs: Tensor  # [W − 1 + T, C]
    mixed: Tensor  # [T, C], the convolution's results: q, k and v
    g: Tensor  # [T, Hv]
    beta: Tensor  # [T, Hv]
    state: Tensor  # [Hv, Dv, Dk]


class Past(NamedTuple):
    """What an earlier step left, and int64 [1] each: how many of its rows were kept, and how many of those still have
    to be brought into the state.
    """

    left: Left
    kept: Tensor
    missing: Tensor


class Layout:
    """Where everything that a step leaves lies: in one piece of memory what the rows leave, whatever their number, and
    in another the states.
    """

    def __init__(self, config: ModelConfig) -> None:
        c = config.delta
        layer = (
            (c.conv_kernel - 1 + ROWS, c.conv_channels),
            (ROWS, c.conv_channels),
            (ROWS, c.value_heads),
            (ROWS, c.value_heads),
        )
        layers = config.recurrent.count(True)
        self.shapes = [(ROWS, config.hidden), *(layer * layers)]
        self._sizes = [-(-math.prod(shape) // 16) * 16 for shape in self.shapes]
        self.starts = [0, *itertools.accumulate(self._sizes)][:-1]
        self.size = sum(self._sizes)
        self._state = c.value_heads, c.head_dim, c.head_dim
        self.state_size = math.prod(self._state)
        self.states_size = layers * self.state_size
        self.row_bytes = 4 * config.hidden  # of a hidden state

    def views(self, memory: Tensor, states: Tensor) -> tuple[Tensor, list[Left]]:
        """Hidden states [ROWS, H], and per DeltaNet layer what is left."""
        parts = zip(memory.split(self._sizes), self.shapes, strict=True)
        hidden, *rest = [part[: math.prod(shape)].view(shape) for part, shape in parts]
        of_layers = states.view(-1, *self._state)
        layers = zip(rest[::4], rest[1::4], rest[2::4], rest[3::4], of_layers, strict=True)
        return hidden, [Left(*parts) for parts in layers]


class States:
    """Those of all layers; who is at which turn of them knows whether they have gone on without it."""

    def __init__(self, layout: Layout, device: torch.device | None = None) -> None:
        size = layout.states_size
        self.memory = torch.zeros(size, device=device) if device else streamed(size)
        self.address = self.memory.data_ptr()
        self.turn = 0


class Slab:
    """What the rows of one step left, of all layers, and the states, which may be those of other steps too.

    `moves` are how many rows were kept and how many the states still lack.
    """

    def __init__(self, layout: Layout, device: torch.device | None = None) -> None:
        self._layout = layout
        self.memory = torch.zeros(layout.size, device=device) if device else streamed(layout.size)
        self.moves = torch.zeros(2, dtype=torch.long)
        self.hidden = self.memory[: math.prod(layout.shapes[0])].view(layout.shapes[0])
        self._moves = self.moves.numpy()  # the same memory, quicker to write
        self.addresses = self.memory.data_ptr(), self.moves.data_ptr()
        self.states = States(layout, device) if device else None  # on a card its own
        self._on_card = device is not None
        self._turn = 0

    @property
    def layers(self) -> list[Left]:
        """Raises RuntimeError where the states are no longer those that the rows follow."""
        return self._layout.views(self.memory, self.own_states.memory)[1]

    @property
    def own_states(self) -> States:
        if self.states is None or self.states.turn != self._turn:
            raise RuntimeError("the states have gone on without these rows")
        return self.states

    def take(self) -> None:
        """The states are from now on this slab's."""
        assert self.states
        self.states.turn += 1
        self._turn = self.states.turn

    def leave(self) -> None:
        """Nobody needs the states that the rows follow."""
        if not self._on_card:
            self.states = None

    def move(self, kept: int, missing: int) -> None:
        self._moves[:] = kept, missing

    def lacks_nothing(self) -> None:
        """The states have what the rows kept."""
        self._moves[1] = 0


class Carried(Sequence[RecurrentState]):
    """The DeltaNet layers' memory as a step left it; made into states only when somebody asks for those."""

    def __init__(self, slab: Slab, states_of: Callable[[Slab], list[RecurrentState]]) -> None:
        self.slab: Slab | None = slab
        self._states_of = states_of
        self._states: list[RecurrentState] = []

    def _all(self) -> list[RecurrentState]:
        if self.slab:
            self._states = self._states_of(self.slab)
            self.slab.leave()
            self.slab = None
        return self._states

    def settle(self) -> None:
        """Rely on the slab no more."""
        self._all()

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, index: int) -> RecurrentState: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecurrentState]: ...
    def __getitem__(self, index: int | slice) -> RecurrentState | list[RecurrentState]:
        return self._all()[index]

    def __iter__(self) -> Iterator[RecurrentState]:
        return iter(self._all())


@dataclass(slots=True)
class Row:
    slab: Slab
    index: int

    def alone(self) -> Tensor:
        return self.slab.hidden[self.index].clone()


@dataclass(slots=True)
class StagedSlab:
    """The rows of a step; `carry` makes a sequence's memory of its slab.

    `lacking`: the states are those before the rows.
    """

    ids: tuple[int, ...]
    each: bool
    slab: Slab
    carry: Callable[[Slab], Carried]
    lacking: bool

    def after(self, rows: int) -> Carried:
        self.slab.move(rows, rows if self.lacking else 0)
        self.slab.take()
        return self.carry(self.slab)

    def last(self, rows: int) -> Tensor | Row:
        return Row(self.slab, rows - 1)


@torch.inference_mode()
def states_of(model: Qwen35, slab: Slab) -> list[RecurrentState]:
    """What is in a slab, in memory of its own."""
    kept, missing = slab.moves.tolist()
    c = model.config.delta
    states = []
    for left in slab.layers:
        state = left.state.clone()
        if missing:
            _, k, v = c.heads(left.mixed[:missing])
            state = model.recur(k, k, v, left.g[:missing], left.beta[:missing], left.state)
        states.append(RecurrentState(left.inputs[kept : kept + c.conv_kernel - 1].clone(), state))
    return states
