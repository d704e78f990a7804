"""Attention and its cache as calls of native functions: each has the arguments and results of its reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu.machine import Blocks, Machine, Position, Word
from kernels.cpu.memory import PASSING
from kernels.cpu.ops import heads_of


def store_rows(
    machine: Machine, k: Tensor, v: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], start: int
) -> None:
    from kernels.cpu import attend

    tokens, heads, dim = k.shape
    kind = _kind(keys[0])
    machine.call(
        attend.store_rows, (kind,), tokens,
        machine.whole(k), machine.whole(v), Blocks(keys), Blocks(values), Position(start), keys[0].shape[1],
        keys[0].stride(0) * keys[0].itemsize, heads, dim,
    )  # fmt: skip


def store_rows_q8(
    machine: Machine,
    k: Tensor,
    v: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    key_scales: Sequence[Tensor],
    value_scales: Sequence[Tensor],
    start: int,
) -> None:
    from kernels.cpu import attend

    tokens, heads, dim = k.shape
    machine.call(
        attend.store_rows_q8, (), tokens,
        machine.whole(k), machine.whole(v), *map(Blocks, (keys, values, key_scales, value_scales)), Position(start),
        keys[0].shape[1], keys[0].stride(0), 4 * key_scales[0].stride(0), heads, dim,
    )  # fmt: skip


def attention(
    machine: Machine, q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], gate: Tensor, start: int
) -> Tensor:
    return _attend(machine, q, keys, values, (), gate, start)


def attention_q8(
    machine: Machine,
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    key_scales: Sequence[Tensor],
    value_scales: Sequence[Tensor],
    gate: Tensor,
    start: int,
) -> Tensor:
    return _attend(machine, q, keys, values, (key_scales, value_scales), gate, start)


def _attend(
    machine: Machine,
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scales: Sequence[Sequence[Tensor]],
    gate: Tensor,
    start: int,
) -> Tensor:
    from kernels.cpu import attend
    from kernels.cpu import attend_tiles as tiled
    from kernels.cpu.matmul import FEW

    q = machine.whole(q)
    tokens, heads, dim = q.shape
    kv_heads, size = keys[0].shape[:2]
    kind, group = _kind(keys[0]), heads // kv_heads
    strides = [4 * scales[0][0].stride(0)] if scales else []
    many = tokens > FEW and size % tiled.STEP == 0 and dim % 16 == 0 and dim <= tiled.MOST_DIM
    if many:
        share, splits = _tiles(machine, tokens * group, kv_heads, start + tokens)
    else:
        splits = 1 if tokens > FEW else max(1, -(-4 * machine.threads // (kv_heads * tokens)))
    partial, out = PASSING.empty((tokens * heads * splits * (2 + dim),)), PASSING.empty(q.shape)
    stride = keys[0].stride(0) * keys[0].itemsize
    words: tuple[Word, ...] = q, Blocks(keys), Blocks(values), partial, Position(start), size, stride
    scale_words: tuple[Word, ...] = *map(Blocks, scales), *strides
    if many:
        pieces = -(-tokens * group // share) * kv_heads * splits
        of_tiles = *words, kv_heads, splits, tokens, share, *scale_words
        machine.call(tiled.attend_tiles, (kind, group, dim), pieces, *of_tiles)
    else:
        of_rows = *words, kv_heads, dim, splits, *scale_words
        machine.call(attend.attend, (kind, group), tokens * kv_heads * splits, *of_rows)
    gate, _, token, head = heads_of(gate)
    machine.call(attend.combine, (), tokens * heads, partial, gate, token, head, out, heads, dim, splits)
    return out


def _tiles(machine: Machine, rows: int, kv_heads: int, positions: int) -> tuple[int, int]:
    """Rows of a piece, and splits of the positions, that keep all threads busy to the end."""
    from kernels.cpu import attend_tiles as tiled

    tile, wanted = tiled.tile_rows(machine.target), 4 * machine.threads
    share = max(tile, min(tiled.PIECE, rows * kv_heads // wanted // tile * tile))
    pieces = -(-rows // share) * kv_heads
    return share, max(1, min(-(-wanted // pieces), positions // tiled.LEAST_SPLIT))


def _kind(block: Tensor) -> str:
    return {torch.float32: "F32", torch.float16: "F16", torch.int8: "I8"}[block.dtype]
