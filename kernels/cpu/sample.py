"""The choice of a token: one pass for the penalties, one for the best, one for the k best, then a race among those."""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.ir import LANES, Function, Value, f32, i8, i32, i64, single, vector
from kernels.cpu.isa import Target
from kernels.cpu.ops import MOST_CANDIDATES, UNDECIDED

_NOT_FINITE = -1
_GAMMA = 0x9E3779B97F4A7C15
_double = ir.DoubleType()


def sample(module: ir.Module, target: Target, name: str, draft: int) -> None:
    """Words: logits [V], rules [6] (float64), noise [2], seen, reply [V], drafted, their count, out, room [V], V.

    With `draft` what cannot be decided is the best token, and what is not finite is token 0: a bad draft does no harm.
    """
    f = Function(module, target, name)
    logits, rules, noise, seen, reply, drafted, count, out, room, size = (f.word(i) for i in range(10))
    temperature, top_k, top_p, min_p, presence, repetition = (f.load(rules + 8 * i, _double) for i in range(6))
    result = f.variable(f.number(0 if draft else _NOT_FINITE))
    source = f.variable(logits)
    with f.when((repetition.equals(1.0) & presence.equals(0.0)) ^ 1):
        source.value = room
        _penalise(f, logits, room, seen, reply, drafted, count, size, _short(repetition), _short(presence))
    at = source.value
    with f.when(_all_finite(f, logits, size)):
        best, index = _best(f, at, size)
        result.value = index
        with f.when(temperature > 0.0):
            values, ids, found = _k_best(f, at, size, _whole(top_k).smaller(size))
            least = f.load(values + 4 * (found - 1), single)
            with f.b.if_else((_at_least(f, at, size, least) > found).v) as (many, few):
                with many:
                    if not draft:
                        result.value = f.number(UNDECIDED)
                with few:
                    kept = _nucleus(f, values, found, best, temperature, top_p, min_p)
                    seed, place = f.load(noise, i64), f.load(noise + 8, i64) + count
                    result.value = _race(f, values, ids, kept, best, temperature, seed, place)
    f.store(out, result.value)
    f.finish()


def _short(number: Value) -> Value:
    return Value(number.f, number.f.b.fptrunc(number.v, single))


def _long(number: Value) -> Value:
    return Value(number.f, number.f.b.fpext(number.v, _double))


def _whole(number: Value) -> Value:
    return Value(number.f, number.f.b.fptosi(number.v, i64))


def _penalise(
    f: Function, logits: Value, to: Value, seen: Value, reply: Value, drafted: Value, count: Value, size: Value,
    repetition: Value, presence: Value,
) -> None:  # fmt: skip
    def repeated(x: Value, lanes: int) -> Value:
        factor = repetition.splat(lanes)
        return (x > 0.0).choose(Value(f, f.b.fdiv(x.v, factor.v)), x * factor)

    for lanes, i in f.lanes(size):
        x = f.load(logits + 4 * i, f32(lanes))
        marks = vector(i8, lanes)
        in_reply = f.load(reply + i, marks).equals(1)
        touched = Value(f, f.b.or_(in_reply.v, f.load(seen + i, marks).equals(1).v))
        lower = in_reply.choose(presence.splat(lanes), f.zero(f32(lanes)))
        f.store(to + 4 * i, touched.choose(repeated(x, lanes) - lower, x))
    for j in f.range(0, count):
        id_ = f.load(drafted + 8 * j, i64)
        x = f.load(logits + 4 * id_, f32(1))
        f.store(to + 4 * id_, repeated(x, 1) - presence.splat(1))


def _all_finite(f: Function, logits: Value, size: Value) -> Value:
    """Of numbers that are not finite all bits of the exponent are set."""
    largest = f.variable(f.number(0).trunc(i32))
    wide = f.variable(f.zero(vector(i32, LANES)))
    for lanes, i in f.lanes(size):
        bits = f.load(logits + 4 * i, vector(i32, lanes)) & 0x7FFFFFFF
        if lanes == LANES:
            wide.value = wide.value.larger(bits)
        else:
            largest.value = largest.value.larger(bits.lane(0))
    return f.call("llvm.vector.reduce.smax.v16i32", i32, wide.value).larger(largest.value) < 0x7F800000


