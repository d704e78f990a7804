"""The Triton version of every op against its reference, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from kernels_cases import case_of, results

from kernels.op import Op, OpTable
from kernels.sample import UNDECIDED, sample
from kernels.table import FUSED, OPS
from kernels.triton.card import Card

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

FAST = [op for op in (*OPS, *FUSED) if op.triton]
# The interpreter takes long for these; those of one row or a few are for decoding.
LONG = {"delta_recurrent-64x2k4v16", "delta_recurrent-65x3k3v16", "delta_recurrent-150x2k4v8",
        "delta_recurrent-decay-20", "delta_recurrent-no-decay", "causal_conv1d-70x96w4",
        "attention-300+5h2kv2x16b64", "attention-300+5h2kv2x16b64f16",
        "attention_q8-300+5h2kv2x16b64"}  # fmt: skip
CASES = [
    pytest.param(op, case.id, id=name, marks=[pytest.mark.slow] if name in LONG else [])
    for op in FAST
    for case in op.cases()
    for name in [f"{op.name}-{case.id}"]
]

# Of operands rounded to 11 bits: products of more than a few rows, and scores of more than a few tokens.
HALF = 1e-3
ROUNDED = {"quant_matmul-F32-65x130x256", "experts-9x32f64e4k2", "attention-300+5h2kv2x16b64",
           "attention-300+5h2kv2x16b64f16", "attention_q8-300+5h2kv2x16b64", "norm_projections-11x(5,)x32",
           "norm_swiglu-11x20x32", "project_add-11x20x32", "routed_experts-11x32f64e5k2"}  # fmt: skip


@pytest.fixture(scope="module")
def card() -> Card:
    return Card.interpreter()


@pytest.fixture
def nan_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors hold NaN, so that what an op leaves unwritten shows."""
    empty = torch.empty

    def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", filled)


@pytest.mark.usefixtures("nan_filled")
@pytest.mark.parametrize(("op", "name"), CASES)
def test_the_triton_version_is_the_reference(card: Card, op: Op[Any, Any], name: str) -> None:
    wanted = results(op.reference, case_of(op, name))
    found = results(OpTable("triton", card=card)[op], case_of(op, name))
    if op is sample and name.startswith("all-"):
        # More candidates are in question than a card's program keeps: it says so, and `choose` decides.
        wanted[-1] = torch.full_like(wanted[-1], UNDECIDED)
    tolerance = HALF if f"{op.name}-{name}" in ROUNDED else op.tolerance
    for out, ref in zip(found, wanted, strict=True):
        assert out.shape == ref.shape
        assert torch.equal(out.isnan(), ref.isnan())
        out, ref = out.double().nan_to_num(), ref.double().nan_to_num()
        assert (out - ref).norm() <= tolerance * ref.norm() + 1e-12


def test_every_op_of_a_forward_has_a_triton_version() -> None:
    assert {op.name for op in (*OPS, *FUSED)} == {op.name for op in FAST}
