"""Products of rows with packed weights: one row at a time by multiply and add, several on the matrix units.

Weights are decoded in registers, tile by tile, and never stand in memory as numbers. A norm before a product needs no
pass of its own: its weight goes into x, and its root, which the same loop finds, divides the sums at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.decode import block_of, column, field, fields_of, load_words, words_of


@triton.jit
def silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def _rounded(x, OFF: tl.constexpr = 16):
    """Without its last OFF bits, to the nearest, halves to even: a bfloat16."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + ((1 << (OFF - 1)) - 1) + ((bits >> OFF) & 1)) & -(1 << OFF)).to(tl.float32, bitcast=True)


@triton.jit
def _upper(x):
    """The upper half of each number, a bfloat16."""
    return (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """total + a·b of float32 tiles on the matrix units.

    fp16: operands rounded to 11 bits; bf16x3: each as a sum of two, so that 16 bits of them count; split: the same,
    where the card has no instruction that rounds. For the interpreter, ieee: all bits; rounded: as fp16, since it
    would cut off.

    Half precision keeps 3 bits more than bfloat16 at the same speed: a router that has to decide between two experts
    falls the other way far less often (see `kernels/README.md`). Its range ends at 65,504. What comes from a norm, from
    attention or from a recurrent layer is far below; `finite` cuts what a SwiGLU gives.
    """
    if PRECISION == "split":
        # NaN may be lost in the first part, and is kept by the second, which is cut off.
        a0, b0 = _rounded(a), _rounded(b)
        a1, b1 = _upper(a - a0), _upper(b - b0)
        a0, b0 = _upper(a0), _upper(b0)
        total = tl.dot(a0, b0, tl.dot(a0, b1, tl.dot(a1, b0, total)))
    elif PRECISION == "fp16":
        total = tl.dot(a.to(tl.float16), b.to(tl.float16), total)
    elif PRECISION == "rounded":
        total = tl.dot(_rounded(a, 13), _rounded(b, 13), total, input_precision="ieee")
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def finite(x, PRECISION: tl.constexpr):
    """What a later product of this precision can take, NaN included."""
    if PRECISION == "fp16" or PRECISION == "rounded":
        x = tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit
def one_row(
    X, NORM, P, BLOCKS, rows, ok,
    K: tl.constexpr, KIND: tl.constexpr, NORMED: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Rows `rows` (int64 [BN]) of the weights times x [K]: float32 [BN]; and Σx²."""
    NB: tl.constexpr = K // block_of(KIND)
    NW: tl.constexpr = NB * words_of(KIND)
    total = tl.zeros((BN, BJ), tl.float32)
    squares = tl.zeros((BJ,), tl.float32)
    for start in range(0, NW, BJ):
        w = start + tl.arange(0, BJ)
        if NW % BJ == 0:
            mask = ok[:, None]
        else:
            mask = ok[:, None] & (w < NW)[None, :]
        parts = load_words(P, BLOCKS, rows[:, None], w[None, :], mask, NB, KIND)
        for i in tl.static_range(fields_of(KIND)):
            k = column(w, i, KIND)
            x = tl.load(X + k, mask=w < NW, other=0.0)
            if NORMED:
                squares += x * x
                x *= tl.load(NORM + k, mask=w < NW, other=0.0)
            total += field(parts, i, KIND) * x[None, :]
    return tl.sum(total, 1), tl.sum(squares, 0)


@triton.jit
def some_rows(
    X, NORM, P, BLOCKS, t, valid, rows, ok,
    K: tl.constexpr, KIND: tl.constexpr, NORMED: tl.constexpr, PRECISION: tl.constexpr, TURNED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Rows `t` (int64 [BM]) of x [·, K] times rows `rows` of the weights: float32 [BM, BN]; and Σx² [BM].

    A card's warps share the rows of a product's first operand, and where those are x's, each warp decodes all of the
    weights. So where there are weights enough they come first, TURNED.
    """
    NB: tl.constexpr = K // block_of(KIND)
    NW: tl.constexpr = NB * words_of(KIND)
    if TURNED:
        total = tl.zeros((BN, BM), tl.float32)
    else:
        total = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM, BJ), tl.float32)
    for start in range(0, NW, BJ):
        w = start + tl.arange(0, BJ)
        inside = (w < NW)[None, :]
        parts = load_words(P, BLOCKS, rows[:, None], w[None, :], ok[:, None] & inside, NB, KIND)
        for i in tl.static_range(fields_of(KIND)):
            k = column(w, i, KIND)[None, :]
            x = tl.load(X + t[:, None] * K + k, mask=valid[:, None] & inside, other=0.0)
            if NORMED:
                squares += x * x
                x *= tl.load(NORM + k, mask=inside, other=0.0)
            if TURNED:
                total = product(field(parts, i, KIND), tl.trans(x), total, PRECISION)
            else:
                total = product(x, tl.trans(field(parts, i, KIND)), total, PRECISION)
    if TURNED:
        total = tl.trans(total)
    return total, tl.sum(squares, 1)


