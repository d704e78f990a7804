"""Where strings lie that follow each other, each behind its length: a loop in which Python takes 0.4 s of a start."""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.ir import Function, i32, i64
from kernels.cpu.isa import Target


def find_strings(module: ir.Module, target: Target, name: str) -> None:
    """int64(data, at, end, count, starts): `count` strings lie from `at` on, of each its length, u64, and its bytes.

    Where the bytes begin goes to `starts`, u32 [count]. Returns where the last ends, which is beyond `end`, at least 8,
    if one of them does not lie before that.
    """
    f = Function(module, target, name, (i64,) * 5, i64)
    data, at, end, count, starts = f.parameters
    place = f.variable(at)
    for i in f.range(0, count):
        start = place.value + 8
        length = f.load(data + start.smaller(end) - 8, i64)
        fits = (end >= start) & (length >= 0) & (end - start >= length)
        f.store(starts + 4 * i, start.trunc(i32))
        place.value = fits.choose(start + length, end + 1)
    f.finish(place.value)
