"""The router, and routed experts: each distinct expert's weights are read once for all tokens that chose it."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.matmul import finite, one_row, silu, some_rows
from kernels.triton.rows import sigmoid


@triton.jit
def route(LOGITS, GATE, WEIGHTS, IDS, SHARED, E, USED, GATED: tl.constexpr, BE: tl.constexpr):
    """A token's USED best experts, the best first, the lower id of equals; σ of the shared expert's gate."""
    t = tl.program_id(0)
    e = tl.arange(0, BE)
    logits = tl.load(LOGITS + t * E + e, mask=e < E, other=-float("inf"))
    p = tl.exp(logits - tl.max(logits, 0))
    left = tl.where(e < E, p, -1.0)
    total = 0.0
    for i in range(USED):
        best = tl.max(left, 0)
        id = tl.min(tl.where(left == best, e, BE), 0)
        tl.store(IDS + t * USED + i, id.to(tl.int64))
        total += best
        left = tl.where(e == id, -1.0, left)
    chosen = left < 0
    left = tl.where(e < E, p, -1.0)
    for i in range(USED):
        best = tl.max(tl.where(chosen, left, -1.0), 0)
        id = tl.min(tl.where(chosen & (left == best), e, BE), 0)
        tl.store(WEIGHTS + t * USED + i, best / total)
        left = tl.where(e == id, -1.0, left)
    if GATED:
        tl.store(SHARED + t, sigmoid(tl.load(GATE + t)))


@triton.jit
def add_shared(ROUTED, X, GATE, SHARED, OUT, H, BH: tl.constexpr):
    """routed + σ(gate·x)·shared, a row."""
    t = tl.program_id(0)
    i = tl.arange(0, BH)
    ok = i < H
    gate = tl.sum(tl.load(X + t * H + i, mask=ok, other=0.0) * tl.load(GATE + i, mask=ok, other=0.0), 0)
    shared = sigmoid(gate) * tl.load(SHARED + t * H + i, mask=ok, other=0.0)
    tl.store(OUT + t * H + i, tl.load(ROUTED + t * H + i, mask=ok, other=0.0) + shared, mask=ok)


@triton.jit
def one_up(
    X, NORM, EPS, IDS, OUT, P0, P1, B0, B1, F, USED,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, NORMED: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """SwiGLU of one token and one of its experts: OUT [pairs, F]."""
    pair = tl.program_id(1)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.load(IDS + pair) * F + n
    x = X + pair // USED * K
    gate, squares = one_row(x, NORM, P0, B0, rows, n < F, K, K0, NORMED, BN, BJ)
    up, _ = one_row(x, NORM, P1, B1, rows, n < F, K, K1, NORMED, BN, BJ)
    if NORMED:
        root = tl.rsqrt(squares / K + EPS)
        gate *= root
        up *= root
    tl.store(OUT + pair * F + n, silu(gate) * up, mask=n < F)


@triton.jit
def one_down(
    X, IDS, WEIGHTS, BASE, FACTOR, SHARED, OUT, P, B, H, USED,
    K: tl.constexpr, KIND: tl.constexpr, FINISHED: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Σ wᵢ·downᵢ(xᵢ) over a token's experts; FINISHED: + base + factor·shared."""
    t = tl.program_id(1)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for i in range(USED):
        pair = t * USED + i
        x = X + pair * K
        y, _ = one_row(x, x, P, B, tl.load(IDS + pair) * H + n, n < H, K, KIND, False, BN, BJ)
        total += tl.load(WEIGHTS + pair) * y
    if FINISHED:
        total += tl.load(BASE + t * H + n, mask=n < H, other=0.0)
        total += tl.load(FACTOR + t) * tl.load(SHARED + t * H + n, mask=n < H, other=0.0)
    tl.store(OUT + t * H + n, total, mask=n < H)


@triton.jit
def _sharers(IDS, pair, T, USED, BM: tl.constexpr, BU: tl.constexpr):
    """The expert of a pair; which of its tokens [BM] chose it, and in which of their places; whether an earlier pair
    did."""
    t, s = tl.arange(0, BM), tl.arange(0, BU)
    place = t[:, None] * USED + s[None, :]
    ids = tl.load(IDS + place, mask=(t < T)[:, None] & (s < USED)[None, :], other=-1)
    expert = tl.load(IDS + pair)
    same = ids == expert
    slot = tl.max(tl.where(same, s[None, :], -1), 1)
    first = tl.min(tl.min(tl.where(same, place, T * USED), 1), 0)
    return expert, t, slot, first == pair


