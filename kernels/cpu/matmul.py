"""x·Wᵀ for packed weights: activations to int8 in groups of 32, then dot products of bytes over panels of 16 rows.

One pass over the weights serves 1 to 5 rows of x (a token, or a draft to verify) or tiles of 8 (prefill). Within a tile
of R rows, x is [K/4, R] of four int8, beside [K/32, R] of `_META` numbers of 32 bits about each group.

Measured on one core of an EPYC with AVX512-VNNI, in processor time: Q4_K from memory 20–22 GB/s, all that the memory
gives one core, and 71 G weights/s from the cache; tiles of 8 do 150 G products/s. There, asking for weights ahead of
time (prefetch) lost a third on Q4_K and large pages gained nothing. On two cores of a Xeon Q4_K and Q6_K came at 17.7
and 15.7 GB/s; in large pages at 21.2 and 19.4; asked for ahead of time too, at 25.4 and 25.1, of 26.7 that the memory
gives.
"""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.dot import bias, dot, prepared
from kernels.cpu.formats import FORMATS, Block, LaneBlock, layout
from kernels.cpu.ir import LANES, Function, Value, f32, half, i8, i16, i32, i64, single, vector
from kernels.cpu.isa import Target

FEW = 5  # rows that have a version of their own
TILE = 8  # rows of a tile beyond that
SEGMENT = 512  # activations that are quantised in one piece

# Of a group: its scale; scale·Σq of the whole and of its halves; −Σq of the same, as integers.
_META = 8
_SCALE, _SUM, _NEGATIVE = 0, 1, 4


def tile_rows(rows: int) -> int:
    return rows if rows <= FEW else TILE


