"""Qwen3.5/3.6: a trunk of Gated DeltaNet and attention layers, dense or MoE, and an MTP block for drafts.

Attributes carry the names of the GGUF tensors. Shapes: T rows (tokens of one sequence), H hidden size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from kernels.attention import attention, rope
from kernels.conv1d import causal_conv1d
from kernels.delta_rule import delta_chunk, delta_gates, delta_recurrent
from kernels.moe import experts, route, swiglu
from kernels.norm import gated_rms_norm, rms_norm
from kernels.op import OpTable
from kernels.quant_matmul import embedding, quant_matmul
from runtime.cache import LayerCache, RecurrentState, SequenceState, Staged, StagedState
from runtime.models.config import ModelConfig, MoEConfig
from runtime.rope import RotaryEmbedding
from runtime.weights import Weights


@dataclass(frozen=True)
class Place:
    """Where the rows of a forward stand: after `start` tokens, at rotary angles [T, R/2]."""

    start: int
    cos: Tensor
    sin: Tensor


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
        """[T, H] → [T, H]; writes the rows' keys and values."""
        self.remember(x, cache, at)
        query_gate = self.ops[quant_matmul](x, self.attn_q).view(-1, self.heads, 2 * self.dim)
        q, gate = query_gate.chunk(2, dim=-1)  # per head: [query | gate]
        q = self.ops[rope](self.ops[rms_norm](q, self.attn_q_norm, self.eps), at.cos, at.sin)
        out = self.ops[attention](q, cache.keys, cache.values, gate, at.start)  # [T, heads, D]
        return self.ops[quant_matmul](out.flatten(1), self.attn_output)

    def remember(self, x: Tensor, cache: LayerCache, at: Place) -> None:
        """Write the rows' keys and values, no more."""
        k = self.ops[quant_matmul](x, self.attn_k).view(-1, self.kv_heads, self.dim)
        v = self.ops[quant_matmul](x, self.attn_v).view(-1, self.kv_heads, self.dim)
        k = self.ops[rope](self.ops[rms_norm](k, self.attn_k_norm, self.eps), at.cos, at.sin)
        cache.write(at.start, k, v)


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
        c, rows = self.config, x.shape[0]
        mixed, inputs = self.ops[causal_conv1d](self.ops[quant_matmul](x, self.attn_qkv), past.window, self.ssm_conv1d)
        q, k, v = mixed.split([c.key_dim, c.key_dim, c.value_dim], dim=-1)
        g, beta = self.ops[delta_gates](
            self.ops[quant_matmul](x, self.ssm_alpha), self.ops[quant_matmul](x, self.ssm_beta), self.ssm_a, self.ssm_dt
        )
        qkv = q.view(rows, -1, c.head_dim), k.view(rows, -1, c.head_dim), v.view(rows, -1, c.head_dim)
        if each or rows == 1:
            o, states = self.ops[delta_recurrent](*qkv, g, beta, past.state)
        else:
            o, last = self.ops[delta_chunk](*qkv, g, beta, past.state)
            states = last[None]
        z = self.ops[quant_matmul](x, self.attn_gate).view_as(o)
        o = self.ops[gated_rms_norm](o, z, self.ssm_norm, self.eps)  # [T, Hv, Dv]
        return self.ops[quant_matmul](o.flatten(1), self.ssm_out), StagedState(inputs, states, rows)


class DenseFFN:
    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, ops: OpTable) -> None:
        self.ops = ops
        self.ffn_gate = weights.take(f"{prefix}.ffn_gate.weight", config.ff, config.hidden)
        self.ffn_up = weights.take(f"{prefix}.ffn_up.weight", config.ff, config.hidden)
        self.ffn_down = weights.take(f"{prefix}.ffn_down.weight", config.hidden, config.ff)

    def __call__(self, x: Tensor) -> Tensor:
        matmul = self.ops[quant_matmul]
        return matmul(self.ops[swiglu](matmul(x, self.ffn_gate), matmul(x, self.ffn_up)), self.ffn_down)


