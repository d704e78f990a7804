"""Weights of plain numbers, which stay where they are, row after row, and are multiplied as float32."""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.ir import LANES, Function, Value, f32, half, i16, i32, vector
from kernels.cpu.isa import Target

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
