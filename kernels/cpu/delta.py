"""The gated delta rule, token by token, on a part of one head's state that stays in the nearest cache.

A decode step reads all states and writes them elsewhere, and what it writes it does not read again before the weights
have gone through the caches. So states that are large are written past those, which spares reading what is overwritten,
and asked for ahead of time; with large pages, that took the 18 states of 1 MB of a 0.8B from 5.0 to 2.8 ms on two cores
of an EPYC (Zen 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from kernels.cpu.ir import LANES, Function, Value, f32, i64, single
from kernels.cpu.isa import Target

STATE_ROWS = 32
MOST_DIM = 1024  # of a head
_L2_EPS = 1e-6
_LARGE = 1 << 19  # bytes of a layer's state; there are as many more as there are layers, and the weights between
_AHEAD = 4096  # bytes before its use that state is asked for


@dataclass
class _Part:
    """Some rows of one head's state. A token's k and v stand at one place of a row, its gates at another."""

    f: Function
    head: Value
    first: Value  # of the rows
    last: Value
    k_heads: Value
    v_heads: Value
    dk: Value
    dv: Value

    def __post_init__(self) -> None:
        self._unit_q, self._unit_k = (self.f.scratch(4 * MOST_DIM) for _ in range(2))

    def token(
        self, before: Value, after: Value, k: Value, v: Value, g: Value, beta: Value,
        *, q: Value | None = None, o: Value | None = None, keep: Value | None = None, away: Value | None = None,
    ) -> None:  # fmt: skip
        """One token: the rows at `before` become those at `after`, which may be the same, if `keep` holds; past the
        caches if `away` does.

        k, v, q: the token's heads; g, beta [Hv]; o [Hv, Dv]: where its output goes, if q is given. With S the state
        before and d = e^g: S k and S q are read in one pass, e = β(v − d·S k), o = d·S q + e·(k·q), S ← d·S + e kᵀ.
        """
        f, dk, dv = self.f, self.dk, self.dv
        shared = self.head % self.k_heads * dk * 4
        vectors = [self._unit_k]
        agreement = f.const(single, 0.0)
        _unit(f, k + shared, self._unit_k, dk, f.const(single, 1.0))
        if q:
            size = Value(f, f.b.sitofp(dk.v, single))
            _unit(f, q + shared, self._unit_q, dk, f.const(single, 1.0) / f.call("llvm.sqrt.f32", single, size))
            vectors.append(self._unit_q)
            agreement = f.sum_over(
                dk, lambda lanes, i: self._of(self._unit_q, lanes, i) * self._of(self._unit_k, lanes, i)
            )
        decay = f.exp(f.load(g + 4 * self.head, f32(1))).lane(0)
        strength = f.load(beta + 4 * self.head, single)
        whole = self.first + (self.last - self.first) / 4 * 4
        for begin, end, height in ((self.first, whole, 4), (whole, self.last, 1)):
            for row in f.range(begin, end, height):
                place = (row - self.first) * dk * 4
                products = _products(f, before + place, dk, height, vectors, _AHEAD if f.target.ahead else 0)
                errors = []
                for r in range(height):
                    wanted = f.load(v + (self.head * dv + row + r) * 4, single)
                    errors.append(strength * (wanted - decay * products[r][0]))
                    if q and o:
                        f.store(o + (self.head * dv + row + r) * 4, decay * products[r][1] + errors[r] * agreement)
                if away is not None:
                    with f.b.if_else(away.v) as (past, through):
                        with past:
                            self._update(before + place, after + place, decay, errors, f.stream)
                        with through:
                            self._update(before + place, after + place, decay, errors)
                elif keep is None:
                    self._update(before + place, after + place, decay, errors)
                else:
                    with f.when(keep):
                        self._update(before + place, after + place, decay, errors)

    def _update(
        self, before: Value, after: Value, decay: Value, errors: list[Value],
        stream: Callable[[Value, Value], None] | None = None,
    ) -> None:  # fmt: skip
        f = self.f
        for lanes, i in f.lanes(self.dk):
            key = self._of(self._unit_k, lanes, i)
            for r, error in enumerate(errors):
                at = (r * self.dk + i) * 4
                kept = f.load(before + at, f32(lanes)) * decay.splat(lanes)
                write = stream if stream and lanes > 1 else f.store
                write(after + at, kept + error.splat(lanes) * key)

    def _of(self, place: Value, lanes: int, i: Value) -> Value:
        return self.f.load(place + 4 * i, f32(lanes))


def _part(f: Function, k_heads: Value, v_heads: Value, dk: Value, dv: Value) -> _Part:
    """That of the function's piece."""
    parts = (dv + (STATE_ROWS - 1)) / STATE_ROWS
    head, first = f.piece / parts, f.piece % parts * STATE_ROWS
    return _Part(f, head, first, (first + STATE_ROWS).smaller(dv), k_heads, v_heads, dk, dv)


