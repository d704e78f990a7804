"""Qwen3.5/3.6: a trunk of Gated DeltaNet and attention layers, dense or MoE, and an MTP block for drafts.

Attributes carry the names of the GGUF tensors. Shapes: T rows (tokens of one sequence), H hidden size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

from kernels.attention import attention, rope, store_rows
from kernels.attention_q8 import attention_q8, store_rows_q8
from kernels.blocks import Position
from kernels.conv1d import causal_conv1d, conv_resume
from kernels.cpu.replay import Replay
from kernels.delta_rule import delta_chunk, delta_gates, delta_recurrent, delta_resume
from kernels.moe import add_shared_expert, experts, route, swiglu
from kernels.norm import add_rms_norm, concat_rms_norm, gated_rms_norm, rms_norm
from kernels.op import OpTable
from kernels.quant_matmul import embedding, projections, quant_matmul
from kernels.residual import add, shift_rows
from runtime.cache import KVType, LayerCache, RecurrentState, SequenceState, StagedRows, StagedState, alone
from runtime.errors import Interrupted
from runtime.graphs import GraphStepper
from runtime.models import fused
from runtime.models.config import ModelConfig, MoEConfig, UnknownTokenError
from runtime.models.draft_head import DraftHead
from runtime.models.memory_experts import MemoryExperts
from runtime.models.spread import Spread
from runtime.models.stepping import ROWS, Left, Past, Stepper
from runtime.rope import RotaryEmbedding
from runtime.weights import Weights


@dataclass(frozen=True)
class Place:
    """Where the rows of a forward stand: after `start` tokens, at rotary angles [T, R/2].

    `memory`: the same for layers that are there while others are on a card.
    """

    start: int
    cos: Tensor
    sin: Tensor
    memory: Place | None = None

    @property
    def rows(self) -> int:
        return self.cos.shape[0]


class Attention:
    """Full attention with an output gate: softmax(q kᵀ/√D) v · σ(gate)."""

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, ops: OpTable) -> None:
        self.ops, self.eps = ops, config.eps
        self.heads, self.kv_heads, self.dim = config.heads, config.kv_heads, config.head_dim
        q, kv = self.heads * self.dim, self.kv_heads * self.dim
        self.attn_q = weights.take(f"{prefix}.attn_q.weight", 2 * q, config.hidden)
        self.attn_k = weights.take(f"{prefix}.attn_k.weight", kv, config.hidden)
        self.attn_v = weights.take(f"{prefix}.attn_v.weight", kv, config.hidden)
        self.attn_output = weights.take(f"{prefix}.attn_output.weight", config.hidden, q)
        self.attn_q_norm = weights.norm(f"{prefix}.attn_q_norm.weight", self.dim)
        self.attn_k_norm = weights.norm(f"{prefix}.attn_k_norm.weight", self.dim)

    def __call__(self, x: Tensor, cache: LayerCache, at: Place) -> Tensor:
        """[T, H] → [T, H]; writes the rows' keys and values, for which the cache has reserved room."""
        query_gate, k, v = self.ops[projections](x, (self.attn_q, self.attn_k, self.attn_v))
        self._store(k, v, cache, at)
        q, gate = query_gate.view(-1, self.heads, 2 * self.dim).chunk(2, dim=-1)  # per head: [query | gate]
        q = self.ops[rope](self.ops[rms_norm](q, self.attn_q_norm, self.eps), at.cos, at.sin)
        if cache.kind == "q8":
            scales = cache.key_scales, cache.value_scales
            out = self.ops[attention_q8](q, cache.keys, cache.values, *scales, gate, at.start)
        else:
            out = self.ops[attention](q, cache.keys, cache.values, gate, at.start)  # [T, heads, D]
        return self.ops[quant_matmul](out.flatten(1), self.attn_output)

    def remember(self, x: Tensor, cache: LayerCache, at: Place) -> None:
        """Write the rows' keys and values, no more."""
        k, v = self.ops[projections](x, (self.attn_k, self.attn_v))
        self._store(k, v, cache, at)

    def _store(self, k: Tensor, v: Tensor, cache: LayerCache, at: Place) -> None:
        k, v = k.view(-1, self.kv_heads, self.dim), v.view(-1, self.kv_heads, self.dim)
        k = self.ops[rope](self.ops[rms_norm](k, self.attn_k_norm, self.eps), at.cos, at.sin)
        if cache.kind == "q8":
            scales = cache.key_scales, cache.value_scales
            self.ops[store_rows_q8](k, v, cache.keys, cache.values, *scales, at.start)
        else:
            self.ops[store_rows](k, v, cache.keys, cache.values, at.start)


