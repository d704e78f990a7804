"""x·Wᵀ for packed weights: activations to 15 bits in groups of 32, then dot products of bytes over panels of 16 rows.

An activation is scale·(128·a + b), a and b bytes (see `activations`), so each weight that was loaded is multiplied
twice: 128 times nearer to float32 than bytes alone, which other engines use.

With AVX2 alone, bytes would take two steps to their sums, and signed ones three; so there activations stay whole, 16
bits each, as do the codes of a group once they are unpacked, and one product of pairs (vpmaddwd) is exact. One row
times unsigned codes goes another way: `one_row`.

One pass over the weights serves 1 to 5 rows of x (a token, or a draft to verify) or tiles of 8 (prefill).

Measured on one core of an EPYC with AVX512-VNNI, in processor time and with activations of 8 bits: Q4_K from memory
20–22 GB/s, all that the memory gives one core, and 71 G weights/s from the cache; tiles of 8 did 150 G products/s.
There, asking for weights ahead of time (prefetch) lost a third on Q4_K and large pages gained nothing. On two cores of
a Xeon Q4_K and Q6_K came at 17.7 and 15.7 GB/s; in large pages at 21.2 and 19.4; asked for ahead of time too, at 25.4
and 25.1, of 26.7 that the memory gives.

The second product of each weight costs one row nothing, since the memory is slower still (23 GB/s for one core of the
Xeon, in either case); five rows of Q4_K go through 11 GB/s in place of 16, and many through 100 G products/s in place
of 150.

With AVX2 a thread reads several panels side by side, see `streams`.

AVX2, one thread of an EPYC (Zen 3) whose core and memory others used as well, before and after in turn, Q4_K from the
cache, G products/s: with bytes, one row 14, five rows 13–18, many rows 21–32. With words 9–11, 14–16, 33–35, as LLVM
made each row's sum by itself and so put the codes of a group aside; with sums that are held in step (`pinned`) 15–16,
25–28, 33–37. The core's own limit there, with the same neighbours, was 49.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llvmlite import ir

from kernels.cpu import one_row
from kernels.cpu.activations import META, NEGATIVE, SCALE, SUM, row_bytes, which
from kernels.cpu.dot import Totals, bias, dot, few_registers, nothing, prepared, together
from kernels.cpu.formats import FORMATS, Block, LaneBlock, layout
from kernels.cpu.ir import LANES, Function, Value, Variable, f32, i8, i16, i32, i64, single, vector
from kernels.cpu.isa import Target
from kernels.cpu.plain import PLAIN, plain_numbers
from kernels.cpu.streams import LINE, Aside, Asking, Onward

FEW = 5  # rows that have a version of their own
TILE = 8  # rows of a tile beyond that


def tile_rows(rows: int) -> int:
    return rows if rows <= FEW else TILE


def matmul(module: ir.Module, target: Target, name: str, format_: str, tile: int) -> None:
    """Words: panels, q, meta, out [T, N], N, K, T, panels a piece, panels to a thread's next piece. A piece is a run of
    panels.
    """
    f = Function(module, target, name)
    weights, q, meta, out, rows, columns, tokens, share = (f.word(i) for i in range(8))
    panels = (rows + (LANES - 1)) / LANES
    start = f.piece * share
    stop = (start + share).smaller(panels)
    if tile > FEW:
        stage = _Stage(f, format_)
        for panel in f.range(start, stop):
            at, to = weights + panel * _panel(f, format_, columns), out + panel * (4 * LANES)
            _panel_of_many(f, stage, tile, at, q, meta, to, 4 * rows, rows - panel * LANES, columns, tokens)
    else:

        def take(index: Value, sums: list[Value]) -> None:
            panel = start + index
            for t, total in enumerate(sums):
                _store_rows(f, out + panel * (4 * LANES) + t * rows * 4, total, rows - panel * LANES)

        at, blocks = weights + start * _panel(f, format_, columns), columns / FORMATS[format_].block
        _few(f, format_, tile, at, stop - start, q, meta, blocks, take, f.word(8) * _panel(f, format_, columns))
    f.finish()


def _panel(f: Function, format_: str, columns: Value) -> Value:
    return columns / FORMATS[format_].block * layout(format_).nbytes


def _store_rows(f: Function, to: Value, numbers: Value, count: Value) -> None:
    """The first `count` of 16 numbers."""
    with f.b.if_else((count >= LANES).v) as (whole, part):
        with whole:
            f.store(to, numbers)
        with part:
            place = f.scratch(4 * LANES)
            f.store(place, numbers)
            for i in f.range(0, count):
                f.store(to + 4 * i, f.load(place + 4 * i, single))


def _load_rows(f: Function, at: Value, count: Value) -> Value:
    """16 numbers, of which the first `count` are loaded."""
    found = f.variable(f.zero(f32()))
    with f.b.if_else((count >= LANES).v) as (whole, part):
        with whole:
            found.value = f.load(at, f32())
        with part:
            place = f.scratch(4 * LANES)
            for i in f.range(0, count):
                f.store(place + 4 * i, f.load(at + 4 * i, single))
            found.value = f.load(place, f32())
    return found.value


# Weights for many rows are first unpacked, codes to bytes and scales to float32, and then multiplied in a loop short
# enough to be kept decoded. With all groups of a block written out for 8 rows at once, the code itself was read at 16
# bytes a cycle, a product being 11 of them: 80 G products/s on one core of a Xeon in place of 100.

_STAGED = 2048  # columns that are unpacked at a time

# The same with AVX2: codes of 16 bits, which stay in a first cache that two threads share, and the rows of a tile whose
# totals fit 16 registers beside the codes.
_STAGED_WORDS, _ROWS_OF_WORDS = 256, 4


class _Stage:
    """Room for a part of a panel unpacked: w = scale·code − minimum."""

    def __init__(self, f: Function, format_: str) -> None:
        self._f = f
        self.format_, self.form = format_, FORMATS[format_]
        self._zero = self.form.zero + bias(f, signed=self.form.signed)
        self.has_minimum = bool(self._zero or self.form.dmin)
        self.columns = _STAGED_WORDS if few_registers(f) else _STAGED
        self._parts = 2 if few_registers(f) else 1  # of 64 bytes, for 4 columns
        groups = self.columns // self.form.group
        self.codes = f.scratch(LANES * self.columns * self._parts)
        self.scales = f.scratch(4 * LANES * groups)
        self.minima = f.scratch(4 * LANES * groups if self.has_minimum else 64)

    def fill(self, panel: Value, first: Value, last: Value) -> None:
        """With columns first … last−1, whole blocks."""
        f, form = self._f, self.form
        place = layout(self.format_)
        begin = first / form.block
        for index in f.range(begin, last / form.block):
            block = Block(f, panel + index * place.nbytes, place.places)
            group, weight = ((index - begin) * (form.block // size) for size in (form.group, 4))
            for i in range(form.block // 4):
                for j, code in enumerate(prepared(f, form.codes(block, 4 * i), signed=form.signed)):
                    f.store(self.codes + ((weight + i) * self._parts + j) * (4 * LANES), code, 64)
                if few_registers(f):
                    block.forget()
            d = form.d(block)
            dmin = form.dmin(block) if form.dmin else None
            for i in range(form.block // form.group):
                scale = d * form.scale(block, i) if form.scale else d
                f.store(self.scales + (group + i) * (4 * LANES), scale, 64)
                minimum = dmin * form.minimum(block, i) if dmin and form.minimum else dmin
                if self._zero:
                    minimum = scale * float(self._zero) + minimum if minimum else scale * float(self._zero)
                if minimum:
                    f.store(self.minima + (group + i) * (4 * LANES), minimum, 64)

    def add(self, totals: list[Variable], x: Value, about: Value, columns: Value) -> None:
        """Products of the first `columns` with as many activations are added to the rows' totals."""
        f, tile = self._f, len(totals)
        at_once = _ROWS_OF_WORDS if few_registers(f) else tile
        for t in range(0, tile, at_once):
            for index in f.range(0, columns / 32):
                self._add_groups(totals, range(t, t + at_once), x, about, index)

    def _add_groups(self, totals: list[Variable], some: range, x: Value, about: Value, index: Value) -> None:
        """32 columns of some rows of the tile."""
        f, form, tile, parts = self._f, self.form, len(totals), self._parts
        type_ = vector(i16, 2 * LANES) if few_registers(f) else vector(i8, 4 * LANES)
        subs, each = 32 // form.group, form.group // 4
        codes_at, scale_at = self.codes + index * (32 * LANES * parts), index * (4 * LANES * subs)

        def codes(i: int) -> tuple[Value, ...]:
            places = (codes_at + 4 * LANES * (i * parts + part) for part in range(parts))
            return tuple(f.load(place, type_, 64) for place in places)

        def four(i: int, t: int) -> Value:
            return x + index * (64 * tile) + (i * tile + t) * 8

        for sub in range(subs):
            weights = range(sub * each, (sub + 1) * each)
            products = _products(f, weights, codes, some, four, lambda t: nothing(f), signed=form.signed)
            scale = f.load(self.scales + scale_at + 4 * LANES * sub, f32(), 64)
            minimum = None
            if self.has_minimum:
                minimum = f.load(self.minima + scale_at + 4 * LANES * sub, f32(), 64)
            for t, sums in zip(some, products, strict=True):
                place = about + (index * tile + t) * (4 * META)
                part = together(sums).float() * f.load(place + 4 * SCALE, single, 4).splat()
                total = part * scale + totals[t].value
                if minimum:
                    total = total - f.load(place + 4 * (SUM + which(form.group, sub)), single, 4).splat() * minimum
                totals[t].value = total


