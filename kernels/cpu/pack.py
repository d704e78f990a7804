"""From the rows of a file to panels: see `formats`.

Runs of 16 units or more are transposed in registers, 16 rows at a time: 11.9 GB/s of Q4_K on one core of a Xeon, where
a copy unit by unit did 10.1. With AVX2 8 rows are; the next panel is asked for meanwhile, and panels go past the
caches, as none of their lines is read before it is written. On one core of an EPYC (Zen 3) Q4_K in rows of 1,024 and
9,216 went from 0.7 and 2.7 GB/s to 2.2 and 5.6 by all three, Q6_K from 0.7 and 1.7 to 2.3 and 5.3.

What a load waits for then is the system, which finds the pages of file and panels. A virtual machine whose host gives
it memory only when it is touched took 1.9 s for 2.9 GB, and 0.5 for as much that it had already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from kernels.cpu.dot import few_registers
from kernels.cpu.formats import FORMATS, UNITS, layout
from kernels.cpu.ir import LANES, Function, Value, i8, i16, i32, i64, vector
from kernels.cpu.isa import Target


def pack(module: ir.Module, target: Target, name: str, format_: str) -> None:
    """Words: rows, panels, N, blocks a row, panels a piece. A piece is some panels. Rows beyond the last repeat it."""
    f = Function(module, target, name)
    source, panels, rows, blocks, share = (f.word(i) for i in range(5))
    nbytes, place = FORMATS[format_].nbytes, layout(format_)
    starts = f.scratch(8 * LANES)
    offsets = sorted(offset for offset, kind in place.places if kind == "unit")
    write = f.stream if target.triple.startswith("x86_64") and place.nbytes % 64 == 0 else f.store
    first_panel, last_panel = f.piece * share, (rows + (LANES - 1)) / LANES
    for panel in f.range(first_panel, (first_panel + share).smaller(last_panel)):
        for lane in f.range(0, LANES):
            row = (panel * LANES + lane).smaller(rows - 1)
            f.store(starts + 8 * lane, source + row * blocks * nbytes)
        following = source + (panel + 1) * blocks * (LANES * nbytes)
        for block in f.range(0, blocks):
            if target.ahead:
                for line in range(0, LANES * nbytes, 64):
                    f.prefetch(following + block * (LANES * nbytes) + line)
            to = panels + (panel * blocks + block) * place.nbytes
            at = [f.load(starts + 8 * r, i64) + block * nbytes for r in range(LANES)]
            done: set[tuple[int, str]] = set()
            for first in _windows(offsets):
                keys = [(first + 4 * index, "unit") for index in range(LANES)]
                _transpose(f, at, first, [None if key in done else to + place.places[key] for key in keys], write)
                done.update(keys)
            for (offset, kind), target_place in place.places.items():
                if (offset, kind) not in done:
                    type_ = {4: i32, 2: i16, 1: i8}[UNITS[kind]]
                    for r in range(LANES):
                        f.store(to + (target_place + UNITS[kind] * r), f.load(at[r] + offset, type_))
    f.finish()


def _transpose(
    f: Function, rows: Sequence[Value], first: int, to: Sequence[Value | None], write: Callable[[Value, Value], None]
) -> None:
    """16 units of 16 rows from offset `first` on, each unit to its place if it has one."""
    if not few_registers(f):
        units = transposed([f.load(row + first, vector(i32, LANES)) for row in rows])
        for place, unit in zip(to, units, strict=True):
            if place:
                write(place, unit)
        return
    half = LANES // 2
    for column in range(0, LANES, half):
        for row in range(0, LANES, half):
            units = _transposed_eight(
                [f.load(r + first + 4 * column, vector(i32, half)) for r in rows[row : row + half]]
            )
            for place, unit in zip(to[column : column + half], units, strict=True):
                if place:
                    write(place + 4 * row, unit)


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


def _transposed_eight(rows: Sequence[Value]) -> list[Value]:
    """8 vectors of 8: pairs of numbers are mixed, then pairs of those, then halves."""
    by_one = [(0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)]
    by_two = [(0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)]
    fours = []
    for i in (0, 4):
        pairs = [[rows[j].mix(rows[j + 1], mask) for mask in by_one] for j in (i, i + 2)]
        fours.append([a.mix(b, mask) for a, b in zip(*pairs, strict=True) for mask in by_two])
    halves = [(*range(4), *range(8, 12)), (*range(4, 8), *range(12, 16))]
    return [a.mix(b, half) for half in halves for a, b in zip(*fours, strict=True)]
