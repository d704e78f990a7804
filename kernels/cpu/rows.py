"""Norms, gates and other functions of rows."""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.ir import Function, Value, f32, i64, single, vector
from kernels.cpu.isa import Target


def _inverse_rms(f: Function, x: Value, size: Value, eps: Value) -> Value:
    """1/√(mean(x²) + eps) of float32 at x."""

    def square(lanes: int, i: Value) -> Value:
        number = f.load(x + 4 * i, f32(lanes))
        return number * number

    return f.const(single, 1.0) / f.call("llvm.sqrt.f32", single, f.sum_over(size, square) / _float(size) + eps)


def _float(whole: Value) -> Value:
    return Value(whole.f, whole.f.b.sitofp(whole.v, single))


def rms_norm(module: ir.Module, target: Target, name: str, gated: int) -> None:
    """Words: x [T, heads, D], its strides in bytes, z, its strides, weight, out, heads, D, eps, rows, rows a piece."""
    f = Function(module, target, name)
    x, x_token, x_head, z, z_token, z_head, weight, out, heads, size = (f.word(i) for i in range(10))
    eps, rows, share = f.real(10), f.word(11), f.word(12)
    start = f.piece * share
    for row in f.range(start, (start + share).smaller(rows)):
        token, head = row / heads, row % heads
        at, gate, to = x + token * x_token + head * x_head, z + token * z_token + head * z_head, out + row * size * 4
        inverse = _inverse_rms(f, at, size, eps)
        for lanes, i in f.lanes(size):
            number = f.load(at + 4 * i, f32(lanes)) * inverse.splat(lanes) * f.load(weight + 4 * i, f32(lanes))
            f.store(to + 4 * i, number * f.silu(f.load(gate + 4 * i, f32(lanes))) if gated else number)
    f.finish()


def add_rms_norm(module: ir.Module, target: Target, name: str) -> None:
    """Words: x, y [T, H], weight, sum, out, H, eps. A piece is a row."""
    f = Function(module, target, name)
    x, y, weight, total, out, size, eps = (*(f.word(i) for i in range(6)), f.real(6))
    at = f.piece * size * 4
    for lanes, i in f.lanes(size):
        f.store(total + at + 4 * i, f.load(x + at + 4 * i, f32(lanes)) + f.load(y + at + 4 * i, f32(lanes)))
    inverse = _inverse_rms(f, total + at, size, eps)
    for lanes, i in f.lanes(size):
        number = f.load(total + at + 4 * i, f32(lanes)) * inverse.splat(lanes)
        f.store(out + at + 4 * i, number * f.load(weight + 4 * i, f32(lanes)))
    f.finish()


def concat_rms_norm(module: ir.Module, target: Target, name: str) -> None:
    """Words: a, b [T, H], the weights of both, out [T, 2H], H, eps. A piece is a row of one."""
    f = Function(module, target, name)
    a, b, weight_a, weight_b, out, size, eps = (*(f.word(i) for i in range(6)), f.real(6))
    second = (f.piece % 2).equals(1)
    at = second.choose(b, a) + f.piece / 2 * size * 4
    weight = second.choose(weight_b, weight_a)
    inverse = _inverse_rms(f, at, size, eps)
    for lanes, i in f.lanes(size):
        number = f.load(at + 4 * i, f32(lanes)) * inverse.splat(lanes) * f.load(weight + 4 * i, f32(lanes))
        f.store(out + f.piece * size * 4 + 4 * i, number)
    f.finish()


def add(module: ir.Module, target: Target, name: str) -> None:
    """Words: x, y, out, numbers, numbers a piece."""
    f = Function(module, target, name)
    x, y, out, count, share = (f.word(i) for i in range(5))
    start = f.piece * share
    for lanes, i in f.lanes((start + share).smaller(count) - start):
        at = 4 * (start + i)
        f.store(out + at, f.load(x + at, f32(lanes)) + f.load(y + at, f32(lanes)))
    f.finish()


def shift_rows(module: ir.Module, target: Target, name: str) -> None:
    """Words: first [H], rows [T, H], out [T, H], H: first, then all rows but the last. A piece is a row."""
    f = Function(module, target, name)
    first, rows, out, size = (f.word(i) for i in range(4))
    at = f.piece.equals(0).choose(first, rows + (f.piece - 1) * size * 4)
    for lanes, i in f.lanes(size):
        f.store(out + f.piece * size * 4 + 4 * i, f.load(at + 4 * i, f32(lanes)))
    f.finish()


