"""One row of x times unsigned codes, with AVX2: products of bytes are summed in 16 bits before they are in 32."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.cpu.activations import META, SCALE, SUM, which
from kernels.cpu.formats import FORMATS, Block, Format, HalfBlock, layout
from kernels.cpu.ir import LANES, Function, Value, Variable, f32, i8, i16, i32, single, vector

_BYTES, _SHORTS, _WORDS = vector(i8, 32), vector(i16, 16), vector(i32, 8)
_A, _B = 127, 64  # the largest of 128·a + b
_SIDES = range(0, 64, 32)  # where the codes of the first and the last 8 rows begin


def can(form: Format) -> bool:
    return not form.signed


def sums(f: Function, format_: str, weights: Value, x: Value, meta: Value, blocks: Value) -> Value:
    """Of 16 rows over all blocks of a panel: float32 [16]."""
    form, place = FORMATS[format_], layout(format_)
    groups = form.block // form.group
    total = f.variable(f.zero(f32()))
    for index in f.range(0, blocks):
        whole = Block(f, weights + index * place.nbytes, place.places, f.target.ahead)
        at, about = x + index * (2 * form.block), meta + index * (form.block // 32 * 4 * META)
        parts = [f.variable(f.zero(f32())) for _ in range(2)]
        if form.halves:
            for half in f.range(0, 2):
                block = HalfBlock(f, whole.address, form, place.places, half)
                _add(f, form, block, range(groups // 2), at + half * form.block, about + half * (form.block // 16 * META), parts)
        else:
            _add(f, form, whole, range(groups), at, about, parts)
        done = parts[0].value * form.d(whole) + total.value
        total.value = done - parts[1].value * form.dmin(whole) if form.dmin else done
    return total.value


def _add(
    f: Function, form: Format, block: Block, groups: range, x: Value, meta: Value, parts: list[Variable]
) -> None:
    """Σ scale·(code − zero)·x of some groups, and of what is multiplied by the minima."""
    for group in groups:
        block.forget()
        products = _products(f, form, block, group, x)
        about = meta + group * form.group // 32 * (4 * META)
        scale = form.scale(block, group) if form.scale else None
        minimum = form.minimum(block, group) if form.minimum else None
        sum_ = f.load(about + 4 * (SUM + which(form.group, group)), single, 4)
        part = products.float() * f.load(about + 4 * SCALE, single, 4).splat()
        if form.zero:
            part = part - (sum_ * float(form.zero)).splat()
        parts[0].value = part * scale + parts[0].value if scale else parts[0].value + part
        if form.dmin:
            parts[1].value = sum_.splat() * minimum + parts[1].value if minimum else parts[1].value + sum_.splat()


def _products(f: Function, form: Format, block: Block, group: int, x: Value) -> Value:
    """Σ code·(128·a + b): int32 [16]."""
    units = form.group // 4
    runs = [min(units, 32767 // (2 * ((1 << form.bits) - 1) * largest)) for largest in (_A, _B)]
    short: list[list[Value | None]] = [[None, None], [None, None]]
    long: list[list[Value | None]] = [[None, None], [None, None]]
    for unit in range(units):
        weight = group * form.group + 4 * unit
        codes = form.codes(block, weight)
        for level in range(2):
            four = f.load(x + 2 * weight + 4 * level, i32, 4).splat(8).bitcast(_BYTES)
            for side, first in enumerate(_SIDES):
                own = codes.pick(range(first, first + 32))
                product = f.call("llvm.x86.avx2.pmadd.ub.sw", _SHORTS, own, four)
                before = short[level][side]
                short[level][side] = product if before is None else before + product
        flat = f.pinned([v for level in short for v in level])
        short = [flat[:2], flat[2:]]
        for level in range(2):
            if (unit + 1) % runs[level] == 0 or unit + 1 == units:
                weight_ = f.const(_SHORTS, 128 if level == 0 else 1)
                for side in range(2):
                    wide = f.call("llvm.x86.avx2.pmadd.wd", _WORDS, short[level][side], weight_)
                    before = long[level][side]
                    long[level][side] = wide if before is None else before + wide
                    short[level][side] = None
        block.forget()
    return (long[0][0] + long[1][0]).join(long[0][1] + long[1][1])