def _panel_of_many(
    f: Function, stage: _Stage, tile: int, panel: Value, q: Value, meta: Value, out: Value, stride: Value,
    count: Value, columns: Value, tokens: Value,
) -> None:  # fmt: skip
    """A panel's products with all tiles; `count` rows of it go to `out`, rows of `stride` bytes."""
    for begin in f.range(0, columns, stage.columns):
        end = (begin + stage.columns).smaller(columns)
        stage.fill(panel, begin, end)
        for first in f.range(0, tokens, tile):
            totals = [f.variable(f.zero(f32())) for _ in range(tile)]
            with f.when(begin > 0):
                for t, total in enumerate(totals):
                    with f.when(first + t < tokens):
                        total.value = _load_rows(f, out + (first + t) * stride, count)
            x = q + first * columns * 2 + begin * (2 * tile)
            stage.add(totals, x, meta + (first * columns + begin * tile) * (META // 8), end - begin)
            for t, total in enumerate(totals):
                with f.when(first + t < tokens):
                    _store_rows(f, out + (first + t) * stride, total.value, count)


# `tile` sums [16] of a panel, its number, are taken by this.
Taker = Callable[[Value, list[Value]], None]


def _few(
    f: Function, format_: str, tile: int, weights: Value, count: Value, q: Value, meta: Value, blocks: Value,
    take: Taker, then: Value,
) -> None:  # fmt: skip
    """Sums of each row of the tile over all blocks of `count` panels, some of them side by side.

    `then`: how far from the first of them those lie that the thread goes on with, as far as can be foreseen.
    """
    side, nbytes = f.target.streams, layout(format_).nbytes
    panel = blocks * nbytes
    if side == 1:
        for i in f.range(0, count):
            totals = [f.variable(f.zero(f32())) for _ in range(tile)]
            for index in f.range(0, blocks):
                address = weights + i * panel + index * nbytes
                _add_block(f, format_, address, index, blocks, q, meta, totals, Onward(f, f.target.ahead))
            take(i, [total.value for total in totals])
        return
    sums = f.scratch(4 * LANES * tile * side)
    each = nbytes // (LINE * side)  # lines of each panel's next block that are asked for with one block
    for first in f.range(0, count, side):
        here, begin = (count - first).smaller(side), weights + first * panel
        for i in f.range(0, here * tile):
            f.store(sums + i * (4 * LANES), f.zero(f32()))
        for index in f.range(0, blocks):
            following = begin + (index + 1) * nbytes  # after the last one, of the next panels
            beyond = (first + side >= count).choose(weights + then - begin - panel, panel * (side - 1))
            following = following + (index + 1).equals(blocks).choose(beyond, 0)
            for i in f.range(0, here):
                own = sums + i * (4 * LANES * tile)
                totals = [f.variable(f.load(own + 4 * LANES * t, f32())) for t in range(tile)]
                asking = Aside(f, [following + s * panel + i * (each * LINE) for s in range(side)], each)
                address = begin + i * panel + index * nbytes
                _add_block(f, format_, address, index, blocks, q, meta, totals, asking)
                asking.finish()
                for t, total in enumerate(totals):
                    f.store(own + 4 * LANES * t, total.value)
        for i in f.range(0, here):
            take(first + i, [f.load(sums + (i * tile + t) * (4 * LANES), f32()) for t in range(tile)])


def _add_block(
    f: Function, format_: str, address: Value, index: Value, blocks: Value, q: Value, meta: Value,
    totals: list[Variable], asking: Asking,
) -> None:  # fmt: skip
    """A block of a panel, the one of this index, with all rows of the tile."""
    form, tile = FORMATS[format_], len(totals)
    about = meta + index * (form.block // 32 * tile * 4 * META)
    if row_bytes(f.target, tile) == 4:
        if one_row.can(form):
            one_row.add_block(f, format_, address, q + index * (2 * form.block), about, totals[0], asking)
            return
        q = q + blocks * (2 * form.block)
    block = Block(f, address, layout(format_).places, asking)
    x = q + index * (2 * form.block * tile)
    scaled = [f.zero(f32())] * tile
    below = [f.zero(f32())] * tile
    for group in range(form.block // form.group):
        products = _group(f, format_, block, group, tile, x, about)
        scale = form.scale(block, group) if form.scale else None
        minimum = form.minimum(block, group) if form.minimum else None
        for t in range(tile):
            place = about + (group * form.group // 32 * tile + t) * 4 * META
            part = products[t].float() * f.load(place + 4 * SCALE, single, 4).splat()
            scaled[t] = part * scale + scaled[t] if scale else scaled[t] + part
            if form.dmin:
                total = f.load(place + 4 * (SUM + which(form.group, group)), single, 4).splat()
                below[t] = total * minimum + below[t] if minimum else below[t] + total
    d = form.d(block)
    dmin = form.dmin(block) if form.dmin else None
    for t in range(tile):
        total = scaled[t] * d + totals[t].value
        totals[t].value = total - below[t] * dmin if dmin else total


def _group(f: Function, format_: str, block: Block, group: int, tile: int, x: Value, about: Value) -> list[Value]:
    """Σ (code − zero)·(128·a + b) over a group: int32 [16] for each row of the tile."""
    form = FORMATS[format_]
    zero = form.zero + bias(f, signed=form.signed)
    weights = range(group * form.group, (group + 1) * form.group, 4)

    def codes(weight: int) -> tuple[Value, ...]:
        return prepared(f, form.codes(block, weight), signed=form.signed)

    def four(weight: int, t: int) -> Value:
        return x + 2 * weight * tile + 8 * t

    def start(t: int) -> Totals:
        if not zero:
            return nothing(f)
        place = about + (group * form.group // 32 * tile + t) * 4 * META
        return nothing(f, f.load(place + 4 * (NEGATIVE + which(form.group, group)), i32, 4) * zero)

    if few_registers(f):
        block.forget()
    products = _products(f, weights, codes, range(tile), four, start, signed=form.signed)
    return [together(sums) for sums in products]


def _products(
    f: Function, weights: range, codes: Callable[[int], tuple[Value, ...]], rows: range,
    four: Callable[[int, int], Value], start: Callable[[int], Totals], *, signed: bool,
) -> Iterable[Totals]:  # fmt: skip
    """For each row its start + Σ of products of the weights' codes; four(weight, row) is the place of activations.

    All codes are held while a row passes, or else all rows' totals while a code does.
    """
    if few_registers(f):
        totals = [start(t) for t in rows]
        for weight in weights:
            totals = dot(f, totals, codes(weight), [four(weight, t) for t in rows], signed=signed)
        return totals
    all_ = [codes(weight) for weight in weights]

    def of_row(t: int) -> Totals:
        totals = [start(t)]
        for weight, code in zip(weights, all_, strict=True):
            totals = dot(f, totals, code, [four(weight, t)], signed=signed)
        return totals[0]

    return (of_row(t) for t in rows)  # each when it is asked for


def experts(module: ir.Module, target: Target, name: str, kind: str) -> None:
    """Words: weights [E, …], bytes of an expert, ids, x (packed types: q), meta, out [pairs, N], N, K, pairs that share
    a row of x, panels (plain types: rows) a piece.

    A pair is a token's expert, its number in `ids`. A piece is a part of one pair's product.
    """
    f = Function(module, target, name)
    weights, nbytes, ids, x, meta, out, rows, columns, used, share = (f.word(i) for i in range(10))
    step = 1 if kind in PLAIN else LANES
    count = (rows + (step - 1)) / step
    parts = (count + (share - 1)) / share
    pair, part = f.piece / parts, f.piece % parts
    source = pair / used
    of_expert = weights + f.load(ids + 8 * pair, i64) * nbytes
    first, last = part * share, ((part + 1) * share).smaller(count)
    if kind in PLAIN:
        for index in f.range(first, last):
            row = of_expert + index * columns * PLAIN[kind]
            total = f.sum_over(
                columns,
                lambda lanes, k, row=row: (  # type: ignore[misc]
                    plain_numbers(f, kind, row + PLAIN[kind] * k, lanes)
                    * f.load(x + (source * columns + k) * 4, f32(lanes))
                ),
            )
            f.store(out + (pair * rows + index) * 4, total)
        f.finish()
        return

    def take(index: Value, sums: list[Value]) -> None:
        panel = first + index
        _store_rows(f, out + (pair * rows + panel * LANES) * 4, sums[0], rows - panel * LANES)

    blocks = columns / FORMATS[kind].block
    at, row = of_expert + first * blocks * layout(kind).nbytes, x + source * columns * row_bytes(target, 1)
    then = (last - first) * blocks * layout(kind).nbytes
    _few(f, kind, 1, at, last - first, row, meta + source * columns * (META // 8), blocks, take, then)
    f.finish()


def embed(module: ir.Module, target: Target, name: str, kind: str) -> None:
    """Words: panels (plain types: rows), ids, out [T, K], K. A piece is an id."""
    f = Function(module, target, name)
    source, ids, out, columns = (f.word(i) for i in range(4))
    number, to = f.load(ids + 8 * f.piece, i64), out + f.piece * columns * 4
    if kind in PLAIN:
        row = source + number * columns * PLAIN[kind]
        for lanes, k in f.lanes(columns):
            f.store(to + 4 * k, plain_numbers(f, kind, row + PLAIN[kind] * k, lanes))
        f.finish()
        return
    form = FORMATS[kind]
    place, blocks = layout(kind), columns / form.block
    panel = source + number / LANES * blocks * place.nbytes
    for index in f.range(0, blocks):
        block = LaneBlock(f, panel + index * place.nbytes, place.places, number % LANES)
        d = form.d(block).lane(0)
        dmin = form.dmin(block).lane(0) if form.dmin else None
        for group in range(form.block // form.group):
            scale = d * form.scale(block, group).lane(0) if form.scale else d
            minimum = dmin
            if dmin and form.minimum:
                minimum = dmin * form.minimum(block, group).lane(0)
            for weight in range(group * form.group, (group + 1) * form.group, 4):
                four = form.codes(block, weight).bitcast(vector(i32, LANES)).lane(0).bitcast(vector(i8, 4))
                numbers = (four.sext(vector(i32, 4)) - form.zero).float() * scale.splat(4)
                f.store(to + (index * form.block + weight) * 4, numbers - minimum.splat(4) if minimum else numbers)
    f.finish()
