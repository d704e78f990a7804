"""Activations to 15 bits, in groups of 32 with a scale each.

An activation is scale·(128·a + b), a and b bytes. Within a tile of R rows they are [K/4, R, 2] words of 32 bits of four
a and four b (AVX2: of two times two whole ones), beside [K/32, R] of `META` numbers of 32 bits about each group.

With AVX2 one row has both: first all words of a and b, for the types that `one_row` multiplies, then the whole ones.
"""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.dot import activation_words, byte_words
from kernels.cpu.ir import LANES, Function, Value, f32, i32, single, vector
from kernels.cpu.isa import Target

SEGMENT = 512  # activations that are quantised in one piece

# 128·a + b at most, with a of −127 … 127 and b of −64 … 63: pairs of their products with bytes fit 16 bits.
LARGEST = 16319

# Of a group: its scale; scale·Σq of the whole and of its halves; −Σq of the same, as integers, for q = 128·a + b.
META = 8
SCALE, SUM, NEGATIVE = 0, 1, 4


def row_bytes(target: Target, tile: int) -> int:
    """Of an activation of each row of a tile."""
    return 4 if target.dot == "avx2" and tile == 1 else 2


def which(group_size: int, group: int) -> int:
    """Of a group's sums in `META`: the whole, the first half, the second half."""
    return 0 if group_size == 32 else 1 + group % 2


def quantise(module: ir.Module, target: Target, name: str, tile: int) -> None:
    """Words: x [T, K], row stride in bytes, K, q [T, `row_bytes`·K], meta. A piece is one segment of one row."""
    f = Function(module, target, name)
    x, stride, columns, q, meta = (f.word(i) for i in range(5))
    segments = (columns + (SEGMENT - 1)) / SEGMENT
    row, segment = f.piece / segments, f.piece % segments
    first, lane = row / tile * tile, row % tile
    groups, width = columns / 32, row_bytes(target, tile)
    start = segment * (SEGMENT // 32)
    for group in f.range(start, (start + SEGMENT // 32).smaller(groups)):
        at = x + row * stride + 128 * group
        halves = [f.load(at + 64 * i, f32()) for i in range(2)]
        # Compared as integers, NaN is the largest number of all, and so makes the whole group NaN.
        bits = [h.bitcast(vector(i32, LANES)) & 0x7FFFFFFF for h in halves]
        largest = f.call("llvm.vector.reduce.umax.v16i32", i32, bits[0].larger(bits[1])).bitcast(single)
        scale = largest / float(LARGEST)
        inverse = (largest > 0.0).choose(float(LARGEST) / largest, 0.0).splat()
        sums = []
        for i, h in enumerate(halves):
            rounded = f.call("llvm.rint.v16f32", f32(), h * inverse)
            whole = Value(f, f.b.fptosi(rounded.v, vector(i32, LANES)))
            sums.append(whole.sum())
            kinds = [activation_words(f, whole)]
            if width == 4:
                kinds.insert(0, byte_words(whole))
            for kind, fours in enumerate(kinds):
                for j in range(4):
                    unit = group * 8 + (4 * i + j)
                    to = q + first * columns * width + kind * columns * 2 + (unit * tile + lane) * 8
                    for level, four in enumerate(fours):
                        f.store(to + 4 * level, four.lane(j))
        about = meta + first * groups * (4 * META) + (group * tile + lane) * (4 * META)
        f.store(about + 4 * SCALE, scale)
        for i, total in enumerate((sums[0] + sums[1], *sums)):
            f.store(about + 4 * (SUM + i), scale * total.float())
            f.store(about + 4 * (NEGATIVE + i), 0 - total)
    f.finish()
