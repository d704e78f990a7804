"""The gated delta rule: token by token for decoding, in chunks for prefill.

Per value head, with the state S [Dv, Dk] and per token a log decay g ≤ 0 and a write strength β:

    S ← e^g S;   e = β (v − S k);   S ← S + e kᵀ;   o = S q

where q and k have unit length and q is scaled by 1/√Dk. Value head p reads key head p mod Hk.
Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024), sections 3.1 and 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.cpu import ops as native
from kernels.op import Case, Op, random_tensors
from kernels.triton import ops as gpu

_L2_EPS = 1e-6


def _delta_gates(alpha: Tensor, beta: Tensor, a: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """g = a·softplus(alpha + dt_bias) and σ(beta), with a = −exp(A_log).

    alpha, beta [T, Hv], a, dt_bias [Hv] → g and the write strength, [T, Hv] each.
    """
    return a * torch.nn.functional.softplus(alpha + dt_bias), torch.sigmoid(beta)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + _L2_EPS)


def _heads_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k [T, Hk, Dk], v [T, Hv, Dv] → normalised and tiled q, k [Hv, T, Dk] and v [Hv, T, Dv]."""
    tiles = v.shape[1] // k.shape[1]
    q = _unit(q) * q.shape[-1] ** -0.5
    return (
        q.repeat(1, tiles, 1).transpose(0, 1),
        _unit(k).repeat(1, tiles, 1).transpose(0, 1),
        v.transpose(0, 1),
    )


def _delta_recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The rule, token by token.

    q, k [T, Hk, Dk] and v [T, Hv, Dv] as the convolution gives them, g, beta [T, Hv], state [Hv, Dv, Dk] fp32
    → o [T, Hv, Dv] and the state after each token [T, Hv, Dv, Dk].
    """
    q, k, v = _heads_first(q, k, v)
    outputs, states = [], []
    for t in range(v.shape[1]):
        state = state * g[t].exp()[:, None, None]
        error = beta[t][:, None] * (v[:, t] - torch.einsum("hvk,hk->hv", state, k[:, t]))
        state = state + error[:, :, None] * k[:, t][:, None, :]
        outputs.append(torch.einsum("hvk,hk->hv", state, q[:, t]))
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def _delta_resume(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
    past: tuple[Tensor, Tensor, Tensor, Tensor], count: Tensor, each: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The rule for rows that follow the first `count` (int64 [1]) of `past` rows (k, v, g, beta) after `state`.

    Shapes as `delta_recurrent` → o of the new rows, and the state [Hv, Dv, Dk] after those of the past that count
    (`each`: which of the new rows will count is not known yet) or after the new ones too.
    """
    past_k, past_v, past_g, past_beta = (part[: int(count)] for part in past)
    for t in range(int(count)):
        row = slice(t, t + 1)
        state = _delta_recurrent(past_k[row], past_k[row], past_v[row], past_g[row], past_beta[row], state)[1][0]
    o, states = _delta_recurrent(q, k, v, g, beta, state)
    return o, state.clone() if each else states[-1]


def _delta_chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """The rule for many tokens at once: shapes as `delta_recurrent`, but only the last state, [Hv, Dv, Dk].

    Within a chunk, with G the running sum of g and D[i, j] = e^(Gᵢ − Gⱼ) for j ≤ i, the errors e solve
    (I + strictly-lower(β kkᵀ ⊙ D)) e = β (v − e^G S k). Only differences ≤ 0 are ever exponentiated,
    so the strongest decay stays finite.
    """
    q, k, v = _heads_first(q, k, v)
    g, beta = g.T, beta.T  # [Hv, T]
    outputs = []
    for start in range(0, v.shape[1], chunk):
        part = slice(start, start + chunk)
        o, state = _one_chunk(q[:, part], k[:, part], v[:, part], g[:, part], beta[:, part], state)
        outputs.append(o)
    return torch.cat(outputs, dim=1).transpose(0, 1), state


