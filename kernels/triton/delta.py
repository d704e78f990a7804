"""The gated delta rule: see `kernels.delta_rule` for its meaning.

A program holds the state of one value head, or some rows of it, in registers for as long as it needs it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.matmul import product, silu
from kernels.triton.rows import conv_row, sigmoid, softplus


@triton.jit
def unit(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def advance(S, k, v, g, beta):
    """The state [V, K] after one token."""
    S *= tl.exp(g)
    error = beta * (v - tl.sum(S * k[None, :], 1))
    return S + error[:, None] * k[None, :]


@triton.jit
def recurrent(
    Q, K, V, G, BETA, STATE, OUT, STATES, PK, PV, PG, PBETA, COUNT, T, HK, HV,
    qt, qh, kt, kh, vt, vh, pkt, pkh, pvt, pvh,
    DK: tl.constexpr, DV: tl.constexpr, RESUMED: tl.constexpr, EACH: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Token by token, for BV rows of one head's state.

    Not RESUMED: STATES [T, HV, DV, DK] gets the state after every token. RESUMED: the first COUNT rows of the past come
    before; STATES [HV, DV, DK] gets the state after those (EACH) or after all.
    """
    p = tl.program_id(0)
    h = p % HK
    i = tl.arange(0, BK)
    j = tl.program_id(1) * BV + tl.arange(0, BV)
    tile = (p * DV + j[:, None]) * DK + i[None, :]
    ok = (j < DV)[:, None] & (i < DK)[None, :]
    S = tl.load(STATE + tile, mask=ok, other=0.0)
    if RESUMED:
        for r in range(tl.load(COUNT)):
            k = unit(tl.load(PK + r * pkt + h * pkh + i, mask=i < DK, other=0.0))
            v = tl.load(PV + r * pvt + p * pvh + j, mask=j < DV, other=0.0)
            S = advance(S, k, v, tl.load(PG + r * HV + p), tl.load(PBETA + r * HV + p))
        if EACH:
            tl.store(STATES + tile, S, mask=ok)
    for t in range(T):
        q = unit(tl.load(Q + t * qt + h * qh + i, mask=i < DK, other=0.0)) * (DK**-0.5)
        k = unit(tl.load(K + t * kt + h * kh + i, mask=i < DK, other=0.0))
        v = tl.load(V + t * vt + p * vh + j, mask=j < DV, other=0.0)
        S = advance(S, k, v, tl.load(G + t * HV + p), tl.load(BETA + t * HV + p))
        tl.store(OUT + (t * HV + p) * DV + j, tl.sum(S * q[None, :], 1), mask=j < DV)
        if not RESUMED:
            tl.store(STATES + t * HV * DV * DK + tile, S, mask=ok)
    if RESUMED and not EACH:
        tl.store(STATES + tile, S, mask=ok)


