"""Launches of the router and of routed experts."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quants import QuantTensor
from kernels.triton.card import Card, power_of_two
from kernels.triton.common import FEW, cdiv, new
from kernels.triton.layouts import Packed
from kernels.triton.ops_products import one_row_tiles, sides, some_rows_tiles
from kernels.triton.ops_rows import rms_norm


def route(card: Card, logits: Tensor, used: int) -> tuple[Tensor, Tensor]:
    weights, ids, _ = _route(card, logits, used, None)
    return weights, ids


def _route(card: Card, logits: Tensor, used: int, gate: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    from kernels.triton.experts import route as kernel

    tokens, count = logits.shape
    weights, ids = new(card, tokens, used), new(card, tokens, used, dtype=torch.long)
    factor = weights if gate is None else new(card, tokens)
    card.launch(
        kernel, (tokens,), logits.contiguous(), logits if gate is None else gate, weights, ids, factor, count, used,
        GATED=gate is not None, BE=power_of_two(count),
    )  # fmt: skip
    return weights, ids, factor


def add_shared_expert(card: Card, routed: Tensor, x: Tensor, gate: Tensor, shared: Tensor) -> Tensor:
    from kernels.triton.experts import add_shared

    out, size = new(card, *x.shape), x.shape[1]
    card.launch(
        add_shared, (x.shape[0],), routed.contiguous(), x.contiguous(), gate, shared.contiguous(), out, size,
        BH=power_of_two(size),
    )  # fmt: skip
    return out


def experts(
    card: Card, x: Tensor, weights: Tensor, ids: Tensor, gate: QuantTensor, up: QuantTensor, down: QuantTensor
) -> Tensor:
    return _experts(card, x, weights, ids, gate, up, down)


def routed_experts(
    card: Card, x: Tensor, norm: Tensor, eps: float, logits: Tensor, shared_gate: Tensor, used: int,
    gate: QuantTensor, up: QuantTensor, down: QuantTensor, shared: Tensor,
) -> Tensor:  # fmt: skip
    x = x.contiguous()
    weights, ids, factor = _route(card, logits, used, shared_gate.contiguous())
    finish = x, factor, shared.contiguous()
    if x.shape[0] > FEW:
        return _experts(card, rms_norm(card, x, norm, eps), weights, ids, gate, up, down, finish=finish)
    return _experts(card, x, weights, ids, gate, up, down, norm=norm, eps=eps, finish=finish)


def _experts(
    card: Card, x: Tensor, weights: Tensor, ids: Tensor, gate: QuantTensor, up: QuantTensor, down: QuantTensor, *,
    norm: Tensor | None = None, eps: float = 0.0, finish: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """`finish`: base [T, H], factor [T] and shared [T, H], added as base + factor·shared."""
    from kernels.triton.experts import few_down, few_up, one_down, one_up, weigh

    x = x.contiguous()
    (tokens, size), used = x.shape, ids.shape[1]
    stacks = card.packed(gate), card.packed(up), card.packed(down)
    count, rows = gate.shape[:2]
    read = [min(tokens * used, count) * stack.data.numel() // count for stack in stacks]
    first, second, third = stacks
    end = finish or (x, x, x)
    hidden, out = new(card, tokens * used, rows), new(card, tokens, size)
    scale = x if norm is None else norm
    kinds = {"K0": first.layout.kind, "K1": second.layout.kind, "NORMED": norm is not None}
    if tokens == 1:
        tiles = one_row_tiles(card, (first, second), rows)
        card.launch(
            one_up, (cdiv(rows, tiles["BN"]), tokens * used), x, scale, eps, ids, hidden, first.data, second.data,
            first.blocks, second.blocks, rows, used, nbytes=read[0] + read[1], K=size, **kinds, **tiles,
        )  # fmt: skip
        tiles = one_row_tiles(card, (third,), size)
        card.launch(
            one_down, (cdiv(size, tiles["BN"]), tokens), hidden, ids, weights, *end, out, third.data, third.blocks,
            size, used, nbytes=read[2], K=rows, KIND=third.layout.kind, FINISHED=finish is not None, **tiles,
        )  # fmt: skip
        return out
    pairs = new(card, tokens * used, size)
    if tokens <= FEW:
        tiles = some_rows_tiles(card, (first, second), tokens, rows, pairs=True) | {"BU": power_of_two(used)}
        card.launch(
            few_up, (cdiv(rows, tiles["BN"]), tokens * used), x, scale, eps, ids, hidden, first.data, second.data,
            first.blocks, second.blocks, rows, tokens, used, nbytes=read[0] + read[1], K=size, **kinds, **tiles,
        )  # fmt: skip
        tiles = some_rows_tiles(card, (third,), tokens, size) | {"BU": power_of_two(used)}
        card.launch(
            few_down, (cdiv(size, tiles["BN"]), tokens * used), hidden, ids, pairs, third.data, third.blocks, size,
            tokens, used, nbytes=read[2], K=rows, KIND=third.layout.kind, **tiles,
        )  # fmt: skip
    else:
        _many(card, x, ids, hidden, pairs, stacks, rows, size)
    tile = card.tile(1024, size)
    card.launch(
        weigh, (cdiv(size, tile), tokens), pairs, weights, *end, out, size, used, FINISHED=finish is not None, BN=tile
    )
    return out


def _many(
    card: Card, x: Tensor, ids: Tensor, hidden: Tensor, out: Tensor, stacks: tuple[Packed, Packed, Packed],
    rows: int, size: int,
) -> None:  # fmt: skip
    """Pairs of token and expert sorted by expert, and cut into tiles of one expert each."""
    from kernels.triton.experts import many

    first, _, third = stacks
    count, pairs, used = first.shape[0], ids.numel(), ids.shape[1]
    each, precision = max(16, 2 * pairs // count), card.precision("fp16")
    tiles = sides(card, card.tiles.many_experts, stacks, each, max(rows, size), precision)
    most = cdiv(pairs, tiles["BM"]) + min(count, pairs)  # tiles, as many as there can be
    table = _tiles_of_pairs(card, ids.flatten(), count, tiles["BM"], most)
    for source, target, n, columns, parts, swiglu in (
        (x, hidden, rows, size, stacks[:2], True),
        (hidden, out, size, rows, (third, third), False),
    ):
        a, b = parts
        card.launch(
            many, (cdiv(n, tiles["BN"]), most), source, *table, target, a.data, b.data, a.blocks, b.blocks, n, used,
            count, K=columns, K0=a.layout.kind, K1=b.layout.kind, SWIGLU=swiglu, **tiles,
        )  # fmt: skip


def _tiles_of_pairs(card: Card, ids: Tensor, count: int, rows: int, most: int) -> tuple[Tensor, ...]:
    """The order of pairs by expert; and of `most` tiles of so many rows, each one's expert and first and last row."""
    if card.way == "noted":
        return tuple(new(card, size, dtype=torch.long) for size in (len(ids), most, most, most))
    order = ids.argsort(stable=True)
    sizes = torch.zeros(count, dtype=torch.long, device=card.device).scatter_add_(0, ids, torch.ones_like(ids))
    ends, tile_ends = sizes.cumsum(0), ((sizes + rows - 1) // rows).cumsum(0)
    number = torch.arange(most, device=card.device)
    expert = torch.searchsorted(tile_ends, number, right=True)
    known = expert.clamp(max=count - 1)
    before = tile_ends[known] - (sizes[known] + rows - 1) // rows
    return order, expert, ends[known] - sizes[known] + (number - before) * rows, ends[known]