class GatedDeltaNet:
    """Linear attention by the gated delta rule, behind a short convolution and a gated norm."""

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, ops: OpTable) -> None:
        self.ops, self.eps, self.config = ops, config.eps, config.delta
        c, h = config.delta, config.hidden
        self.attn_qkv = weights.take(f"{prefix}.attn_qkv.weight", c.conv_channels, h)
        self.attn_gate = weights.take(f"{prefix}.attn_gate.weight", c.value_dim, h)
        self.ssm_alpha = weights.take(f"{prefix}.ssm_alpha.weight", c.value_heads, h)
        self.ssm_beta = weights.take(f"{prefix}.ssm_beta.weight", c.value_heads, h)
        self.ssm_a = weights.dense(f"{prefix}.ssm_a", c.value_heads)
        self.ssm_dt = weights.dense(f"{prefix}.ssm_dt.bias", c.value_heads)
        self.ssm_conv1d = weights.dense(f"{prefix}.ssm_conv1d.weight", c.conv_channels, c.conv_kernel)
        self.ssm_norm = weights.dense(f"{prefix}.ssm_norm.weight", c.head_dim)
        self.ssm_out = weights.take(f"{prefix}.ssm_out.weight", h, c.value_dim)

    def __call__(self, x: Tensor, past: RecurrentState, *, each: bool) -> tuple[Tensor, StagedState]:
        """[T, H] → [T, H] and the state afterwards, or with `each` after every row."""
        rows = x.shape[0]
        qkv, z, alpha, beta = self._projected(x)
        mixed, inputs = self.ops[causal_conv1d](qkv, past.window, self.ssm_conv1d)
        gates = self.ops[delta_gates](alpha, beta, self.ssm_a, self.ssm_dt)
        if each or rows == 1:
            o, states = self.ops[delta_recurrent](*self.config.heads(mixed), *gates, past.state)
        else:
            o, last = self.ops[delta_chunk](*self.config.heads(mixed), *gates, past.state)
            states = last[None]
            inputs = alone(inputs[rows:])  # all rows will be kept, so what lies before need not wait for that
        return self._output(o, z), StagedState(inputs, states, rows, past.window.shape[0])

    def resume(self, x: Tensor, past: Past, *, each: bool) -> tuple[Tensor, Left]:
        """The same after a step whose rows were kept in part. With `each`, how many of these will be is open too."""
        qkv, z, alpha, beta = self._projected(x)
        mixed, inputs = self.ops[conv_resume](qkv, past.left.inputs, past.kept, self.ssm_conv1d)
        gates = self.ops[delta_gates](alpha, beta, self.ssm_a, self.ssm_dt)
        _, k, v = self.config.heads(past.left.mixed)
        rows = k, v, past.left.g, past.left.beta
        heads = self.config.heads(mixed)
        o, state = self.ops[delta_resume](*heads, *gates, past.left.state, rows, past.missing, each)
        return self._output(o, z), Left(inputs, mixed, *gates, state)

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.ops[projections](x, (self.attn_qkv, self.attn_gate, self.ssm_alpha, self.ssm_beta))

    def _output(self, o: Tensor, z: Tensor) -> Tensor:
        o = self.ops[gated_rms_norm](o, z.view_as(o), self.ssm_norm, self.eps)  # [T, Hv, Dv]
        return self.ops[quant_matmul](o.flatten(1), self.ssm_out)


