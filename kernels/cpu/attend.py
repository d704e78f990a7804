"""Attention over a cache in blocks: each kv head's keys are read once for all its query heads.

Rows of a cache are of a plain type, or `I8`: int8 with a scale for each row.
"""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.ir import LANES, Function, Value, f32, i8, i32, i64, single, vector
from kernels.cpu.isa import Target
from kernels.cpu.plain import PLAIN, plain_numbers

BYTES = {**PLAIN, "I8": 1}  # of a number
_CHUNK = 64  # positions whose scores are held at a time; also the least that a split is given
_TINY = 2.0**-126  # the smallest normal float32
_STEP = 4  # positions whose values are added in one pass
_AT_ONCE = 4  # query heads with which a row is multiplied, whose sums fill half of 16 registers of 256 bits


def store_rows(module: ir.Module, target: Target, name: str, kind: str) -> None:
    """Words: k, v [T, Hkv, D], blocks of keys and of values (two words each), start, B, bytes of a head
    in a block, Hkv, D. A piece is a token.
    """
    f = Function(module, target, name)
    k, v, keys, keys_offset, values, values_offset, start, size, stride, heads, dim = (f.word(i) for i in range(11))
    position = start + f.piece
    block, row = position / size, position % size
    for head in f.range(0, heads):
        at = (f.piece * heads + head) * dim * 4
        to = head * stride + row * dim * PLAIN[kind]
        for source, table, offset in ((k, keys, keys_offset), (v, values, values_offset)):
            place = f.load(table + 8 * block, i64) + offset + to
            for lanes, i in f.lanes(dim):
                number = f.load(source + at + 4 * i, f32(lanes))
                if kind == "F16":
                    number = Value(f, f.b.fptrunc(number.v, ir.VectorType(ir.HalfType(), lanes)))
                f.store(place + PLAIN[kind] * i, number)
    f.finish()


def store_rows_q8(module: ir.Module, target: Target, name: str) -> None:
    """Words: k, v [T, Hkv, D], blocks of keys, of values, of the keys' and of the values' scales, start, B, bytes of a
    head in a block and in a block of scales, Hkv, D. A piece is a token.
    """
    f = Function(module, target, name)
    k, v = f.word(0), f.word(1)
    start, size, stride, scale_stride, heads, dim = (f.word(i) for i in range(10, 16))
    position = start + f.piece
    block, row = position / size, position % size
    for head in f.range(0, heads):
        at = (f.piece * heads + head) * dim * 4
        for source, table in ((k, 2), (v, 4)):
            rows, scales = (
                f.load(f.word(word) + 8 * block, i64) + f.word(word + 1) + head * bytes_ + row * width
                for word, bytes_, width in ((table, stride, dim), (table + 4, scale_stride, f.number(4)))
            )
            largest = f.variable(f.const(i32, 0))  # compared as integers, NaN is the largest number of all
            for lanes, i in f.lanes(dim):
                bits = f.load(source + at + 4 * i, vector(i32, lanes)) & 0x7FFFFFFF
                most = bits.lane(0) if lanes == 1 else f.call("llvm.vector.reduce.umax.v16i32", i32, bits)
                largest.value = largest.value.larger(most)
            scale = largest.value.bitcast(single) / 127.0
            f.store(scales, scale)
            divisor = f.const(single, _TINY).larger(scale)  # which keeps NaN
            for lanes, i in f.lanes(dim):
                number = f.load(source + at + 4 * i, f32(lanes)) / divisor.splat(lanes)
                number = number.equals(number).choose(number, f.zero(f32(lanes)))  # of what is not finite, no integer
                rounded = f.call(f"llvm.rint.v{lanes}f32", f32(lanes), number)
                whole = Value(f, f.b.fptosi(rounded.v, vector(i32, lanes)))
                f.store(rows + i, whole.trunc(vector(i8, lanes)))
    f.finish()


