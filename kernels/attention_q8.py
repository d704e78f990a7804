"""Attention over a KV cache whose rows are int8 with a scale each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.attention import attention, store_rows
from kernels.cpu import ops_attention
from kernels.op import Case, Op, random_tensors
from kernels.triton import ops as gpu


def quantize_rows(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Round each row to integers: q = round(x / scale), scale = max|x| / the largest of `dtype`.

    So |x − q·scale| ≤ scale / 2. [..., D] → `dtype` [..., D], fp32 [...]. What is not finite keeps its row from being
    so.
    """
    largest = torch.iinfo(dtype).max
    scale = x.abs().amax(-1) / largest
    rows = x / scale.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    return rows.nan_to_num().round().clamp(-largest, largest).to(dtype), scale


def _store_rows_q8(
    k: Tensor,
    v: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    key_scales: Sequence[Tensor],
    value_scales: Sequence[Tensor],
    start: int,
) -> None:
    """`store_rows` in int8: k, v [T, Hkv, D] into blocks [Hkv, B, D], their scales into blocks [Hkv, B]."""
    (k_rows, k_scales), (v_rows, v_scales) = quantize_rows(k), quantize_rows(v)
    store_rows.reference(k_rows, v_rows, keys, values, start)
    store_rows.reference(k_scales, v_scales, key_scales, value_scales, start)


def _attention_q8(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    key_scales: Sequence[Tensor],
    value_scales: Sequence[Tensor],
    gate: Tensor,
    start: int,
) -> Tensor:
    """`attention` over rows int8 · scale.

    keys, values: blocks [Hkv, B, D] int8; key_scales, value_scales: blocks [Hkv, B] fp32; the rest as there.
    """
    keys = [rows * scale[..., None] for rows, scale in zip(keys, key_scales, strict=True)]
    values = [rows * scale[..., None] for rows, scale in zip(values, value_scales, strict=True)]
    return attention.reference(q, keys, values, gate, start)


def _cases() -> Iterator[Case]:
    randn = random_tensors(10)
    shapes = ((1, 0, 4, 2, 64, 8), (1, 37, 3, 1, 32, 16), (4, 100, 4, 2, 64, 32), (300, 5, 2, 2, 16, 64))
    for tokens, start, heads, kv, dim, block in shapes:
        end = start + tokens
        cache, scales = quantize_rows(randn(2, kv, -(-end // block) * block + block, dim))
        scales[:, :, end:] = torch.nan  # what lies beyond the last position must not be read
        keys, values = (tuple(half.split(block, dim=1)) for half in cache)
        key_scales, value_scales = (tuple(half.split(block, dim=1)) for half in scales)
        q, gate = randn(tokens, heads, dim), randn(tokens, heads, dim)
        name = f"{tokens}+{start}h{heads}kv{kv}x{dim}b{block}"
        yield Case(name, (q, keys, values, key_scales, value_scales, gate, start))


def _store_cases() -> Iterator[Case]:
    """The blocks are the results, so each case is for one use."""
    randn = random_tensors(16)
    for tokens, start, block, peculiar in ((1, 0, 8, 1.0), (1, 9, 8, 0.0), (21, 5, 8, 1e-42), (3, 6, 8, torch.inf)):
        keys, values = (tuple(torch.zeros(2, block, 32, dtype=torch.int8) for _ in range(4)) for _ in range(2))
        key_scales, value_scales = (tuple(randn(2, block) for _ in range(4)) for _ in range(2))
        k, v = randn(tokens, 2, 32), randn(tokens, 2, 32)
        v[-1, 1] *= peculiar
        yield Case(f"{tokens}+{start}b{block}x{peculiar}", (k, v, keys, values, key_scales, value_scales, start))


store_rows_q8 = Op(
    _store_rows_q8, _store_cases, tolerance=1e-6, cpu=ops_attention.store_rows_q8, triton=gpu.store_rows_q8
)
attention_q8 = Op(_attention_q8, _cases, tolerance=1e-4, cpu=ops_attention.attention_q8, triton=gpu.attention_q8)
