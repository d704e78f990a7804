"""Keys and values in 8 bits: how far from the truth, and how much smaller."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rewrite import GOLDENS
from states import ask, new_engine, prefilled, request

from kernels.attention_q8 import quantize_rows
from runtime.cache import memory
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe"])
def model(request: pytest.FixtureRequest) -> Qwen35:
    return load_model(GOLDENS / f"{request.param}.gguf").model


def test_no_value_is_off_by_more_than_half_a_step() -> None:
    x = torch.randn(7, 3, 64, generator=torch.Generator().manual_seed(1)) * torch.tensor([1e-3, 1.0, 1e3])[:, None]
    rows, scale = quantize_rows(x)
    assert rows.dtype == torch.int8
    assert ((rows * scale[..., None] - x).abs() <= scale[..., None] * 0.5001).all()
    torch.testing.assert_close(scale, x.abs().amax(-1) / 127)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 10.0])
def test_a_row_in_16_bits_is_off_by_no_more_than_a_place_on_disk_may_be(spread: float) -> None:
    """`spread`: how far beyond the others the row's largest numbers are."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(50, 128, generator=random) * (spread * torch.randn(50, 128, generator=random)).exp()
    rows, scale = quantize_rows(x, torch.int16)
    off = torch.linalg.vector_norm(rows * scale[:, None] - x, dim=-1) / torch.linalg.vector_norm(x, dim=-1)
    assert rows.dtype == torch.int16
    assert off.max() < 2e-4
    assert spread > 0 or off.max() < 4e-5


def test_a_row_of_zeros_stays_one() -> None:
    rows, scale = quantize_rows(torch.zeros(2, 8))
    assert not rows.any()
    assert not scale.any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_not_hidden(bad: float) -> None:
    x = torch.ones(2, 8)
    x[1, 3] = bad
    rows, scale = quantize_rows(x)
    out = rows * scale[..., None]
    assert torch.isfinite(out[0]).all()
    assert not torch.isfinite(out[1]).all()


@pytest.mark.parametrize("length", [17, 64, 100])
def test_logits_are_near_the_golden_ones(model: Qwen35, length: int, request: pytest.FixtureRequest) -> None:
    golden = np.load(GOLDENS / f"{request.node.callspec.params['model']}.npz")
    wanted = torch.from_numpy(golden[f"logits_{length}"])
    state = model.new_state("q8")
    logits = model.logits(model.forward(golden[f"ids_{length}"].tolist(), state))[-len(wanted) :]
    assert torch.linalg.vector_norm(logits - wanted) <= 0.02 * torch.linalg.vector_norm(wanted)


def test_keys_and_values_take_little_more_than_a_fourth(model: Qwen35) -> None:
    ids = list(range(1, 200))
    plain, small = (prefilled(model, ids, kind) for kind in ("f32", "q8"))  # type: ignore[arg-type]
    recurrent = memory([plain]) - sum(block.nbytes for block in (*plain.kv.blocks, *plain.mtp_kv.blocks))  # type: ignore[union-attr]
    dim = model.config.head_dim
    assert memory([small]) - recurrent == (memory([plain]) - recurrent) * (dim + 4) // (4 * dim)


def test_going_back_and_on_gives_what_a_fresh_prefill_gives(model: Qwen35) -> None:
    ids = list(range(1, 60))
    engine = new_engine(model, kv="q8")
    ask(engine, "a", request(ids, (30,)))
    other = [*ids[:40], 77, 78]
    tokens, cached = ask(engine, "a", request(other))
    assert cached == 30
    assert tokens == ask(new_engine(model, kv="q8"), "a", request(other))[0]