class DenseFFN:
    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, ops: OpTable) -> None:
        self.ops = ops
        self.ffn_gate = weights.take(f"{prefix}.ffn_gate.weight", config.ff, config.hidden)
        self.ffn_up = weights.take(f"{prefix}.ffn_up.weight", config.ff, config.hidden)
        self.ffn_down = weights.take(f"{prefix}.ffn_down.weight", config.hidden, config.ff)

    def __call__(self, x: Tensor) -> Tensor:
        hidden = self.ops[swiglu](*self.ops[projections](x, (self.ffn_gate, self.ffn_up)))
        return self.ops[quant_matmul](hidden, self.ffn_down)


class MoEFFN:
    """Σ wᵢ·expertᵢ(x) over the routed experts + σ(ffn_gate_inp_shexp·x)·shared(x)."""

    def __init__(self, weights: Weights, index: int, config: ModelConfig, moe: MoEConfig, spread: Spread) -> None:
        self.ops, self.used, prefix = spread.layer(index), moe.used, f"blk.{index}"
        e, f, h = moe.experts, moe.ff, config.hidden
        self.ffn_gate_inp = weights.take(f"{prefix}.ffn_gate_inp.weight", e, h)
        if weights.has(fused := f"{prefix}.ffn_gate_up_exps.weight"):
            self.ffn_gate_exps, self.ffn_up_exps = weights.split(fused, (f, f), e, 2 * f, h)
        else:
            self.ffn_gate_exps = weights.take(f"{prefix}.ffn_gate_exps.weight", e, f, h)
            self.ffn_up_exps = weights.take(f"{prefix}.ffn_up_exps.weight", e, f, h)
        self.ffn_down_exps = weights.take(f"{prefix}.ffn_down_exps.weight", e, h, f)
        self.ffn_gate_inp_shexp = weights.dense(f"{prefix}.ffn_gate_inp_shexp.weight", h)
        self.ffn_gate_shexp = weights.take(f"{prefix}.ffn_gate_shexp.weight", moe.shared_ff, h)
        self.ffn_up_shexp = weights.take(f"{prefix}.ffn_up_shexp.weight", moe.shared_ff, h)
        self.ffn_down_shexp = weights.take(f"{prefix}.ffn_down_shexp.weight", h, moe.shared_ff)
        self.memory: MemoryExperts | None = None
        if (near := spread.experts(index)) is not self.ops:
            stacks = self.ffn_gate_exps, self.ffn_up_exps, self.ffn_down_exps
            self.memory = MemoryExperts(stacks, self.ops, near, spread.room(index))

    def __call__(self, x: Tensor) -> Tensor:
        logits, gate, up = self.ops[projections](x, (self.ffn_gate_inp, self.ffn_gate_shexp, self.ffn_up_shexp))
        expert_weights, ids = self.ops[route](logits, self.used)
        routed = self.ops[experts](x, expert_weights, ids, self.ffn_gate_exps, self.ffn_up_exps, self.ffn_down_exps)
        shared = self.ops[quant_matmul](self.ops[swiglu](gate, up), self.ffn_down_shexp)
        return self.ops[add_shared_expert](routed, x, self.ffn_gate_inp_shexp, shared)


Mixer = TypeVar("Mixer", bound=Attention | GatedDeltaNet, covariant=True)


