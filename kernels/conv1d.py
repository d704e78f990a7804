"""The short causal convolution in front of a Gated DeltaNet layer's recurrence."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.cpu import ops as native
from kernels.op import Case, Op, random_tensors
from kernels.triton import ops as gpu


def _causal_conv1d(x: Tensor, window: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """SiLU of a depthwise causal convolution of width W.

    y[t, c] = SiLU(Σⱼ weight[c, j] · xs[t + j, c]) with xs the last W − 1 inputs followed by x.

    x [T, C], window [W − 1, C] (oldest first), weight [C, W] → y [T, C] and xs [W − 1 + T, C]. Rows n to
    n + W − 2 of xs are the window after n tokens.
    """
    xs = torch.cat([window, x])
    tokens, width = x.shape[0], weight.shape[1]
    y = xs[:tokens] * weight[:, 0]
    for j in range(1, width):
        y = y + xs[j : j + tokens] * weight[:, j]
    return torch.nn.functional.silu(y), xs


def _conv_resume(x: Tensor, before: Tensor, moved: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """`causal_conv1d` where the window is rows `moved` (int64 [1]) to `moved` + W − 2 of `before`, an earlier xs."""
    start = int(moved)
    return _causal_conv1d(x, before[start : start + weight.shape[1] - 1], weight)


def _cases() -> Iterator[Case]:
    randn = random_tensors(5)
    for tokens, channels, width in ((1, 48, 4), (2, 33, 4), (3, 64, 4), (70, 96, 4), (5, 16, 3)):
        yield Case(
            f"{tokens}x{channels}w{width}",
            (randn(tokens, channels), randn(width - 1, channels), randn(channels, width)),
        )
    yield Case("first-token", (randn(1, 32), torch.zeros(3, 32), randn(32, 4)))


def _resume_cases() -> Iterator[Case]:
    randn = random_tensors(22)
    for tokens, channels, moved in ((1, 48, 0), (3, 33, 2), (2, 64, 4)):
        args = randn(tokens, channels), randn(7, channels), torch.tensor([moved]), randn(channels, 4)
        yield Case(f"{tokens}x{channels}+{moved}", args)


conv_resume = Op(_conv_resume, _resume_cases, tolerance=1e-5, cpu=native.conv_resume, triton=gpu.conv_resume)
causal_conv1d = Op(_causal_conv1d, _cases, tolerance=1e-5, cpu=native.causal_conv1d, triton=gpu.causal_conv1d)
