"""Launches of products with packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernels.quants import QuantTensor
from kernels.triton.card import Card
from kernels.triton.common import FEW, cdiv, new
from kernels.triton.layouts import Packed
from kernels.triton.ops_rows import rms_norm
from kernels.triton.tiles import Product

_PARTS = 4  # weights of one launch


def embedding(card: Card, ids: Tensor, weight: QuantTensor) -> Tensor:
    from kernels.triton.matmul import embed

    packed, columns = card.packed(weight), weight.shape[1]
    out = new(card, *ids.shape, columns)
    words = columns // packed.layout.block * packed.layout.words
    card.launch(
        embed, (ids.numel(),), ids.contiguous(), out, packed.data, packed.blocks,
        nbytes=2 * ids.numel() * weight.type.row_bytes(columns), K=columns, KIND=packed.layout.kind,
        BJ=card.tile(256, words),
    )  # fmt: skip
    return out


def quant_matmul(card: Card, x: Tensor, weight: QuantTensor) -> Tensor:
    return _products(card, x, (weight,))[0]


def projections(card: Card, x: Tensor, weights: Sequence[QuantTensor]) -> tuple[Tensor, ...]:
    return _products(card, x, weights)


def norm_projections(
    card: Card, x: Tensor, norm: Tensor, eps: float, weights: Sequence[QuantTensor]
) -> tuple[Tensor, ...]:
    if x.shape[0] > FEW:
        return _products(card, rms_norm(card, x, norm, eps), weights)
    return _products(card, x, weights, norm=norm, eps=eps)


def project_add(card: Card, x: Tensor, weight: QuantTensor, residual: Tensor) -> Tensor:
    return _products(card, x, (weight,), residual=residual)[0]


def _products(
    card: Card, x: Tensor, weights: Sequence[QuantTensor], *, norm: Tensor | None = None, eps: float = 0.0,
    residual: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    from kernels.triton.matmul import gemv, matmul

    x = x.contiguous()
    tokens, columns = x.shape
    outs = tuple(new(card, tokens, weight.shape[0]) for weight in weights)
    for first in range(0, len(weights), _PARTS):
        parts = [card.packed(weight) for weight in weights[first : first + _PARTS]]
        some = outs[first : first + _PARTS]
        sizes = [part.shape[0] for part in parts]
        filled = [*range(len(parts)), *[0] * (_PARTS - len(parts))]
        arguments = (
            x, x if norm is None else norm, eps, x if residual is None else residual.contiguous(),
            *(some[i] for i in filled), *(parts[i].data for i in filled), *(parts[i].blocks for i in filled),
            *(sizes[i] for i in filled),
        )  # fmt: skip
        constants: dict[str, Any] = {
            "K": columns, **{f"K{n}": parts[i].layout.kind for n, i in enumerate(filled)}, "PARTS": len(parts),
            "NORMED": norm is not None, "ADDED": residual is not None,
        }  # fmt: skip
        if tokens == 1:
            tiles = one_row_tiles(card, parts, max(sizes))
            blocks = sum(cdiv(size, tiles["BN"]) for size in sizes)
            card.launch(gemv, (blocks,), *arguments, **constants, **tiles)
        else:
            tiles = some_rows_tiles(card, parts, tokens, max(sizes))
            grid = sum(cdiv(size, tiles["BN"]) for size in sizes), cdiv(tokens, tiles["BM"])
            card.launch(matmul, grid, *arguments, tokens, **constants, **tiles)
    return outs


def one_row_tiles(card: Card, parts: Sequence[Packed], rows: int) -> dict[str, int]:
    """BN rows of the weights, BJ words of each."""
    tiles = card.tiles.one
    return {
        "BN": card.tile(tiles.many if rows >= 1024 else tiles.few, rows),
        "BJ": card.tile(tiles.words, _words(parts)),
    }


def _words(parts: Sequence[Packed]) -> int:
    """Of a row, at most."""
    return max(part.shape[-1] // part.layout.block * part.layout.words for part in parts)


def some_rows_tiles(
    card: Card, parts: Sequence[Packed], tokens: int, rows: int, *, pairs: bool = False
) -> dict[str, Any]:
    """Of a product of `tokens` rows; `pairs`: of two weights in one kernel."""
    few = tokens <= FEW
    tiles = card.tiles.many if not few else card.tiles.few_pairs if pairs else card.tiles.few
    return sides(card, tiles, parts, tokens, rows, card.precision("exact" if few else "fp16"))


def sides(
    card: Card, tiles: Product, parts: Sequence[Packed], tokens: int, rows: int, precision: str
) -> dict[str, Any]:
    """BM rows of x, BN of the weights, BJ words of each, and warps."""
    dense = any(part.layout.fields == 16 for part in parts)  # whose fields are all in registers at once
    return {
        "PRECISION": precision,
        "TURNED": tiles.turned or (dense and precision == "fp16" and card.tiles.dense_turned),
        "BM": card.tile(tiles.rows, tokens, 16),
        "BN": card.tile(tiles.weights, rows, 16),
        "BJ": card.tile(tiles.words // 2 if dense else tiles.words, _words(parts), 16),
        "warps": tiles.warps,
    }


def norm_swiglu(card: Card, x: Tensor, norm: Tensor, eps: float, gate: QuantTensor, up: QuantTensor) -> Tensor:
    from kernels.triton.matmul import gemv_swiglu, matmul_swiglu

    x = x.contiguous()
    tokens, columns = x.shape
    normed = tokens <= FEW
    if not normed:
        x = rms_norm(card, x, norm, eps)
    first, second = card.packed(gate), card.packed(up)
    rows = gate.shape[0]
    out = new(card, tokens, rows)
    arguments = x, norm, eps, out, first.data, second.data, first.blocks, second.blocks, rows
    constants = {"K": columns, "K0": first.layout.kind, "K1": second.layout.kind, "NORMED": normed}
    if tokens == 1:
        tiles = one_row_tiles(card, (first, second), rows)
        card.launch(gemv_swiglu, (cdiv(rows, tiles["BN"]),), *arguments, **constants, **tiles)
    else:
        tiles = some_rows_tiles(card, (first, second), tokens, rows, pairs=True)
        grid = cdiv(rows, tiles["BN"]), cdiv(tokens, tiles["BM"])
        card.launch(matmul_swiglu, grid, *arguments, tokens, **constants, **tiles)
    return out
