"""The feed-forward halves: SwiGLU, the router, and routed experts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.cpu import ops as native
from kernels.op import Case, Op, random_tensors
from kernels.quants import QuantTensor
from kernels.triton import ops as gpu


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate)·up, of equal shapes."""
    return torch.nn.functional.silu(gate) * up


def _route(logits: Tensor, used: int) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, the `used` largest, renormalised to 1: logits [T, E] → weights and ids [T, used]."""
    weights, ids = logits.float().softmax(-1).topk(used)
    return weights / weights.sum(-1, keepdim=True), ids


def _experts(x: Tensor, weights: Tensor, ids: Tensor, gate: QuantTensor, up: QuantTensor, down: QuantTensor) -> Tensor:
    """Σᵢ wᵢ · downᵢ(SwiGLU(gateᵢ x, upᵢ x)) over each token's experts, each distinct expert unpacked once.

    x [T, H], weights and ids [T, used], gate and up [E, F, H], down [E, H, F] → [T, H].
    """
    out = torch.zeros_like(x)
    for expert in ids.unique().tolist():
        token, slot = (ids == expert).nonzero(as_tuple=True)
        rows = x[token]
        hidden = _swiglu(
            rows @ gate.select(expert).dequantize().T,
            rows @ up.select(expert).dequantize().T,
        )
        out.index_add_(0, token, weights[token, slot, None] * (hidden @ down.select(expert).dequantize().T))
    return out


def _add_shared_expert(routed: Tensor, x: Tensor, gate: Tensor, shared: Tensor) -> Tensor:
    """routed + σ(gate·x)·shared: routed, x, shared [T, H], gate [H] → [T, H]."""
    return routed + torch.sigmoid(x @ gate)[:, None] * shared


def _shared_cases() -> Iterator[Case]:
    randn = random_tensors(17)
    for shape in ((1, 64), (3, 100)):
        yield Case(f"{shape}", (randn(*shape), randn(*shape), randn(shape[1]), randn(*shape)))


def _swiglu_cases() -> Iterator[Case]:
    randn = random_tensors(10)
    for shape in ((1, 96), (7, 512)):
        yield Case(f"{shape}", (randn(*shape), randn(*shape)))


def _route_cases() -> Iterator[Case]:
    randn = random_tensors(11)
    for tokens, experts, used in ((1, 8, 3), (5, 256, 8), (3, 4, 4)):
        yield Case(f"{tokens}x{experts}k{used}", (4 * randn(tokens, experts), used))


def _expert_cases() -> Iterator[Case]:
    randn = random_tensors(12)
    for tokens, hidden, ff, experts, used in ((1, 64, 32, 8, 3), (9, 32, 64, 4, 2)):
        weights, ids = _route(randn(tokens, experts), used)
        shapes = (experts, ff, hidden), (experts, ff, hidden), (experts, hidden, ff)
        packed = (QuantTensor.from_dense(randn(*shape)) for shape in shapes)
        yield Case(f"{tokens}x{hidden}f{ff}e{experts}k{used}", (randn(tokens, hidden), weights, ids, *packed))


swiglu = Op(_swiglu, _swiglu_cases, tolerance=1e-5, cpu=native.swiglu, triton=gpu.swiglu)
route = Op(_route, _route_cases, tolerance=1e-5, cpu=native.route, triton=gpu.route)
experts = Op(_experts, _expert_cases, tolerance=1e-4, cpu=native.experts, triton=gpu.experts)
add_shared_expert = Op(
    _add_shared_expert, _shared_cases, tolerance=1e-5, cpu=native.add_shared_expert, triton=gpu.add_shared_expert
)
