"""Sums of rows, rows moved by one, and logits put in their places."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.cpu import ops as native
from kernels.op import Case, Op, random_tensors
from kernels.triton import ops as gpu


def _add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, of equal shapes."""
    return x + y


def _shift_rows(first: Tensor, rows: Tensor) -> Tensor:
    """`first`, then all rows but the last: [H], [T, H] → [T, H]."""
    return torch.cat([first[None], rows[:-1]])


def _spread_logits(first: Tensor, some: Tensor, ids: Tensor, size: int) -> Tensor:
    """Logits of the tokens 0 … N − 1 and of `ids` (−1: nobody's), the rest −1e30, which is finite but never chosen.

    first [T, N], some [T, R], ids int64 [R] → [T, size].
    """
    out = torch.full((len(first), size), -1e30)
    out[:, : first.shape[1]] = first
    out[:, ids[ids >= 0]] = some[:, ids >= 0]
    return out


def _spread_cases() -> Iterator[Case]:
    randn = random_tensors(24)
    for rows, count, size in ((1, 40, 100), (3, 5, 23)):
        yield Case(
            f"{rows}x{count}of{size}",
            (randn(rows, count), randn(rows, 4), torch.tensor([size - 1, -1, count, -1]), size),
        )


def _add_cases() -> Iterator[Case]:
    randn = random_tensors(18)
    for shape in ((1, 64), (5, 1000)):
        yield Case(f"{shape}", (randn(*shape), randn(*shape)))


def _shift_cases() -> Iterator[Case]:
    randn = random_tensors(19)
    for shape in ((1, 64), (5, 100)):
        yield Case(f"{shape}", (randn(shape[1]), randn(*shape)))


spread_logits = Op(_spread_logits, _spread_cases, tolerance=0.0, cpu=native.spread_logits, triton=gpu.spread_logits)
add = Op(_add, _add_cases, tolerance=1e-6, cpu=native.add, triton=gpu.add)
shift_rows = Op(_shift_rows, _shift_cases, tolerance=0.0, cpu=native.shift_rows, triton=gpu.shift_rows)
