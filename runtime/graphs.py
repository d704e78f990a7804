"""A step of decoding on a GPU as one graph: drafts, their verification and the choice of tokens, no host in between.

Everything that a step reads lies where it lay when the graph was captured: what changes from step to step (ids,
positions, which rows were kept, the rules and the noise) is one small tensor that goes to the card before, and the
tokens come back after. Two slabs take turns: a step reads what the last one left in one of them, and leaves its own in
the other. Where a graph cannot be captured, the same step runs launch by launch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernels.blocks import Position
from kernels.sample import Rules, sample
from kernels.triton.card import Card
from runtime.cache import SequenceState
from runtime.kv_cache import KVBlock, KVCache
from runtime.models.slabs import ROWS, Carried, Layout, Left, Past, Slab, StagedSlab, states_of
from runtime.models.stepping import Chosen, Plan
from runtime.sampling import Sampler

if TYPE_CHECKING:
    from runtime.models.qwen35 import Qwen35

_BLOCKS = 4096  # of a cache at most: 1,048,576 tokens


class Control:
    """What a step is told and what it answers, on the host and on the card, int64 each but for the rules."""

    def __init__(self, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.host = torch.zeros(32, dtype=torch.long, pin_memory=pinned)
        self.card = torch.zeros(32, dtype=torch.long, device=device)
        self._numbers = self.host.numpy()
        self.ids, self.tokens = self.card[:ROWS], self.card[ROWS : 2 * ROWS]
        self.starts = self.card[10:17]  # of the row before the first, the first, …
        self.kept, self.missing = self.card[17:18], self.card[18:19]
        self.noise, self.rules = self.card[20:22], self.card[22:28].view(torch.float64)

    def tell(self, ids: Sequence[int], start: int, slab: Slab, sampler: Sampler | None) -> None:
        numbers = self._numbers
        numbers[: len(ids)] = ids
        numbers[10:17] = range(start - 1, start + 6)
        numbers[17:19] = slab.moves
        if sampler:
            numbers[20:22], numbers[22:28] = sampler.noise, sampler.packed_rules.view(torch.long)
        self.card.copy_(self.host)  # and waits, since the next step writes there

    def answer(self) -> tuple[list[int], list[int]]:
        """Ids and tokens [ROWS] each; waits for the card."""
        both: list[int] = self.card[: 2 * ROWS].tolist()
        return both[:ROWS], both[ROWS:]


class _Tables(KVCache):
    """A cache for capturing: the shapes of a real one, and tables that stay where they are."""

    def __init__(self, like: KVCache) -> None:
        layers, heads, _, dim = like.shape
        super().__init__(layers, heads, dim, like.kind, [like.blocks[0]], like.homes)
        tensors = like.blocks[0].tensors.items()
        self._held = {name: torch.zeros(_BLOCKS, dtype=torch.long, device=tensor.device) for name, tensor in tensors}
        self._of: list[KVBlock] = []

    def card_table(self, name: str) -> Tensor:
        return self._held[name]

    def follow(self, cache: KVCache) -> None:
        """From now on these are the blocks of `cache`."""
        if len(self._of) == len(cache.blocks) and all(a is b for a, b in zip(self._of, cache.blocks, strict=True)):
            return
        self._of = list(cache.blocks)
        for name, table in self._held.items():
            found = cache.card_table(name)
            table[: len(found)].copy_(found)


def step(
    model: Qwen35, state: SequenceState, past: Sequence[Past], plan: Plan, *, ids: Tensor, last: Tensor, tokens: Tensor,
    sampler: Sequence[Tensor], angles: tuple[Tensor, Tensor], start: int, starts: Tensor,
    into: Sequence[Left] | None = None,
) -> tuple[Tensor, list[Left], Tensor]:  # fmt: skip
    """The launches of a step: hidden states [T, H], what is left, and logits [1 + drafts, V].

    Writes drafts into `ids` and the chosen tokens into `tokens`. `starts`: the positions start − 1, start, …;
    `angles` cos and sin [1 + T, R/2] from start − 1 on.
    """
    choose: Callable[..., None] = model.ops[sample]
    (cos, sin), new, made, rows = angles, plan.new, plan.made, plan.rows
    at = [Position(start - 1 + i, starts[i : i + 1]) for i in range(rows + 1)]
    ids, hidden = ids[:rows], last[None]
    for i in range(made):
        token = ids[new - 1 + i : new + i]
        hidden = model.draft_row(token, hidden, state, at[new - 1 + i], *(part[i : i + 1] for part in angles))
        before, place = ids[new : new + i], ids[new + i : new + i + 1]
        choose(model.draft_logits(hidden)[0], *sampler, before, place, True)
    turned = cos[: rows + 1], sin[: rows + 1]
    hidden, left = model.rows(ids, last, state, past, at[1], turned, each=plan.each, mtp_start=at[0], into=into)
    logits = hidden
    if plan.chosen:
        logits = model.logits(hidden[new - 1 :])
        for i, row in enumerate(logits):
            choose(row, *sampler, ids[new : new + i], tokens[i : i + 1], False)
    return hidden, left, logits


class _StagedOnCard(StagedSlab):
    __slots__ = ()

    def last(self, rows: int) -> Tensor:
        """In memory of its own: the slab is written again by whoever steps next."""
        return self.slab.hidden[rows - 1].clone()


class GraphStepper:
    """Steps of a model on a card, with the interface of `Stepper`."""

    def __init__(self, model: Qwen35, card: Card) -> None:
        self._model, self._card = model, card
        self._layout = Layout(model.config)
        self._made: tuple[Slab, Slab] | None = None
        self._owners: dict[int, weakref.ref[Carried]] = {}
        self._graphs: dict[Hashable, tuple[Any, Tensor]] = {}
        self._plain = card.way != "compiled"
        self._caches: dict[str, tuple[_Tables, _Tables | None]] = {}
        self._sampler: weakref.ref[Sampler] | None = None

    @property
    def captures(self) -> bool:
        """Whether steps run as graphs."""
        return not self._plain

    def _prepared(self) -> tuple[Slab, Slab]:
        """Memory of the steps, taken with the first."""
        if self._made is None:
            device, config = self._card.device, self._model.config
            self._control = Control(device)
            self._last = torch.empty(config.hidden, device=device)
            cos, sin = (torch.empty(ROWS + 1, config.rope.dim // 2, device=device) for _ in range(2))
            self._angles = cos, sin
            self._marks = tuple(torch.zeros(self._model.vocabulary, dtype=torch.bool, device=device) for _ in range(2))
            self._made = Slab(self._layout, device), Slab(self._layout, device)
        return self._made

    def takes(self, state: SequenceState, rows: int) -> bool:
        return rows <= ROWS and state.hidden is not None and len(state.kv.blocks) < _BLOCKS

    def decides(self, rules: Rules) -> bool:
        """Whether its steps choose the tokens, as a rule."""
        return rules.few

    def prepare(self, state: SequenceState, drafts: int) -> None:
        """Nothing: a graph is captured by the step that first needs it, since that needs its caches."""

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], state: SequenceState, *, each: bool) -> Tensor:
        """`Qwen35.forward` of a few rows after some others."""
        slab, _ = self._run(Plan(len(ids), each=each), ids, state, None)
        return slab.hidden[: len(ids)].clone()

    @torch.inference_mode()
    def step(
        self, new: Sequence[int], state: SequenceState, sampler: Sampler, *, made: int = 0, given: Sequence[int] = ()
    ) -> Chosen:
        """Read `new` tokens and `made` or `given` drafts after them, and stage them all. Raises UnknownTokenError."""
        self._model.check_ids((*new, *given))
        plan = Plan(len(new), made, len(given), chosen=True, each=bool(made or given))
        _, logits = self._run(plan, [*new, *given], state, sampler)
        ids, tokens = self._control.answer()
        drafts = ids[len(new) : plan.rows]
        staged = state.staged
        assert isinstance(staged, StagedSlab)
        staged.ids = tuple(ids[: plan.rows])
        return Chosen(drafts, tokens[: 1 + len(drafts)], logits)

    def _run(
        self, plan: Plan, ids: Sequence[int], state: SequenceState, sampler: Sampler | None
    ) -> tuple[Slab, Tensor]:
        slabs = self._prepared()
        before = self._before(state)
        after = slabs[1] if before is slabs[0] else slabs[0]
        self._evict(after)
        start = state.length
        state.kv.reserve(start, plan.rows)
        if state.mtp_kv:
            state.mtp_kv.reserve(start - 1, plan.rows)
        caches = self._tables(state)
        self._control.tell(ids, start, before, sampler)
        last = state.last_hidden
        assert last is not None
        self._last.copy_(last)
        rotated = self._model.rotary(torch.arange(start - 1, start + ROWS))
        for part, fresh in zip(self._angles, rotated, strict=True):
            part.copy_(fresh)
        if sampler:
            self._mark(sampler)
        with self._card.current():
            logits = self._perform(plan, caches, before, after, start)
        state.stage(_StagedOnCard(tuple(ids), plan.each, after, self._carried, plan.each))
        return after, logits

    def _mark(self, sampler: Sampler) -> None:
        """The tokens of the prompt and of the reply, where the rules ask for them."""
        fresh = self._sampler is None or self._sampler() is not sampler
        if fresh:
            self._sampler = weakref.ref(sampler)
            self._marks[0].copy_(sampler.seen)
        if fresh or sampler.rules.penalised:
            self._marks[1].copy_(sampler.reply)

    def _tables(self, state: SequenceState) -> tuple[_Tables, _Tables | None]:
        kind = state.kv.kind
        if kind not in self._caches:
            self._caches[kind] = _Tables(state.kv), _Tables(state.mtp_kv) if state.mtp_kv else None
        kv, mtp = self._caches[kind]
        kv.follow(state.kv)
        if mtp and state.mtp_kv:
            mtp.follow(state.mtp_kv)
        return kv, mtp

    def _perform(
        self, plan: Plan, caches: tuple[_Tables, _Tables | None], before: Slab, after: Slab, start: int
    ) -> Tensor:
        control = self._control

        def launch() -> Tensor:
            past = [Past(left, control.kept, control.missing) for left in before.layers]
            hidden, _, logits = step(
                self._model, SequenceState(*caches, []), past, plan, ids=control.ids, last=self._last,
                tokens=control.tokens, sampler=[control.rules, control.noise, *self._marks], angles=self._angles,
                start=start, starts=control.starts, into=after.layers,
            )  # fmt: skip
            after.hidden[: plan.rows].copy_(hidden)
            return logits

        if self._plain:
            return launch()
        key = plan, caches[0].kind, before is self._prepared()[0]
        if key not in self._graphs:
            launch()  # which compiles what is new, and writes nothing that the graph would not write again
            try:
                graph = torch.cuda.CUDAGraph()
                # torch's own stream for this is of the first card that captured
                stream = torch.cuda.Stream() if self._card.among_others else None
                with torch.cuda.graph(graph, stream=stream):
                    logits = launch()
            except RuntimeError as error:
                for full in (error, error.__context__):  # the capture's end may fail of it once more
                    if isinstance(full, torch.OutOfMemoryError):
                        raise full from None
                # a driver that cannot; the step has been done
                self._plain = True
                return launch()
            self._graphs[key] = graph, logits
        graph, logits = self._graphs[key]
        graph.replay()
        return logits

    def _before(self, state: SequenceState) -> Slab:
        """What the last step left; or the states, brought into that shape."""
        if isinstance(state.recurrent, Carried) and state.recurrent.slab:
            return state.recurrent.slab
        slab = self._prepared()[0]
        self._evict(slab)
        slab.move(0, 0)
        for left, layer in zip(slab.layers, state.recurrent, strict=True):
            left.inputs[: layer.window.shape[0]].copy_(layer.window)
            left.state.copy_(layer.state)
        state.recurrent = self._carried(slab)
        return slab

    def _evict(self, slab: Slab) -> None:
        """Whoever relies on what is in the slab gets it in memory of its own."""
        owner = self._owners.pop(id(slab), lambda: None)()
        if owner:
            owner.settle()

    def _carried(self, slab: Slab) -> Carried:
        carried = Carried(slab, partial(states_of, self._model))
        self._owners[id(slab)] = weakref.ref(carried)
        return carried
