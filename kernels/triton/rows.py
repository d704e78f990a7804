"""What is done row by row: norms, rotations, sums, the short convolution, gates, the cache's rows."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.matmul import silu


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def norm(
    X, Y, Z, WEIGHT, TOTAL, OUT, EPS, HEADS, xt, xh, zt, zh, ot,
    D: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """RMSNorm(x + y)·weight·SiLU(z) of head h of row t, and x + y; y and z where asked for.

    x lies at t·xt + h·xh, z likewise, the result at t·ot + h·D, y and the sum at (t·HEADS + h)·D.
    """
    row = tl.program_id(0)
    t, h = row // HEADS, row % HEADS
    d = tl.arange(0, BD)
    x = tl.load(X + t * xt + h * xh + d, mask=d < D, other=0.0)
    if ADDED:
        x += tl.load(Y + row * D + d, mask=d < D, other=0.0)
        tl.store(TOTAL + row * D + d, x, mask=d < D)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / D + EPS) * tl.load(WEIGHT + d, mask=d < D, other=0.0)
    if GATED:
        y *= silu(tl.load(Z + t * zt + h * zh + d, mask=d < D, other=0.0))
    tl.store(OUT + t * ot + h * D + d, y, mask=d < D)


@triton.jit
def pairs(X, Y, OUT, N, SWIGLU: tl.constexpr, B: tl.constexpr):
    """x + y, or SiLU(x)·y."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(X + i, mask=i < N, other=0.0)
    y = tl.load(Y + i, mask=i < N, other=0.0)
    if SWIGLU:
        x = silu(x) * y
    else:
        x += y
    tl.store(OUT + i, x, mask=i < N)


@triton.jit
def shift(FIRST, ROWS, OUT, N, H, B: tl.constexpr):
    """`FIRST` [H], then the rows before the last."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(FIRST + i, mask=i < H, other=0.0)
    y = tl.load(ROWS + (i - H), mask=(i >= H) & (i < N), other=0.0)
    tl.store(OUT + i, tl.where(i < H, x, y), mask=i < N)


@triton.jit
def spread(FIRST, SOME, IDS, OUT, N, R, SIZE, B: tl.constexpr, BR: tl.constexpr):
    """A block of logits of row t: the first N, else those of the ids that lie in it, else −1e30."""
    t = tl.program_id(1)
    i = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(FIRST + t * N + i, mask=i < N, other=-1e30)
    for start in range(0, R, BR):
        r = start + tl.arange(0, BR)
        ids = tl.load(IDS + r, mask=r < R, other=-1)
        some = tl.load(SOME + t * R + r, mask=r < R, other=0.0)
        here = (ids[None, :] == i[:, None]) & (ids >= 0)[None, :]
        found = tl.max(here.to(tl.int32), 1) > 0
        x = tl.where(found, tl.sum(tl.where(here, some[None, :], 0.0), 1), x)
    tl.store(OUT + t * SIZE + i, x, mask=i < SIZE)


@triton.jit
def conv_row(X, WINDOW, WEIGHT, t, c, ok, C, W: tl.constexpr):
    """SiLU of the convolution at row t, channels c: inputs before row 0 come from the window [W − 1, C]."""
    y = tl.zeros(c.shape, tl.float32)
    for j in tl.static_range(W):
        at = tl.zeros(c.shape, tl.int32) + (t + j)
        x = tl.load(WINDOW + at * C + c, mask=ok & (at < W - 1), other=0.0)
        x += tl.load(X + (at - (W - 1)) * C + c, mask=ok & (at >= W - 1), other=0.0)
        y += x * tl.load(WEIGHT + c * W + j, mask=ok, other=0.0)
    return silu(y)


@triton.jit
def conv(X, WINDOW, MOVED, WEIGHT, OUT, INPUTS, C, W: tl.constexpr, RESUMED: tl.constexpr, B: tl.constexpr):
    """A row of the convolution, or a row of the window; `RESUMED`: the window begins at row MOVED."""
    t = tl.program_id(1)
    c = tl.program_id(0) * B + tl.arange(0, B)
    ok = c < C
    if RESUMED:
        WINDOW += tl.load(MOVED) * C
    if t < W - 1:
        tl.store(INPUTS + t * C + c, tl.load(WINDOW + t * C + c, mask=ok, other=0.0), mask=ok)
    else:
        row = t - (W - 1)
        tl.store(INPUTS + t * C + c, tl.load(X + row * C + c, mask=ok, other=0.0), mask=ok)
        tl.store(OUT + row * C + c, conv_row(X, WINDOW, WEIGHT, row, c, ok, C, W), mask=ok)


@triton.jit
def gates(ALPHA, BETA, A, DT, G, OUT, N, HEADS, B: tl.constexpr):
    """g = a·softplus(alpha + dt) and σ(beta)."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    ok = i < N
    h = i % HEADS
    alpha = tl.load(ALPHA + i, mask=ok, other=0.0) + tl.load(DT + h, mask=ok, other=0.0)
    tl.store(G + i, tl.load(A + h, mask=ok, other=0.0) * softplus(alpha), mask=ok)
    tl.store(OUT + i, sigmoid(tl.load(BETA + i, mask=ok, other=0.0)), mask=ok)


