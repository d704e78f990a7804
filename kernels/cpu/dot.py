"""Products of bytes, four summed into each of 16 numbers, and what else each processor does with bytes its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from kernels.cpu.ir import LANES, Function, Value, i8, i16, i32, vector

_WORDS = vector(i32, LANES)


def _parts(value: Value, count: int) -> list[Value]:
    size = value.type.count // count
    return [value] if count == 1 else [value.pick(range(i * size, (i + 1) * size)) for i in range(count)]


def _in_parts(count: int, work: Callable[..., Value], *values: Value) -> Value:
    """`work` on each of `count` equal parts of the vectors, put together again."""
    done = [work(*parts) for parts in zip(*(_parts(value, count) for value in values), strict=True)]
    while len(done) > 1:
        done = [done[i].join(done[i + 1]) for i in range(0, len(done), 2)]
    return done[0]


def bias(f: Function, *, signed: bool) -> int:
    """What `dot` adds to signed weights on this processor; the caller takes it off again by the activations' sum."""
    return 128 if signed and f.target.dot in ("avx512vnni", "avxvnni") else 0


def few_registers(f: Function) -> bool:
    """Whether there are 16 of 32 bytes, in place of 32 of 64 or of 16 bytes for vectors of as many."""
    return f.target.dot == "avx2"


def activation_words(f: Function, whole: Value) -> tuple[Value, Value]:
    """Activations, int32 [16] within 15 bits, as `dot` wants them: two words int32 [4] of four each.

    Four a and four b of 128·a + b; or, where words of 16 bits are multiplied, the first and third, second and fourth.
    """
    if f.target.dot == "avx2":
        short = whole.trunc(vector(i16, LANES))
        return tuple(short.pick(range(i, LANES, 2)).bitcast(vector(i32, 4)) for i in range(2))  # type: ignore[return-value]
    return byte_words(whole)


def byte_words(whole: Value) -> tuple[Value, Value]:
    """Four a and four b of 128·a + b each."""
    high, low = (whole + 64) >> 7, ((whole + 64) & 127) - 64
    return tuple(part.trunc(vector(i8, LANES)).bitcast(vector(i32, 4)) for part in (high, low))  # type: ignore[return-value]


def prepared(f: Function, codes: Value, *, signed: bool) -> tuple[Value, ...]:
    """Weights, bytes [16·4], as `dot` wants them; once for all rows."""
    if f.target.dot == "avx2":
        pairs = codes.bitcast(vector(i16, 2 * LANES))
        if signed:
            return (pairs << 8).shifted_with_sign(8), pairs.shifted_with_sign(8)
        return pairs & 255, pairs >> 8
    return (codes ^ -128 if bias(f, signed=signed) else codes,)


Totals = tuple[Value, Value]  # of 16 numbers: the one half and the other, or 128·the first + the second


def dot(
    f: Function, totals: Sequence[Totals], codes: Sequence[Value], places: Sequence[Value], *, signed: bool
) -> list[Totals]:
    """Each row's totals + Σ of 4 products each of `codes`, prepared, and four activations, the same for all 16; at the
    row's place lie the two words that `activation_words` made of them.
    """
    if few_registers(f):
        return _dot_words(f, totals, codes, places)
    [code] = codes
    done = []
    for (a, b), place in zip(totals, places, strict=True):
        first, second = f.load(place, i32, 4), f.load(place + 4, i32, 4)
        if f.target.dot == "plain":
            wide = vector(i32, 4 * LANES)
            x = (first.splat().bitcast(code.type).sext(wide) << 7) + second.splat().bitcast(code.type).sext(wide)
            done.append((a, _dot_plain(b, code, x)))
        else:
            a, b = (_dot(f, t, code, x.splat(), signed=signed) for t, x in ((a, first), (b, second)))
            done.append((a, b))
    return done


