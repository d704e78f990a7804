"""RMS norms: plain, and gated as at the end of a Gated DeltaNet layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.op import Case, Op, random_tensors


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


rms_norm = Op(_rms_norm, _rms_norm_cases, tolerance=1e-5)
gated_rms_norm = Op(_gated_rms_norm, _gated_rms_norm_cases, tolerance=1e-5)