@triton.jit
def rotated(X, COS, SIN, d, R: tl.constexpr, D: tl.constexpr):
    """A head's numbers d, the first R of them rotated by halves."""
    x = tl.load(X + d, mask=d < D, other=0.0)
    first = d < R // 2
    other = tl.load(X + tl.where(first, d + R // 2, d - R // 2), mask=d < R, other=0.0)
    angle = tl.where(first, d, d - R // 2)
    cos = tl.load(COS + angle, mask=d < R, other=1.0)
    sin = tl.load(SIN + angle, mask=d < R, other=0.0)
    return x * cos + tl.where(first, -other, other) * sin


@triton.jit
def rope(X, COS, SIN, OUT, HEADS, xt, xh, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    row = tl.program_id(0)
    t, h = row // HEADS, row % HEADS
    d = tl.arange(0, BD)
    y = rotated(X + t * xt + h * xh, COS + t * (R // 2), SIN + t * (R // 2), d, R, D)
    tl.store(OUT + row * D + d, y, mask=d < D)


@triton.jit
def address(TABLE, offset, position, BLOCK: tl.constexpr, TYPE: tl.constexpr):
    """Where the block with a position begins: `offset` numbers after its address in the table."""
    return tl.load(TABLE + position // BLOCK).to(tl.pointer_type(TYPE)) + offset


@triton.jit
def store_row(
    x, TABLE, SCALES, offset, scale_offset, hs, shs, h, position, d,
    D: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, Q8: tl.constexpr,
):  # fmt: skip
    """A head's row into the cache; as int8, rounded to even, with its scale."""
    place = h * hs + position % BLOCK * D + d
    if Q8:
        finite = (x == x) & (tl.abs(x) < float("inf"))
        most = tl.max(tl.where(d < D, tl.abs(x), 0.0), 0)
        broken = tl.max(tl.where((d < D) & (x != x), 1, 0), 0)
        scale = tl.where(broken > 0, float("nan"), most / 127.0)
        q = x / tl.where(broken > 0, float("inf"), tl.maximum(scale, 1.1754943508222875e-38))
        q = tl.where(finite, q, 0.0)
        q = tl.minimum(tl.maximum(q, -127.0), 127.0)
        q = (q + 12582912.0) - 12582912.0  # to the nearest integer, halves to even
        tl.store(address(TABLE, offset, position, BLOCK, tl.int8) + place, q.to(tl.int8), mask=d < D)
        tl.store(address(SCALES, scale_offset, position, BLOCK, tl.float32) + h * shs + position % BLOCK, scale)
    else:
        tl.store(address(TABLE, offset, position, BLOCK, TYPE) + place, x.to(TYPE), mask=d < D)


@triton.jit
def store_rows(
    K, V, KEYS, VALUES, KS, VS, offset, scale_offset, hs, shs, START, HEADS, kt, kh, vt, vh,
    D: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, Q8: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Head h of row t into the blocks of a cache."""
    row = tl.program_id(0)
    t, h = row // HEADS, row % HEADS
    d = tl.arange(0, BD)
    position = tl.load(START) + t
    k = tl.load(K + t * kt + h * kh + d, mask=d < D, other=0.0)
    store_row(k, KEYS, KS, offset, scale_offset, hs, shs, h, position, d, D, BLOCK, TYPE, Q8)
    v = tl.load(V + t * vt + h * vh + d, mask=d < D, other=0.0)
    store_row(v, VALUES, VS, offset, scale_offset, hs, shs, h, position, d, D, BLOCK, TYPE, Q8)
