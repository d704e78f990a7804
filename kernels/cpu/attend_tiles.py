"""Attention of many rows: what they all read of a cache is read once for a tile of them.

A row is a query head of a token. Those of one kv head lie side by side in the lanes of vectors, so scores, weights and
sums of a tile are [positions, rows] and [D, rows], each number of the cache is met by all rows of a tile at once, and
nothing is summed over lanes. Tiles of a piece take turns at each chunk of positions while the nearest caches hold it.

Measured on two cores of a Xeon with AVX512, a 0.8B model with 6 layers of 8 heads on 2 kv heads of 256: after 7,680
tokens the next 512 take 8.3 ms of processor time each, 17.6 token by token; at the beginning 6.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from kernels.cpu.attend import BYTES, numbers
from kernels.cpu.ir import LANES, Function, Value, f32, i32, i64, single, vector
from kernels.cpu.isa import Target

PIECE = 128  # rows of a piece at most
STEP = 8  # positions, of which the blocks of a cache must have a multiple
MOST_DIM = 256  # a piece's rows and sums, [D] each, lie on the stack
LEAST_SPLIT = 512  # positions
_CHUNK = 64  # positions
_LEAST = -1e30  # score of what a row does not see


def tile_rows(target: Target) -> int:
    """As many as leave their sums over some positions in the processor's registers."""
    return 2 * LANES if _wide(target) else LANES


def _wide(target: Target) -> bool:
    return target.dot == "avx512vnni"


def attend_tiles(module: ir.Module, target: Target, name: str, kind: str, group: int, dim: int) -> None:
    """Words: q [T, Hq, D], blocks of keys and of values, partial [T, Hq, splits, 2 + D], start, B, bytes of a head in a
    block, Hkv, splits, T, rows a piece; of `I8` also blocks of the keys' and of the values' scales, bytes of a head in
    a block of those.

    A piece is one split of the positions for some rows of a kv head. `partial` is that of `attend`.
    """
    f = Function(module, target, name)
    q, keys, keys_offset, values, values_offset, partial, start, size, stride, kv_heads, splits, tokens, share = (
        f.word(i) for i in range(13)
    )
    rows = tokens * group
    split, rest = f.piece % splits, f.piece / splits
    kv, part = rest % kv_heads, rest / kv_heads
    first_row = part * share
    stop_row = (first_row + share).smaller(rows)
    seen = start + (stop_row - 1) / group + 1
    span = ((seen + (splits - 1)) / splits + (_CHUNK - 1)) / _CHUNK * _CHUNK
    first = (split * span).smaller(seen)
    last = (first + span).smaller(seen)
    tiles = _Tiles(f, dim)
    count = (stop_row - first_row + (tiles.rows - 1)) / tiles.rows

    def token_and_head(tile: Value, lane: int) -> tuple[Value, Value]:
        """Of a tile's row; those beyond the last one are that one again."""
        row = (first_row + tile * tiles.rows + lane).smaller(rows - 1)
        return row / group, kv * group + row % group

    heads = kv_heads * group
    for tile in f.range(0, count):
        limits, places = [], []
        for lane in range(tiles.rows):
            token, head = token_and_head(tile, lane)
            limits.append(start + token)
            places.append(q + (token * heads + head) * (4 * dim))
        tiles.begin(tile, places, limits)

    for block in f.range(first / size, (last + (size - 1)) / size):
        begin, end = (block * size).larger(first), ((block + 1) * size).smaller(last)
        for chunk in f.range(begin, end, _CHUNK):
            here = (end - chunk).smaller(_CHUNK)
            row = chunk - block * size
            places = []
            for table, offset, scales in ((keys, keys_offset, 13), (values, values_offset, 15)):
                place = f.load(table + 8 * block, i64) + offset + kv * stride + row * (dim * BYTES[kind])
                if kind != "F32":
                    scale = None
                    if kind == "I8":
                        scale = f.load(f.word(scales) + 8 * block, i64) + f.word(scales + 1) + kv * f.word(17) + row * 4
                    place = _converted(f, kind, place, scale, here, dim)
                places.append(place)
            for tile in f.range(0, count):
                tiles.meet(tile, *places, first=chunk, count=here)

    for tile in f.range(0, count):
        places = []
        for lane in range(tiles.rows):
            token, head = token_and_head(tile, lane)
            places.append(partial + ((token * heads + head) * splits + split) * (4 * (dim + 2)))
        tiles.leave(tile, places)
    f.finish()


