"""Products with packed weights, and rows of packed embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.cpu import ops as native
from kernels.op import Case, Op, random_tensors
from kernels.quants import QUANTS, QuantTensor
from kernels.triton import ops as gpu

# Weights are unpacked this many at a time, so a packed 248,320-row head never stands in memory in fp32.
_UNPACKED_AT_ONCE = 1 << 24


def _quant_matmul(x: Tensor, weight: QuantTensor) -> Tensor:
    """x·Wᵀ: x [T, K], weight [N, K] → [T, N]."""
    rows, columns = weight.shape
    if weight.type is QUANTS["F32"]:
        return x @ weight.dequantize().T
    step = max(1, _UNPACKED_AT_ONCE // columns)
    return torch.cat([x @ weight.rows(i, min(i + step, rows)).dequantize().T for i in range(0, rows, step)], dim=-1)


def _projections(x: Tensor, weights: Sequence[QuantTensor]) -> tuple[Tensor, ...]:
    """Several products of the same rows: x·Wᵀ for each weight."""
    return tuple(_quant_matmul(x, weight) for weight in weights)


def _projection_cases() -> Iterator[Case]:
    randn = random_tensors(16)
    for tokens, rows, columns in ((1, (96, 4, 33), 64), (6, (17, 32), 96)):
        weights = tuple(QuantTensor.from_dense(randn(n, columns)) for n in rows)
        yield Case(f"F32-{tokens}x{rows}x{columns}", (randn(tokens, columns), weights))


def _embedding(ids: Tensor, weight: QuantTensor) -> Tensor:
    """Rows of the table: ids [T], weight [V, H] → [T, H]."""
    return weight.take(ids)


def _matmul_cases() -> Iterator[Case]:
    randn = random_tensors(3)
    for tokens, n, k in ((1, 96, 64), (3, 33, 256), (8, 40, 512), (65, 130, 256)):
        yield Case(f"F32-{tokens}x{n}x{k}", (randn(tokens, k), QuantTensor.from_dense(randn(n, k))))


def _embedding_cases() -> Iterator[Case]:
    randn = random_tensors(4)
    table = QuantTensor.from_dense(randn(50, 64))
    yield Case("one", (torch.tensor([49]), table))
    yield Case("repeated", (torch.tensor([3, 0, 3, 7, 49]), table))


quant_matmul = Op(_quant_matmul, _matmul_cases, tolerance=1e-5, cpu=native.quant_matmul, triton=gpu.quant_matmul)
projections = Op(_projections, _projection_cases, tolerance=1e-5, cpu=native.projections, triton=gpu.projections)
embedding = Op(_embedding, _embedding_cases, tolerance=0.0, cpu=native.embedding, triton=gpu.embedding)
