"""From the rows of a file to panels: see `formats`.

Runs of 16 units or more are transposed in registers, 16 rows at a time: 11.9 GB/s of Q4_K on one core of a Xeon, where
a copy unit by unit did 10.1. What a load waits for is the system, which finds the pages of file and panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llvmlite import ir

from kernels.cpu.formats import FORMATS, UNITS, layout
from kernels.cpu.ir import LANES, Function, Value, i8, i16, i32, i64, vector
from kernels.cpu.isa import Target


def pack(module: ir.Module, target: Target, name: str, format_: str) -> None:
    """Words: rows, panels, N, blocks a row. A piece is one panel. Rows beyond the last repeat it."""
    f = Function(module, target, name)
    source, panels, rows, blocks = (f.word(i) for i in range(4))
    nbytes, place = FORMATS[format_].nbytes, layout(format_)
    starts = f.scratch(8 * LANES)
    for lane in f.range(0, LANES):
        row = (f.piece * LANES + lane).smaller(rows - 1)
        f.store(starts + 8 * lane, source + row * blocks * nbytes)
    offsets = sorted(offset for offset, kind in place.places if kind == "unit")
    for block in f.range(0, blocks):
        to = panels + (f.piece * blocks + block) * place.nbytes
        at = [f.load(starts + 8 * r, i64) + block * nbytes for r in range(LANES)]
        done: set[tuple[int, str]] = set()
        for first in _windows(offsets):
            units = transposed([f.load(row + first, vector(i32, LANES)) for row in at])
            for index, unit in enumerate(units):
                key = first + 4 * index, "unit"
                if key not in done:
                    f.store(to + place.places[key], unit)
                    done.add(key)
        for (offset, kind), target_place in place.places.items():
            if (offset, kind) not in done:
                type_ = {4: i32, 2: i16, 1: i8}[UNITS[kind]]
                for r in range(LANES):
                    f.store(to + (target_place + UNITS[kind] * r), f.load(at[r] + offset, type_))
    f.finish()


def _windows(offsets: Sequence[int]) -> Iterator[int]:
    """Where 16 units in a row begin, such that every run of so many is covered; two may overlap."""
    start = 0
    for end in range(1, len(offsets) + 1):
        if end == len(offsets) or offsets[end] != offsets[end - 1] + 4:
            for first in range(start, end, LANES):
                if end - start >= LANES:
                    yield offsets[min(first, end - LANES)]
            start = end


def transposed(rows: Sequence[Value]) -> list[Value]:
    """16 vectors of 16: lane i of vector j becomes lane j of vector i, by four perfect shuffles."""
    done = list(rows)
    low = [index for i in range(LANES // 2) for index in (i, LANES + i)]
    high = [index + LANES // 2 for index in low]
    for _ in range(4):
        pairs = list(zip(done[: LANES // 2], done[LANES // 2 :], strict=True))
        done = [a.mix(b, half) for a, b in pairs for half in (low, high)]
    return done