def attend(module: ir.Module, target: Target, name: str, kind: str, group: int) -> None:
    """Words: q [T, Hq, D], blocks of keys and of values, partial [T, Hq, splits, 2 + D], start, B, bytes of a
    head in a block, Hkv, D, splits; of `I8` also blocks of the keys' and of the values' scales, bytes of
    a head in a block of those.

    A piece is one split of the positions for one token and kv head, with its `group` query heads. `partial` has the
    largest score, the sum of e^(score − largest), and the values' sum under those weights.
    """
    f = Function(module, target, name)
    q, keys, keys_offset, values, values_offset, partial, start, size, stride, kv_heads, dim, splits = (
        f.word(i) for i in range(12)
    )
    split, rest = f.piece % splits, f.piece / splits
    kv, token = rest % kv_heads, rest / kv_heads
    seen = start + token + 1
    share = ((seen + (splits - 1)) / splits + (_CHUNK - 1)) / _CHUNK * _CHUNK
    first = (split * share).smaller(seen)
    last = (first + share).smaller(seen)
    head = token * (kv_heads * group) + kv * group
    query = q + head * dim * 4
    scale = f.const(single, 1.0) / f.call("llvm.sqrt.f32", single, Value(f, f.b.sitofp(dim.v, single)))
    place = [partial + ((head + g) * splits + split) * (dim + 2) * 4 for g in range(group)]
    for g in range(group):
        for lanes, i in f.lanes(dim):
            f.store(place[g] + 8 + 4 * i, f.zero(f32(lanes)))
    tops = [f.variable(f.const(single, -1e30)) for _ in range(group)]
    sums = [f.variable(f.const(single, 0.0)) for _ in range(group)]
    scores = f.scratch(4 * _CHUNK * group)
    rows_ahead = (f.number(target.ahead) / (dim * BYTES[kind])).larger(f.number(1))

    def following(table: Value, offset: Value, position: Value) -> Value | None:
        """The row to ask for while that of a position is read."""
        return row(table, offset, (position + rows_ahead).smaller(seen - 1)) if target.ahead else None

    def row(table: Value, offset: Value, position: Value) -> Value:
        block = f.load(table + 8 * (position / size), i64)
        return block + offset + kv * stride + position % size * dim * BYTES[kind]

    def row_scale(first_word: int, position: Value) -> Value:
        table, offset = f.word(first_word), f.word(first_word + 1)
        block = f.load(table + 8 * (position / size), i64)
        return f.load(block + offset + kv * f.word(16) + position % size * 4, single)

    for begin in f.range(first, last, _CHUNK):
        count = (begin + _CHUNK).smaller(last) - begin
        largest = [f.variable(tops[g].value) for g in range(group)]
        for j in f.range(0, count):
            later = following(keys, keys_offset, begin + j)
            products = _products(f, kind, row(keys, keys_offset, begin + j), query, dim, group, later)
            factor = scale * row_scale(12, begin + j) if kind == "I8" else scale
            for g in range(group):
                score = products[g] * factor
                f.store(scores + (g * _CHUNK + j) * 4, score)
                now = largest[g].value
                largest[g].value = Value(f, f.b.fcmp_unordered(">", score.v, now.v)).choose(score, now)
        for g in range(group):
            shrink = f.exp((tops[g].value - largest[g].value).splat(1)).lane(0)
            tops[g].value = largest[g].value
            sums[g].value = sums[g].value * shrink
            for lanes, j in f.lanes(count):
                at = scores + (g * _CHUNK + j) * 4
                weight = f.exp(f.load(at, f32(lanes)) - largest[g].value.splat(lanes))
                f.store(at, weight)
                sums[g].value = sums[g].value + weight.sum()
            with f.when(shrink.equals(1.0) ^ 1):
                for lanes, i in f.lanes(dim):
                    to = place[g] + 8 + 4 * i
                    f.store(to, f.load(to, f32(lanes)) * shrink.splat(lanes))
        whole = count / _STEP * _STEP
        for start_j, stop_j, step in ((f.number(0), whole, _STEP), (whole, count, 1)):
            for j in f.range(start_j, stop_j, step):
                rows = [row(values, values_offset, begin + j + s) for s in range(step)]
                asked = [following(values, values_offset, begin + j + s) for s in range(step)]
                if kind == "I8":  # the sum of the weights is made, so they can carry the scales
                    for s in range(step):
                        factor = row_scale(14, begin + j + s)
                        for g in range(group):
                            at = scores + (g * _CHUNK + j + s) * 4
                            f.store(at, f.load(at, single) * factor)
                for lanes, i in f.lanes(dim):
                    read = [numbers(f, kind, at + BYTES[kind] * i, lanes) for at in rows]
                    for later in asked if lanes > 1 else ():
                        if later:
                            f.prefetch(later + BYTES[kind] * i)
                    for g in range(group):
                        to = place[g] + 8 + 4 * i
                        total = f.load(to, f32(lanes))
                        for s, number in enumerate(read):
                            weight = f.load(scores + (g * _CHUNK + j + s) * 4, single)
                            total = number * weight.splat(lanes) + total
                        f.store(to, total)
    for g in range(group):
        f.store(place[g], tops[g].value)
        f.store(place[g] + 4, sums[g].value)
    f.finish()