def _best(f: Function, logits: Value, size: Value) -> tuple[Value, Value]:
    """The largest of finite logits, and the lowest id that has it."""
    best = f.variable(f.const(single, float("-inf")))
    index = f.variable(f.number(0))
    for lanes, i in f.lanes(size):
        x = f.load(logits + 4 * i, f32(lanes))
        top = x.max() if lanes > 1 else x.lane(0)
        with f.when(top > best.value):
            best.value = top
            for j in f.range(0, lanes):
                back = i + (lanes - 1) - j
                with f.when(f.load(logits + 4 * back, single).equals(top)):
                    index.value = back
    return best.value, index.value


def _k_best(f: Function, logits: Value, size: Value, k: Value) -> tuple[Value, Value, Value]:
    """The `k` largest, descending, of equals the lower id first: where they are, their ids [int64], and how many."""
    values, ids = f.scratch(4 * MOST_CANDIDATES), f.scratch(8 * MOST_CANDIDATES)
    found, threshold = f.variable(f.number(0)), f.variable(f.const(single, float("-inf")))
    for lanes, i in f.lanes(size):
        x = f.load(logits + 4 * i, f32(lanes))
        with f.when((x.max() if lanes > 1 else x.lane(0)) > threshold.value):
            for j in f.range(0, lanes):
                value = f.load(logits + 4 * (i + j), single)
                with f.when(value > threshold.value):
                    place = f.variable(f.number(0))
                    for other in f.range(0, found.value):
                        with f.when(f.load(values + 4 * other, single) >= value):
                            place.value = other + 1
                    last = found.value.smaller(k - 1)
                    for step in f.range(place.value, last):
                        to = last + place.value - step
                        f.store(values + 4 * to, f.load(values + 4 * (to - 1), single))
                        f.store(ids + 8 * to, f.load(ids + 8 * (to - 1), i64))
                    f.store(values + 4 * place.value, value)
                    f.store(ids + 8 * place.value, i + j)
                    found.value = (found.value + 1).smaller(k)
                    with f.when(found.value.equals(k)):
                        threshold.value = f.load(values + 4 * (k - 1), single)
    return values, ids, found.value


def _at_least(f: Function, logits: Value, size: Value, least: Value) -> Value:
    """How many logits are not below `least`."""
    total = f.variable(f.number(0))
    for lanes, i in f.lanes(size):
        high = f.load(logits + 4 * i, f32(lanes)) >= least.splat(lanes)
        ones = high.zext(vector(i32, lanes))
        total.value = total.value + (ones.sum() if lanes > 1 else ones.lane(0)).zext(i64)
    return total.value


def _weight(f: Function, value: Value, best: Value, temperature: Value) -> Value:
    """e^((value − best)/T); divided, not multiplied by 1/T, which a small T would make infinite."""
    difference = _long(value) - _long(best)
    return f.call("exp", _double, Value(f, f.b.fdiv(difference.v, temperature.v)))


def _nucleus(
    f: Function, values: Value, found: Value, best: Value, temperature: Value, top_p: Value, min_p: Value
) -> Value:
    """How many of the values, which descend, min-p and top-p keep."""
    kept = f.variable(found)
    with f.when(min_p > 0.0):
        least = _short(_long(best) + temperature * f.call("log", _double, min_p))
        kept.value = f.number(0)
        for j in f.range(0, found):
            with f.when(f.load(values + 4 * j, single) >= least):
                kept.value = j + 1
    with f.when(top_p < 1.0):
        total, before = f.variable(f.const(_double, 0.0)), f.variable(f.const(_double, 0.0))
        left = kept.value
        for j in f.range(0, left):
            total.value = total.value + _weight(f, f.load(values + 4 * j, single), best, temperature)
        for j in f.range(0, left):
            with f.when(before.value < top_p * total.value):
                kept.value = j + 1
            before.value = before.value + _weight(f, f.load(values + 4 * j, single), best, temperature)
    return kept.value


def _race(
    f: Function, values: Value, ids: Value, kept: Value, best: Value, temperature: Value, seed: Value, place: Value
) -> Value:
    start = _mix(_mix(seed) + place)
    winner, fastest = f.variable(f.load(ids, i64)), f.variable(f.const(_double, float("inf")))
    for j in f.range(0, kept):
        id_ = f.load(ids + 8 * j, i64)
        bits = _mix(start + id_ * f.number(_GAMMA))
        uniform = (Value(f, f.b.uitofp((bits >> 11).v, _double)) + 0.5) * 2.0**-53
        weight = _weight(f, f.load(values + 4 * j, single), best, temperature)
        time = Value(f, f.b.fdiv((-f.call("log", _double, uniform)).v, weight.v))
        with f.when(time < fastest.value):
            fastest.value, winner.value = time, id_
    return winner.value


def _mix(x: Value) -> Value:
    """SplitMix64."""
    x = x + _GAMMA
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