def _dot_words(f: Function, totals: Sequence[Totals], codes: Sequence[Value], places: Sequence[Value]) -> list[Totals]:
    """Two halves of two codes are held while all rows pass; the totals of four rows fit beside them."""
    halves = [half for total in totals for half in total]
    for part, code in enumerate(codes):
        lower, upper = _parts(code, 2)
        for t, place in enumerate(places):
            x = f.load(place + 4 * part, i32, 4).splat(LANES // 2).bitcast(lower.type)
            for i, own in ((2 * t, lower), (2 * t + 1, upper)):
                halves[i] = halves[i] + f.call("llvm.x86.avx2.pmadd.wd", halves[i].type, own, x)
        halves = f.pinned(halves)
    return list(zip(halves[::2], halves[1::2], strict=True))


def nothing(f: Function, start: Value | None = None) -> Totals:
    """Totals to begin with, that mean `start`, a number of 32 bits, or 0."""
    if few_registers(f):
        half = f.zero(vector(i32, LANES // 2)) if start is None else start.splat(LANES // 2)
        return half, half
    zero = f.zero(_WORDS)
    return zero, zero if start is None else start.splat()


def together(totals: Totals) -> Value:
    """int32 [16]."""
    if few_registers(totals[0].f):
        return totals[0].join(totals[1])
    return (totals[0] << 7) + totals[1]


def _dot(f: Function, total: Value, codes: Value, spread: Value, *, signed: bool) -> Value:
    if f.target.dot == "avx512vnni":
        name, bytes_ = "llvm.x86.avx512.vpdpbusd.512", vector(i8, 64)
        return f.call(name, _WORDS, total, codes, spread.bitcast(bytes_))
    if f.target.dot == "avxvnni":
        half = spread.pick(range(8)).bitcast(vector(i8, 32))
        return _in_parts(
            2, lambda t, c: f.call("llvm.x86.avx512.vpdpbusd.256", vector(i32, 8), t, c, half), total, codes
        )
    quarter = spread.pick(range(4)).bitcast(vector(i8, 16))
    return _in_parts(
        4, lambda t, c: f.call("llvm.aarch64.neon.sdot.v4i32.v16i8", vector(i32, 4), t, c, quarter), total, codes
    )


def _dot_plain(total: Value, codes: Value, x: Value) -> Value:
    wide = vector(i32, 4 * LANES)
    products = codes.sext(wide) * x  # unsigned codes are below 128
    for i in range(4):
        total = total + products.pick(range(i, 4 * LANES, 4))
    return total


def lookup(f: Function, indices: Value, values: Sequence[int]) -> Value:
    """values[index] for bytes [64] of 0 … 15; `values` int8."""
    table = ir.Constant(vector(i8, 16), [value & 0xFF for value in values])
    if f.target.dot == "plain":
        found = f.const(indices.type, values[0])
        for index, value in enumerate(values[1:], 1):
            found = indices.equals(index).choose(f.const(indices.type, value), found)
        return found
    sixteen = Value(f, table)
    if f.target.dot == "neon":
        name = "llvm.aarch64.neon.tbl1.v16i8"
        return _in_parts(4, lambda part: f.call(name, vector(i8, 16), sixteen, part), indices)
    if f.target.dot == "avx512vnni":
        whole = sixteen.pick([*range(16)] * 4)
        return f.call("llvm.x86.avx512.pshuf.b.512", vector(i8, 64), whole, indices)
    half = sixteen.pick([*range(16)] * 2)
    return _in_parts(2, lambda part: f.call("llvm.x86.avx2.pshuf.b", vector(i8, 32), half, part), indices)


def spread_bits(words: Value) -> Value:
    """The low 4 bits of each of 16 numbers, one into each byte: uint8 [64] of 0 and 1."""
    four = words & 15
    return ((four | (four << 7) | (four << 14) | (four << 21)) & 0x01010101).bitcast(vector(i8, 4 * LANES))
