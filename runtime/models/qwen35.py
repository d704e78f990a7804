"""Qwen3.5/3.6: the whole model over one sequence: forward, commit, drafts by its MTP block.

Attributes carry the names of the GGUF tensors. Shapes: T rows (tokens of one sequence), H hidden size.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from kernels.blocks import Position
from kernels.cpu.replay import Replay
from kernels.delta_rule import delta_chunk
from kernels.norm import rms_norm
from kernels.op import OpTable
from kernels.quant_matmul import embedding, quant_matmul
from kernels.residual import shift_rows
from runtime.cache import RecurrentState, SequenceState, StagedRows, StagedState
from runtime.errors import Interrupted
from runtime.graphs import GraphStepper
from runtime.kv_cache import KVType, kv_type
from runtime.models import fused
from runtime.models.config import ModelConfig, UnknownTokenError
from runtime.models.draft_head import DraftHead
from runtime.models.layers import Attention, Block, GatedDeltaNet, MTPBlock, Place, Trunk, attend
from runtime.models.slabs import ROWS, Left, Past
from runtime.models.spread import Spread
from runtime.models.stepping import Stepper
from runtime.rope import RotaryEmbedding
from runtime.weights import Weights


class Qwen35:
    """The whole model over one sequence's state."""

    def __init__(
        self, weights: Weights, mtp_weights: Weights, config: ModelConfig, ops: OpTable | Spread
    ) -> None:  # fmt: skip
        spread = Spread(ops) if isinstance(ops, OpTable) else ops
        self.config, self.ops, self.spread = config, spread.table, spread
        ops = self.ops
        self.trunk = Trunk(weights, config, spread)
        self.mtp = MTPBlock(mtp_weights, config, spread, self.trunk) if config.mtp_layers else None
        self.rotary = RotaryEmbedding(config.rope)
        self.draft_head: DraftHead | None = None
        attending = [block.ops for block in self.trunk.blocks if isinstance(block.mixer, Attention)]
        self._attending = list({id(table): table for table in attending}.values())
        self._replay = Replay(ops.machine) if ops.machine else None
        self.stepper: Stepper | GraphStepper | None = Stepper(self, ops.machine) if ops.machine else None
        if ops.card and spread.placement is None:
            self.stepper = GraphStepper(self, ops.card)

    @property
    def vocabulary(self) -> int:
        return self.trunk.token_embd.shape[0]

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raises UnknownTokenError for an id that has no embedding: natively, whatever lies there would be read."""
        if ids and not (min(ids) >= 0 and max(ids) < self.vocabulary):
            raise UnknownTokenError(next(id for id in ids if not 0 <= id < self.vocabulary), self.vocabulary)

    def new_state(self, kv: KVType | None = None) -> SequenceState:
        """`kv` None: what the ops take where nobody chooses."""
        kv = kv or kv_type("auto", self.ops.column)
        return SequenceState.empty(
            self.config, mtp=self.mtp is not None, kv=kv, home=self.spread.home, device=self.ops.device
        )

    @torch.inference_mode()
    def forward(
        self,
        ids: Sequence[int],
        state: SequenceState,
        *,
        each: bool = False,
        positions: Tensor | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Run T rows after what `state` holds and stage them; the caller commits.

        `each`: keep the recurrent state after every row, so that any number of rows can be committed.
        `positions` [T] or [3, T] where they are not simply the next ones. `cancelled` is asked before each layer, but
        not for a few rows; then Interrupted may be raised, and nothing is staged. Returns the hidden states after
        output_norm, [T, H].
        """
        rows, start = len(ids), state.length
        self.check_ids(ids)
        if self.stepper and positions is None and self.stepper.takes(state, rows):
            return self.stepper.forward(ids, state, each=each)
        if isinstance(self.stepper, Stepper) and rows > ROWS:
            self.stepper.rest()
        at, mtp_at = self._place(start, rows, positions, self._attending), self._mtp_place(rows, state)
        state.kv.reserve(start, rows)
        if state.mtp_kv:
            state.mtp_kv.reserve(mtp_at.start, mtp_at.rows)
        past: Iterator[RecurrentState] = iter(state.recurrent)
        staged: list[StagedState] = []

        def recur(block: Block[GatedDeltaNet], x: Tensor) -> Tensor:
            if block.ops.card:
                out, after = fused.recur(block, x, next(past), each=each)
            else:
                mixed, after = block.mixer(block.normed(x), next(past), each=each)
                out = block.finish(x, mixed)
            staged.append(after)
            return out

        numbers = torch.tensor(ids, device=self.ops.device)
        hidden = self._trunk(numbers, at, state, recur, cancelled)
        self._fill_mtp(numbers, hidden, state.last_hidden, state, mtp_at)
        state.stage(StagedRows(tuple(ids), hidden, staged, each))
        return hidden

    def rows(
        self, ids: Tensor, last: Tensor, state: SequenceState, past: Sequence[Past], start: int,
        angles: tuple[Tensor, Tensor], *, each: bool, mtp_start: int | None = None, into: Sequence[Left] | None = None,
    ) -> tuple[Tensor, list[Left]]:  # fmt: skip
        """What `forward` does, on tensors alone: rows `ids` [T] after `start` others, `last` being the hidden state of
        the last of those, and `angles` cos and sin [1 + T, R/2] from there on. `mtp_start` is `start` − 1; on a card
        what is left goes `into` given memory.
        """
        cos, sin = angles
        before, left, places = iter(past), [], iter(into or ())

        def recur(block: Block[GatedDeltaNet], x: Tensor) -> Tensor:
            if self.ops.card:
                out, after = fused.resume(block, x, next(before), each=each, into=next(places, None))
            else:
                mixed, after = block.mixer.resume(block.normed(x), next(before), each=each)
                out = block.finish(x, mixed)
            left.append(after)
            return out

        hidden = self._trunk(ids, Place(start, cos[1:], sin[1:]), state, recur)
        self._fill_mtp(
            ids, hidden, last, state, Place(start - 1 if mtp_start is None else mtp_start, cos[:-1], sin[:-1])
        )
        return hidden, left

    def narrow_drafts(self, count: int) -> None:
        """From now on draft of the first `count` tokens, and of those noted last, alone. Before any draft.

        Not on a card, whose copy of the weights no token is added to.
        """
        if self.mtp and self.ops.card is None:
            self.draft_head = DraftHead(self.mtp.shared_head_head, count, self.ops)

    def note(self, ids: Sequence[int]) -> None:
        """Tokens of a prompt or a reply, which may well come again."""
        if self.draft_head:
            self.draft_head.note(ids)

    def warm_up(self) -> None:
        """Make ready once what takes longer the first time, so that the first reply need not wait for it."""
        state = self.new_state()
        with self.ops.machine.idle() if self.ops.machine else contextlib.nullcontext():
            for _ in range(2):
                hidden = self.forward([0], state)
                state.commit()
            self.logits(hidden)
            if self.mtp:
                self.draft_logits(self.draft([0], hidden, state, state.length - 1))

    def free(self) -> None:
        """Let the card's memory go that is not for weights: slabs and graphs, which are made again when needed."""
        if isinstance(self.stepper, GraphStepper) and self.ops.card:
            self.stepper = GraphStepper(self, self.ops.card)

    def prepare_steps(self, state: SequenceState) -> None:
        """Lay out the steps with drafts, so that the first of each kind need not wait for it."""
        if self.stepper and self.stepper.takes(state, 1):
            self.stepper.prepare(state, ROWS - 1 if self.mtp else 0)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[T, H] → [T, V]. Give only the rows that are wanted: a row is 1 MB at the family's vocabulary."""
        return self.ops[quant_matmul](hidden, self.trunk.output)

    @torch.inference_mode()
    def draft(self, next_ids: Sequence[int], hidden: Tensor, state: SequenceState, start: int) -> Tensor:
        """The MTP block over T rows from position `start`: row i sees hidden[i] and the token after it.

        Writes the rows' keys and values in the MTP cache. Returns normed states [T, H].
        """
        if self.mtp is None or state.mtp_kv is None:
            raise ValueError("this model has no MTP block")
        self.check_ids(next_ids)
        cache, rows = state.mtp_kv, len(next_ids)
        at = self._place(start, rows, None, [self.mtp.ops])
        cache.reserve(start, rows)

        def work(inputs: Sequence[Tensor]) -> list[Tensor]:
            ids, hidden, cos, sin = inputs
            return [self.draft_row(ids, hidden, state, start, cos, sin)]

        inputs = [torch.tensor(next_ids, device=self.ops.device), hidden.contiguous(), at.cos, at.sin]
        if self.ops.card:
            return self.mtp(inputs[0], inputs[1], cache.layer(0), at)
        if self._replay and rows <= ROWS:
            return self._replay(("draft", rows, cache.kind), work, inputs, cache.tables, start)[0]
        return work(inputs)[0]

    def draft_row(
        self, next_ids: Tensor, hidden: Tensor, state: SequenceState, start: int, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """`draft` on tensors alone, with cos and sin [T, R/2] of its positions."""
        if self.mtp is None or state.mtp_kv is None:
            raise ValueError("this model has no MTP block")
        return self.mtp(next_ids, hidden, state.mtp_kv.layer(0), Place(start, cos, sin))

    def recur(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
        """The state after some rows of a DeltaNet layer, in new memory."""
        return self.ops[delta_chunk](q, k, v, g, beta, state)[1]

    @torch.inference_mode()
    def draft_logits(self, drafted: Tensor) -> Tensor:
        """[T, H] of `draft` → [T, V]."""
        if self.mtp is None:
            raise ValueError("this model has no MTP block")
        if self.draft_head:
            return self.draft_head.logits(drafted)
        return self.ops[quant_matmul](drafted, self.mtp.shared_head_head)

    def _place(self, start: int, rows: int, positions: Tensor | None, tables: Sequence[OpTable]) -> Place:
        """For layers that run on these tables."""
        if positions is None:
            positions = torch.arange(start, start + rows)
        near = Place(start, *self.rotary(positions))
        if self.ops.card is None:
            return near
        places = [(table, _brought(near, table)) for table in tables]
        return places[0][1] if len(places) == 1 else replace(near, others=tuple(places))

    def _trunk(
        self,
        ids: Tensor,
        at: Place,
        state: SequenceState,
        recur: Callable[[Block[GatedDeltaNet], Tensor], Tensor],
        cancelled: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Hidden states after output_norm; `recur` runs the DeltaNet layers, which come to it in order."""
        x = self.ops[embedding](ids, self.trunk.token_embd)
        kv = map(state.kv.layer, itertools.count())
        for block in self.trunk.blocks:
            if cancelled and cancelled():
                raise Interrupted
            # Between cards the host does not wait: the source's stream copies, the target's waits for that, and neither
            # card's memory is used again before. To memory and from it, it does.
            x = x.to(block.ops.device)
            if isinstance(block.mixer, GatedDeltaNet):
                x = recur(cast("Block[GatedDeltaNet]", block), x)
            else:
                x = attend(cast(Block[Attention], block), x, next(kv), at)
        return self.ops[rms_norm](x.to(self.ops.device), self.trunk.output_norm, self.config.eps)

    def _mtp_place(self, rows: int, state: SequenceState) -> Place:
        """Where the MTP cache goes on: one row behind the trunk, since row t needs token t + 1."""
        tables = [self.mtp.ops] if self.mtp else []
        if state.last_hidden is None:
            return self._place(state.length, rows - 1, None, tables)
        return self._place(state.length - 1, rows, None, tables)

    def _fill_mtp(self, ids: Tensor, hidden: Tensor, last: Tensor | None, state: SequenceState, at: Place) -> None:
        """Keep the MTP cache one row behind the trunk's: without its past the block drafts badly."""
        if self.mtp is None or state.mtp_kv is None or not at.rows:
            return
        if last is not None:
            self.mtp.remember(ids, self.ops[shift_rows](last, hidden), state.mtp_kv.layer(0), at)
        else:
            self.mtp.remember(ids[1:], hidden[:-1], state.mtp_kv.layer(0), at)


def _brought(at: Place, ops: OpTable) -> Place:
    """A place in memory, as kernels of a card see it."""
    if ops.card is None:
        return at
    start = Position(at.start, torch.tensor([at.start], device=ops.device))
    return Place(start, at.cos.to(ops.device), at.sin.to(ops.device))
