"""One row of x times unsigned codes, with AVX2: products of bytes are summed in 16 bits before they are in 32.

A code of 4 bits times a, −127 … 127, and one next to it are 3,810 at most, so eight of such sums fit 16 bits, all of a
group; of 6 bits two fit, and four of those with b, −64 … 63. So no sum saturates, and all are exact. The halves of a
block of 256 are a loop where they lie alike: written out they are 1,300 to 1,750 instructions, too many to stay
decoded.

Instructions for a weight of Q4_K 0.31, with products of 16 bits 0.37, and of Q6_K 0.42 in place of 0.49. Two cores of
an EPYC (Zen 3), in turn in one run, GB/s from memory without asking ahead: Q4_K 14.2 with products of 16 bits, 15.2
with those in a loop, 14.6 with sums of 16 bits too; Q6_K 18.1, 18.9, 19.9. So Q4_K had the memory's pace by the loop
alone. Loads that may move, and so become operands, changed nothing. Asking ahead gave both most: see `isa`.
"""

from __future__ import annotations

from kernels.cpu.activations import META, SCALE, SUM, which
from kernels.cpu.formats import FORMATS, Block, Format, HalfBlock, layout
from kernels.cpu.ir import Function, Value, Variable, f32, i8, i16, i32, single, vector
from kernels.cpu.streams import Asking

_BYTES, _SHORTS, _WORDS = vector(i8, 32), vector(i16, 16), vector(i32, 8)
_LARGEST_SHORT = 32767
_LEVELS = (128, 127), (1, 64)  # of an activation: what a and b count, and how large they are at most
_SIDES = range(0, 64, 32)  # where the codes of the first 8 rows begin, and of the others


def can(form: Format) -> bool:
    return not form.signed


def add_block(
    f: Function, format_: str, address: Value, x: Value, meta: Value, total: Variable, asking: Asking
) -> None:
    """Products of a block of a panel, 16 rows: float32 [16]."""
    form, place = FORMATS[format_], layout(format_)
    groups = range(form.block // form.group)
    parts = [f.variable(f.zero(f32())) for _ in range(2)]
    if form.halves:
        for half in f.range(0, 2):
            of_half = asking.part(half, 2)
            block = HalfBlock(f, address, form, place.places, half, of_half)
            some = groups[: len(groups) // 2]
            _add(f, form, block, some, x + half * form.block, meta + half * (form.block // 16 * META), parts)
            of_half.finish()
    whole = Block(f, address, place.places, asking)
    if not form.halves:
        _add(f, form, whole, groups, x, meta, parts)
    done = parts[0].value * form.d(whole) + total.value
    total.value = done - parts[1].value * form.dmin(whole) if form.dmin else done


def _add(
    f: Function, form: Format, block: Block, groups: range, x: Value, meta: Value, parts: list[Variable]
) -> None:  # fmt: skip
    """To the parts, before they are multiplied by d and dmin: Σ scale·(code − zero)·x, and Σ minimum·x."""
    for group in groups:
        products = _products(f, form, block, group, x)
        about = meta + group * form.group // 32 * (4 * META)
        scale = form.scale(block, group) if form.scale else None
        minimum = form.minimum(block, group) if form.minimum else None
        of_x = f.load(about + 4 * (SUM + which(form.group, group)), single, 4)
        part = products.float() * f.load(about + 4 * SCALE, single, 4).splat()
        if form.zero:
            part = part - (of_x * float(form.zero)).splat()
        parts[0].value = part * scale + parts[0].value if scale else parts[0].value + part
        if form.dmin:
            parts[1].value = of_x.splat() * minimum + parts[1].value if minimum else parts[1].value + of_x.splat()


def _products(f: Function, form: Format, block: Block, group: int, x: Value) -> Value:
    """Σ code·(128·a + b) of a group: int32 [16]."""
    units = form.group // 4
    fit = [_LARGEST_SHORT // (2 * ((1 << form.bits) - 1) * largest) for _, largest in _LEVELS]
    short: dict[int, Value] = {}  # sums of a of both sides, 0 and 1, and of b, 2 and 3
    long: dict[int, Value] = {}
    for unit in range(units):
        block.forget()
        weight = group * form.group + 4 * unit
        codes = form.codes(block, weight)
        for level in range(2):
            four = f.load(x + 2 * weight + 4 * level, i32, 4).splat(8).bitcast(_BYTES)
            for side, begin in enumerate(_SIDES):
                own = codes.pick(range(begin, begin + 32))
                product = f.call("llvm.x86.avx2.pmadd.ub.sw", _SHORTS, own, four)
                short[2 * level + side] = _plus(product, short.get(2 * level + side))
        short = dict(enumerate(f.pinned([short[i] for i in range(4)])))
        for level, (counts, _) in enumerate(_LEVELS):
            if (unit + 1) % fit[level] == 0 or unit + 1 == units:
                for i in (2 * level, 2 * level + 1):
                    wide = f.call("llvm.x86.avx2.pmadd.wd", _WORDS, short.pop(i), f.const(_SHORTS, counts))
                    long[i] = _plus(wide, long.get(i))
    block.forget()
    return (long[0] + long[2]).join(long[1] + long[3])


def _plus(new: Value, total: Value | None) -> Value:
    return new if total is None else total + new