@triton.jit
def step(
    QKV, Z, ALPHA, BETA, BEFORE, KEPT, CONV, A, DT, NORM, EPS, PMIXED, PG, PBETA, STATE, MISSING,
    OUT, INPUTS, MIXED, G, B, NEW, T, HK, HV,
    D: tl.constexpr, W: tl.constexpr, EACH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """All of a DeltaNet layer between its projections, for one value head and a few rows.

    Convolution, gates, unit lengths, the rule with the past's missing rows before it, gated norm. The head that reads a
    key head first also writes its part of INPUTS and MIXED.
    """
    p = tl.program_id(0)
    h = p % HK
    d = tl.arange(0, BD)
    ok = d < D
    C = (2 * HK + HV) * D
    cq, ck, cv = h * D + d, (HK + h) * D + d, (2 * HK + p) * D + d
    tile = (p * D + d[:, None]) * D + d[None, :]
    inside = ok[:, None] & ok[None, :]
    S = tl.load(STATE + tile, mask=inside, other=0.0)
    for r in range(tl.load(MISSING)):
        k = unit(tl.load(PMIXED + r * C + ck, mask=ok, other=0.0))
        v = tl.load(PMIXED + r * C + cv, mask=ok, other=0.0)
        S = advance(S, k, v, tl.load(PG + r * HV + p), tl.load(PBETA + r * HV + p))
    if EACH:
        tl.store(NEW + tile, S, mask=inside)
    window = BEFORE + tl.load(KEPT) * C
    for t in range(W - 1):
        tl.store(INPUTS + t * C + cv, tl.load(window + t * C + cv, mask=ok, other=0.0), mask=ok)
        if p < HK:
            tl.store(INPUTS + t * C + cq, tl.load(window + t * C + cq, mask=ok, other=0.0), mask=ok)
            tl.store(INPUTS + t * C + ck, tl.load(window + t * C + ck, mask=ok, other=0.0), mask=ok)
    weight = tl.load(NORM + d, mask=ok, other=0.0)
    a, dt = tl.load(A + p), tl.load(DT + p)
    for t in range(T):
        q = conv_row(QKV, window, CONV, t, cq, ok, C, W)
        k = conv_row(QKV, window, CONV, t, ck, ok, C, W)
        v = conv_row(QKV, window, CONV, t, cv, ok, C, W)
        g = a * softplus(tl.load(ALPHA + t * HV + p) + dt)
        beta = sigmoid(tl.load(BETA + t * HV + p))
        row = t + W - 1
        tl.store(INPUTS + row * C + cv, tl.load(QKV + t * C + cv, mask=ok, other=0.0), mask=ok)
        tl.store(MIXED + t * C + cv, v, mask=ok)
        if p < HK:
            tl.store(INPUTS + row * C + cq, tl.load(QKV + t * C + cq, mask=ok, other=0.0), mask=ok)
            tl.store(INPUTS + row * C + ck, tl.load(QKV + t * C + ck, mask=ok, other=0.0), mask=ok)
            tl.store(MIXED + t * C + cq, q, mask=ok)
            tl.store(MIXED + t * C + ck, k, mask=ok)
        tl.store(G + t * HV + p, g)
        tl.store(B + t * HV + p, beta)
        S = advance(S, unit(k), v, g, beta)
        o = tl.sum(S * (unit(q) * (D**-0.5))[None, :], 1)
        o = o * tl.rsqrt(tl.sum(o * o, 0) / D + EPS) * weight
        place = (t * HV + p) * D + d
        tl.store(OUT + place, o * silu(tl.load(Z + place, mask=ok, other=0.0)), mask=ok)
    if not EACH:
        tl.store(NEW + tile, S, mask=inside)


@triton.jit
def _units(X, t, valid, i, stride, D: tl.constexpr):
    """Rows of unit length, [rows, D]."""
    x = tl.load(X + t[:, None] * stride + i[None, :], mask=valid[:, None] & (i < D)[None, :], other=0.0)
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@triton.jit
def chunk_errors(
    K, V, G, BETA, U, WS, TOTALS, T, HK, HV, kt, kh, vt, vh,
    DK: tl.constexpr, DV: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """What of a chunk does not depend on the state before it.

    The errors e solve (I + A) e = β (v − e^G S k), A strictly lower: so e = U − WS·Sᵀ with U = (I + A)⁻¹ β v and
    WS = (I + A)⁻¹ β e^G k. The inverse is made of blocks of twice the size each time: where M is that of the diagonal
    blocks and A' what of A lies beside two of them, M − M A' M is that of both.
    """
    p = tl.program_id(1)
    r = tl.arange(0, CHUNK)
    t = tl.program_id(0) * CHUNK + r
    valid = t < T
    i, j = tl.arange(0, BK), tl.arange(0, BV)
    g = tl.load(G + t * HV + p, mask=valid, other=0.0)
    beta = tl.load(BETA + t * HV + p, mask=valid, other=0.0)
    total = tl.cumsum(g, 0)
    tl.store(TOTALS + t * HV + p, total, mask=valid)
    k = _units(K + p % HK * kh, t, valid, i, kt, DK)
    zeros = tl.zeros((CHUNK, CHUNK), tl.float32)
    before = r[:, None] > r[None, :]
    decay = tl.exp(tl.where(before, total[:, None] - total[None, :], 0.0))
    A = tl.where(before, beta[:, None] * product(k, tl.trans(k), zeros, PRECISION) * decay, 0.0)
    M = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
    for level in tl.static_range(6):
        half = 1 << level
        if half < CHUNK:
            same = (r[:, None] // (2 * half)) == (r[None, :] // (2 * half))
            beside = same & ((r[:, None] // half) % 2 == 1) & ((r[None, :] // half) % 2 == 0)
            AM = product(tl.where(beside, A, 0.0), M, zeros, PRECISION)
            M -= product(M, AM, zeros, PRECISION)
    v = tl.load(V + t[:, None] * vt + p * vh + j[None, :], mask=valid[:, None] & (j < DV)[None, :], other=0.0)
    u = product(M, v * beta[:, None], tl.zeros((CHUNK, BV), tl.float32), PRECISION)
    tl.store(U + (t[:, None] * HV + p) * DV + j[None, :], u, mask=valid[:, None] & (j < DV)[None, :])
    ws = product(M, k * (beta * tl.exp(total))[:, None], tl.zeros((CHUNK, BK), tl.float32), PRECISION)
    tl.store(WS + (t[:, None] * HV + p) * DK + i[None, :], ws, mask=valid[:, None] & (i < DK)[None, :])


@triton.jit
def chunk_scan(
    Q, K, U, WS, TOTALS, STATE, OUT, NEW, T, HK, HV, qt, qh, kt, kh,
    DK: tl.constexpr, DV: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Chunk after chunk, for BV rows of one head's state."""
    p = tl.program_id(0)
    i, r = tl.arange(0, BK), tl.arange(0, CHUNK)
    j = tl.program_id(1) * BV + tl.arange(0, BV)
    tile = (p * DV + j[:, None]) * DK + i[None, :]
    inside = (j < DV)[:, None] & (i < DK)[None, :]
    S = tl.load(STATE + tile, mask=inside, other=0.0)
    upto = r[:, None] >= r[None, :]
    for start in range(0, T, CHUNK):
        t = start + r
        valid = t < T
        last = tl.minimum(start + CHUNK, T) - 1
        total = tl.load(TOTALS + t * HV + p, mask=valid, other=0.0)
        whole = tl.load(TOTALS + last * HV + p)
        k = _units(K + p % HK * kh, t, valid, i, kt, DK)
        q = _units(Q + p % HK * qh, t, valid, i, qt, DK) * (DK**-0.5)
        ws = tl.load(WS + (t[:, None] * HV + p) * DK + i[None, :], mask=valid[:, None] & (i < DK)[None, :], other=0.0)
        place = (t[:, None] * HV + p) * DV + j[None, :]
        ok = valid[:, None] & (j < DV)[None, :]
        zeros = tl.zeros((CHUNK, BV), tl.float32)
        error = tl.load(U + place, mask=ok, other=0.0) - product(ws, tl.trans(S), zeros, PRECISION)
        decay = tl.exp(tl.where(upto, total[:, None] - total[None, :], 0.0))
        scores = product(q, tl.trans(k), tl.zeros((CHUNK, CHUNK), tl.float32), PRECISION)
        scores = tl.where(upto, scores * decay, 0.0)
        o = product(q * tl.exp(total)[:, None], tl.trans(S), zeros, PRECISION)
        tl.store(OUT + place, product(scores, error, o, PRECISION), mask=ok)
        to_end = tl.where(valid, tl.exp(whole - total), 0.0)
        S = product(tl.trans(error), k * to_end[:, None], S * tl.exp(whole), PRECISION)
    tl.store(NEW + tile, S, mask=inside)