class MoEFFN:
    """Σ wᵢ·expertᵢ(x) over the routed experts + σ(ffn_gate_inp_shexp·x)·shared(x)."""

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, moe: MoEConfig, ops: OpTable) -> None:
        self.ops, self.used = ops, moe.used
        e, f, h = moe.experts, moe.ff, config.hidden
        self.ffn_gate_inp = weights.take(f"{prefix}.ffn_gate_inp.weight", e, h)
        if weights.has(fused := f"{prefix}.ffn_gate_up_exps.weight"):
            self.ffn_gate_exps, self.ffn_up_exps = weights.take(fused, e, 2 * f, h).split_rows((f, f))
        else:
            self.ffn_gate_exps = weights.take(f"{prefix}.ffn_gate_exps.weight", e, f, h)
            self.ffn_up_exps = weights.take(f"{prefix}.ffn_up_exps.weight", e, f, h)
        self.ffn_down_exps = weights.take(f"{prefix}.ffn_down_exps.weight", e, h, f)
        self.ffn_gate_inp_shexp = weights.dense(f"{prefix}.ffn_gate_inp_shexp.weight", h)
        self.ffn_gate_shexp = weights.take(f"{prefix}.ffn_gate_shexp.weight", moe.shared_ff, h)
        self.ffn_up_shexp = weights.take(f"{prefix}.ffn_up_shexp.weight", moe.shared_ff, h)
        self.ffn_down_shexp = weights.take(f"{prefix}.ffn_down_shexp.weight", h, moe.shared_ff)

    def __call__(self, x: Tensor) -> Tensor:
        matmul = self.ops[quant_matmul]
        expert_weights, ids = self.ops[route](matmul(x, self.ffn_gate_inp), self.used)
        routed = self.ops[experts](x, expert_weights, ids, self.ffn_gate_exps, self.ffn_up_exps, self.ffn_down_exps)
        hidden = self.ops[swiglu](matmul(x, self.ffn_gate_shexp), matmul(x, self.ffn_up_shexp))
        shared_gate = torch.sigmoid(x @ self.ffn_gate_inp_shexp)[:, None]
        return routed + shared_gate * matmul(hidden, self.ffn_down_shexp)


Mixer = TypeVar("Mixer", bound=Attention | GatedDeltaNet, covariant=True)


class Block(Generic[Mixer]):
    """A layer: a mixer and a feed-forward, a norm before each, a residual around each."""

    def __init__(self, mixer: Mixer, weights: Weights, prefix: str, config: ModelConfig, ops: OpTable) -> None:
        self.ops, self.eps = ops, config.eps
        self.attn_norm = weights.norm(f"{prefix}.attn_norm.weight", config.hidden)
        self.post_attention_norm = weights.norm(f"{prefix}.post_attention_norm.weight", config.hidden)
        self.mixer = mixer
        self.ffn = (
            MoEFFN(weights, prefix, config, config.moe, ops) if config.moe else DenseFFN(weights, prefix, config, ops)
        )

    def normed(self, x: Tensor) -> Tensor:
        return self.ops[rms_norm](x, self.attn_norm, self.eps)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block's output from its input and what its mixer made of `normed` of it."""
        x = x + mixed
        return x + self.ffn(self.ops[rms_norm](x, self.post_attention_norm, self.eps))


class Trunk:
    """Embeddings, layers and head."""

    def __init__(self, weights: Weights, config: ModelConfig, ops: OpTable) -> None:
        vocabulary = weights.rows("token_embd.weight")
        self.token_embd = weights.take("token_embd.weight", vocabulary, config.hidden)
        self.output_norm = weights.norm("output_norm.weight", config.hidden)
        self.output = self.token_embd  # tied, unless the file has a head of its own
        if weights.has("output.weight"):
            self.output = weights.take("output.weight", vocabulary, config.hidden)
        self.blocks: list[Block[Attention | GatedDeltaNet]] = []
        for i, recurrent in enumerate(config.recurrent):
            mixer = GatedDeltaNet if recurrent else Attention
            self.blocks.append(Block(mixer(weights, f"blk.{i}", config, ops), weights, f"blk.{i}", config, ops))