def spread_logits(module: ir.Module, target: Target, name: str) -> None:
    """Words: first [T, N], some [T, R], ids [R] (int64), out [T, V], N, R, V. A piece is a row."""
    f = Function(module, target, name)
    first, some, ids, out, count, others, size = (f.word(i) for i in range(7))
    row = out + f.piece * size * 4
    for lanes, i in f.lanes(count):
        f.store(row + 4 * i, f.load(first + (f.piece * count + i) * 4, f32(lanes)))
    for lanes, i in f.lanes(size - count):
        f.store(row + 4 * (count + i), f.const(f32(lanes), -1e30))
    for j in f.range(0, others):
        id_ = f.load(ids + 8 * j, i64)
        with f.when(id_ >= 0):
            f.store(row + 4 * id_, f.load(some + (f.piece * others + j) * 4, single))
    f.finish()


def swiglu(module: ir.Module, target: Target, name: str) -> None:
    """Words: gate, up, out, numbers, numbers a piece."""
    f = Function(module, target, name)
    gate, up, out, count, share = (f.word(i) for i in range(5))
    start = f.piece * share
    for lanes, i in f.lanes((start + share).smaller(count) - start):
        at = 4 * (start + i)
        f.store(out + at, f.silu(f.load(gate + at, f32(lanes))) * f.load(up + at, f32(lanes)))
    f.finish()


def rope(module: ir.Module, target: Target, name: str) -> None:
    """Words: x [T, heads, D], its strides in bytes, cos, sin [T, half], out, heads, D, half. A piece is a token."""
    f = Function(module, target, name)
    x, x_token, x_head, cos, sin, out, heads, size, half = (f.word(i) for i in range(9))
    angle = f.piece * half * 4
    for head in f.range(0, heads):
        at, to = x + f.piece * x_token + head * x_head, out + (f.piece * heads + head) * size * 4
        for lanes, i in f.lanes(half):
            first, second = f.load(at + 4 * i, f32(lanes)), f.load(at + 4 * (half + i), f32(lanes))
            c, s = f.load(cos + angle + 4 * i, f32(lanes)), f.load(sin + angle + 4 * i, f32(lanes))
            f.store(to + 4 * i, first * c - second * s)
            f.store(to + 4 * (half + i), second * c + first * s)
        for lanes, i in f.lanes(size - 2 * half):
            f.store(to + 4 * (2 * half + i), f.load(at + 4 * (2 * half + i), f32(lanes)))
    f.finish()


CONV_TOKENS = (
    16  # of a piece; with all of a prompt's, rows that lie as far apart as these push each other out of the cache
)
MOST_TAPS = CONV_TOKENS + 1  # of a piece's first token the window is the piece before, or the inputs before x


def causal_conv1d(module: ir.Module, target: Target, name: str, width: int) -> None:
    """Words: x [T, C], inputs before, the window's first row in them [1] (int64), weight [C, W], y [T, C],
    xs [W−1+T, C], T, C, channels a piece. A piece is some channels of `CONV_TOKENS` tokens.
    """
    f = Function(module, target, name)
    x, before, moved, weight, y, xs, tokens, channels, share = (f.word(i) for i in range(9))
    parts = (channels + (share - 1)) / share
    begin, start = f.piece / parts * CONV_TOKENS, f.piece % parts * share
    end, row = (begin + CONV_TOKENS).smaller(tokens), channels * 4
    first = begin.equals(0)
    window = first.choose(before + f.load(moved, i64) * row, x + (begin - (width - 1)) * row)
    for lanes, i in f.lanes((start + share).smaller(channels) - start):
        at = 4 * (start + i)
        taps = f.load(weight + at * width, f32(lanes * width))
        weights = [taps.pick(range(j, lanes * width, width)) for j in range(width)]
        past = [f.variable(f.load(window + j * row + at, f32(lanes))) for j in range(width - 1)]
        with f.when(first):
            for j in range(width - 1):
                f.store(xs + j * row + at, past[j].value)
        for t in f.range(begin, end):
            new = f.load(x + t * row + at, f32(lanes))
            f.store(xs + (t + (width - 1)) * row + at, new)
            total = new * weights[-1]
            for j in range(width - 1):
                total = total + past[j].value * weights[j]
            f.store(y + t * row + at, f.silu(total))
            for j in range(width - 2):
                past[j].value = past[j + 1].value
            past[-1].value = new
    f.finish()


