"""Packed weights in the GPU's layout: every bit of the file's is there, and products are those of gguf-py's weights."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from kernels_blocks import random_weights

from kernels.fused import norm_swiglu
from kernels.op import OpTable
from kernels.quant_matmul import embedding, projections, quant_matmul
from kernels.quants import QUANTS, QuantTensor
from kernels.triton.card import Card
from kernels.triton.layouts import LAYOUTS, pack, pack_into, stack_for

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

TYPES = list(LAYOUTS)
HALF = 1e-3  # of operands rounded to 11 bits


@pytest.fixture
def table() -> OpTable:
    return OpTable("triton", card=Card.interpreter())


def rows(count: int, columns: int) -> torch.Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(count))


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((found.double() - wanted).norm() <= tolerance * wanted.norm())


@pytest.mark.parametrize("name", TYPES)
def test_a_table_gives_its_very_weights(table: OpTable, name: str) -> None:
    weight = random_weights(name, 5, 3)
    ids = torch.tensor([4, 0, 3])
    torch.testing.assert_close(table[embedding](ids, weight), weight.dequantize()[ids], rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("count", [1, 3, 19])
def test_products(table: OpTable, name: str, count: int) -> None:
    """One row, a few, and many, whose operands are rounded; rows and columns that fill no tile."""
    weight = random_weights(name, 37, 2 if LAYOUTS[name].block > 1 else 70)
    x = rows(count, weight.shape[1])
    wanted = x.double() @ weight.dequantize().double().T
    assert close(table[quant_matmul](x, weight), wanted, HALF if count > 8 else 1e-5)


def test_a_swiglu_is_cut_to_what_half_precision_holds(table: OpTable) -> None:
    """Of many rows, since the product that reads it is of half precision; what is no number stays none."""
    x, norm = torch.ones(19, 32), torch.ones(32)
    x[3, 5] = torch.nan
    sizes = torch.tensor([1.0, 300, -300, 1e10])[:, None] / 32
    gate, up = QuantTensor.from_dense(sizes.abs().repeat(1, 32)), QuantTensor.from_dense(sizes.repeat(1, 32))
    found = table[norm_swiglu](x, norm, 1e-12, gate, up)
    small = 1 / (1 + math.exp(-1))
    assert found[3].isnan().all()
    torch.testing.assert_close(found[0], torch.tensor([small, 65504, -65504, 65504]), rtol=HALF, atol=0)
    few = table[norm_swiglu](x[:2], norm, 1e-12, gate, up)
    torch.testing.assert_close(few[0], torch.tensor([small, 9e4, -9e4, 1e20]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", sorted(QUANTS.keys() - LAYOUTS.keys() - {"NVFP4"}))
def test_other_types_are_rounded_to_half_precision(table: OpTable, name: str) -> None:
    weight = random_weights(name, 9, 1)
    x = rows(1, weight.shape[1])
    wanted = x.double() @ weight.dequantize(torch.float16).double().T
    assert close(table[quant_matmul](x, weight), wanted)


@pytest.mark.parametrize("count", [1, 2])
def test_weights_of_different_types_side_by_side(table: OpTable, count: int) -> None:
    names, sizes = ("Q4_K", "Q6_K", "F32", "Q8_0", "Q5_K"), (40, 9, 3, 17, 1)
    weights = [random_weights(name, size, 256 // QUANTS[name].block) for name, size in zip(names, sizes, strict=True)]
    x = rows(count, 256)
    for found, weight in zip(table[projections](x, weights), weights, strict=True):
        assert close(found, x.double() @ weight.dequantize().double().T)


@pytest.mark.parametrize("name", TYPES)
def test_nothing_is_added_to_a_file_but_what_fills_sixteen_blocks(name: str) -> None:
    weight = random_weights(name, 16, 3)
    packed = pack(weight, torch.device("cpu"))
    assert packed.data.numel() == weight.nbytes


def test_a_stack_is_packed_expert_by_expert() -> None:
    """Experts are a part of each of a fused stack, so their rows do not lie side by side."""
    fused = random_weights("Q4_K", 12, 1)
    stack = QuantTensor(fused.data.view(3, 4, -1), fused.type, (3, 4, 256))
    up = stack.split_rows((1, 3))[1]
    whole = QuantTensor(up.data.reshape(9, -1), up.type, (9, 256))
    assert torch.equal(pack(up, torch.device("cpu")).data, pack(whole, torch.device("cpu")).data)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "IQ2_S"])
def test_a_stack_is_filled_entry_by_entry_in_any_order(name: str) -> None:
    flat = random_weights(name, 3 * 5, 3)
    whole = QuantTensor(flat.data.view(3, 5, -1), flat.type, (3, 5, flat.shape[1]))
    stack = stack_for(whole, 3, torch.device("cpu"))
    for index in (2, 0, 1):
        pack_into(stack, index, whole.select(index))
    assert torch.equal(stack.data, pack(whole, torch.device("cpu")).data)


def test_packing_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_weights("Q6_K", 20, 2)
    whole = pack(weight, torch.device("cpu")).data
    monkeypatch.setattr("kernels.triton.layouts._PIECE", 3 * 420)
    assert torch.equal(pack(weight, torch.device("cpu")).data, whole)
