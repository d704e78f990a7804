"""The layers in the ops that a GPU does in one launch each: what `qwen35` says, with norms and residuals taken in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from kernels.attention import attention
from kernels.attention_q8 import attention_q8
from kernels.conv1d import causal_conv1d
from kernels.delta_rule import delta_chunk, delta_gates, delta_recurrent
from kernels.fused import attention_rows, delta_step, norm_projections, norm_swiglu, project_add, routed_experts
from kernels.moe import add_shared_expert, route
from kernels.norm import gated_rms_norm, rms_norm
from kernels.quant_matmul import quant_matmul
from kernels.quants import QuantTensor
from kernels.residual import add
from runtime.cache import RecurrentState, StagedState
from runtime.kv_cache import LayerCache, alone
from runtime.models.slabs import Left, Past

if TYPE_CHECKING:
    from runtime.models.layers import Attention, Block, GatedDeltaNet, MoEFFN, Place

FEW = 8  # rows up to which a layer is a step


def attend(block: Block[Attention], x: Tensor, cache: LayerCache, at: Place) -> Tensor:
    """The layer's output [T, H]; writes the rows' keys and values."""
    m, ops = block.mixer, block.ops
    weights = m.attn_q, m.attn_k, m.attn_v
    query_gate, k, v = ops[norm_projections](x, block.attn_norm, block.eps, weights)
    norms = m.attn_q_norm, m.attn_k_norm, m.eps
    scales = (cache.key_scales, cache.value_scales) if cache.kind == "q8" else ()
    q = ops[attention_rows](query_gate, k, v, *norms, at.cos, at.sin, cache.keys, cache.values, scales, at.start)
    gate = query_gate.view(-1, m.heads, 2 * m.dim)[..., m.dim :]
    if scales:
        out = ops[attention_q8](q, cache.keys, cache.values, *scales, gate, at.start)
    else:
        out = ops[attention](q, cache.keys, cache.values, gate, at.start)
    return feed_forward(block, ops[project_add](out.flatten(1), m.attn_output, x))


def recur(block: Block[GatedDeltaNet], x: Tensor, past: RecurrentState, *, each: bool) -> tuple[Tensor, StagedState]:
    """The layer's output [T, H] and the state afterwards, or with `each` after every row."""
    m, ops, rows = block.mixer, block.ops, len(x)
    qkv, z, alpha, beta = _projected(block, x)
    if rows <= FEW and not each:
        none = ops.zero
        o, inputs, _, _, _, state = ops[delta_step](
            qkv, z, alpha, beta, m.ssm_conv1d, m.ssm_a, m.ssm_dt, m.ssm_norm, m.eps, past.window, none, qkv, alpha,
            beta, past.state, none, False,
        )  # fmt: skip
        states = state[None]
    else:
        mixed, inputs = ops[causal_conv1d](qkv, past.window, m.ssm_conv1d)
        gates = ops[delta_gates](alpha, beta, m.ssm_a, m.ssm_dt)
        if each:
            out, states = ops[delta_recurrent](*m.config.heads(mixed), *gates, past.state)
        else:
            out, last = ops[delta_chunk](*m.config.heads(mixed), *gates, past.state)
            states, inputs = last[None], alone(inputs[rows:])
        o = ops[gated_rms_norm](out, z.view_as(out), m.ssm_norm, m.eps).flatten(1)
    after = StagedState(inputs, states, rows, past.window.shape[0])
    return feed_forward(block, ops[project_add](o, m.ssm_out, x)), after


def resume(
    block: Block[GatedDeltaNet], x: Tensor, past: Past, *, each: bool, into: Left | None = None
) -> tuple[Tensor, Left]:
    """The same after a step whose rows were kept in part. With `each`, how many of these will be is open too.

    What is left goes `into` given memory, which may have room for more rows.
    """
    m, left = block.mixer, past.left
    qkv, z, alpha, beta = _projected(block, x)
    o, *after = block.ops[delta_step](
        qkv, z, alpha, beta, m.ssm_conv1d, m.ssm_a, m.ssm_dt, m.ssm_norm, m.eps, left.inputs, past.kept, left.mixed,
        left.g, left.beta, left.state, past.missing, each, into,
    )  # fmt: skip
    return feed_forward(block, block.ops[project_add](o, m.ssm_out, x)), Left(*after)


def _projected(block: Block[GatedDeltaNet], x: Tensor) -> tuple[Tensor, ...]:
    m = block.mixer
    return block.ops[norm_projections](
        x, block.attn_norm, block.eps, (m.attn_qkv, m.attn_gate, m.ssm_alpha, m.ssm_beta)
    )


def feed_forward(block: Block[Attention] | Block[GatedDeltaNet], x: Tensor) -> Tensor:
    """x + ffn(RMSNorm(x)·norm)."""
    from runtime.models.layers import DenseFFN

    f, ops, norm = block.ffn, block.ops, (block.post_attention_norm, block.eps)
    if isinstance(f, DenseFFN):
        return ops[project_add](ops[norm_swiglu](x, *norm, f.ffn_gate, f.ffn_up), f.ffn_down, x)
    logits, shared_gate = ops[norm_projections](x, *norm, (f.ffn_gate_inp, _shared_gate(f)))
    shared = ops[quant_matmul](ops[norm_swiglu](x, *norm, f.ffn_gate_shexp, f.ffn_up_shexp), f.ffn_down_shexp)
    if f.memory:
        normed, (weights, ids) = ops[rms_norm](x, *norm), ops[route](logits, f.used)
        routed = f.memory(normed, weights, ids)
        return ops[add](x, ops[add_shared_expert](routed, normed, f.ffn_gate_inp_shexp, shared))
    experts = f.ffn_gate_exps, f.ffn_up_exps, f.ffn_down_exps
    return ops[routed_experts](x, *norm, logits, shared_gate, f.used, *experts, shared)


def _shared_gate(ffn: MoEFFN) -> QuantTensor:
    """As the matrix of one row that it is."""
    return QuantTensor.from_dense(ffn.ffn_gate_inp_shexp[None])