def numbers(f: Function, kind: str, address: Value, lanes: int) -> Value:
    """Of a row of a cache, as float32, without its scale."""
    if kind == "I8":
        return f.load(address, vector(i8, lanes)).sext(vector(i32, lanes)).float()
    return plain_numbers(f, kind, address, lanes)


def _products(
    f: Function, kind: str, row: Value, query: Value, dim: Value, group: int, later: Value | None
) -> list[Value]:
    """The row with each of `group` vectors that lie one after the other; `later`: a row to ask for meanwhile."""
    found: list[Value] = []
    at_once = group if f.target.dot == "avx512vnni" else _AT_ONCE
    for first in range(0, group, at_once):
        some = range(first, min(first + at_once, group))
        sums = {lanes: [f.variable(f.zero(f32(lanes))) for _ in some] for lanes in (LANES, 1)}
        for lanes, i in f.lanes(dim):
            read = numbers(f, kind, row + BYTES[kind] * i, lanes)
            if later and lanes > 1 and not first:
                f.prefetch(later + BYTES[kind] * i)
            for total, g in zip(sums[lanes], some, strict=True):
                total.value = read * f.load(query + (g * dim + i) * 4, f32(lanes)) + total.value
        found += [many.value.sum() + one.value.lane(0) for many, one in zip(sums[LANES], sums[1], strict=True)]
    return found


def combine(module: ir.Module, target: Target, name: str) -> None:
    """Words: partial [T, Hq, splits, 2 + D], gate, its strides in bytes, out [T, Hq, D], Hq, D, splits.

    The splits put together, times σ(gate). A piece is one head of one token.
    """
    f = Function(module, target, name)
    partial, gate, gate_token, gate_head, out, heads, dim, splits = (f.word(i) for i in range(8))
    token, head = f.piece / heads, f.piece % heads
    first = partial + f.piece * splits * (dim + 2) * 4
    top = f.variable(f.load(first, single))
    for split in f.range(1, splits):
        other = f.load(first + split * (dim + 2) * 4, single)
        top.value = Value(f, f.b.fcmp_unordered(">", other.v, top.value.v)).choose(other, top.value)
    total = f.variable(f.const(single, 0.0))
    to = out + f.piece * dim * 4
    for lanes, i in f.lanes(dim):
        f.store(to + 4 * i, f.zero(f32(lanes)))
    for split in f.range(0, splits):
        at = first + split * (dim + 2) * 4
        weight = f.exp((f.load(at, single) - top.value).splat(1)).lane(0)
        total.value = total.value + weight * f.load(at + 4, single)
        for lanes, i in f.lanes(dim):
            part = f.load(at + 8 + 4 * i, f32(lanes)) * weight.splat(lanes)
            f.store(to + 4 * i, f.load(to + 4 * i, f32(lanes)) + part)
    inverse = f.const(single, 1.0) / total.value
    for lanes, i in f.lanes(dim):
        opening = f.sigmoid(f.load(gate + token * gate_token + head * gate_head + 4 * i, f32(lanes)))
        f.store(to + 4 * i, f.load(to + 4 * i, f32(lanes)) * inverse.splat(lanes) * opening)
    f.finish()
