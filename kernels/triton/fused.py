"""Launches of the ops that are fused for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kernels.triton.card import Card, power_of_two
from kernels.triton.common import new
from kernels.triton.ops_attention import Cache, start_of
from kernels.triton.ops_experts import routed_experts
from kernels.triton.ops_products import norm_projections, norm_swiglu, project_add

__all__ = ["attention_rows", "delta_step", "norm_projections", "norm_swiglu", "project_add", "routed_experts"]


def attention_rows(
    card: Card, query_gate: Tensor, k: Tensor, v: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, cos: Tensor,
    sin: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scales: tuple[Sequence[Tensor], ...], start: int,
) -> Tensor:  # fmt: skip
    from kernels.triton.attend import prepare

    size, tokens = q_norm.shape[0], k.shape[0]
    heads, kv = query_gate.shape[1] // (2 * size), k.shape[1] // size
    cache = Cache(card, keys, values, (scales[0], scales[1]) if scales else None)
    out = new(card, tokens, heads, size)
    card.launch(
        prepare, (tokens, heads + kv), query_gate.contiguous(), k.contiguous(), v.contiguous(), q_norm, k_norm,
        cos.contiguous(), sin.contiguous(), eps, out, *cache.arguments, start_of(card, start), heads, kv,
        query_gate.shape[1], 2 * size, nbytes=4 * tokens * size * (3 * heads + 4 * kv), R=2 * cos.shape[1], D=size,
        BD=power_of_two(size), **cache.constants,
    )  # fmt: skip
    return out


def delta_step(
    card: Card, qkv: Tensor, z: Tensor, alpha: Tensor, beta: Tensor, conv: Tensor, a: Tensor, dt_bias: Tensor,
    norm: Tensor, eps: float, before: Tensor, kept: Tensor, mixed: Tensor, g: Tensor, strength: Tensor, state: Tensor,
    missing: Tensor, each: bool, into: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from kernels.triton.delta import step

    (tokens, channels), width = qkv.shape, conv.shape[1]
    heads, size = state.shape[:2]
    out = new(card, tokens, heads * size)
    left = into or (
        new(card, width - 1 + tokens, channels), new(card, tokens, channels), new(card, tokens, heads),
        new(card, tokens, heads), new(card, heads, size, size),
    )  # fmt: skip
    card.launch(
        step, (heads,), qkv.contiguous(), z.contiguous(), alpha.contiguous(), beta.contiguous(), before, kept, conv, a,
        dt_bias, norm, eps, mixed, g, strength, state.contiguous(), missing, out, *left, tokens,
        (channels // size - heads) // 2, heads, warps=card.tiles.step_warps, D=size, W=width, EACH=each,
        BD=power_of_two(size),
    )  # fmt: skip
    return out, *left
