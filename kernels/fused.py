"""Ops that a GPU does in one launch, or as few as it can, where other columns do them one after the other.

Their references are those of the ops that they are made of. Models use them where the table has a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.attention import rope, store_rows
from kernels.attention_q8 import quantize_rows, store_rows_q8
from kernels.conv1d import conv_resume
from kernels.delta_rule import delta_gates, delta_resume
from kernels.moe import experts, route, swiglu
from kernels.norm import gated_rms_norm, rms_norm
from kernels.op import Case, Op, random_tensors
from kernels.quant_matmul import projections, quant_matmul
from kernels.quants import QuantTensor
from kernels.triton import fused as gpu


def _norm_projections(x: Tensor, norm: Tensor, eps: float, weights: Sequence[QuantTensor]) -> tuple[Tensor, ...]:
    """`projections` of RMSNorm(x)·norm."""
    return projections.reference(rms_norm.reference(x, norm, eps), weights)


def _norm_swiglu(x: Tensor, norm: Tensor, eps: float, gate: QuantTensor, up: QuantTensor) -> Tensor:
    """SiLU(gate·y)·(up·y) with y = RMSNorm(x)·norm."""
    return swiglu.reference(*_norm_projections(x, norm, eps, (gate, up)))


def _project_add(x: Tensor, weight: QuantTensor, residual: Tensor) -> Tensor:
    """residual + x·Wᵀ."""
    return residual + quant_matmul.reference(x, weight)


def _attention_rows(
    query_gate: Tensor, k: Tensor, v: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, cos: Tensor, sin: Tensor,
    keys: Sequence[Tensor], values: Sequence[Tensor], scales: tuple[Sequence[Tensor], ...], start: int,
) -> Tensor:  # fmt: skip
    """Norm and rotation of each head of q and k; k and v into the cache.

    query_gate [T, Hq·2·D], per head [query | gate], k, v [T, Hkv·D]; keys, values, scales and start as `store_rows`
    and `store_rows_q8` have them, with no scales the former → q [T, Hq, D].
    """
    dim = q_norm.shape[0]
    q = query_gate.view(len(k), -1, 2 * dim)[..., :dim]
    k, v = k.view(len(k), -1, dim), v.view(len(k), -1, dim)
    k = rope.reference(rms_norm.reference(k, k_norm, eps), cos, sin)
    if scales:
        store_rows_q8.reference(k, v, keys, values, scales[0], scales[1], start)
    else:
        store_rows.reference(k, v, keys, values, start)
    return rope.reference(rms_norm.reference(q, q_norm, eps), cos, sin)


def _delta_step(
    qkv: Tensor, z: Tensor, alpha: Tensor, beta: Tensor, conv: Tensor, a: Tensor, dt_bias: Tensor, norm: Tensor,
    eps: float, before: Tensor, kept: Tensor, mixed: Tensor, g: Tensor, strength: Tensor, state: Tensor,
    missing: Tensor, each: bool, into: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """All of a DeltaNet layer between its projections.

    qkv [T, C], z [T, Hv·D], alpha, beta [T, Hv], conv [C, W], a, dt_bias [Hv], norm [D]. What an earlier step left:
    before (inputs of its convolution) and how many of its rows are `kept`; mixed [·, C], g and strength [·, Hv] of its
    rows, of which the first `missing` are not yet in `state` [Hv, D, D].
    → o [T, Hv·D]; and what this step leaves: inputs [W − 1 + T, C], mixed, g, strength, and the state after the missing
    rows (`each`) or after these rows too; all `into` given memory, which may have room for more rows.
    """
    heads, dim = state.shape[:2]
    key_dim = (qkv.shape[1] - heads * dim) // 2

    def cut(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = rows.split([key_dim, key_dim, heads * dim], dim=-1)
        return q.view(len(rows), -1, dim), k.view(len(rows), -1, dim), v.view(len(rows), -1, dim)

    new, inputs = conv_resume.reference(qkv, before, kept, conv)
    gates = delta_gates.reference(alpha, beta, a, dt_bias)
    past = *cut(mixed)[1:], g, strength
    o, after = delta_resume.reference(*cut(new), *gates, state, past, missing, each)
    o = gated_rms_norm.reference(o, z.view_as(o), norm, eps)
    left = inputs, new, *gates, after
    if into:
        for place, part in zip(into, left, strict=True):
            place[: len(part)] = part
    return o.flatten(1), *(into or left)


def _routed_experts(
    x: Tensor, norm: Tensor, eps: float, logits: Tensor, shared_gate: Tensor, used: int,
    gate: QuantTensor, up: QuantTensor, down: QuantTensor, shared: Tensor,
) -> Tensor:  # fmt: skip
    """x + Σ wᵢ·expertᵢ(y) + σ(shared_gate)·shared with y = RMSNorm(x)·norm.

    logits [T, E] of the router, shared_gate [T, 1], shared [T, H]; the rest as `experts`.
    """
    weights, ids = route.reference(logits, used)
    routed = experts.reference(rms_norm.reference(x, norm, eps), weights, ids, gate, up, down)
    return x + routed + torch.sigmoid(shared_gate) * shared


def _projection_cases() -> Iterator[Case]:
    randn = random_tensors(31)
    for tokens, rows, columns in ((1, (33, 4, 7), 64), (6, (17, 32), 96), (11, (5,), 32)):
        weights = tuple(QuantTensor.from_dense(randn(n, columns)) for n in rows)
        yield Case(f"{tokens}x{rows}x{columns}", (randn(tokens, columns), 1 + 0.1 * randn(columns), 1e-6, weights))


def _swiglu_cases() -> Iterator[Case]:
    randn = random_tensors(32)
    for tokens, rows, columns in ((1, 33, 64), (6, 17, 96), (11, 20, 32)):
        weights = (QuantTensor.from_dense(randn(rows, columns)) for _ in range(2))
        yield Case(f"{tokens}x{rows}x{columns}", (randn(tokens, columns), 1 + 0.1 * randn(columns), 1e-6, *weights))


def _add_cases() -> Iterator[Case]:
    randn = random_tensors(33)
    for tokens, rows, columns in ((1, 33, 64), (6, 17, 96), (11, 20, 32)):
        weight = QuantTensor.from_dense(randn(rows, columns))
        yield Case(f"{tokens}x{rows}x{columns}", (randn(tokens, columns), weight, randn(tokens, rows)))


def _rows_cases() -> Iterator[Case]:
    """The blocks are results too, so each case is for one use."""
    randn = random_tensors(34)
    for tokens, start, heads, kv, dim, rotated, q8 in (
        (1, 7, 4, 2, 32, 8, False),
        (3, 6, 2, 1, 24, 24, False),
        (2, 7, 6, 2, 32, 8, True),
    ):
        cache = randn(4, 3, kv, 8, dim)
        blocks = [tuple(part) for part in cache[:2]]
        scales: tuple[tuple[Tensor, ...], ...] = ()
        if q8:
            rows, factors = quantize_rows(cache[:2])
            blocks, scales = [tuple(part) for part in rows], tuple(tuple(part) for part in factors)
        angles = 100 * randn(tokens, rotated // 2)
        args = (
            randn(tokens, heads * 2 * dim), randn(tokens, kv * dim), randn(tokens, kv * dim), 1 + 0.1 * randn(dim),
            1 + 0.1 * randn(dim), 1e-6, angles.cos(), angles.sin(), *blocks, scales, start,
        )  # fmt: skip
        yield Case(f"{tokens}+{start}h{heads}kv{kv}x{dim}r{rotated}{'q8' * q8}", args)


def _step_cases() -> Iterator[Case]:
    randn = random_tensors(35)
    for tokens, kept, missing, k_heads, v_heads, dim, width in (
        (1, 0, 0, 2, 4, 16, 4),
        (1, 3, 3, 1, 1, 24, 4),
        (3, 2, 0, 2, 6, 16, 3),
        (5, 5, 5, 1, 2, 32, 4),
    ):
        channels = (2 * k_heads + v_heads) * dim
        for each in (False, True):
            gates = -torch.nn.functional.softplus(randn(5, v_heads)), torch.sigmoid(randn(5, v_heads))
            args = (
                randn(tokens, channels), randn(tokens, v_heads * dim), randn(tokens, v_heads), randn(tokens, v_heads),
                randn(channels, width), -randn(v_heads).exp(), randn(v_heads), 1 + 0.1 * randn(dim), 1e-6,
                randn(width + 4, channels), torch.tensor([kept]), randn(5, channels), *gates,
                randn(v_heads, dim, dim), torch.tensor([missing]), each,
            )  # fmt: skip
            yield Case(f"{tokens}after{kept}-{missing}x{k_heads}k{v_heads}v{dim}w{width}{'each' * each}", args)


def _expert_cases() -> Iterator[Case]:
    randn = random_tensors(36)
    for tokens, hidden, ff, count, used in ((1, 64, 32, 8, 3), (5, 32, 33, 4, 2), (11, 32, 64, 5, 2)):
        shapes = (count, ff, hidden), (count, ff, hidden), (count, hidden, ff)
        packed = (QuantTensor.from_dense(randn(*shape)) for shape in shapes)
        args = (
            randn(tokens, hidden), 1 + 0.1 * randn(hidden), 1e-6, 2 * randn(tokens, count), randn(tokens, 1), used,
            *packed, randn(tokens, hidden),
        )  # fmt: skip
        yield Case(f"{tokens}x{hidden}f{ff}e{count}k{used}", args)


norm_projections = Op(_norm_projections, _projection_cases, tolerance=1e-5, triton=gpu.norm_projections)
norm_swiglu = Op(_norm_swiglu, _swiglu_cases, tolerance=1e-5, triton=gpu.norm_swiglu)
project_add = Op(_project_add, _add_cases, tolerance=1e-5, triton=gpu.project_add)
attention_rows = Op(_attention_rows, _rows_cases, tolerance=1e-5, triton=gpu.attention_rows)
delta_step = Op(_delta_step, _step_cases, tolerance=1e-4, triton=gpu.delta_step)
routed_experts = Op(_routed_experts, _expert_cases, tolerance=1e-5, triton=gpu.routed_experts)
