"""The layers of Qwen3.5/3.6: mixers, FFNs, blocks of both, the trunk and the MTP block.

Attributes carry the names of the GGUF tensors. Shapes: T rows (tokens of one sequence), H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from kernels.attention import attention, rope, store_rows
from kernels.attention_q8 import attention_q8, store_rows_q8
from kernels.conv1d import causal_conv1d, conv_resume
from kernels.delta_rule import delta_chunk, delta_gates, delta_recurrent, delta_resume
from kernels.moe import add_shared_expert, experts, route, swiglu
from kernels.norm import add_rms_norm, concat_rms_norm, gated_rms_norm, rms_norm
from kernels.op import OpTable
from kernels.quant_matmul import embedding, projections, quant_matmul
from kernels.residual import add
from runtime.cache import RecurrentState, StagedState
from runtime.kv_cache import LayerCache, alone
from runtime.models import fused
from runtime.models.config import ModelConfig, MoEConfig
from runtime.models.memory_experts import MemoryExperts
from runtime.models.slabs import Left, Past
from runtime.models.spread import Spread
from runtime.weights import Weights


@dataclass(frozen=True)
class Place:
    """Where the rows of a forward stand: after `start` tokens, at rotary angles [T, R/2].

    `others`: the same for layers that run elsewhere, by their op tables.
    """

    start: int
    cos: Tensor
    sin: Tensor
    others: tuple[tuple[OpTable, Place], ...] = ()

    def on(self, ops: OpTable) -> Place:
        return next((place for table, place in self.others if table is ops), self)

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
        del qkv  # of a long piece these are the most that there is at once
        if not each and rows > 1:
            inputs = alone(inputs[rows:])  # all rows will be kept, so what lies before need not wait for that
        gates = self.ops[delta_gates](alpha, beta, self.ssm_a, self.ssm_dt)
        if each or rows == 1:
            o, states = self.ops[delta_recurrent](*self.config.heads(mixed), *gates, past.state)
        else:
            o, last = self.ops[delta_chunk](*self.config.heads(mixed), *gates, past.state)
            states = last[None]
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
    at = at.on(block.ops)
    if block.ops.card:
        return fused.attend(block, x, cache, at)
    return block.finish(x, block.mixer(block.normed(x), cache, at))


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
        self.block.mixer.remember(self.block.normed(self.join(next_ids, hidden)), cache, at)
