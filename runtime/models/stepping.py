"""A step of decoding as one native program: drafts, their verification and the choice of tokens, no Python in between.

What a step leaves behind is told in `slabs`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.cpu.machine import Machine, Runnable
from kernels.cpu.memory import PASSING
from kernels.cpu.replay import unheld
from kernels.sample import Rules, sample
from runtime.cache import SequenceState
from runtime.models.slabs import ROWS, Carried, Layout, Past, Row, Slab, StagedSlab, States, states_of
from runtime.sampling import Sampler

if TYPE_CHECKING:
    from runtime.models.qwen35 import Qwen35

_KEPT = 3  # slabs whose memory is looked after: fresh memory is slow
_LARGE = 8 << 20  # bytes of states that are not to be there twice; smaller ones stay in the caches, where work counts


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