class Block(Generic[Mixer]):
    """A layer: a mixer and a feed-forward, a norm before each, a residual around each."""

    def __init__(self, mixer: Mixer, weights: Weights, index: int, config: ModelConfig, spread: Spread) -> None:
        self.ops, self.eps, prefix = spread.layer(index), config.eps, f"blk.{index}"
        self.attn_norm = weights.norm(f"{prefix}.attn_norm.weight", config.hidden)
        self.post_attention_norm = weights.norm(f"{prefix}.post_attention_norm.weight", config.hidden)
        self.mixer = mixer
        self.ffn = (
            MoEFFN(weights, index, config, config.moe, spread)
            if config.moe
            else DenseFFN(weights, prefix, config, self.ops)
        )

    def normed(self, x: Tensor) -> Tensor:
        return self.ops[rms_norm](x, self.attn_norm, self.eps)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block's output from its input and what its mixer made of `normed` of it."""
        x, normed = self.ops[add_rms_norm](x, mixed, self.post_attention_norm, self.eps)
        return self.ops[add](x, self.ffn(normed))


def attend(block: Block[Attention], x: Tensor, cache: LayerCache, at: Place) -> Tensor:
    """The output of an attention layer, [T, H]; writes the rows' keys and values."""
    if block.ops.card:
        return fused.attend(block, x, cache, at)
    return block.finish(x, block.mixer(block.normed(x), cache, at.memory or at))


class Trunk:
    """Embeddings, layers and head."""

    def __init__(self, weights: Weights, config: ModelConfig, spread: Spread) -> None:
        vocabulary = weights.rows("token_embd.weight")
        self.token_embd = weights.take("token_embd.weight", vocabulary, config.hidden)
        self.output_norm = weights.norm("output_norm.weight", config.hidden)
        self.output = self.token_embd  # tied, unless the file has a head of its own
        if weights.has("output.weight"):
            self.output = weights.take("output.weight", vocabulary, config.hidden)
        self.blocks: list[Block[Attention | GatedDeltaNet]] = []
        for i, recurrent in enumerate(config.recurrent):
            mixer = GatedDeltaNet if recurrent else Attention
            made = mixer(weights, f"blk.{i}", config, spread.layer(i))
            self.blocks.append(Block(made, weights, i, config, spread))