@triton.jit
def few_up(
    X, NORM, EPS, IDS, OUT, P0, P1, B0, B1, F, T, USED,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, NORMED: tl.constexpr, PRECISION: tl.constexpr,
    TURNED: tl.constexpr, BM: tl.constexpr, BU: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """SwiGLU of a few tokens: the first pair with an expert does the work of all."""
    expert, t, slot, leads = _sharers(IDS, tl.program_id(1), T, USED, BM, BU)
    if leads:
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        rows = expert * F + n
        at, chose = t.to(tl.int64), slot >= 0
        gate, squares = some_rows(X, NORM, P0, B0, at, chose, rows, n < F, K, K0, NORMED, PRECISION, TURNED, BM, BN, BJ)
        up, _ = some_rows(X, NORM, P1, B1, at, chose, rows, n < F, K, K1, NORMED, PRECISION, TURNED, BM, BN, BJ)
        if NORMED:
            root = tl.rsqrt(squares / K + EPS)[:, None]
            gate *= root
            up *= root
        place = (t * USED + slot)[:, None] * F + n[None, :]
        tl.store(OUT + place, silu(gate) * up, mask=chose[:, None] & (n < F)[None, :])


@triton.jit
def few_down(
    X, IDS, OUT, P, B, H, T, USED,
    K: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
    TURNED: tl.constexpr, BM: tl.constexpr, BU: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """The same of the second product: OUT [pairs, H]."""
    expert, t, slot, leads = _sharers(IDS, tl.program_id(1), T, USED, BM, BU)
    if leads:
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        pair, chose = (t * USED + slot).to(tl.int64), slot >= 0
        y, _ = some_rows(X, X, P, B, pair, chose, expert * H + n, n < H, K, KIND, False, PRECISION, TURNED, BM, BN, BJ)
        tl.store(OUT + pair[:, None] * H + n[None, :], y, mask=chose[:, None] & (n < H)[None, :])


@triton.jit
def many(
    X, ORDER, EXPERTS, FIRST, LAST, OUT, P0, P1, B0, B1, N, USED, E,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, SWIGLU: tl.constexpr, PRECISION: tl.constexpr,
    TURNED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """BM pairs of one expert, of pairs sorted by expert: rows FIRST to LAST − 1 of ORDER.

    SWIGLU: x of the pairs' tokens → OUT of the pairs; else x of the pairs → OUT of the pairs.
    """
    expert = tl.load(EXPERTS + tl.program_id(1))
    if expert < E:
        r = tl.load(FIRST + tl.program_id(1)) + tl.arange(0, BM)
        valid = r < tl.load(LAST + tl.program_id(1))
        pair = tl.load(ORDER + r, mask=valid, other=0)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        rows = expert * N + n
        if SWIGLU:
            at = pair // USED
            gate, _ = some_rows(X, X, P0, B0, at, valid, rows, n < N, K, K0, False, PRECISION, TURNED, BM, BN, BJ)
            up, _ = some_rows(X, X, P1, B1, at, valid, rows, n < N, K, K1, False, PRECISION, TURNED, BM, BN, BJ)
            y = finite(silu(gate) * up, PRECISION)
        else:
            y, _ = some_rows(X, X, P0, B0, pair, valid, rows, n < N, K, K0, False, PRECISION, TURNED, BM, BN, BJ)
        tl.store(OUT + pair[:, None] * N + n[None, :], y, mask=valid[:, None] & (n < N)[None, :])


@triton.jit
def weigh(Y, WEIGHTS, BASE, FACTOR, SHARED, OUT, H, USED, FINISHED: tl.constexpr, BN: tl.constexpr):
    """Σ wᵢ·yᵢ of a token's pairs; FINISHED: + base + factor·shared."""
    t = tl.program_id(1)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for i in range(USED):
        pair = t * USED + i
        total += tl.load(WEIGHTS + pair) * tl.load(Y + pair * H + n, mask=n < H, other=0.0)
    if FINISHED:
        total += tl.load(BASE + t * H + n, mask=n < H, other=0.0)
        total += tl.load(FACTOR + t) * tl.load(SHARED + t * H + n, mask=n < H, other=0.0)
    tl.store(OUT + t * H + n, total, mask=n < H)
