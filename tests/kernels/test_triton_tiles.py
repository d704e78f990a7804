"""What the kernels do on other makers' cards, which have tiles and ways of their own, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch
from kernels_blocks import random_weights
from kernels_cases import case_of, results

from kernels.attention import attention
from kernels.attention_q8 import attention_q8
from kernels.delta_rule import delta_chunk
from kernels.moe import experts
from kernels.op import Op, OpTable
from kernels.quant_matmul import quant_matmul
from kernels.triton.card import Card

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

HALF = 1e-3
RDNA = "gfx1100"


@pytest.mark.parametrize("op", [attention, attention_q8, delta_chunk, experts], ids=lambda op: op.name)
def test_turned_products_and_rules_token_by_token(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[type-arg]
    """A head's dimensions by halves too."""
    card = Card.interpreter(RDNA)
    for case in op.cases():
        if (rows := re.match(r"\d+", case.id)) is None or int(rows[0]) > 20:
            continue  # which takes long
        wanted = results(op.reference, case_of(op, case.id))
        found = results(OpTable("triton", card=card)[op], case_of(op, case.id))
        for out, ref in zip(found, wanted, strict=True):
            tolerance = HALF if case.id == "9x32f64e4k2" else op.tolerance
            assert (out.double() - ref.double()).norm() <= tolerance * ref.double().norm() + 1e-12


@pytest.mark.parametrize("count", [3, 19])
def test_products(count: int) -> None:
    weight = random_weights("Q6_K", 37, 2)
    x = torch.randn(count, 512, generator=torch.Generator().manual_seed(count))
    wanted = x.double() @ weight.dequantize().double().T
    found = OpTable("triton", card=Card.interpreter(RDNA))[quant_matmul](x, weight)
    assert (found.double() - wanted).norm() <= (HALF if count > 8 else 1e-5) * wanted.norm()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_product_by_parts_has_16_bits_and_keeps_what_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, since the interpreter multiplies no bfloat16: the parts have no more bits than fit in one."""
    import triton
    import triton.language as tl

    from kernels.triton import matmul

    @triton.jit
    def cut(x):  # type: ignore[no-untyped-def]
        return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)

    @triton.jit
    def kernel(A, B, OUT, UPPER, product: tl.constexpr, upper: tl.constexpr):  # type: ignore[no-untyped-def]
        i, j = tl.arange(0, 16), tl.arange(0, 32)
        a, b = tl.load(A + i[:, None] * 32 + j[None, :]), tl.load(B + j[:, None] * 16 + i[None, :])
        tl.store(UPPER + i[:, None] * 32 + j[None, :], upper(a))
        tl.store(OUT + i[:, None] * 16 + i[None, :], product(a, b, tl.zeros((16, 16), tl.float32), "split"))

    upper = matmul._upper
    monkeypatch.setattr(matmul, "_upper", cut)
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(16, 32, generator=generator), torch.randn(32, 16, generator=generator)
    out, halves = torch.empty(16, 16), torch.empty(16, 32, dtype=torch.bfloat16)
    kernel[(1,)](a, b, out, halves, matmul.product, upper)
    wanted = a.double() @ b.double()
    assert (out - wanted).norm() < 2**-16 * wanted.norm()
    assert torch.equal(halves.view(torch.int16), (a.view(torch.int32) >> 16).to(torch.int16))

    a[3, 4] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # what a card's NaN looks like
    a[5, 0], b[6, 7] = torch.nan, torch.inf
    kernel[(1,)](a, b, out, halves, matmul.product, upper)
    broken = ~out.isfinite()
    assert broken[[3, 5]].all() and broken[:, 7].all()
    assert int(broken.sum()) == 2 * 16 + 14
