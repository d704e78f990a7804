"""RMS norms: plain, and gated as at the end of a Gated DeltaNet layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.cpu import ops as native
from kernels.op import Case, Op, random_tensors
from kernels.triton import ops as gpu


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · weight over the last dimension: [..., D], [D] → [..., D]."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _rms_norm_cases() -> Iterator[Case]:
    randn = random_tensors(1)
    for shape in ((1, 64), (3, 256), (5, 2, 96), (2, 2560)):
        yield Case(f"{shape}", (randn(*shape), 1 + 0.1 * randn(shape[-1]), 1e-6))
    yield Case("zeros", (torch.zeros(2, 64), torch.ones(64), 1e-6))


def _gated_rms_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm(x)·weight·SiLU(z), the norm before the gate: x, z [..., D], weight [D] → [..., D]."""
    return _rms_norm(x, weight, eps) * torch.nn.functional.silu(z)


def _gated_rms_norm_cases() -> Iterator[Case]:
    randn = random_tensors(2)
    for shape in ((1, 4, 64), (7, 6, 32), (2, 32, 128)):
        yield Case(f"{shape}", (randn(*shape), randn(*shape), 1 + 0.1 * randn(shape[-1]), 1e-6))


def _add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """A residual and the norm after it: x + y, and RMSNorm(x + y)·weight; x, y [T, H] → [T, H] each."""
    total = x + y
    return total, _rms_norm(total, weight, eps)


def _add_rms_norm_cases() -> Iterator[Case]:
    randn = random_tensors(13)
    for shape in ((1, 64), (3, 100)):
        yield Case(f"{shape}", (randn(*shape), randn(*shape), 1 + 0.1 * randn(shape[-1]), 1e-6))


def _concat_rms_norm(a: Tensor, b: Tensor, weight_a: Tensor, weight_b: Tensor, eps: float) -> Tensor:
    """[RMSNorm(a)·weight_a ; RMSNorm(b)·weight_b]: [T, H] each → [T, 2H]."""
    return torch.cat([_rms_norm(a, weight_a, eps), _rms_norm(b, weight_b, eps)], dim=-1)


def _concat_rms_norm_cases() -> Iterator[Case]:
    randn = random_tensors(14)
    for shape in ((1, 64), (3, 100)):
        weights = 1 + 0.1 * randn(shape[-1]), 1 + 0.1 * randn(shape[-1])
        yield Case(f"{shape}", (randn(*shape), randn(*shape), *weights, 1e-6))


rms_norm = Op(_rms_norm, _rms_norm_cases, tolerance=1e-5, cpu=native.rms_norm, triton=gpu.rms_norm)
add_rms_norm = Op(_add_rms_norm, _add_rms_norm_cases, tolerance=1e-5, cpu=native.add_rms_norm, triton=gpu.add_rms_norm)
concat_rms_norm = Op(
    _concat_rms_norm, _concat_rms_norm_cases, tolerance=1e-5, cpu=native.concat_rms_norm, triton=gpu.concat_rms_norm
)
gated_rms_norm = Op(
    _gated_rms_norm, _gated_rms_norm_cases, tolerance=1e-5, cpu=native.gated_rms_norm, triton=gpu.gated_rms_norm
)