def _one_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    total = g.cumsum(-1)  # [Hv, C]
    later = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool, device=g.device).triu(1)
    decay = (total[:, :, None] - total[:, None, :]).masked_fill(later, -torch.inf).exp()  # [Hv, C, C]
    from_start = total.exp()[:, :, None]
    to_end = (total[:, -1:] - total).exp()[:, :, None]

    # unitriangular=True takes the diagonal as 1 and the upper half as 0
    system = beta[:, :, None] * (k @ k.mT) * decay
    wanted = beta[:, :, None] * (v - from_start * (k @ state.mT))
    error = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)  # [Hv, C, Dv]

    o = from_start * (q @ state.mT) + (q @ k.mT * decay) @ error
    state = state * from_start[:, -1:] + error.mT @ (k * to_end)
    return o, state


def _rule_cases() -> Iterator[Case]:
    randn = random_tensors(6)
    shapes = ((1, 2, 4, 16), (2, 1, 1, 8), (5, 2, 6, 32), (64, 2, 4, 16), (65, 3, 3, 16), (150, 2, 4, 8))
    for tokens, k_heads, v_heads, dim in shapes:
        gates = -torch.nn.functional.softplus(randn(tokens, v_heads)), torch.sigmoid(randn(tokens, v_heads))
        qkv = randn(tokens, k_heads, dim), randn(tokens, k_heads, dim), randn(tokens, v_heads, dim)
        yield Case(f"{tokens}x{k_heads}k{v_heads}v{dim}", (*qkv, *gates, randn(v_heads, dim, dim)))
    qkv = randn(128, 1, 16), randn(128, 1, 16), randn(128, 2, 16)
    strong = torch.full((128, 2), -20.0), torch.full((128, 2), 0.9)
    yield Case("decay-20", (*qkv, *strong, randn(2, 16, 16)))
    none = torch.zeros(128, 2), torch.ones(128, 2)
    yield Case("no-decay", (*qkv, *none, randn(2, 16, 16)))


def _resume_cases() -> Iterator[Case]:
    randn = random_tensors(23)

    def rows(tokens: int, k_heads: int, v_heads: int, dim: int) -> tuple[Tensor, ...]:
        gates = -torch.nn.functional.softplus(randn(tokens, v_heads)), torch.sigmoid(randn(tokens, v_heads))
        return randn(tokens, k_heads, dim), randn(tokens, k_heads, dim), randn(tokens, v_heads, dim), *gates

    for tokens, count, k_heads, v_heads, dim in (
        (1, 0, 2, 4, 16),
        (3, 0, 1, 1, 40),
        (1, 4, 2, 6, 32),
        (5, 5, 1, 2, 64),
    ):
        for each in (False, True):
            new, past = rows(tokens, k_heads, v_heads, dim), rows(5, k_heads, v_heads, dim)[1:]
            args = *new, randn(v_heads, dim, dim), past, torch.tensor([count]), each
            name = f"{tokens}after{count}x{k_heads}k{v_heads}v{dim}{'each' * each}"
            yield Case(name, args)


def _gate_cases() -> Iterator[Case]:
    randn = random_tensors(7)
    for tokens, heads in ((1, 4), (9, 6)):
        yield Case(
            f"{tokens}x{heads}", (10 * randn(tokens, heads), randn(tokens, heads), -randn(heads).exp(), randn(heads))
        )


delta_gates = Op(_delta_gates, _gate_cases, tolerance=1e-5, cpu=native.delta_gates, triton=gpu.delta_gates)
delta_recurrent = Op(
    _delta_recurrent, _rule_cases, tolerance=1e-4, cpu=native.delta_recurrent, triton=gpu.delta_recurrent
)
delta_resume = Op(_delta_resume, _resume_cases, tolerance=1e-4, cpu=native.delta_resume, triton=gpu.delta_resume)
delta_chunk = Op(_delta_chunk, _rule_cases, tolerance=1e-4, cpu=native.delta_chunk, triton=gpu.delta_chunk)