class MTPBlock:
    """Drafts token t + 2 from the trunk's hidden state at t and token t + 1; the file's last block.

    Its head and its embeddings are the trunk's unless the file brings their own.
    """

    def __init__(self, weights: Weights, config: ModelConfig, ops: OpTable, trunk: Trunk) -> None:
        self.ops, self.eps = ops, config.eps
        prefix, h = f"blk.{config.layers}", config.hidden
        self.block = Block(Attention(weights, prefix, config, ops), weights, prefix, config, ops)
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
        norm = self.ops[rms_norm]
        embedded = self.ops[embedding](next_ids, self.embed_tokens)
        both = torch.cat([norm(embedded, self.enorm, self.eps), norm(hidden, self.hnorm, self.eps)], dim=-1)
        return self.ops[quant_matmul](both, self.eh_proj)

    def __call__(self, next_ids: Tensor, hidden: Tensor, cache: LayerCache, at: Place) -> Tensor:
        """[T], [T, H] → [T, H], normed: what the head reads, and what a longer draft feeds back as `hidden`."""
        x = self.join(next_ids, hidden)
        x = self.block.finish(x, self.block.mixer(self.block.normed(x), cache, at))
        return self.ops[rms_norm](x, self.shared_head_norm, self.eps)

    def remember(self, next_ids: Tensor, hidden: Tensor, cache: LayerCache, at: Place) -> None:
        """Write the rows' keys and values, no more."""
        self.block.mixer.remember(self.block.normed(self.join(next_ids, hidden)), cache, at)


class Qwen35:
    """The whole model over one sequence's state."""

    def __init__(self, weights: Weights, mtp_weights: Weights, config: ModelConfig, ops: OpTable) -> None:
        self.config, self.ops = config, ops
        self.trunk = Trunk(weights, config, ops)
        self.mtp = MTPBlock(mtp_weights, config, ops, self.trunk) if config.mtp_layers else None
        self.rotary = RotaryEmbedding(config.rope)

    @property
    def vocabulary(self) -> int:
        return self.trunk.token_embd.shape[0]

    def new_state(self) -> SequenceState:
        return SequenceState.empty(self.config, mtp=self.mtp is not None)

    @torch.inference_mode()
    def forward(
        self, ids: Sequence[int], state: SequenceState, *, each: bool = False, positions: Tensor | None = None
    ) -> Tensor:
        """Run T rows after what `state` holds and stage them; the caller commits.

        `each`: keep the recurrent state after every row, so that any number of rows can be committed.
        `positions` [T] or [3, T] where they are not simply the next ones. Returns the hidden states
        after output_norm, [T, H].
        """
        at = self._place(state.length, len(ids), positions)
        rows = torch.tensor(ids)
        x = self.ops[embedding](rows, self.trunk.token_embd)
        kv, past = map(state.kv.layer, itertools.count()), iter(state.recurrent)
        staged: list[StagedState] = []
        for block in self.trunk.blocks:
            if isinstance(block.mixer, GatedDeltaNet):
                mixed, after = block.mixer(block.normed(x), next(past), each=each)
                staged.append(after)
            else:
                mixed = block.mixer(block.normed(x), next(kv), at)
            x = block.finish(x, mixed)
        hidden = self.ops[rms_norm](x, self.trunk.output_norm, self.config.eps)
        self._fill_mtp(rows, hidden, state, positions)
        state.stage(Staged(tuple(ids), hidden, staged, each))
        return hidden

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
        return self.mtp(torch.tensor(next_ids), hidden, state.mtp_kv.layer(0), self._place(start, len(next_ids), None))

    @torch.inference_mode()
    def draft_logits(self, drafted: Tensor) -> Tensor:
        """[T, H] of `draft` → [T, V]."""
        if self.mtp is None:
            raise ValueError("this model has no MTP block")
        return self.ops[quant_matmul](drafted, self.mtp.shared_head_head)

    def _place(self, start: int, rows: int, positions: Tensor | None) -> Place:
        if positions is None:
            positions = torch.arange(start, start + rows)
        return Place(start, *self.rotary(positions))

    def _fill_mtp(self, rows: Tensor, hidden: Tensor, state: SequenceState, positions: Tensor | None) -> None:
        """Keep the MTP cache one row behind the trunk's: without its past the block drafts badly."""
        if self.mtp is None or state.mtp_kv is None:
            return
        seen, start = hidden[:-1], state.length
        if state.last_hidden is None:
            rows = rows[1:]
        else:
            seen, start = torch.cat([state.last_hidden[None], seen]), start - 1
        if len(rows):
            self.mtp.remember(rows, seen, state.mtp_kv.layer(0), self._place(start, len(rows), None))
