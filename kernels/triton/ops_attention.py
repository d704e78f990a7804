"""Launches of attention and of what fills its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.blocks import Blocks, Position
from kernels.triton.card import Card, power_of_two
from kernels.triton.common import FEW, cdiv, heads_of, new

_SPLITS = 32  # parts of the positions for a few rows


def rope(card: Card, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    from kernels.triton.rows import rope as kernel

    x = heads_of(x)
    tokens, heads, size = x.shape
    out = new(card, tokens, heads, size)
    card.launch(
        kernel, (tokens * heads,), x, cos.contiguous(), sin.contiguous(), out, heads, *x.stride()[:2],
        R=2 * cos.shape[1], D=size, BD=power_of_two(size),
    )  # fmt: skip
    return out


def _type(block: Tensor) -> Any:
    import triton.language as tl

    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.int8: tl.int8}[
        block.dtype
    ]


def start_of(card: Card, start: int) -> Tensor:
    return start.tensor if isinstance(start, Position) else torch.tensor([start], device=card.device)


def store_rows(card: Card, k: Tensor, v: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], start: int) -> None:
    _store(card, k, v, keys, values, None, start)


def store_rows_q8(
    card: Card, k: Tensor, v: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor],
    key_scales: Sequence[Tensor], value_scales: Sequence[Tensor], start: int,
) -> None:  # fmt: skip
    _store(card, k, v, keys, values, (key_scales, value_scales), start)


def _store(
    card: Card, k: Tensor, v: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor],
    scales: tuple[Sequence[Tensor], Sequence[Tensor]] | None, start: int,
) -> None:  # fmt: skip
    from kernels.triton.rows import store_rows as kernel

    k, v = heads_of(k), heads_of(v)
    tokens, heads, size = k.shape
    cache = Cache(card, keys, values, scales)
    card.launch(
        kernel, (tokens * heads,), k, v, *cache.arguments, start_of(card, start), heads, *k.stride()[:2],
        *v.stride()[:2], nbytes=4 * tokens * heads * size, D=size, BD=power_of_two(size), **cache.constants,
    )  # fmt: skip


class Cache:
    """The blocks of one layer as kernels find them: tables of addresses, and how far in each block the layer lies."""

    def __init__(
        self, card: Card, keys: Sequence[Tensor], values: Sequence[Tensor],
        scales: tuple[Sequence[Tensor], Sequence[Tensor]] | None,
    ) -> None:  # fmt: skip
        found = [Blocks.of(part, card.device) for part in (keys, values, *(scales or (keys, values)))]
        offsets = found[0].offset, found[2].offset if scales else 0
        if found[1].offset != offsets[0] or (scales and found[3].offset != offsets[1]):
            raise ValueError("keys and values must lie alike")
        strides = keys[0].stride(0), scales[0][0].stride(0) if scales else 0
        self.arguments: list[Any] = [*(blocks.table for blocks in found), *offsets, *strides]
        self.constants: dict[str, Any] = {
            "BLOCK": found[0].size, "TYPE": _type(keys[0]), "Q8": scales is not None
        }  # fmt: skip
        self.heads = keys[0].shape[0]
        self.row_bytes = 2 * keys[0].shape[-1] * keys[0].itemsize + (8 if scales else 0)


def attention(
    card: Card, q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], gate: Tensor, start: int
) -> Tensor:
    return _attend(card, q, keys, values, None, gate, start)


def attention_q8(
    card: Card, q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor],
    key_scales: Sequence[Tensor], value_scales: Sequence[Tensor], gate: Tensor, start: int,
) -> Tensor:  # fmt: skip
    return _attend(card, q, keys, values, (key_scales, value_scales), gate, start)


def _attend(
    card: Card, q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor],
    scales: tuple[Sequence[Tensor], Sequence[Tensor]] | None, gate: Tensor, start: int,
) -> Tensor:  # fmt: skip
    from kernels.triton.attend import attend, combine

    q, gate = heads_of(q), heads_of(gate)
    tokens, heads, size = q.shape
    cache = Cache(card, keys, values, scales)
    group = heads // cache.heads
    few = tokens <= FEW
    splits = _SPLITS if few and card.way != "interpreted" else 2 if few else 1
    tiles = card.tiles.attend if few else card.tiles.attend_many
    rows = card.tile(tiles.rows, tokens * group, 16)
    wide, block = max(16, power_of_two(size)), cache.constants["BLOCK"]
    part = new(card, tokens, heads, splits, size + 2)
    card.launch(
        attend, (cdiv(tokens * group, rows), cache.heads, splits), q, *cache.arguments, start_of(card, start), part,
        tokens, heads, cache.heads, *q.stride()[:2], warps=tiles.warps,
        nbytes=(start + tokens) * cache.heads * cache.row_bytes, GROUP=group, SPLITS=splits, D=size,
        PRECISION=card.precision("exact" if few else "fp16"), TURNED=tiles.turned, BM=rows,
        BP=min(block, tiles.positions), BC=min(wide, tiles.part), BD=wide,
        **cache.constants,
    )  # fmt: skip
    out = new(card, tokens, heads, size)
    card.launch(
        combine, (tokens * heads,), part, gate, out, heads, *gate.stride()[:2], SPLITS=splits, D=size,
        BS=power_of_two(splits), BD=wide,
    )  # fmt: skip
    return out