def delta_gates(module: ir.Module, target: Target, name: str) -> None:
    """Words: alpha, beta [T, Hv], a, dt_bias [Hv], g, strength [T, Hv], Hv. A piece is a token."""
    f = Function(module, target, name)
    alpha, beta, a, dt_bias, g, strength, heads = (f.word(i) for i in range(7))
    row = f.piece * heads * 4
    one = vector(single, 1)
    for i in f.range(0, heads):
        x = f.load(alpha + row + 4 * i, one) + f.load(dt_bias + 4 * i, one)
        small = f.exp(-f.call("llvm.fabs.v1f32", one, x))
        log = f.call("log1pf", single, small.lane(0)).splat(1)
        softplus = (x < 0.0).choose(f.const(one, 0.0), x) + log
        f.store(g + row + 4 * i, f.load(a + 4 * i, one) * softplus)
        f.store(strength + row + 4 * i, f.sigmoid(f.load(beta + row + 4 * i, one)))
    f.finish()


def route(module: ir.Module, target: Target, name: str) -> None:
    """Words: logits [T, E], weights [T, used], ids [T, used] (int64), E, used. A piece is a token.

    The softmax over all experts cancels when the chosen are made to sum to 1: e^(lᵢ − max) suffices.
    """
    f = Function(module, target, name)
    logits, weights, ids, experts, used = (f.word(i) for i in range(5))
    row = logits + f.piece * experts * 4
    total, top = f.variable(f.const(single, 0.0)), f.variable(f.const(single, 0.0))
    for slot in f.range(0, used):
        best, index = f.variable(f.const(single, float("-inf"))), f.variable(f.number(0))
        for e in f.range(0, experts):
            value = f.load(row + 4 * e, single)
            taken = f.variable(f.number(0))
            for other in f.range(0, slot):
                with f.when(f.load(ids + (f.piece * used + other) * 8, i64).equals(e)):
                    taken.value = f.number(1)
            # not smaller, rather than larger: NaN must come through
            with f.when(Value(f, f.b.fcmp_unordered(">", value.v, best.value.v)) & taken.value.equals(0)):
                best.value, index.value = value, e
        with f.when(slot.equals(0)):
            top.value = best.value
        weight = f.exp((best.value - top.value).splat(1)).lane(0)
        f.store(weights + (f.piece * used + slot) * 4, weight)
        f.store(ids + (f.piece * used + slot) * 8, index.value)
        total.value = total.value + weight
    for slot in f.range(0, used):
        at = weights + (f.piece * used + slot) * 4
        f.store(at, f.load(at, single) / total.value)
    f.finish()


def weigh_experts(module: ir.Module, target: Target, name: str) -> None:
    """Words: outputs [T, used, H], weights [T, used], out [T, H], used, H: Σ weights·outputs. A piece is a token."""
    f = Function(module, target, name)
    outputs, weights, out, used, size = (f.word(i) for i in range(5))
    for lanes, i in f.lanes(size):
        total = f.variable(f.zero(f32(lanes)))
        for slot in f.range(0, used):
            pair = f.piece * used + slot
            part = f.load(outputs + (pair * size + i) * 4, f32(lanes))
            total.value = total.value + part * f.load(weights + pair * 4, single).splat(lanes)
        f.store(out + (f.piece * size + i) * 4, total.value)
    f.finish()


def add_shared_expert(module: ir.Module, target: Target, name: str) -> None:
    """Words: routed, x [T, H], gate [H], shared [T, H], out, H: routed + σ(gate·x)·shared. A piece is a token."""
    f = Function(module, target, name)
    routed, x, gate, shared, out, size = (f.word(i) for i in range(6))
    row = f.piece * size * 4
    logit = f.sum_over(size, lambda lanes, i: f.load(x + row + 4 * i, f32(lanes)) * f.load(gate + 4 * i, f32(lanes)))
    share = f.sigmoid(logit.splat(1)).lane(0)
    for lanes, i in f.lanes(size):
        at = row + 4 * i
        f.store(out + at, f.load(routed + at, f32(lanes)) + f.load(shared + at, f32(lanes)) * share.splat(lanes))
    f.finish()
