"""Each op's reference against its formula, written out token by token in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.attention import attention, rope, store_rows
from kernels.attention_q8 import attention_q8, store_rows_q8
from kernels.conv1d import causal_conv1d, conv_resume
from kernels.delta_rule import delta_chunk, delta_gates, delta_recurrent, delta_resume
from kernels.moe import add_shared_expert, experts, route, swiglu
from kernels.norm import add_rms_norm, concat_rms_norm, gated_rms_norm, rms_norm
from kernels.op import Case, Op
from kernels.quant_matmul import embedding, projections, quant_matmul
from kernels.quants import QuantTensor
from kernels.residual import add, shift_rows, spread_logits
from kernels.sample import sample
from kernels.table import OPS

Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def norm_formula(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def gated_norm_formula(x: Array, z: Array, weight: Array, eps: float) -> Array:
    return norm_formula(x, weight, eps) * silu(z)


def matmul_formula(x: Array, weight: Array) -> Array:
    return np.einsum("tk,nk->tn", x, weight)


def conv_formula(x: Array, window: Array, weight: Array) -> tuple[Array, Array]:
    inputs = np.concatenate([window, x])
    width = weight.shape[1]
    y = np.stack([(inputs[t : t + width] * weight.T).sum(0) for t in range(len(x))])
    return silu(y), inputs


def conv_resume_formula(x: Array, before: Array, moved: Array, weight: Array) -> tuple[Array, Array]:
    """As if the inputs before had just come by, of which the last W − 1 are the window."""
    width = weight.shape[1]
    both = np.concatenate([before[: int(moved[0]) + width - 1], x])
    y, _ = conv_formula(both, np.zeros((width - 1, x.shape[1])), weight)
    return y[-len(x) :], both[-len(x) - width + 1 :]


def spread_formula(first: Array, some: Array, ids: Array, size: int) -> Array:
    places = {
        **dict(enumerate(first.T)),
        **{int(id): column for id, column in zip(ids, some.T, strict=True) if id >= 0},
    }
    return np.stack([places.get(id, np.full(len(first), np.float32(-1e30))) for id in range(size)], axis=1)


def gates_formula(alpha: Array, beta: Array, a: Array, dt_bias: Array) -> tuple[Array, Array]:
    return a * np.logaddexp(0, alpha + dt_bias), sigmoid(beta)


def rule_formula(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """Outputs, and the state after each token; key heads are tiled over the value heads."""
    k_heads, dim = k.shape[1:]
    outputs, states = np.zeros(v.shape), np.zeros((len(v), *state.shape))
    for p in range(v.shape[1]):
        S = state[p]
        for t in range(len(v)):
            key, query = k[t, p % k_heads], q[t, p % k_heads]
            key = key / math.sqrt((key * key).sum() + 1e-6)
            query = query / math.sqrt((query * query).sum() + 1e-6) / math.sqrt(dim)
            S = math.exp(g[t, p]) * S
            S = S + np.outer(beta[t, p] * (v[t, p] - S @ key), key)
            outputs[t, p], states[t, p] = S @ query, S
    return outputs, states


def resume_formula(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, past: tuple[Array, ...], count: Array, each: bool
) -> tuple[Array, Array]:
    """As one run over both the rows of the past that count and the new ones."""
    n = int(count[0])
    rows = [np.concatenate([part[:n], new]) for part, new in zip((past[0], *past), (q, k, v, g, beta), strict=True)]
    outputs, states = rule_formula(*rows, state)
    return outputs[n:], [state, *states][n] if each else states[-1]


def chunk_formula(*args: Array) -> tuple[Array, Array]:
    outputs, states = rule_formula(*args)
    return outputs, states[-1]


def rope_formula(x: Array, cos: Array, sin: Array) -> Array:
    out, half = x.copy(), cos.shape[1]
    for i in range(half):
        a, b = x[..., i], x[..., i + half]
        out[..., i] = a * cos[:, None, i] - b * sin[:, None, i]
        out[..., i + half] = b * cos[:, None, i] + a * sin[:, None, i]
    return out


def attention_formula(
    q: Array, key_blocks: tuple[Array, ...], value_blocks: tuple[Array, ...], gate: Array, start: int
) -> Array:
    out = np.zeros(q.shape)
    keys, values = np.concatenate(key_blocks, axis=1), np.concatenate(value_blocks, axis=1)
    group = q.shape[1] // keys.shape[0]
    for t in range(len(q)):
        for h in range(q.shape[1]):
            k, v = keys[h // group, : start + t + 1], values[h // group, : start + t + 1]
            scores = k @ q[t, h] / math.sqrt(q.shape[2])
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ v / weights.sum()
    return out * sigmoid(gate)


def attention_q8_formula(
    q: Array,
    key_blocks: tuple[Array, ...],
    value_blocks: tuple[Array, ...],
    key_scales: tuple[Array, ...],
    value_scales: tuple[Array, ...],
    gate: Array,
    start: int,
) -> Array:
    keys = tuple(rows * scale[:, :, None] for rows, scale in zip(key_blocks, key_scales, strict=True))
    values = tuple(rows * scale[:, :, None] for rows, scale in zip(value_blocks, value_scales, strict=True))
    return attention_formula(q, keys, values, gate, start)


def swiglu_formula(gate: Array, up: Array) -> Array:
    return silu(gate) * up


def route_formula(logits: Array, used: int) -> tuple[Array, Array]:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    ids = np.argsort(-p, axis=-1, kind="stable")[:, :used]
    kept = np.take_along_axis(p, ids, -1)
    return kept / kept.sum(-1, keepdims=True), ids


def experts_formula(x: Array, weights: Array, ids: Array, gate: Array, up: Array, down: Array) -> Array:
    out = np.zeros(x.shape)
    for t, chosen in enumerate(ids.astype(int)):
        for weight, e in zip(weights[t], chosen, strict=True):
            out[t] += weight * (down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])))
    return out


def add_norm_formula(x: Array, y: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    return x + y, norm_formula(x + y, weight, eps)


def concat_norm_formula(a: Array, b: Array, weight_a: Array, weight_b: Array, eps: float) -> Array:
    return np.concatenate([norm_formula(a, weight_a, eps), norm_formula(b, weight_b, eps)], axis=1)


def shared_formula(routed: Array, x: Array, gate: Array, shared: Array) -> Array:
    return np.stack([r + sigmoid(np.dot(row, gate)) * s for r, row, s in zip(routed, x, shared, strict=True)])


FORMULAS: dict[str, Callable[..., Any]] = {
    embedding.name: lambda ids, table: table[ids.astype(int)],
    rms_norm.name: norm_formula,
    add_rms_norm.name: add_norm_formula,
    concat_rms_norm.name: concat_norm_formula,
    add.name: lambda x, y: x + y,
    shift_rows.name: lambda first, rows: np.array([first, *rows[:-1]]),
    spread_logits.name: spread_formula,
    gated_rms_norm.name: gated_norm_formula,
    quant_matmul.name: matmul_formula,
    projections.name: lambda x, weights: tuple(matmul_formula(x, weight) for weight in weights),
    causal_conv1d.name: conv_formula,
    conv_resume.name: conv_resume_formula,
    delta_gates.name: gates_formula,
    delta_recurrent.name: rule_formula,
    delta_resume.name: resume_formula,
    delta_chunk.name: chunk_formula,
    rope.name: rope_formula,
    attention.name: attention_formula,
    attention_q8.name: attention_q8_formula,
    swiglu.name: swiglu_formula,
    route.name: route_formula,
    experts.name: experts_formula,
    add_shared_expert.name: shared_formula,
}

# Those that give results and leave their arguments alone.
FUNCTIONS = [op for op in OPS if op not in (store_rows, store_rows_q8, sample)]
CASES = [pytest.param(op, case, id=f"{op.name}-{case.id}") for op in FUNCTIONS for case in op.cases()]


def as_float64(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(as_float64(item) for item in value)
    if isinstance(value, QuantTensor):
        value = value.dequantize()
    return value.numpy().astype(np.float64) if isinstance(value, torch.Tensor) else value


def outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def assert_close(found: Any, wanted: Any, tolerance: float) -> None:
    for out, ref in zip(outputs(found), outputs(wanted), strict=True):
        out, ref = as_float64(out), as_float64(ref)
        assert out.shape == ref.shape
        assert np.isfinite(out).all()
        assert np.linalg.norm(out - ref) <= tolerance * np.linalg.norm(ref) + 1e-12


def test_every_op_of_the_table_has_a_formula_here() -> None:
    assert {op.name for op in FUNCTIONS} == FORMULAS.keys()


@pytest.mark.parametrize(("op", "case"), CASES)
def test_the_reference_is_the_formula(op: Op[Any, Any], case: Case) -> None:
    wanted = FORMULAS[op.name](*(as_float64(arg) for arg in case.args))
    assert_close(op.reference(*case.args), wanted, op.tolerance)


def test_an_op_leaves_its_arguments_alone() -> None:
    for op in FUNCTIONS:
        for case in op.cases():
            before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in case.args]
            op.reference(*case.args)
            for arg, was in zip(case.args, before, strict=True):
                if isinstance(arg, torch.Tensor):
                    assert torch.equal(arg.nan_to_num(7), was.nan_to_num(7)), op.name


def test_rows_are_stored_at_their_positions_and_nowhere_else() -> None:
    for case in store_rows.cases():
        k, v, keys, values, start = case.args
        for rows, blocks in ((k, keys), (v, values)):
            wanted = torch.cat(list(blocks), dim=1)
            for t, row in enumerate(rows):
                wanted[:, start + t] = row
            store_rows.reference(k, v, keys, values, start)
            assert torch.equal(torch.cat(list(blocks), dim=1), wanted)


def test_8_bit_rows_are_stored_with_their_scales_and_nowhere_else() -> None:
    for case in store_rows_q8.cases():
        k, v, keys, values, key_scales, value_scales, start = case.args
        for rows, blocks, scales in ((k, keys, key_scales), (v, values, value_scales)):
            before = torch.cat(list(blocks), dim=1), torch.cat(list(scales), dim=1)
            store_rows_q8.reference(k, v, keys, values, key_scales, value_scales, start)
            stored, scale = torch.cat(list(blocks), dim=1), torch.cat(list(scales), dim=1)
            written = slice(start, start + len(rows))
            for old, new in zip(before, (stored, scale), strict=True):
                new = new.clone()
                new[:, written] = old[:, written]
                assert torch.equal(new, old)
            rows = rows.transpose(0, 1)
            finite = rows.isfinite().all(-1)
            off = (stored[:, written].double() * scale[:, written, None].double() - rows.double()).abs().amax(-1)
            assert (off <= scale[:, written] * 0.5001 + torch.finfo(torch.float32).tiny)[finite].all()
            assert not scale[:, written][~finite].isfinite().any()


def splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_a_token_is_chosen_by_the_rules_among_all_sorted() -> None:
    """The steps one after the other over the whole vocabulary, best first; then the race, in plain numbers."""
    for case in sample.cases():
        logits, rules, noise, seen, reply, drafted, out = case.args
        temperature, top_k, top_p, min_p, presence, repetition = rules.tolist()
        said = {*reply.nonzero()[:, 0].tolist(), *drafted.tolist()}
        scores = []
        for id, logit in enumerate(logits.tolist()):
            if seen[id] or id in said:
                logit = logit / repetition if logit > 0 else logit * repetition
            scores.append((logit - presence * (id in said), -id))
        order = sorted(scores, reverse=True)
        best = order[0][0]
        if temperature == 0:
            order = order[:1]
        kept = [score for score in order if temperature == 0 or not min_p or
                (score[0] - best) / temperature >= math.log(min_p)]  # fmt: skip
        kept = kept[: int(top_k) or None]
        weights = [math.exp((score - best) / temperature) if temperature else 1.0 for score, _ in kept]
        total, before, times = sum(weights), 0.0, []
        for (_, negative), weight in zip(kept, weights, strict=True):
            if before / total < top_p:
                start = (splitmix64(splitmix64(int(noise[0])) + int(noise[1]) + len(drafted))) % 2**64
                bits = splitmix64((start - negative * 0x9E3779B97F4A7C15) % 2**64)
                times.append((-math.log(((bits >> 11) + 0.5) * 2**-53) / weight if weight else math.inf, -negative))
            before += weight
        sample.reference(*case.args)
        assert int(out) == (min(times)[1] if math.isfinite(float(logits.sum())) else -1), case.id


def test_strong_decay_stays_finite_in_chunks_and_equals_the_recurrence() -> None:
    """g = −20 for 128 tokens: e^2560 would overflow, so only differences ≤ 0 may be exponentiated."""
    [case] = [case for case in delta_chunk.cases() if case.id == "decay-20"]
    o, state = delta_chunk.reference(*case.args)
    steps, states = delta_recurrent.reference(*case.args)
    assert_close((o, state), (steps, states[-1]), 1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 33, 64])
def test_the_chunk_length_changes_nothing(chunk: int) -> None:
    for case in delta_chunk.cases():
        assert_close(delta_chunk.reference(*case.args, chunk), delta_chunk.reference(*case.args), 1e-4)


def test_a_fused_expert_is_silu_of_its_first_half_times_its_second() -> None:
    """One expert, one hidden unit, by hand: gate rows come first in ffn_gate_up_exps."""
    fused = QuantTensor.from_dense(torch.tensor([[[2.0, 0.0], [0.0, 3.0]]]))  # [E=1, 2F=2, H=2]
    gate, up = fused.split_rows((1, 1))
    down = QuantTensor.from_dense(torch.tensor([[[1.0], [10.0]]]))  # [E, H, F]
    x = torch.tensor([[1.0, 0.5]])
    out = experts.reference(x, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.long), gate, up, down)
    hidden = 2 / (1 + math.exp(-2)) * 1.5
    torch.testing.assert_close(out, torch.tensor([[hidden, 10 * hidden]]))


def test_a_long_head_is_unpacked_in_pieces() -> None:
    """More rows than are unpacked at once give what one product of the whole gives."""
    import kernels.quant_matmul as module

    weight = QuantTensor.from_dense(torch.randn(50, 32, generator=torch.Generator().manual_seed(1)).half())
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    whole = x @ weight.dequantize().T
    patch = pytest.MonkeyPatch()
    with patch.context() as scope:
        scope.setattr(module, "_UNPACKED_AT_ONCE", 32 * 7)
        torch.testing.assert_close(quant_matmul.reference(x, weight), whole)
