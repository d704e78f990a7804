"""A step of decoding as one native program: drafts, their verification and the choice of tokens, no Python in between.

What a step leaves of the DeltaNet layers is not a state per row, but the state before the rows and what the rows did to
it (k, v, g, β and the convolution's inputs): whatever number of rows is kept, the next step does those again first,
part by part in the nearest cache. So verifying reads and writes the states once, as one token does. And the states can
be brought further where they are, in memory that is there once: what changes them is part of the sequence already.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, overload

import torch
from torch import Tensor

from kernels.cpu.machine import Machine, Runnable
from kernels.cpu.memory import PASSING, streamed
from kernels.cpu.replay import unheld
from kernels.sample import Rules, sample
from runtime.cache import RecurrentState, SequenceState
from runtime.models.config import ModelConfig
from runtime.sampling import Sampler

if TYPE_CHECKING:
    from runtime.models.qwen35 import Qwen35

ROWS = 5  # of a step at most: a token, and the drafts after it

_KEPT = 3  # slabs whose memory is looked after: fresh memory is slow
_LARGE = 8 << 20  # bytes of states that are not to be there twice; smaller ones stay in the caches, where work counts


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


@dataclass(frozen=True)
class Chosen:
    """The drafts of a step, and the tokens after its last new token and after each draft; negative ones as `sample`
    writes them. `logits` [1 + drafts, V] hold until the next step.
    """

    drafts: list[int]
    tokens: list[int]
    logits: Tensor


@dataclass(frozen=True)
class Plan:
    """What a program does: reads `new` tokens, makes `made` drafts or takes `given` ones, chooses with `chosen`."""

    new: int
    made: int = 0
    given: int = 0
    chosen: bool = False
    each: bool = False

    @property
    def rows(self) -> int:
        return self.new + self.made + self.given


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


class Stepper:
    """Programs of a model on a machine."""

    def __init__(self, model: Qwen35, machine: Machine) -> None:
        self._model, self._machine = model, machine
        self._layout = Layout(model.config)
        self._slabs: list[Slab] = []
        self._states: list[States] = []
        self._large = 4 * self._layout.states_size >= _LARGE
        self._programs: dict[Hashable, tuple[Runnable, Tensor]] = {}
        self._ids = torch.zeros(ROWS, dtype=torch.long)
        self._tokens = torch.zeros(ROWS, dtype=torch.long)
        self._id_numbers, self._token_numbers = self._ids.numpy(), self._tokens.numpy()

    def takes(self, state: SequenceState, rows: int) -> bool:
        return rows <= ROWS and state.hidden is not None

    def decides(self, rules: Rules) -> bool:
        """Whether its steps choose the tokens, as a rule."""
        return rules.native

    def rest(self) -> None:
        """Let go of the slabs that nobody holds, while many rows need the memory: together as large as the states."""
        while (index := unheld(self._slabs)) is not None:
            del self._slabs[index]
        while (index := unheld(self._states)) is not None:
            del self._states[index]

    def prepare(self, state: SequenceState, drafts: int) -> None:
        """Lay out the programs of steps with up to so many drafts, so that the first of them need not wait for it."""
        for made in range(drafts + 1):
            self._program(Plan(1, made=made, chosen=True, each=self._large or made > 0), state)

    def forward(self, ids: Sequence[int], state: SequenceState, *, each: bool) -> Tensor:
        """`Qwen35.forward` of a few rows after some others."""
        self._id_numbers[: len(ids)] = ids
        slab, _ = self._run(Plan(len(ids), each=self._large or each), state, None, each=each)
        with torch.inference_mode():
            return slab.hidden[: len(ids)].clone()

    def step(
        self, new: Sequence[int], state: SequenceState, sampler: Sampler, *, made: int = 0, given: Sequence[int] = ()
    ) -> Chosen:
        """Read `new` tokens and `made` or `given` drafts after them, and stage them all. Raises UnknownTokenError."""
        self._model.check_ids((*new, *given))
        each = bool(made or given)
        plan = Plan(len(new), made, len(given), chosen=True, each=self._large or each)
        self._id_numbers[: len(new) + len(given)] = [*new, *given]
        _, logits = self._run(plan, state, sampler, each=each)
        drafts = self._id_numbers[len(new) : plan.rows].tolist()
        return Chosen(drafts, self._token_numbers[: 1 + len(drafts)].tolist(), logits)

    def _run(self, plan: Plan, state: SequenceState, sampler: Sampler | None, *, each: bool) -> tuple[Slab, Tensor]:
        """`each`: whether any number of the rows may be kept."""
        # Tensor operations are few here: to a model that takes 200 µs for a token each of them is a percent.
        before, after = self._before(state), self._free_slab()
        states = before.own_states
        after.states = states if plan.each else self._free_states()
        runnable, logits = self._program(plan, state)
        start, last = state.length, state.hidden
        rotary = self._model.rotary
        row = rotary.reach(start + plan.rows) * (start - 1)
        state.kv.reserve(start, plan.rows)
        tables = state.kv.addresses
        if state.mtp_kv:
            state.mtp_kv.reserve(start - 1, plan.rows)
            tables += state.mtp_kv.addresses
        if isinstance(last, Row):
            address = last.slab.addresses[0] + self._layout.row_bytes * last.index
        else:
            assert isinstance(last, Tensor)
            address = last.data_ptr()
        inputs = [*before.addresses, states.address, after.addresses[0], after.states.address]
        inputs += [address, rotary.addresses[0] + row, rotary.addresses[1] + row]
        if sampler:
            inputs += sampler.addresses
        runnable.run_at(inputs, tables, start)
        if plan.each:
            before.lacks_nothing()
        ids = tuple(self._id_numbers[: plan.rows].tolist())
        state.stage(StagedSlab(ids, each, after, self._carried, plan.each))
        return after, logits

    def _before(self, state: SequenceState) -> Slab:
        """What the last step left; or the states, brought into that shape."""
        if isinstance(state.recurrent, Carried) and state.recurrent.slab:
            return state.recurrent.slab
        return self._brought(state)

    @torch.inference_mode()
    def _brought(self, state: SequenceState) -> Slab:
        PASSING.end()  # many rows have been read, and steps have memory of their own
        slab = self._free_slab()
        slab.states = self._free_states()
        slab.take()
        slab.move(0, 0)
        layers = list(state.recurrent)
        state.recurrent = self._carried(slab)
        for left in slab.layers:  # each goes when it has been copied, if nobody else holds it
            layer = layers.pop(0)
            left.inputs[: layer.window.shape[0]] = layer.window
            left.state.copy_(layer.state)
        return slab

    def _carried(self, slab: Slab) -> Carried:
        return Carried(slab, partial(states_of, self._model))

    def _free_slab(self) -> Slab:
        index = unheld(self._slabs)
        if index is None:
            self._slabs = [*self._slabs[1 - _KEPT :], Slab(self._layout)]
            index = len(self._slabs) - 1
        self._slabs[index].states = None
        return self._slabs[index]

    def _free_states(self) -> States:
        index = unheld(self._states)
        if index is None:
            while (spare := unheld(self._slabs)) is not None:  # each holds on to the states that it had
                del self._slabs[spare]
            index = unheld(self._states)
        if index is None:
            self._states = [*self._states[1 - _KEPT :], States(self._layout)]
            index = len(self._states) - 1
        return self._states[index]

    def _program(self, plan: Plan, state: SequenceState) -> tuple[Runnable, Tensor]:
        key = plan, state.kv.kind
        if key not in self._programs:
            self._programs[key] = self._record(plan, state)
        return self._programs[key]

    @torch.inference_mode()
    def _record(self, plan: Plan, state: SequenceState) -> tuple[Runnable, Tensor]:
        model, start, config = self._model, state.length, self._model.config
        state.kv.reserve(start, plan.rows)
        tables = state.kv.tables
        if state.mtp_kv:
            state.mtp_kv.reserve(start - 1, plan.rows)
            tables = tables + state.mtp_kv.tables
        before, after = torch.empty(self._layout.size), torch.empty(self._layout.size)
        states, later = torch.empty(self._layout.states_size), torch.empty(self._layout.states_size)
        moves = torch.zeros(2, dtype=torch.long)
        last = torch.empty(config.hidden)
        cos, sin = (torch.empty(plan.rows + 1, config.rope.dim // 2) for _ in range(2))
        inputs = [before, moves, states, after, later, last, cos, sin]
        choose: Callable[..., None] = model.ops[sample]
        sampler = Sampler.places(model.vocabulary)
        if plan.chosen:
            inputs += sampler
        ids, logits = self._ids[: plan.rows], torch.empty(0)
        _, layers = self._layout.views(before, states)
        past = [Past(left, moves[:1], moves[1:]) for left in layers]
        with self._machine.record(inputs, tables, start) as program:
            hidden = last[None]
            for i in range(plan.made):
                at = plan.new - 1 + i
                hidden = model.draft_row(ids[at : at + 1], hidden, state, start - 1 + i, cos[i : i + 1], sin[i : i + 1])
                made = ids[plan.new : plan.new + i], ids[plan.new + i : plan.new + i + 1]
                choose(model.draft_logits(hidden)[0], *sampler, *made, True)
            hidden, left = model.rows(ids, last, state, past, start, (cos, sin), each=plan.each)
            if plan.chosen:
                logits = model.logits(hidden[plan.new - 1 :])
                for i, row in enumerate(logits):
                    choose(row, *sampler, ids[plan.new : plan.new + i], self._tokens[i : i + 1], False)
        outputs = [hidden, *itertools.chain(*(layer[:4] for layer in left))]
        program.parts = [(part, 3, 4 * at) for part, at in zip(outputs, self._layout.starts, strict=True)]
        size = 4 * self._layout.state_size
        program.parts += [(layer.state, 4, size * index) for index, layer in enumerate(left)]
        return self._machine.prepare(program), logits
