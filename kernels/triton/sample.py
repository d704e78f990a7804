"""The choice of a token, in two steps: each part of the vocabulary brings its best, and one program chooses of those.

See `kernels.sample` for the rules and the noise. Where more tokens would be in question than are kept, it says so.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE = tl.constexpr(-3.0e38)  # below every logit


@triton.jit
def _count(RULES, KEPT: tl.constexpr):
    """How many tokens are in question at most; none: more than are kept."""
    top_k = tl.load(RULES + 1).to(tl.int32)
    few = (top_k > 0) & (top_k <= KEPT)
    return tl.where(tl.load(RULES) == 0, 1, tl.where(few, top_k, 0))


@triton.jit
def shortlist(
    LOGITS, RULES, SEEN, REPLY, DRAFTED, VALUES, IDS, SOUND, N, V, KEPT: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    """The best of a part, the best first, one more than are in question, after the penalties; whether all is finite."""
    part = tl.program_id(0)
    i = part * B + tl.arange(0, B)
    ok = i < V
    x = tl.load(LOGITS + i, mask=ok, other=0.0)
    finite = (x == x) & (tl.abs(x) < float("inf"))
    tl.store(SOUND + part, tl.min(finite.to(tl.int32), 0))
    said = tl.load(REPLY + i, mask=ok, other=0).to(tl.int32)
    for n in range(N):
        said = tl.where(i == tl.load(DRAFTED + n), 1, said)
    known = said | tl.load(SEEN + i, mask=ok, other=0).to(tl.int32)
    presence, repetition = tl.load(RULES + 4).to(tl.float32), tl.load(RULES + 5).to(tl.float32)
    punished = tl.where(x > 0, x / repetition, x * repetition) - presence * said.to(tl.float32)
    x = tl.where(known > 0, punished, x)
    x = tl.where(ok & finite, x, NONE)
    count = _count(RULES, KEPT) + 1
    slots = tl.arange(0, KEPT * 2)
    tl.store(VALUES + part * KEPT * 2 + slots, tl.full((KEPT * 2,), NONE, tl.float32), mask=slots >= count)
    for j in range(count):
        best = tl.max(x, 0)
        id = tl.min(tl.where(x == best, i, 2147483647), 0)
        tl.store(VALUES + part * KEPT * 2 + j, best)
        tl.store(IDS + part * KEPT * 2 + j, id)
        x = tl.where(i == id, NONE, x)


@triton.jit
def _mix(x):
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def pick(
    RULES, NOISE, VALUES, IDS, SOUND, OUT, N, PARTS, DRAFT: tl.constexpr, NOT_FINITE: tl.constexpr,
    UNDECIDED: tl.constexpr, KEPT: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The token: `candidates` and `choose` over what the parts brought."""
    i = tl.arange(0, BP * KEPT * 2)
    ok = i < PARTS * KEPT * 2
    x = tl.load(VALUES + i, mask=ok, other=NONE)
    ids = tl.load(IDS + i, mask=ok & (x > NONE), other=2147483647)
    p = tl.arange(0, BP)
    sound = tl.min(tl.load(SOUND + p, mask=p < PARTS, other=1), 0)
    count = _count(RULES, KEPT)
    slots = tl.arange(0, KEPT)
    values = tl.full((KEPT,), NONE, tl.float32)
    tokens = tl.zeros((KEPT,), tl.int32)
    for j in range(count):
        best = tl.max(x, 0)
        id = tl.min(tl.where(x == best, ids, 2147483647), 0)
        values = tl.where(slots == j, best, values)
        tokens = tl.where(slots == j, id, tokens)
        x = tl.where(ids == id, NONE, x)
    temperature, top_p, min_p = tl.load(RULES), tl.load(RULES + 2), tl.load(RULES + 3)
    best = tl.max(values, 0)
    least = tl.min(tl.where((slots < count) & (values > NONE), values, best), 0)
    tied = (temperature != 0) & (tl.max(x, 0) == least)
    if min_p > 0:
        bound = best.to(tl.float64) + temperature * tl.log(min_p)
        tied = tied & (least >= bound.to(tl.float32))
        least = tl.maximum(least, bound.to(tl.float32))
    kept = (slots < count) & (values >= least) & (values > NONE)
    divisor = tl.where(temperature == 0, 1.0, temperature)
    weights = tl.where(kept, tl.exp((values.to(tl.float64) - best.to(tl.float64)) / divisor), 0.0)
    before = (tl.cumsum(weights, 0) - weights) / tl.sum(weights, 0)
    kept = kept & (before < tl.where(top_p >= 1, 2.0, top_p))
    seed, length = tl.load(NOISE).to(tl.uint64), tl.load(NOISE + 1)
    place = _mix(_mix(seed) + (length + N).to(tl.uint64))
    bits = _mix(place + tokens.to(tl.uint64) * 0x9E3779B97F4A7C15)
    uniform = ((bits >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16
    times = tl.where(kept, -tl.log(uniform) / weights, float("inf"))
    first = tl.min(tl.where(times == tl.min(times, 0), slots, KEPT), 0)
    token = tl.max(tl.where(slots == first, tokens, 0), 0)
    token = tl.where(temperature == 0, tl.max(tl.where(slots == 0, tokens, 0), 0), token)
    if DRAFT:
        token = tl.where((sound == 0) | (count == 0), 0, token)
    else:
        token = tl.where((count == 0) | tied, UNDECIDED, token)
        token = tl.where(sound == 0, NOT_FINITE, token)
    tl.store(OUT, token.to(tl.int64))