def quantise(module: ir.Module, target: Target, name: str, tile: int) -> None:
    """Words: x [T, K], row stride in bytes, K, q, meta. A piece is one segment of one row."""
    f = Function(module, target, name)
    x, stride, columns, q, meta = (f.word(i) for i in range(5))
    segments = (columns + (SEGMENT - 1)) / SEGMENT
    row, segment = f.piece / segments, f.piece % segments
    first, lane = row / tile * tile, row % tile
    groups = columns / 32
    start = segment * (SEGMENT // 32)
    for group in f.range(start, (start + SEGMENT // 32).smaller(groups)):
        at = x + row * stride + 128 * group
        halves = [f.load(at + 64 * i, f32()) for i in range(2)]
        # Compared as integers, NaN is the largest number of all, and so makes the whole group NaN.
        bits = [h.bitcast(vector(i32, LANES)) & 0x7FFFFFFF for h in halves]
        largest = f.call("llvm.vector.reduce.umax.v16i32", i32, bits[0].larger(bits[1])).bitcast(single)
        scale = largest / 127.0
        inverse = (largest > 0.0).choose(127.0 / largest, 0.0).splat()
        sums = []
        for i, h in enumerate(halves):
            rounded = f.call("llvm.rint.v16f32", f32(), h * inverse)
            whole = Value(f, f.b.fptosi(rounded.v, vector(i32, LANES)))
            sums.append(whole.sum())
            fours = whole.trunc(vector(i8, LANES)).bitcast(vector(i32, 4))
            for j in range(4):
                unit = group * 8 + (4 * i + j)
                f.store(q + first * columns + (unit * tile + lane) * 4, fours.lane(j))
        about = meta + first * groups * (4 * _META) + (group * tile + lane) * (4 * _META)
        f.store(about + 4 * _SCALE, scale)
        for i, total in enumerate((sums[0] + sums[1], *sums)):
            f.store(about + 4 * (_SUM + i), scale * total.float())
            f.store(about + 4 * (_NEGATIVE + i), 0 - total)
    f.finish()


def matmul(module: ir.Module, target: Target, name: str, format_: str, tile: int) -> None:
    """Words: panels, q, meta, out [T, N], N, K, T, panels a piece. A piece is a run of panels."""
    f = Function(module, target, name)
    weights, q, meta, out, rows, columns, tokens, share = (f.word(i) for i in range(8))
    form = FORMATS[format_]
    panels = (rows + (LANES - 1)) / LANES
    blocks = columns / form.block
    start = f.piece * share
    for panel in f.range(start, (start + share).smaller(panels)):
        at = weights + panel * blocks * layout(format_).nbytes
        for first in f.range(0, tokens, tile):
            sums = _tile(f, format_, tile, at, q + first * columns, meta + first * columns * (_META // 8), blocks)
            for t, total in enumerate(sums):
                to = out + ((first + t) * rows + panel * LANES) * 4
                if tile <= FEW:
                    _store_rows(f, to, total, rows - panel * LANES)
                else:
                    with f.when(first + t < tokens):
                        _store_rows(f, to, total, rows - panel * LANES)
    f.finish()


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


def _tile(f: Function, format_: str, tile: int, weights: Value, q: Value, meta: Value, blocks: Value) -> list[Value]:
    """Sums [16] of each row of the tile over all blocks of a panel."""
    form = FORMATS[format_]
    totals = [f.variable(f.zero(f32())) for _ in range(tile)]
    ahead = f.target.ahead if tile <= FEW else 0  # larger tiles pass over each panel several times
    for index in f.range(0, blocks):
        block = Block(f, weights + index * layout(format_).nbytes, layout(format_).places, ahead)
        x = q + index * (form.block * tile)
        about = meta + index * (form.block // 32 * tile * 4 * _META)
        scaled = [f.zero(f32())] * tile
        below = [f.zero(f32())] * tile
        for group in range(form.block // form.group):
            products = _group(f, format_, block, group, tile, x, about)
            scale = form.scale(block, group) if form.scale else None
            minimum = form.minimum(block, group) if form.minimum else None
            for t in range(tile):
                place = about + (group * form.group // 32 * tile + t) * 4 * _META
                part = products[t].float() * f.load(place + 4 * _SCALE, single, 4).splat()
                scaled[t] = part * scale + scaled[t] if scale else scaled[t] + part
                if form.dmin:
                    total = f.load(place + 4 * (_SUM + _which(form.group, group)), single, 4).splat()
                    below[t] = total * minimum + below[t] if minimum else below[t] + total
        d = form.d(block)
        dmin = form.dmin(block) if form.dmin else None
        for t in range(tile):
            total = scaled[t] * d + totals[t].value
            totals[t].value = total - below[t] * dmin if dmin else total
    return [total.value for total in totals]


def _which(group_size: int, group: int) -> int:
    """Of a group's sums in `_META`: the whole, the first half, the second half."""
    return 0 if group_size == 32 else 1 + group % 2


def _group(f: Function, format_: str, block: Block, group: int, tile: int, x: Value, about: Value) -> list[Value]:
    """Σ (code − zero)·q over a group: int32 [16] for each row of the tile."""
    form = FORMATS[format_]
    zero = form.zero + bias(f, signed=form.signed)
    products = []
    for t in range(tile):
        if zero:
            place = about + (group * form.group // 32 * tile + t) * 4 * _META
            negative = f.load(place + 4 * (_NEGATIVE + _which(form.group, group)), i32, 4)
            products.append((negative * zero).splat())
        else:
            products.append(f.zero(vector(i32, LANES)))
    for weight in range(group * form.group, (group + 1) * form.group, 4):
        codes = prepared(f, form.codes(block, weight), signed=form.signed)
        for t in range(tile):
            four = f.load(x + weight * tile + 4 * t, i32, 4)
            products[t] = dot(f, products[t], codes, four, signed=form.signed)
    return products


# Plain numbers stay where they are, row after row, and are multiplied as float32.

_ROWS_AT_ONCE, _TOKENS_AT_ONCE = 4, 4
PLAIN = {"F32": 4, "F16": 2, "BF16": 2}


def plain_numbers(f: Function, kind: str, address: Value, lanes: int) -> Value:
    """`lanes` numbers of a type at `address` as float32."""
    if kind == "F32":
        return f.load(address, f32(lanes))
    if kind == "F16":
        return f.load(address, vector(half, lanes)).float()
    return (f.load(address, vector(i16, lanes)).zext(vector(i32, lanes)) << 16).bitcast(f32(lanes))


def matmul_plain(module: ir.Module, target: Target, name: str, kind: str) -> None:
    """Words: W [N, K], x [T, K], out [T, N], N, K, T, rows a piece."""
    f = Function(module, target, name)
    weights, x, out, rows, columns, tokens, share = (f.word(i) for i in range(7))
    start = f.piece * share
    stop = (start + share).smaller(rows)
    whole = start + (stop - start) / _ROWS_AT_ONCE * _ROWS_AT_ONCE

    def tile(row: Value, height: int, token: Value, width: int) -> None:
        sums = {
            lanes: [[f.variable(f.zero(f32(lanes))) for _ in range(width)] for _ in range(height)]
            for lanes in (LANES, 1)
        }
        for lanes, k in f.lanes(columns):
            xs = [f.load(x + ((token + t) * columns + k) * 4, f32(lanes)) for t in range(width)]
            for r in range(height):
                w = plain_numbers(f, kind, weights + ((row + r) * columns + k) * PLAIN[kind], lanes)
                for t in range(width):
                    total = sums[lanes][r][t]
                    total.value = w * xs[t] + total.value
        for r in range(height):
            for t in range(width):
                done = sums[LANES][r][t].value.sum() + sums[1][r][t].value.lane(0)
                f.store(out + ((token + t) * rows + row + r) * 4, done)

    even = tokens / _TOKENS_AT_ONCE * _TOKENS_AT_ONCE
    for first, last, height in ((start, whole, _ROWS_AT_ONCE), (whole, stop, 1)):
        for row in f.range(first, last, height):
            for token in f.range(0, even, _TOKENS_AT_ONCE):
                tile(row, height, token, _TOKENS_AT_ONCE)
            for token in f.range(even, tokens):
                tile(row, height, token, 1)
    f.finish()


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
    for index in f.range(part * share, ((part + 1) * share).smaller(count)):
        to = out + (pair * rows + index * step) * 4
        if kind in PLAIN:
            row = of_expert + index * columns * PLAIN[kind]
            total = f.sum_over(
                columns,
                lambda lanes, k, row=row: (  # type: ignore[misc]
                    plain_numbers(f, kind, row + PLAIN[kind] * k, lanes)
                    * f.load(x + (source * columns + k) * 4, f32(lanes))
                ),
            )
            f.store(to, total)
        else:
            form = FORMATS[kind]
            blocks = columns / form.block
            panel = of_expert + index * blocks * layout(kind).nbytes
            [numbers] = _tile(f, kind, 1, panel, x + source * columns, meta + source * columns * (_META // 8), blocks)
            _store_rows(f, to, numbers, rows - index * LANES)
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