@triton.jit
def _gemv_part(
    X, NORM, EPS, RES, OUT, P, BLOCKS, N, block,
    K: tl.constexpr, KIND: tl.constexpr, NORMED: tl.constexpr, ADDED: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    n = block * BN + tl.arange(0, BN)
    y, squares = one_row(X, NORM, P, BLOCKS, n.to(tl.int64), n < N, K, KIND, NORMED, BN, BJ)
    if NORMED:
        y *= tl.rsqrt(squares / K + EPS)
    if ADDED:
        y += tl.load(RES + n, mask=n < N, other=0.0)
    tl.store(OUT + n, y, mask=n < N)


@triton.constexpr_function
def _parts_of(kinds, index):
    """A bit for each part of the kind of part `index`; none if an earlier part has that kind too."""
    kinds = [getattr(kind, "value", kind) for kind in kinds]
    if kinds[index] in kinds[:index]:
        return 0
    return sum(1 << i for i, kind in enumerate(kinds) if kind == kinds[index])


@triton.jit
def _part(block, N0, N1, N2, N3, BN: tl.constexpr, PARTS: tl.constexpr):
    """Which part a program works on, and which of its blocks."""
    part = 0
    count = tl.cdiv(N0, BN)
    if PARTS > 1:
        beyond = block >= count
        part = tl.where(beyond, 1, part)
        block = tl.where(beyond, block - count, block)
        count = tl.cdiv(N1, BN)
    if PARTS > 2:
        beyond = (part == 1) & (block >= count)
        part = tl.where(beyond, 2, part)
        block = tl.where(beyond, block - count, block)
        count = tl.cdiv(N2, BN)
    if PARTS > 3:
        beyond = (part == 2) & (block >= count)
        part = tl.where(beyond, 3, part)
        block = tl.where(beyond, block - count, block)
    return part, block


@triton.jit
def _of_part(part, A0, A1, A2, A3, PARTS: tl.constexpr):
    """The argument of the part: a pointer."""
    A = A0
    if PARTS > 1:
        if part == 1:
            A = A1
    if PARTS > 2:
        if part == 2:
            A = A2
    if PARTS > 3:
        if part == 3:
            A = A3
    return A


@triton.jit
def _number_of_part(part, A0, A1, A2, A3):
    return tl.where(part == 0, A0, tl.where(part == 1, A1, tl.where(part == 2, A2, A3)))


@triton.jit
def gemv(
    X, NORM, EPS, RES, O0, O1, O2, O3, P0, P1, P2, P3, B0, B1, B2, B3, N0, N1, N2, N3,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, K3: tl.constexpr,
    PARTS: tl.constexpr, NORMED: tl.constexpr, ADDED: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """RMSNorm(x)·Wᵀ + residual for up to four weights, each of its own kind (K0 …): a program is BN rows of one.

    There is one body for all weights of a kind, so that four of the same do not take four times as long to compile.
    """
    part, block = _part(tl.program_id(0), N0, N1, N2, N3, BN, PARTS)
    OUT, P = _of_part(part, O0, O1, O2, O3, PARTS), _of_part(part, P0, P1, P2, P3, PARTS)
    B, N = _number_of_part(part, B0, B1, B2, B3), _number_of_part(part, N0, N1, N2, N3)
    if (_parts_of((K0, K1, K2, K3), 0) >> part) & 1:
        _gemv_part(X, NORM, EPS, RES, OUT, P, B, N, block, K, K0, NORMED, ADDED, BN, BJ)
    if _parts_of((K0, K1, K2, K3), 1) > 0:
        if (_parts_of((K0, K1, K2, K3), 1) >> part) & 1:
            _gemv_part(X, NORM, EPS, RES, OUT, P, B, N, block, K, K1, NORMED, ADDED, BN, BJ)
    if _parts_of((K0, K1, K2, K3), 2) > 0:
        if (_parts_of((K0, K1, K2, K3), 2) >> part) & 1:
            _gemv_part(X, NORM, EPS, RES, OUT, P, B, N, block, K, K2, NORMED, ADDED, BN, BJ)
    if _parts_of((K0, K1, K2, K3), 3) > 0:
        if (_parts_of((K0, K1, K2, K3), 3) >> part) & 1:
            _gemv_part(X, NORM, EPS, RES, OUT, P, B, N, block, K, K3, NORMED, ADDED, BN, BJ)


@triton.jit
def gemv_swiglu(
    X, NORM, EPS, OUT, P0, P1, B0, B1, N,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, NORMED: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """SiLU(gate·RMSNorm(x))·(up·RMSNorm(x))."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = n.to(tl.int64)
    gate, squares = one_row(X, NORM, P0, B0, rows, n < N, K, K0, NORMED, BN, BJ)
    up, _ = one_row(X, NORM, P1, B1, rows, n < N, K, K1, NORMED, BN, BJ)
    if NORMED:
        root = tl.rsqrt(squares / K + EPS)
        gate *= root
        up *= root
    tl.store(OUT + n, silu(gate) * up, mask=n < N)


@triton.jit
def _matmul_part(
    X, NORM, EPS, RES, OUT, P, BLOCKS, T, N, t, block,
    K: tl.constexpr, KIND: tl.constexpr, NORMED: tl.constexpr, ADDED: tl.constexpr, PRECISION: tl.constexpr,
    TURNED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    n = block * BN + tl.arange(0, BN)
    rows = n.to(tl.int64)
    y, squares = some_rows(X, NORM, P, BLOCKS, t, t < T, rows, n < N, K, KIND, NORMED, PRECISION, TURNED, BM, BN, BJ)
    if NORMED:
        y *= tl.rsqrt(squares / K + EPS)[:, None]
    place = t[:, None] * N + n[None, :]
    mask = (t < T)[:, None] & (n < N)[None, :]
    if ADDED:
        y += tl.load(RES + place, mask=mask, other=0.0)
    tl.store(OUT + place, y, mask=mask)


@triton.jit
def matmul(
    X, NORM, EPS, RES, O0, O1, O2, O3, P0, P1, P2, P3, B0, B1, B2, B3, N0, N1, N2, N3, T,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, K3: tl.constexpr,
    PARTS: tl.constexpr, NORMED: tl.constexpr, ADDED: tl.constexpr, PRECISION: tl.constexpr,
    TURNED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """`gemv` for T rows: a program is BM of them and BN rows of one weight."""
    t = (tl.program_id(1) * BM + tl.arange(0, BM)).to(tl.int64)
    part, block = _part(tl.program_id(0), N0, N1, N2, N3, BN, PARTS)
    OUT, P = _of_part(part, O0, O1, O2, O3, PARTS), _of_part(part, P0, P1, P2, P3, PARTS)
    B, N = _number_of_part(part, B0, B1, B2, B3), _number_of_part(part, N0, N1, N2, N3)
    if (_parts_of((K0, K1, K2, K3), 0) >> part) & 1:
        _matmul_part(X, NORM, EPS, RES, OUT, P, B, T, N, t, block, K, K0, NORMED, ADDED, PRECISION, TURNED, BM, BN, BJ)
    if _parts_of((K0, K1, K2, K3), 1) > 0:
        if (_parts_of((K0, K1, K2, K3), 1) >> part) & 1:
            _matmul_part(
                X, NORM, EPS, RES, OUT, P, B, T, N, t, block, K, K1, NORMED, ADDED, PRECISION, TURNED, BM, BN, BJ
            )
    if _parts_of((K0, K1, K2, K3), 2) > 0:
        if (_parts_of((K0, K1, K2, K3), 2) >> part) & 1:
            _matmul_part(
                X, NORM, EPS, RES, OUT, P, B, T, N, t, block, K, K2, NORMED, ADDED, PRECISION, TURNED, BM, BN, BJ
            )
    if _parts_of((K0, K1, K2, K3), 3) > 0:
        if (_parts_of((K0, K1, K2, K3), 3) >> part) & 1:
            _matmul_part(
                X, NORM, EPS, RES, OUT, P, B, T, N, t, block, K, K3, NORMED, ADDED, PRECISION, TURNED, BM, BN, BJ
            )


@triton.jit
def matmul_swiglu(
    X, NORM, EPS, OUT, P0, P1, B0, B1, N, T,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, NORMED: tl.constexpr, PRECISION: tl.constexpr,
    TURNED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """`gemv_swiglu` for T rows."""
    t = (tl.program_id(1) * BM + tl.arange(0, BM)).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = n.to(tl.int64)
    gate, squares = some_rows(X, NORM, P0, B0, t, t < T, rows, n < N, K, K0, NORMED, PRECISION, TURNED, BM, BN, BJ)
    up, _ = some_rows(X, NORM, P1, B1, t, t < T, rows, n < N, K, K1, NORMED, PRECISION, TURNED, BM, BN, BJ)
    if NORMED:
        root = tl.rsqrt(squares / K + EPS)[:, None]
        gate *= root
        up *= root
    y = finite(silu(gate) * up, PRECISION)
    tl.store(OUT + t[:, None] * N + n[None, :], y, mask=(t < T)[:, None] & (n < N)[None, :])


@triton.jit
def embed(IDS, OUT, P, BLOCKS, K: tl.constexpr, KIND: tl.constexpr, BJ: tl.constexpr):
    """Rows of a packed table: a program is one of them."""
    t = tl.program_id(0)
    row = tl.load(IDS + t)
    NB: tl.constexpr = K // block_of(KIND)
    NW: tl.constexpr = NB * words_of(KIND)
    for start in range(0, NW, BJ):
        w = start + tl.arange(0, BJ)
        parts = load_words(P, BLOCKS, row, w, w < NW, NB, KIND)
        for i in tl.static_range(fields_of(KIND)):
            tl.store(OUT + t * K + column(w, i, KIND), field(parts, i, KIND), mask=w < NW)
