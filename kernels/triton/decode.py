"""Inside kernels: from words of packed weights to numbers, see `layouts`."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton import layouts
from kernels.triton.layouts import LAYOUTS

_BY_KIND = {layout.kind: layout for layout in LAYOUTS.values()}

F32 = tl.constexpr(layouts.F32)
F16 = tl.constexpr(layouts.F16)
BF16 = tl.constexpr(layouts.BF16)
Q4_0 = tl.constexpr(layouts.Q4_0)
Q4_1 = tl.constexpr(layouts.Q4_1)
Q5_0 = tl.constexpr(layouts.Q5_0)
Q5_1 = tl.constexpr(layouts.Q5_1)
Q8_0 = tl.constexpr(layouts.Q8_0)
Q2_K = tl.constexpr(layouts.Q2_K)
Q3_K = tl.constexpr(layouts.Q3_K)
Q4_K = tl.constexpr(layouts.Q4_K)
Q5_K = tl.constexpr(layouts.Q5_K)
Q6_K = tl.constexpr(layouts.Q6_K)
IQ4_NL = tl.constexpr(layouts.IQ4_NL)
IQ4_XS = tl.constexpr(layouts.IQ4_XS)
MXFP4 = tl.constexpr(layouts.MXFP4)


@triton.constexpr_function
def words_of(kind):
    """Words of a block."""
    return _BY_KIND[kind].words


@triton.constexpr_function
def fields_of(kind):
    """Codes of a word."""
    return _BY_KIND[kind].fields


@triton.constexpr_function
def block_of(kind):
    """Weights of a block."""
    return _BY_KIND[kind].block


@triton.constexpr_function
def plane_of(kind, index):
    """Bytes per block that lie before plane `index`."""
    return sum(_BY_KIND[kind].planes[:index])


@triton.constexpr_function
def has_plane(kind, index):
    return _BY_KIND[kind].planes[index] > 0


@triton.constexpr_function
def scale_words(kind):
    return _BY_KIND[kind].scales // 4


@triton.jit
def _low_half(word):
    return (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _high_half(word):
    return ((word >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def load_words(P, BLOCKS, row, w, mask, NB: tl.constexpr, KIND: tl.constexpr):
    """Words `w` (columns) of rows `row` (int64) of NB blocks each, and what decodes them.

    → words, high bits, d, m and four scale words; what a kind has not is the words again.
    """
    W: tl.constexpr = words_of(KIND)
    if KIND == F32:
        q = tl.load(P.to(tl.pointer_type(tl.float32)) + (row * NB + w), mask=mask, other=0.0)
    elif KIND == F16:
        q = tl.load(P.to(tl.pointer_type(tl.float16)) + (row * NB + w), mask=mask, other=0.0)
    elif KIND == BF16:
        q = tl.load(P.to(tl.pointer_type(tl.bfloat16)) + (row * NB + w), mask=mask, other=0.0)
    else:
        q = tl.load(P.to(tl.pointer_type(tl.int32)) + (row * (NB * W) + w), mask=mask, other=0)
    high, d, m, s0, s1, s2, s3 = q, q, q, q, q, q, q
    block = row * NB + w // W
    BLOCKS = BLOCKS.to(tl.int64)
    if has_plane(KIND, 1):
        H = P + BLOCKS * plane_of(KIND, 1)
        if (KIND == Q6_K) or (KIND == Q3_K):
            high = tl.load(H.to(tl.pointer_type(tl.int16)) + (row * (NB * W) + w), mask=mask, other=0).to(tl.int32)
        else:
            high = tl.load(H + (row * (NB * W) + w), mask=mask, other=0).to(tl.int32)
    if has_plane(KIND, 2):
        S = (P + BLOCKS * plane_of(KIND, 2)).to(tl.pointer_type(tl.int32)) + block * scale_words(KIND)
        if KIND == Q6_K:
            half = (w % W) // 16 * 2
            s0 = tl.load(S + half, mask=mask, other=0)
            s1 = tl.load(S + half + 1, mask=mask, other=0)
        else:
            s0 = tl.load(S, mask=mask, other=0)
            if scale_words(KIND) > 1:
                s1 = tl.load(S + 1, mask=mask, other=0)
                s2 = tl.load(S + 2, mask=mask, other=0)
            if scale_words(KIND) > 3:
                s3 = tl.load(S + 3, mask=mask, other=0)
    if has_plane(KIND, 3):
        D = P + BLOCKS * plane_of(KIND, 3)
        if KIND == MXFP4:
            e = tl.load(D + block, mask=mask, other=0).to(tl.int32)
            bits = tl.where(e < 2, 1 << (21 + e), (e - 1) << 23)  # 2^(e − 128)
            d = bits.to(tl.float32, bitcast=True)
        elif (KIND == Q4_1) or (KIND == Q5_1) or (KIND == Q2_K) or (KIND == Q4_K) or (KIND == Q5_K):
            both = tl.load(D.to(tl.pointer_type(tl.int32)) + block, mask=mask, other=0)
            d = _low_half(both)
            m = _high_half(both)
        elif KIND == IQ4_XS:
            both = tl.load(D.to(tl.pointer_type(tl.int32)) + block, mask=mask, other=0)
            d = _low_half(both)
            s1 = both >> 16
        else:
            d = tl.load(D.to(tl.pointer_type(tl.float16)) + block, mask=mask, other=0.0).to(tl.float32)
    return q, high, d, m, s0, s1, s2, s3


@triton.jit
def _nonlinear(code):
    """The 16 values of IQ4: −127, −104, −83, −65, −49, −35, −22, −10, 1, 13, 25, 38, 53, 69, 89, 113, as bytes."""
    low = tl.where(code < 4, -1079142271, -152379953)
    high = tl.where(code < 12, 639175937, 1901675829)
    word = tl.where(code < 8, low, high)
    return (word << (24 - 8 * (code & 3))) >> 24


@triton.jit
def _e2m1_doubled(code):
    """Twice a 4-bit float: sign, two exponent bits, a mantissa bit."""
    e = (code >> 1) & 3
    size = tl.where(e == 0, code & 1, (2 + (code & 1)) << tl.maximum(e - 1, 0))
    return tl.where(code > 7, -size, size)


@triton.jit
def field(parts, I: tl.constexpr, KIND: tl.constexpr):  # noqa: E741
    """The weights in field I of words that `load_words` read, float32."""
    q, high, d, m, s0, s1, s2, s3 = parts
    if (KIND == F32) or (KIND == F16) or (KIND == BF16):
        w = q.to(tl.float32)
    elif KIND == Q8_0:
        w = ((q << (24 - 8 * I)) >> 24).to(tl.float32) * d
    elif KIND == Q4_0:
        w = (((q >> (4 * I)) & 15) - 8).to(tl.float32) * d
    elif KIND == Q4_1:
        w = ((q >> (4 * I)) & 15).to(tl.float32) * d + m
    elif KIND == Q5_0:
        w = ((((q >> (4 * I)) & 15) | (((high >> I) & 1) << 4)) - 16).to(tl.float32) * d
    elif KIND == Q5_1:
        w = (((q >> (4 * I)) & 15) | (((high >> I) & 1) << 4)).to(tl.float32) * d + m
    elif KIND == IQ4_NL:
        w = _nonlinear((q >> (4 * I)) & 15).to(tl.float32) * d
    elif KIND == MXFP4:
        w = _e2m1_doubled((q >> (4 * I)) & 15).to(tl.float32) * d
    elif KIND == IQ4_XS:
        scale = (((s0 >> (4 * I)) & 15) | (((s1 >> (2 * I)) & 3) << 4)) - 32
        w = _nonlinear((q >> (4 * I)) & 15).to(tl.float32) * (d * scale.to(tl.float32))
    elif (KIND == Q4_K) or (KIND == Q5_K):
        scale = ((s0 >> (4 * I)) & 15) | (((s2 >> (2 * I)) & 3) << 4)
        least = ((s1 >> (4 * I)) & 15) | (((s2 >> (16 + 2 * I)) & 3) << 4)
        code = (q >> (4 * I)) & 15
        if KIND == Q5_K:
            code = code | (((high >> I) & 1) << 4)
        w = code.to(tl.float32) * (d * scale.to(tl.float32)) - m * least.to(tl.float32)
    elif KIND == Q6_K:
        if I < 4:
            scale = (s0 << (24 - 8 * (I % 4))) >> 24
        else:
            scale = (s1 << (24 - 8 * (I % 4))) >> 24
        code = (((q >> (4 * I)) & 15) | (((high >> (2 * I)) & 3) << 4)) - 32
        w = code.to(tl.float32) * (d * scale.to(tl.float32))
    elif KIND == Q2_K:
        if I < 4:
            both = s0 >> (8 * (I % 4))
        elif I < 8:
            both = s1 >> (8 * (I % 4))
        elif I < 12:
            both = s2 >> (8 * (I % 4))
        else:
            both = s3 >> (8 * (I % 4))
        code = (q >> (2 * I)) & 3
        w = code.to(tl.float32) * (d * (both & 15).to(tl.float32)) - m * ((both >> 4) & 15).to(tl.float32)
    else:  # Q3_K
        if I < 8:
            low = (s0 >> (4 * (I % 8))) & 15
        else:
            low = (s1 >> (4 * (I % 8))) & 15
        scale = (low | (((s2 >> (2 * I)) & 3) << 4)) - 32
        code = (((q >> (2 * I)) & 3) | (((high >> I) & 1) << 2)) - 4
        w = code.to(tl.float32) * (d * scale.to(tl.float32))
    return w


@triton.jit
def column(w, I: tl.constexpr, KIND: tl.constexpr):  # noqa: E741
    """Which weight of a row field I of its word `w` is."""
    W: tl.constexpr = words_of(KIND)
    return w // W * block_of(KIND) + W * I + w % W
