"""Grouped-query attention over a KV cache, with the output gate, and the rotary embedding before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.cpu import ops as native
from kernels.cpu import ops_attention
from kernels.op import Case, Op, random_tensors
from kernels.triton import ops as gpu

# Query rows handled at a time, so that the scores of a long prefill stay small.
_ROWS_AT_ONCE = 256


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R dimensions of each head by halves (dimension i with i + R/2); the rest passes.

    x [T, heads, D], cos and sin [T, R/2] → [T, heads, D].
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def _attention(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], gate: Tensor, start: int) -> Tensor:
    """softmax(q kᵀ/√D) v · σ(gate), causal: row i sees the positions 0 to start + i.

    q, gate [T, Hq, D]; keys, values: blocks [Hkv, B, D] of B positions each, start + T positions or more in all
    → [T, Hq, D]. Query head h reads kv head h // (Hq / Hkv).
    """
    tokens, heads, dim = q.shape
    k, v = (torch.cat(list(blocks), dim=1)[:, None].float() for blocks in (keys, values))  # [Hkv, 1, positions, D]
    grouped = q.view(tokens, k.shape[0], -1, dim).permute(1, 2, 0, 3)  # [Hkv, group, T, D]
    parts = []
    for first in range(0, tokens, _ROWS_AT_ONCE):
        rows = grouped[:, :, first : first + _ROWS_AT_ONCE]
        seen = start + first + rows.shape[2]
        scores = rows @ k[:, :, :seen].mT * dim**-0.5  # [Hkv, group, rows, seen]
        hidden = torch.ones(rows.shape[2], seen, dtype=torch.bool, device=q.device).triu(start + first + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        parts.append(weights @ v[:, :, :seen])
    out = torch.cat(parts, dim=2).permute(2, 0, 1, 3).reshape(tokens, heads, -1)
    return out * torch.sigmoid(gate)


def _store_rows(k: Tensor, v: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], start: int) -> None:
    """Write k, v [T, Hkv, D] at the positions from `start` into the blocks [Hkv, B, D] of a cache."""
    size = keys[0].shape[1]
    for rows, blocks in ((k, keys), (v, values)):
        for index in range(start // size, (start + len(rows) - 1) // size + 1):
            first, last = max(start, index * size), min(start + len(rows), (index + 1) * size)
            place = slice(first - index * size, last - index * size)
            blocks[index][:, place] = rows[first - start : last - start].transpose(0, 1)


def _store_cases() -> Iterator[Case]:
    """The blocks are the results, so each case is for one use."""
    randn = random_tensors(15)
    plain, short = torch.float32, torch.float16
    for tokens, start, block, kind in ((1, 0, 8, plain), (1, 9, 8, plain), (21, 5, 8, plain), (21, 5, 8, short)):
        keys, values = (tuple(randn(2, block, 20).to(kind) for _ in range(4)) for _ in range(2))
        k, v = randn(tokens, 2, 20), 1e-6 * randn(tokens, 2, 20)  # of which the values are no normal halves
        yield Case(f"{tokens}+{start}b{block}{'' if kind == plain else 'f16'}", (k, v, keys, values, start))


def _rope_cases() -> Iterator[Case]:
    randn = random_tensors(8)
    for tokens, heads, dim, rotated in ((1, 2, 64, 16), (5, 3, 64, 64), (4, 2, 256, 64)):
        angles = 100 * randn(tokens, rotated // 2)
        yield Case(f"{tokens}x{heads}x{dim}r{rotated}", (randn(tokens, heads, dim), angles.cos(), angles.sin()))


def _attention_cases() -> Iterator[Case]:
    randn = random_tensors(9)
    plain, short = torch.float32, torch.float16
    shapes = (
        (1, 0, 4, 2, 64, 8, plain), (1, 37, 3, 1, 32, 16, plain), (4, 100, 4, 2, 64, 32, plain),
        (300, 5, 2, 2, 16, 64, plain), (1, 37, 4, 1, 32, 16, short), (4, 100, 6, 2, 64, 32, short),
        (300, 5, 2, 2, 16, 64, short),
    )  # fmt: skip
    for tokens, start, heads, kv, dim, block, kind in shapes:
        end = start + tokens
        cache = randn(2, kv, -(-end // block) * block + block, dim).to(kind)
        cache[:, :, end:] = torch.nan  # what lies beyond the last position must not be read
        keys, values = (tuple(half.split(block, dim=1)) for half in cache)
        q = randn(tokens, heads, dim)
        name = f"{tokens}+{start}h{heads}kv{kv}x{dim}b{block}" + ("" if kind == plain else "f16")
        yield Case(name, (q, keys, values, randn(tokens, heads, dim), start))


rope = Op(_rope, _rope_cases, tolerance=1e-5, cpu=native.rope, triton=gpu.rope)
attention = Op(_attention, _attention_cases, tolerance=1e-4, cpu=ops_attention.attention, triton=gpu.attention)
store_rows = Op(_store_rows, _store_cases, tolerance=0.0, cpu=ops_attention.store_rows, triton=gpu.store_rows)
