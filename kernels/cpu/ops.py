"""The ops as calls of native functions: each has the arguments and results of its reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.cpu.machine import Machine
from kernels.cpu.memory import PASSING, lasting
from kernels.quants import QuantTensor

if TYPE_CHECKING:
    from types import ModuleType

MOST_CANDIDATES = 128  # tokens that the choice of one keeps
UNDECIDED = -2  # in place of a token where more are in question

empty = PASSING.empty
_NOTHING = torch.zeros(1, dtype=torch.long)
_SHARE = 4096  # numbers of a piece of a function that does little with each


def _native() -> tuple[ModuleType, ModuleType]:
    from kernels.cpu import matmul, rows

    return matmul, rows


def heads_of(x: Tensor) -> tuple[Tensor, int, int, int]:
    """[..., D] with an even last dimension → what to hold on to, [T, heads], and strides in bytes of both."""
    if x.stride(-1) != 1 or x.dim() > 3:
        raise ValueError("rows must lie side by side")
    if x.dim() == 3:
        return x, x.shape[1], 4 * x.stride(0), 4 * x.stride(1)
    return x, 1, 4 * (x.stride(0) if x.dim() == 2 else 0), 0


def rms_norm(machine: Machine, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(machine, x, x, weight, eps, gated=0)


def gated_rms_norm(machine: Machine, x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(machine, x, z, weight, eps, gated=1)


def _norm(machine: Machine, x: Tensor, z: Tensor, weight: Tensor, eps: float, gated: int) -> Tensor:
    _, rows = _native()
    out = empty(x.shape)
    x, heads, x_token, x_head = heads_of(x)
    z, _, z_token, z_head = heads_of(z)
    size = x.shape[-1]
    count = out.numel() // size
    share = max(1, _SHARE // size)
    machine.call(
        rows.rms_norm, (gated,), -(-count // share),
        x, x_token, x_head, z, z_token, z_head, weight, out, heads, size, float(eps), count, share,
    )  # fmt: skip
    return out


def add_rms_norm(machine: Machine, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    _, rows = _native()
    total, out = empty(x.shape), empty(x.shape)
    size = x.shape[-1]
    machine.call(rows.add_rms_norm, (), x.numel() // size, x, y, weight, total, out, size, float(eps))
    return total, out


def concat_rms_norm(machine: Machine, a: Tensor, b: Tensor, weight_a: Tensor, weight_b: Tensor, eps: float) -> Tensor:
    _, rows = _native()
    size = a.shape[-1]
    out = empty((a.shape[0], 2 * size))
    machine.call(rows.concat_rms_norm, (), 2 * a.shape[0], a, b, weight_a, weight_b, out, size, float(eps))
    return out


def add(machine: Machine, x: Tensor, y: Tensor) -> Tensor:
    _, rows = _native()
    out = empty(x.shape)
    machine.call(rows.add, (), -(-x.numel() // _SHARE), x, y, out, x.numel(), _SHARE)
    return out


def shift_rows(machine: Machine, first: Tensor, rows: Tensor) -> Tensor:
    _, native = _native()
    out = empty(rows.shape)
    machine.call(native.shift_rows, (), rows.shape[0], first, rows, out, rows.shape[1])
    return out


def spread_logits(machine: Machine, first: Tensor, some: Tensor, ids: Tensor, size: int) -> Tensor:
    _, rows = _native()
    out = empty((first.shape[0], size))
    machine.call(rows.spread_logits, (), len(first), first, some, ids, out, first.shape[1], some.shape[1], size)
    return out


def swiglu(machine: Machine, gate: Tensor, up: Tensor) -> Tensor:
    _, rows = _native()
    out = empty(gate.shape)
    machine.call(rows.swiglu, (), -(-gate.numel() // _SHARE), gate, up, out, gate.numel(), _SHARE)
    return out


def rope(machine: Machine, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    _, rows = _native()
    out = empty(x.shape)
    x, heads, token, head = heads_of(x)
    machine.call(rows.rope, (), x.shape[0], x, token, head, cos, sin, out, heads, x.shape[-1], cos.shape[-1])
    return out


def causal_conv1d(machine: Machine, x: Tensor, window: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return conv_resume(machine, x, window, _NOTHING, weight)


def conv_resume(machine: Machine, x: Tensor, before: Tensor, moved: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    _, rows = _native()
    (tokens, channels), width = x.shape, weight.shape[1]
    if width > rows.MOST_TAPS:
        raise ValueError(f"a convolution of {width} taps reads what other pieces have")
    y, xs = empty(x.shape), empty((width - 1 + tokens, channels))
    share = max(64, _SHARE // min(tokens, rows.CONV_TOKENS) // 16 * 16)
    words = x, before, moved, weight, y, xs, tokens, channels, share
    pieces = -(-channels // share) * -(-tokens // rows.CONV_TOKENS)
    machine.call(rows.causal_conv1d, (width,), pieces, *words)
    return y, xs


def delta_gates(machine: Machine, alpha: Tensor, beta: Tensor, a: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    _, rows = _native()
    g, strength = empty(alpha.shape), empty(beta.shape)
    machine.call(rows.delta_gates, (), alpha.shape[0], alpha, beta, a, dt_bias, g, strength, alpha.shape[1])
    return g, strength


def delta_recurrent(
    machine: Machine, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    states = lasting((v.shape[0], *state.shape))
    return _delta_rule(machine, q, k, v, g, beta, state, states, states[0].nbytes), states


def delta_chunk(
    machine: Machine, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, chunk: int = 0
) -> tuple[Tensor, Tensor]:
    """Token by token too: a part of the state stays in the nearest cache for all of them, and the tokens' own work is
    a tenth of what the projections cost. So `chunk` changes nothing.
    """
    last = lasting(state.shape)
    return _delta_rule(machine, q, k, v, g, beta, state, last, 0), last


def _delta_rule(
    machine: Machine, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, states: Tensor, step: int
) -> Tensor:
    from kernels.cpu import delta

    tokens, v_heads, dv = v.shape
    out = empty(v.shape)
    _check_heads(q, k, v)
    machine.call(
        delta.delta_rule, (), v_heads * -(-dv // delta.STATE_ROWS),
        q, k, v, 4 * q.stride(0), 4 * k.stride(0), 4 * v.stride(0), g, beta, state, out, states, step,
        tokens, k.shape[1], v_heads, k.shape[2], dv,
    )  # fmt: skip
    return out


def delta_resume(
    machine: Machine, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
    past: tuple[Tensor, Tensor, Tensor, Tensor], count: Tensor, each: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from kernels.cpu import delta

    past_k, past_v, past_g, past_beta = past
    tokens, v_heads, dv = v.shape
    out, kept = empty(v.shape), empty(state.shape)
    _check_heads(q, k, v, past_k, past_v)
    machine.call(
        delta.delta_resume, (int(each),), v_heads * -(-dv // delta.STATE_ROWS),
        q, k, v, 4 * q.stride(0), 4 * k.stride(0), 4 * v.stride(0), g, beta,
        past_k, past_v, 4 * past_k.stride(0), 4 * past_v.stride(0), past_g, past_beta, count,
        state, kept, out, tokens, k.shape[1], v_heads, k.shape[2], dv,
    )  # fmt: skip
    return out, kept


def _check_heads(*parts: Tensor) -> None:
    from kernels.cpu.delta import MOST_DIM

    for part in parts:
        if part.shape[2] > MOST_DIM:
            raise ValueError(f"there is no room for heads of {part.shape[2]} dimensions")
        if part.stride()[1:] != (part.shape[2], 1):
            raise ValueError("the heads of a token must lie side by side")


def embedding(machine: Machine, ids: Tensor, weight: QuantTensor) -> Tensor:
    matmul, _ = _native()
    panels, kept = machine.packed(weight)
    columns = weight.shape[1]
    out = empty((*ids.shape, columns))
    words = kept.data if panels is None else panels, machine.whole(ids), out, columns
    machine.call(matmul.embed, (kept.type.name,), ids.numel(), *words)
    return out


def quant_matmul(machine: Machine, x: Tensor, weight: QuantTensor) -> Tensor:
    return projections(machine, x, (weight,))[0]


def projections(machine: Machine, x: Tensor, weights: Sequence[QuantTensor]) -> tuple[Tensor, ...]:
    matmul, _ = _native()
    x = machine.whole(x)
    tokens, columns = x.shape
    packed = [machine.packed(weight) for weight in weights]
    if any(panels is not None for panels, _ in packed):
        q, meta, tile = _quantised(machine, x, matmul.tile_rows(tokens))
    outs = []
    for index, (weight, (panels, kept)) in enumerate(zip(weights, packed, strict=True)):
        rows = weight.shape[0]
        out = empty((tokens, rows))
        outs.append(out)
        if panels is None:
            from kernels.cpu import plain

            share = machine.share(rows, kept.nbytes // max(rows, 1), 4)
            words = kept.data, x, out, rows, columns, tokens, share
            machine.call(plain.matmul_plain, (kept.type.name,), -(-rows // share), *words, group=index + 1)
        else:
            count = -(-rows // 16)
            share = machine.panel_share(count, panels.nbytes // max(count, 1))
            of_panels = panels, q, meta, out, rows, columns, tokens, share, share * machine.threads
            machine.call(matmul.matmul, (weight.type.name, tile), -(-count // share), *of_panels, group=index + 1)
    return tuple(outs)


def _quantised(machine: Machine, x: Tensor, tile: int, group: int = 1) -> tuple[Tensor, Tensor, int]:
    from kernels.cpu import activations

    tokens, columns = x.shape
    padded = -(-tokens // tile) * tile
    q = empty((activations.row_bytes(machine.target, tile) * padded * columns,), torch.int8)
    meta = empty((padded * columns // 4,))
    segments = -(-columns // activations.SEGMENT)
    machine.call(activations.quantise, (tile,), tokens * segments, x, 4 * columns, columns, q, meta, group=group)
    return q, meta, tile


def route(machine: Machine, logits: Tensor, used: int) -> tuple[Tensor, Tensor]:
    _, rows = _native()
    tokens, experts = logits.shape
    weights, ids = empty((tokens, used)), empty((tokens, used), torch.long)
    machine.call(rows.route, (), tokens, logits, weights, ids, experts, used)
    return weights, ids


def add_shared_expert(machine: Machine, routed: Tensor, x: Tensor, gate: Tensor, shared: Tensor) -> Tensor:
    _, rows = _native()
    out = empty(routed.shape)
    machine.call(rows.add_shared_expert, (), x.shape[0], routed, x, gate, shared, out, x.shape[1])
    return out


def experts(
    machine: Machine, x: Tensor, weights: Tensor, ids: Tensor, gate: QuantTensor, up: QuantTensor, down: QuantTensor
) -> Tensor:
    """A few tokens: every pair of token and expert by itself. Many: the rows of each expert together."""
    matmul, rows = _native()
    tokens, used = ids.shape
    if tokens > matmul.FEW:
        machine.flush()
        return _experts_of_many(machine, x, weights, ids, gate, up, down)
    hidden = swiglu(machine, *_pairs(machine, x, ids, (gate, up), used))
    [outputs] = _pairs(machine, hidden, ids, (down,), 1)
    out = empty(x.shape)
    machine.call(rows.weigh_experts, (), tokens, outputs, weights, out, used, x.shape[1])
    return out


def _pairs(machine: Machine, x: Tensor, ids: Tensor, stacks: Sequence[QuantTensor], used: int) -> list[Tensor]:
    matmul, _ = _native()
    q = meta = x
    packed = [machine.packed(stack) for stack in stacks]
    if any(panels is not None for panels, _ in packed):
        q, meta, _ = _quantised(machine, x, 1)
    outs = []
    for index, (panels, kept) in enumerate(packed):
        rows, columns = kept.shape[-2:]
        weight, step = (kept.data, 1) if panels is None else (panels, 16)
        if weight.stride(-1) != 1 or (weight.dim() == 3 and weight.stride(1) != weight.shape[2]):
            raise ValueError("an expert's rows must lie side by side")
        count = -(-rows // step)
        share = machine.panel_share(count, weight[0].nbytes // max(count, 1))
        out = empty((ids.numel(), rows))
        outs.append(out)
        words = weight, weight.stride(0), ids, x if panels is None else q, meta, out, rows, columns, used, share
        machine.call(matmul.experts, (kept.type.name,), ids.numel() * -(-count // share), *words, group=index + 1)
    return outs


def _experts_of_many(
    machine: Machine, x: Tensor, weights: Tensor, ids: Tensor, gate: QuantTensor, up: QuantTensor, down: QuantTensor
) -> Tensor:
    used = ids.shape[1]
    order = ids.flatten().argsort(stable=True)
    counts = ids.flatten().bincount(minlength=gate.shape[0]).tolist()
    runs, start = [], 0  # of pairs, in order: expert, first, last
    for expert, count in enumerate(counts):
        if count:
            runs.append((expert, start, start + count))
            start += count
    rows = x[order // used]
    gates, ups = _runs(machine, rows, runs, (gate, up))
    [outputs] = _runs(machine, swiglu(machine, gates, ups), runs, (down,))
    machine.flush()
    return torch.zeros_like(x).index_add_(0, order // used, outputs * weights.flatten()[order, None])


def _runs(
    machine: Machine, x: Tensor, runs: Sequence[tuple[int, int, int]], stacks: Sequence[QuantTensor]
) -> list[Tensor]:
    """Each run of rows times its own expert."""
    matmul, _ = _native()
    columns = x.shape[1]
    packed = [machine.packed(stack) for stack in stacks]
    outs = [empty((x.shape[0], kept.shape[1])) for _, kept in packed]
    quantised = {}
    if any(panels is not None for panels, _ in packed):
        for index, (expert, first, last) in enumerate(runs):
            quantised[expert] = _quantised(machine, x[first:last], matmul.tile_rows(last - first), index + 1)
    group = 0
    for (panels, kept), out in zip(packed, outs, strict=True):
        rows = kept.shape[1]
        for expert, first, last in runs:
            group += 1
            if panels is None:
                from kernels.cpu import plain

                share = machine.share(rows, kept.nbytes // kept.shape[0] // rows, 4)
                words = kept.data[expert], x[first:last], out[first:last], rows, columns, last - first, share
                machine.call(plain.matmul_plain, (kept.type.name,), -(-rows // share), *words, group=group)
            else:
                q, meta, tile = quantised[expert]
                count = -(-rows // 16)
                share = machine.share(count, panels[0].nbytes // count, 1)
                of_expert = panels[expert], q, meta, out[first:last], rows, columns, last - first, share, share
                machine.call(matmul.matmul, (kept.type.name, tile), -(-count // share), *of_expert, group=group)
    return outs


def sample(
    machine: Machine, logits: Tensor, rules: Tensor, noise: Tensor, seen: Tensor, reply: Tensor, drafted: Tensor,
    out: Tensor, draft: bool = False,
) -> None:  # fmt: skip
    from kernels.cpu.sample import sample

    size = logits.shape[0]
    room = empty((size,))
    words = logits, rules, noise, seen, reply, drafted, len(drafted), out, room, size
    machine.call(sample, (int(draft),), 1, *words)