class _Tiles:
    """What a piece's tiles hold, each place an address: their rows, limits, sums, and the weights of a chunk."""

    def __init__(self, f: Function, dim: int) -> None:
        self.f, self.dim = f, dim
        self.vectors, self.step = (2, STEP) if _wide(f.target) else (1, STEP // 2)
        self.rows = tile_rows(f.target)
        most = PIECE // self.rows
        self._line = 4 * self.rows
        self._query, self._sums = (f.scratch(most * dim * self._line) for _ in range(2))
        self._limit, self._top, self._total = (f.scratch(most * self._line) for _ in range(3))
        self._weights = f.scratch(_CHUNK * self._line)

    def begin(self, tile: Value, places: list[Value], limits: list[Value]) -> None:
        """The rows [D] at `places`, of which each sees the positions to its limit."""
        f = self.f
        for lane, limit in enumerate(limits):
            f.store(self._limit + tile * self._line + 4 * lane, limit.trunc(i32))
        for v in range(self.vectors):
            for i in f.range(0, self.dim, LANES):
                rows = [f.load(place + 4 * i, f32()) * self.dim**-0.5 for place in self._of_vector(places, v)]
                for lane, turned in enumerate(_transposed(rows)):
                    f.store(self._query_at(tile, i + lane, v), turned)
                    f.store(self._sums_at(tile, i + lane, v), f.zero(f32()))
            f.store(self._top_at(tile, v), f.const(f32(), _LEAST))
            f.store(self._total_at(tile, v), f.zero(f32()))

    def leave(self, tile: Value, places: list[Value]) -> None:
        """Each row's largest score, total and sums [2 + D] at `places`."""
        f = self.f
        for lane, place in enumerate(places):
            for word, source in enumerate((self._top, self._total)):
                f.store(place + 4 * word, f.load(source + tile * self._line + 4 * lane, single))
        for v in range(self.vectors):
            for i in f.range(0, self.dim, LANES):
                sums = [f.load(self._sums_at(tile, i + lane, v), f32()) for lane in range(LANES)]
                for place, row in zip(self._of_vector(places, v), _transposed(sums), strict=True):
                    f.store(place + 8 + 4 * i, row)

    def _of_vector(self, places: list[Value], vector: int) -> list[Value]:
        return places[vector * LANES : (vector + 1) * LANES]

    def _query_at(self, tile: Value, i: Value, vector: int) -> Value:
        return self._query + (tile * self.dim + i) * self._line + 64 * vector

    def _sums_at(self, tile: Value, i: Value, vector: int) -> Value:
        return self._sums + (tile * self.dim + i) * self._line + 64 * vector

    def _top_at(self, tile: Value, vector: int) -> Value:
        return self._top + tile * self._line + 64 * vector

    def _total_at(self, tile: Value, vector: int) -> Value:
        return self._total + tile * self._line + 64 * vector

    def _weight(self, j: Value, vector: int) -> Value:
        return self._weights + j * self._line + 64 * vector

    def meet(self, tile: Value, keys: Value, values: Value, *, first: Value, count: Value) -> None:
        """`count` positions from `first` on, whose keys and values [D] lie side by side; a few keys beyond are read."""
        f, vectors = self.f, range(self.vectors)
        limits = [f.load(self._limit + tile * self._line + 64 * v, vector(i32, LANES)) for v in vectors]
        tops = [f.load(self._top_at(tile, v), f32()) for v in vectors]
        largest = [f.variable(top) for top in tops]
        for j in f.range(0, count, self.step):
            scores = self._scores(tile, keys + j * (4 * self.dim))
            for s in range(self.step):
                position = (first + j + s).trunc(i32).splat()
                for v in vectors:
                    score = (position > limits[v]).choose(f.const(f32(), _LEAST), scores[s][v])
                    now = largest[v].value
                    largest[v].value = Value(f, f.b.fcmp_unordered(">", score.v, now.v)).choose(score, now)
                    f.store(self._weight(j + s, v), score)
        totals = [f.variable(f.zero(f32())) for _ in vectors]
        for j in f.range(0, count):
            position = (first + j).trunc(i32).splat()
            for v in vectors:
                weight = f.exp(f.load(self._weight(j, v), f32()) - largest[v].value)
                weight = (position > limits[v]).choose(f.zero(f32()), weight)
                totals[v].value = totals[v].value + weight
                f.store(self._weight(j, v), weight)
        shrinks = [f.exp(tops[v] - largest[v].value) for v in vectors]
        for v in vectors:
            f.store(self._top_at(tile, v), largest[v].value)
            f.store(self._total_at(tile, v), f.load(self._total_at(tile, v), f32()) * shrinks[v] + totals[v].value)
        self._add_values(tile, values, count, shrinks)

    def _scores(self, tile: Value, keys: Value) -> list[list[Value]]:
        """Of `step` keys with all rows."""
        f = self.f
        sums = [[f.variable(f.zero(f32())) for _ in range(self.vectors)] for _ in range(self.step)]
        for i in f.range(0, self.dim):
            queries = [f.load(self._query_at(tile, i, v), f32()) for v in range(self.vectors)]
            for s in range(self.step):
                number = f.load(keys + (4 * self.dim * s) + 4 * i, single).splat()
                for total, query in zip(sums[s], queries, strict=True):
                    total.value = number * query + total.value
        return [[total.value for total in of_key] for of_key in sums]

    def _add_values(self, tile: Value, values: Value, count: Value, shrinks: Sequence[Value]) -> None:
        f, vectors = self.f, range(self.vectors)
        for i in f.range(0, self.dim, self.step):
            sums = [
                [f.variable(f.load(self._sums_at(tile, i + s, v), f32()) * shrinks[v]) for v in vectors]
                for s in range(self.step)
            ]
            for j in f.range(0, count):
                weights = [f.load(self._weight(j, v), f32()) for v in vectors]
                for s in range(self.step):
                    number = f.load(values + j * (4 * self.dim) + 4 * i + 4 * s, single).splat()
                    for total, weight in zip(sums[s], weights, strict=True):
                        total.value = number * weight + total.value
            for s in range(self.step):
                for v in vectors:
                    f.store(self._sums_at(tile, i + s, v), sums[s][v].value)


def _converted(f: Function, kind: str, source: Value, scales: Value | None, count: Value, dim: int) -> Value:
    """Where rows of another type now lie as float32."""
    place = f.scratch(_CHUNK * 4 * dim)
    for j in f.range(0, count):
        for i in f.range(0, dim, LANES):
            row = numbers(f, kind, source + (j * dim + i) * BYTES[kind], LANES)
            if scales:
                row = row * f.load(scales + 4 * j, single).splat()
            f.store(place + (j * dim + i) * 4, row)
    return place


def _transposed(rows: list[Value]) -> list[Value]:
    """16 vectors of 16 numbers: lane i of vector j becomes lane j of vector i."""
    for step in (1, 2, 4, 8):
        low = [lane if not lane & step else LANES + lane - step for lane in range(LANES)]
        high = [lane + step if not lane & step else LANES + lane for lane in range(LANES)]
        rows = [
            row.mix(rows[i + step], low) if not i & step else rows[i - step].mix(row, high)
            for i, row in enumerate(rows)
        ]
    return rows
