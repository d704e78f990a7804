"""Launches of what is done row by row, and of the delta rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.triton.card import Card, power_of_two
from kernels.triton.common import cdiv, heads_of, new

_CHUNK = 16  # tokens of a chunk of the delta rule


def rms_norm(card: Card, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(card, x, weight, eps)[0]


def add_rms_norm(card: Card, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, total = _norm(card, x, weight, eps, y=y)
    return total, out


def gated_rms_norm(card: Card, x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(card, x, weight, eps, z=z)[0]


def concat_rms_norm(card: Card, a: Tensor, b: Tensor, weight_a: Tensor, weight_b: Tensor, eps: float) -> Tensor:
    size = a.shape[1]
    out = new(card, a.shape[0], 2 * size)
    _norm(card, a, weight_a, eps, out=out)
    _norm(card, b, weight_b, eps, out=out[:, size:])
    return out


def _norm(
    card: Card, x: Tensor, weight: Tensor, eps: float, *, y: Tensor | None = None, z: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from kernels.triton.rows import norm

    x3, heads = heads_of(x), 1 if x.dim() == 2 else x.shape[-2]
    z3 = x3 if z is None else heads_of(z)
    size = x.shape[-1]
    total = x3 if y is None else new(card, *x.shape)
    result = new(card, *x.shape) if out is None else out
    card.launch(
        norm, (x3.shape[0] * heads,), x3, x3 if y is None else y.contiguous(), z3, weight, total, result, eps, heads,
        *x3.stride()[:2], *z3.stride()[:2], heads * size if out is None else out.stride(0),
        D=size, ADDED=y is not None, GATED=z is not None, BD=power_of_two(size),
    )  # fmt: skip
    return result, total


def add(card: Card, x: Tensor, y: Tensor) -> Tensor:
    return _pairs(card, x, y, swiglu=False)


def swiglu(card: Card, gate: Tensor, up: Tensor) -> Tensor:
    return _pairs(card, gate, up, swiglu=True)


def _pairs(card: Card, x: Tensor, y: Tensor, *, swiglu: bool) -> Tensor:
    from kernels.triton.rows import pairs

    x, y = x.contiguous(), y.contiguous()
    out, tile = new(card, *x.shape), card.tile(1024, x.numel())
    card.launch(pairs, (cdiv(x.numel(), tile),), x, y, out, x.numel(), SWIGLU=swiglu, B=tile)
    return out


def shift_rows(card: Card, first: Tensor, rows: Tensor) -> Tensor:
    from kernels.triton.rows import shift

    rows = rows.contiguous()
    out, tile = new(card, *rows.shape), card.tile(1024, rows.numel())
    card.launch(shift, (cdiv(rows.numel(), tile),), first.contiguous(), rows, out, rows.numel(), rows.shape[1], B=tile)
    return out


def spread_logits(card: Card, first: Tensor, some: Tensor, ids: Tensor, size: int) -> Tensor:
    from kernels.triton.rows import spread

    first, some = first.contiguous(), some.contiguous()
    tokens, count = first.shape
    out, tile = new(card, tokens, size), card.tile(1024, size)
    card.launch(
        spread, (cdiv(size, tile), tokens), first, some, ids, out, count, len(ids), size,
        B=tile, BR=min(32, power_of_two(len(ids))),
    )  # fmt: skip
    return out


def causal_conv1d(card: Card, x: Tensor, window: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return _conv(card, x, window, None, weight)


def conv_resume(card: Card, x: Tensor, before: Tensor, moved: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return _conv(card, x, before, moved, weight)


def _conv(card: Card, x: Tensor, window: Tensor, moved: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    from kernels.triton.rows import conv

    x, window = x.contiguous(), window.contiguous()
    (tokens, channels), width = x.shape, weight.shape[1]
    out, inputs = new(card, tokens, channels), new(card, width - 1 + tokens, channels)
    tile = card.tile(256, channels)
    card.launch(
        conv, (cdiv(channels, tile), width - 1 + tokens), x, window, window if moved is None else moved, weight, out,
        inputs, channels, W=width, RESUMED=moved is not None, B=tile,
    )  # fmt: skip
    return out, inputs


def delta_gates(card: Card, alpha: Tensor, beta: Tensor, a: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    from kernels.triton.rows import gates

    alpha, beta = alpha.contiguous(), beta.contiguous()
    g, strength = new(card, *alpha.shape), new(card, *alpha.shape)
    tile = card.tile(256, alpha.numel())
    card.launch(
        gates, (cdiv(alpha.numel(), tile),), alpha, beta, a, dt_bias, g, strength, alpha.numel(), alpha.shape[1],
        B=tile,
    )  # fmt: skip
    return g, strength


def delta_recurrent(
    card: Card, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return _recurrent(card, q, k, v, g, beta, state, None, None, each=False)


def delta_resume(
    card: Card, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
    past: tuple[Tensor, Tensor, Tensor, Tensor], count: Tensor, each: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _recurrent(card, q, k, v, g, beta, state, past, count, each=each)


def _recurrent(
    card: Card, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
    past: tuple[Tensor, Tensor, Tensor, Tensor] | None, count: Tensor | None, *, each: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from kernels.triton.delta import recurrent

    q, k, v = heads_of(q), heads_of(k), heads_of(v)
    tokens, heads, size = v.shape
    keys = k.shape[2]
    pk, pv = (heads_of(past[0]), heads_of(past[1])) if past else (k, v)
    pg, pbeta = (past[2].contiguous(), past[3].contiguous()) if past else (g, beta)
    out = new(card, tokens, heads, size)
    states = new(card, heads, size, keys) if past else new(card, tokens, heads, size, keys)
    rows = card.tile(32, size)
    card.launch(
        recurrent, (heads, cdiv(size, rows)), q, k, v, g.contiguous(), beta.contiguous(), state.contiguous(), out,
        states, pk, pv, pg, pbeta, state if count is None else count, tokens, k.shape[1], heads,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *pk.stride()[:2], *pv.stride()[:2],
        DK=keys, DV=size, RESUMED=past is not None, EACH=each, BK=power_of_two(keys), BV=rows,
    )  # fmt: skip
    return out, states


def delta_chunk(
    card: Card, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, chunk: int = _CHUNK
) -> tuple[Tensor, Tensor]:
    from kernels.triton.delta import chunk_errors, chunk_scan

    if not card.tiles.chunked:
        none = torch.zeros(1, dtype=torch.long, device=card.device)
        return _recurrent(card, q, k, v, g, beta, state, (k, v, g, beta), none, each=False)
    q, k, v = heads_of(q), heads_of(k), heads_of(v)
    tokens, heads, size = v.shape
    keys = k.shape[2]
    u, ws, totals = new(card, tokens, heads, size), new(card, tokens, heads, keys), new(card, tokens, heads)
    out, after = new(card, tokens, heads, size), new(card, heads, size, keys)
    chunk, wide = max(16, card.tile(chunk, min(tokens, 64))), max(16, power_of_two(keys))
    constants: dict[str, Any] = {
        "DK": keys,
        "DV": size,
        "CHUNK": chunk,
        "PRECISION": card.precision("exact"),
        "BK": wide,
    }
    card.launch(
        chunk_errors, (cdiv(tokens, chunk), heads), k, v, g.contiguous(), beta.contiguous(), u, ws, totals, tokens,
        k.shape[1], heads, *k.stride()[:2], *v.stride()[:2], warps=8, **constants, BV=max(16, power_of_two(size)),
    )  # fmt: skip
    rows = card.tile(16, size, 16)
    card.launch(
        chunk_scan, (heads, cdiv(size, rows)), q, k, u, ws, totals, state.contiguous(), out, after, tokens, k.shape[1],
        heads, *q.stride()[:2], *k.stride()[:2], warps=8, **constants, BV=rows,
    )  # fmt: skip
    return out, after