def delta_rule(module: ir.Module, target: Target, name: str) -> None:
    """Words: q, k, v, their row strides in bytes, g, beta [T, Hv], state [Hv, Dv, Dk], o [T, Hv, Dv], states,
    bytes from one row's state to the next (0: one place for all), T, Hk, Hv, Dk, Dv.

    A piece is `STATE_ROWS` rows of one head's state, over all tokens.
    """
    f = Function(module, target, name)
    q, k, v, q_stride, k_stride, v_stride, g, beta, state, o, states, step = (f.word(i) for i in range(12))
    tokens, k_heads, v_heads, dk, dv = (f.word(i) for i in range(12, 17))
    part = _part(f, k_heads, v_heads, dk, dv)
    place = (part.head * dv + part.first) * dk * 4
    for t in f.range(0, tokens):
        before = t.equals(0).choose(state, states + (t - 1) * step) + place
        gate = t * v_heads * 4
        part.token(
            before, states + t * step + place, k + t * k_stride, v + t * v_stride, g + gate, beta + gate,
            q=q + t * q_stride, o=o + gate * dv,
        )  # fmt: skip
    f.finish()


def delta_resume(module: ir.Module, target: Target, name: str, each: int) -> None:
    """Words: q, k, v, their row strides in bytes, g, beta [T, Hv], the same of earlier rows but q: k, v, their strides,
    g, beta; how many of those count [1] (int64); state [Hv, Dv, Dk], kept, o [T, Hv, Dv], T, Hk, Hv, Dk, Dv.

    A piece is `STATE_ROWS` rows of one head's state. `kept` is the state after the earlier rows that count, or without
    `each` after all; in between it stays in scratch memory.
    """
    f = Function(module, target, name)
    q, k, v, q_stride, k_stride, v_stride, g, beta = (f.word(i) for i in range(8))
    past_k, past_v, past_k_stride, past_v_stride, past_g, past_beta, count = (f.word(i) for i in range(8, 15))
    state, kept, o, tokens, k_heads, v_heads, dk, dv = (f.word(i) for i in range(15, 23))
    part = _part(f, k_heads, v_heads, dk, dv)
    place = (part.head * dv + part.first) * dk * 4
    scratch, earlier = f.scratch(4 * STATE_ROWS * MOST_DIM), f.load(count, i64)
    here = f.variable(state + place)
    for t in f.range(0, earlier):
        to = t.equals(earlier - 1).choose(kept + place, scratch) if each else scratch
        gate = t * v_heads * 4
        at = past_k + t * past_k_stride, past_v + t * past_v_stride, past_g + gate, past_beta + gate
        part.token(here.value, to, *at)
        here.value = to
    if each:
        with f.when(earlier.equals(0)):
            for lanes, i in f.lanes((part.last - part.first) * dk):
                f.store(kept + place + 4 * i, f.load(state + place + 4 * i, f32(lanes)))
    for t in f.range(0, tokens):
        last = t.equals(tokens - 1)
        to = scratch if each else last.choose(kept + place, scratch)
        gate = t * v_heads * 4
        at = k + t * k_stride, v + t * v_stride, g + gate, beta + gate
        of_q = {"q": q + t * q_stride, "o": o + gate * dv}
        if each:
            part.token(here.value, to, *at, **of_q, keep=last ^ 1)
        else:
            part.token(here.value, to, *at, **of_q, away=last & _leaves_caches(f, kept, v_heads * dv * dk * 4, dk))
        here.value = to
    f.finish()


def _leaves_caches(f: Function, kept: Value, nbytes: Value, dk: Value) -> Value:
    """Whether a state that is written now will be out of the caches before it is read, and lies in whole lines."""
    if not f.target.triple.startswith("x86_64"):  # elsewhere such stores may be seen late
        return f.const(ir.IntType(1), 0)
    return (nbytes >= _LARGE) & (kept % 64).equals(0) & (dk % LANES).equals(0)


def _unit(f: Function, x: Value, out: Value, size: Value, scale: Value) -> None:
    """x of unit length, times `scale`."""

    def square(lanes: int, i: Value) -> Value:
        number = f.load(x + 4 * i, f32(lanes))
        return number * number

    inverse = scale / f.call("llvm.sqrt.f32", single, f.sum_over(size, square) + _L2_EPS)
    for lanes, i in f.lanes(size):
        f.store(out + 4 * i, f.load(x + 4 * i, f32(lanes)) * inverse.splat(lanes))


def _products(
    f: Function, rows: Value, size: Value, height: int, vectors: list[Value], ahead: int
) -> list[list[Value]]:
    """Of `height` rows with each of the vectors, the rows asked for so many bytes ahead."""
    sums = {lanes: [[f.variable(f.zero(f32(lanes))) for _ in vectors] for _ in range(height)] for lanes in (LANES, 1)}
    for lanes, i in f.lanes(size):
        others = [f.load(vector + 4 * i, f32(lanes)) for vector in vectors]
        for r in range(height):
            if ahead and lanes > 1:
                f.prefetch(rows + (r * size + i) * 4 + ahead)
            row = f.load(rows + (r * size + i) * 4, f32(lanes))
            for total, other in zip(sums[lanes][r], others, strict=True):
                total.value = row * other + total.value
    return [
        [a.value.sum() + b.value.lane(0) for a, b in zip(sums[LANES][r], sums[1][r], strict=True)]
        for r in range(height)
    ]
