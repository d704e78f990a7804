"""Sums of rows, and rows moved by one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.cpu import ops as native
from kernels.op import Case, Op, random_tensors


def _add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, of equal shapes."""
    return x + y


def _shift_rows(first: Tensor, rows: Tensor) -> Tensor:
    """`first`, then all rows but the last: [H], [T, H] → [T, H]."""
    return torch.cat([first[None], rows[:-1]])


def _add_cases() -> Iterator[Case]:
    randn = random_tensors(18)
    for shape in ((1, 64), (5, 1000)):
        yield Case(f"{shape}", (randn(*shape), randn(*shape)))


def _shift_cases() -> Iterator[Case]:
    randn = random_tensors(19)
    for shape in ((1, 64), (5, 100)):
        yield Case(f"{shape}", (randn(shape[1]), randn(*shape)))


add = Op(_add, _add_cases, tolerance=1e-6, cpu=native.add)
shift_rows = Op(_shift_rows, _shift_cases, tolerance=0.0, cpu=native.shift_rows)