class MTPBlock:
    """Drafts token t + 2 from the trunk's hidden state at t and token t + 1; the file's last block.

    Its head and its embeddings are the trunk's unless the file brings their own.
    """

    def __init__(self, weights: Weights, config: ModelConfig, spread: Spread, trunk: Trunk) -> None:
        self.ops, self._head_ops, self.eps = spread.layer(config.layers), spread.table, config.eps
        prefix, h = f"blk.{config.layers}", config.hidden
        self.block = Block(Attention(weights, prefix, config, self.ops), weights, config.layers, config, spread)
        self.eh_proj = weights.take(f"{prefix}.nextn.eh_proj.weight", h, 2 * h)
        self.enorm = weights.norm(f"{prefix}.nextn.enorm.weight", h)
        self.hnorm = weights.norm(f"{prefix}.nextn.hnorm.weight", h)
        self.shared_head_norm, self.embed_tokens, self.shared_head_head = (
            trunk.output_norm,
            trunk.token_embd,
            trunk.output,
        )
        if weights.has(name := f"{prefix}.nextn.shared_head_norm.weight"):
            self.shared_head_norm = weights.norm(name, h)
        if weights.has(name := f"{prefix}.nextn.embed_tokens.weight"):
            self.embed_tokens = weights.take(name, *trunk.token_embd.shape)
        if weights.has(name := f"{prefix}.nextn.shared_head_head.weight"):
            self.shared_head_head = weights.take(name, *trunk.token_embd.shape)

    def join(self, next_ids: Tensor, hidden: Tensor) -> Tensor:
        """eh_proj·[RMSNorm(embed(next_ids))·enorm ; RMSNorm(hidden)·hnorm]: [T], [T, H] → [T, H]."""
        embedded = self._head_ops[embedding](next_ids, self.embed_tokens).to(self.ops.device)
        hidden = hidden.to(self.ops.device)
        both = self.ops[concat_rms_norm](embedded, hidden, self.enorm, self.hnorm, self.eps)
        return self.ops[quant_matmul](both, self.eh_proj)

    def __call__(self, next_ids: Tensor, hidden: Tensor, cache: LayerCache, at: Place) -> Tensor:
        """[T], [T, H] → [T, H], normed: what the head reads, and what a longer draft feeds back as `hidden`."""
        x = self.join(next_ids, hidden)
        x = attend(self.block, x, cache, at).to(self._head_ops.device)
        return self._head_ops[rms_norm](x, self.shared_head_norm, self.eps)

    def remember(self, next_ids: Tensor, hidden: Tensor, cache: LayerCache, at: Place) -> None:
        """Write the rows' keys and values, no more."""
        at = at.memory if at.memory and self.ops.card is None else at
        self.block.mixer.remember(self.block.normed(self.join(next_ids, hidden)), cache, at)


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
        self._replay = Replay(ops.machine) if ops.machine else None
        self.stepper: Stepper | GraphStepper | None = Stepper(self, ops.machine) if ops.machine else None
        if ops.card and spread.memory is None:
            self.stepper = GraphStepper(self, ops.card)

    @property
    def vocabulary(self) -> int:
        return self.trunk.token_embd.shape[0]

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raises UnknownTokenError for an id that has no embedding: natively, whatever lies there would be read."""
        if ids and not (min(ids) >= 0 and max(ids) < self.vocabulary):
            raise UnknownTokenError(next(id for id in ids if not 0 <= id < self.vocabulary), self.vocabulary)

    def new_state(self, kv: KVType = "f32") -> SequenceState:
        card = self.ops.card.device if self.ops.card else None
        memory = self.spread.in_memory
        return SequenceState.empty(self.config, mtp=self.mtp is not None, kv=kv, card=card, memory=memory)

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
        at, mtp_at = self._place(start, rows, positions), self._mtp_place(rows, state)
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

    def note(self, ids: Iterable[int]) -> None:
        """Tokens of a prompt or a reply, which may well come again."""
        if self.draft_head:
            self.draft_head.note(ids)

    def warm_up(self) -> None:
        """Do once what takes longer the first time, so that the first reply need not wait for it."""
        state = self.new_state()
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
        at = self._place(start, rows, None)
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

    def _place(self, start: int, rows: int, positions: Tensor | None) -> Place:
        if positions is None:
            positions = torch.arange(start, start + rows)
        if self.ops.card is None:
            return Place(start, *self.rotary(positions))
        device = self.ops.card.device
        near = Place(start, *self.rotary(positions))
        place = Position(start, torch.tensor([start], device=device))
        return Place(place, near.cos.to(device), near.sin.to(device), near if self.spread.memory else None)

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
            x = x.to(block.ops.device)
            if isinstance(block.mixer, GatedDeltaNet):
                x = recur(cast("Block[GatedDeltaNet]", block), x)
            else:
                x = attend(cast(Block[Attention], block), x, next(kv), at)
        return self.ops[rms_norm](x.to(self.ops.device), self.trunk.output_norm, self.config.eps)

    def _mtp_place(self, rows: int, state: SequenceState) -> Place:
        """Where the MTP cache goes on: one row behind the trunk, since row t needs token t + 1."""
        if state.last_hidden is None:
            return self._place(state.length, rows - 1, None)
        return self._place(state.length - 1, rows, None)

    def _fill_mtp(self, ids: Tensor, hidden: Tensor, last: Tensor | None, state: SequenceState, at: Place) -> None:
        """Keep the MTP cache one row behind the trunk's: without its past the block drafts badly."""
        if self.mtp is None or state.mtp_kv is None or not at.rows:
            return
        if last is not None:
            self.mtp.remember(ids, self.ops[shift_rows](last, hidden), state.mtp_kv.layer(0), at)
        else:
            self.mtp.remember(ids[1:], hidden[:-1], state.mtp_kv.layer(0), at)
