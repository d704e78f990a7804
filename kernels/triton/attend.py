"""Attention over a cache in blocks, whose addresses lie in a table; and what comes before it.

The rows of a program are all query heads of one key/value head for one or more tokens, so keys and values are read once
for all of them. The positions are cut into parts, so that a single token too keeps the whole card busy.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.matmul import product
from kernels.triton.rows import address, sigmoid, store_row


@triton.jit
def prepare(
    Q, K, V, QNORM, KNORM, COS, SIN, EPS, OUT, KEYS, VALUES, KS, VS, offset, scale_offset, hs, shs, START, HQ, HKV,
    qt, qh,
    R: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, Q8: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A head's norm and rotation: a query head goes to OUT, a key head with its value into the cache."""
    t, h = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BD)
    other = tl.where(d < R // 2, d + R // 2, tl.where(d < R, d - R // 2, d))
    if h < HQ:
        X, W = Q + t * qt + h * qh, QNORM
    else:
        X, W = K + (t * HKV + h - HQ) * D, KNORM
    x = tl.load(X + d, mask=d < D, other=0.0)
    root = tl.rsqrt(tl.sum(x * x, 0) / D + EPS)
    y = tl.load(X + other, mask=d < D, other=0.0) * tl.load(W + other, mask=d < D, other=0.0)
    x *= tl.load(W + d, mask=d < D, other=0.0)
    angle = t * (R // 2) + tl.where(d < R // 2, d, d - R // 2)
    cos = tl.load(COS + angle, mask=d < R, other=1.0)
    sin = tl.load(SIN + angle, mask=d < R, other=0.0)
    x = (x * cos + tl.where(d < R // 2, -y, y) * sin) * root
    if h < HQ:
        tl.store(OUT + (t * HQ + h) * D + d, x, mask=d < D)
    else:
        position = tl.load(START) + t
        store_row(x, KEYS, KS, offset, scale_offset, hs, shs, h - HQ, position, d, D, BLOCK, TYPE, Q8)
        v = tl.load(V + (t * HKV + h - HQ) * D + d, mask=d < D, other=0.0)
        store_row(v, VALUES, VS, offset, scale_offset, hs, shs, h - HQ, position, d, D, BLOCK, TYPE, Q8)


@triton.jit
def _queries(Q, t, h, valid, d, qt, qh, D: tl.constexpr, AGAIN: tl.constexpr):
    """Dimensions `d` of some rows, scaled. AGAIN: read each time, not held in registers."""
    place = t[:, None] * qt + h[:, None] * qh + d[None, :]
    q = tl.load(Q + place, mask=valid[:, None] & (d < D)[None, :], other=0.0, volatile=AGAIN)
    return q * D**-0.5


@triton.jit
def _cached(
    TABLE, SCALES, offset, scale_offset, place, scale_place, position, ok, d,
    D: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, Q8: tl.constexpr,
):  # fmt: skip
    """Dimensions `d` of a tile of keys or values, float32."""
    x = tl.load(
        address(TABLE, offset, position, BLOCK, TYPE) + place[:, None] + d[None, :],
        mask=ok[:, None] & (d < D)[None, :], other=0,
    ).to(tl.float32)  # fmt: skip
    if Q8:
        scale = address(SCALES, scale_offset, position, BLOCK, tl.float32)
        x *= tl.load(scale + scale_place, mask=ok, other=0.0)[:, None]
    return x


@triton.jit
def attend(
    Q, KEYS, VALUES, KS, VS, offset, scale_offset, hs, shs, START, PART, T, HQ, HKV, qt, qh,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr,
    Q8: tl.constexpr, PRECISION: tl.constexpr, TURNED: tl.constexpr, BM: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A part of the positions: per row Σ e^(s − m) v, m and Σ e^(s − m) into PART [T, HQ, SPLITS, D + 2].

    Scores are summed over BC dimensions at a time. TURNED: positions and dimensions come first in products, rows last,
    as in `matmul.some_rows`.
    """
    first = tl.program_id(0) * BM
    kv, split = tl.program_id(1), tl.program_id(2)
    r = first + tl.arange(0, BM)
    t, h = r // GROUP, kv * GROUP + r % GROUP
    valid = r < T * GROUP
    d = tl.arange(0, BD)
    start = tl.load(START).to(tl.int32)
    if BC == BD:
        whole = _queries(Q, t, h, valid, d, qt, qh, D, False)
    end = start + tl.minimum((first + BM - 1) // GROUP + 1, T)
    share = tl.cdiv(tl.cdiv(end, SPLITS), BP) * BP
    low = split * share
    most = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    if TURNED:
        total = tl.zeros((BD, BM), tl.float32)
    else:
        total = tl.zeros((BM, BD), tl.float32)
    for position in range(low, tl.minimum(low + share, end), BP):
        at = position + tl.arange(0, BP)
        ok = at < end
        row, scale_row = kv * hs + at % BLOCK * D, kv * shs + at % BLOCK
        if TURNED:
            scores = tl.zeros((BP, BM), tl.float32)
        else:
            scores = tl.zeros((BM, BP), tl.float32)
        for c in tl.static_range(BD // BC):
            part = c * BC + tl.arange(0, BC)
            if BC == BD:
                q = whole
            else:
                q = _queries(Q, t, h, valid, part, qt, qh, D, True)
            k = _cached(
                KEYS, KS, offset, scale_offset, row, scale_row, position, ok, part, D, BLOCK, TYPE, Q8
            )  # fmt: skip
            if TURNED:
                scores = product(k, tl.trans(q), scores, PRECISION)
            else:
                scores = product(q, tl.trans(k), scores, PRECISION)
        if TURNED:
            scores = tl.trans(scores)
        scores = tl.where(at[None, :] <= start + t[:, None], scores, -float("inf"))
        now = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(now == -float("inf"), 0.0, now)
        e = tl.exp(scores - base[:, None])
        fade = tl.exp(most - base)
        v = _cached(VALUES, VS, offset, scale_offset, row, scale_row, position, ok, d, D, BLOCK, TYPE, Q8)
        if TURNED:
            total = product(tl.trans(v), tl.trans(e), total * fade[None, :], PRECISION)
        else:
            total = product(e, v, total * fade[:, None], PRECISION)
        weight = weight * fade + tl.sum(e, 1)
        most = now
    if TURNED:
        total = tl.trans(total)
    place = PART + ((t * HQ + h) * SPLITS + split) * (D + 2)
    tl.store(place[:, None] + d[None, :], total, mask=valid[:, None] & (d < D)[None, :])
    tl.store(place + D, most, mask=valid)
    tl.store(place + D + 1, weight, mask=valid)


@triton.jit
def combine(
    PART, GATE, OUT, HQ, gt, gh, SPLITS: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """The parts of a row together, times σ(gate)."""
    row = tl.program_id(0)
    s, d = tl.arange(0, BS), tl.arange(0, BD)
    place = PART + (row * SPLITS + s) * (D + 2)
    most = tl.load(place + D, mask=s < SPLITS, other=-float("inf"))
    e = tl.exp(most - tl.max(most, 0))
    weight = tl.sum(e * tl.load(place + D + 1, mask=s < SPLITS, other=0.0), 0)
    parts = tl.load(place[:, None] + d[None, :], mask=(s < SPLITS)[:, None] & (d < D)[None, :], other=0.0)
    gate = tl.load(GATE + row // HQ * gt + row % HQ * gh + d, mask=d < D, other=0.0)
    tl.store(OUT + row * D + d, tl.sum(parts * e[:, None], 0) / weight * sigmoid(gate), mask=d < D)
