"""What launches share."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.triton.card import Card

FEW = 8  # rows up to which weights are read once at about the cost of one row


def new(card: Card, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Not set to anything."""
    return torch.empty(*shape, dtype=dtype, device=card.device)


def cdiv(count: int, size: int) -> int:
    return -(-count // size)


def heads_of(x: Tensor) -> Tensor:
    """[..., D] as [T, heads, D], without a copy where the last dimension has no gaps."""
    x = x[:, None] if x.dim() == 2 else x.flatten(0, -3) if x.dim() > 3 else x
    return x if x.stride(-1) == 1 else x.contiguous()
