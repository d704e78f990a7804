"""The triton column, in Triton's interpreter, against known outputs of independent programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from runtime.kv_cache import KVType
from runtime.models.layers import MoEFFN
from runtime.models.loading import load_model
from runtime.placement import Placement
from runtime.probe import probe
from runtime.sampling import Sampler, SamplingParams
from runtime.speculative import step

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

GOLDENS = Path(__file__).parent / "goldens"
FLOAT32 = 1e-4
# Of operands rounded to 11 bits where a chunk has more rows than a few.
HALF = 0.005
MOE = ("f16", "Q4_K_M", "IQ4_XS", "MXFP4")
DENSE = ("f16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q2_K", "Q4_0", "Q5_1", "IQ4_XS", "IQ3_S")


def distance(found: np.ndarray, known: np.ndarray) -> float:
    assert found.shape == known.shape
    return float(np.linalg.norm(found - known) / np.linalg.norm(known))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kv"), [("tiny-dense", "f32"), ("tiny-moe", "f32"), ("tiny-dense", "f16")])
def test_a_few_rows_and_one_row_are_exact(name: str, kv: KVType) -> None:
    """Chunks of 4 rows and of 1, the MTP block's too; with keys and values in 16 bits to the rounding of those."""
    exact = FLOAT32 if kv == "f32" else 2**-11
    with np.load(GOLDENS / f"{name}.npz") as known:
        ids, logits = [int(i) for i in known["ids_5"]], known["logits_5"]
    found = probe(GOLDENS / f"{name}.gguf", ids, ops="triton", chunk=4, kv=kv)
    assert distance(found["logits"][-len(logits) :], logits) <= exact
    wanted = probe(GOLDENS / f"{name}.gguf", ids)
    for array in wanted:
        assert distance(found[array], wanted[array]) <= exact


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-dense", pytest.param("tiny-moe", marks=pytest.mark.long)])
def test_many_rows_are_as_near_as_half_precision_is(name: str) -> None:
    with np.load(GOLDENS / f"{name}.npz") as known:
        ids, logits = [int(i) for i in known["ids_17"]], known["logits_17"]
    found = probe(GOLDENS / f"{name}.gguf", ids, ops="triton")

    assert distance(found["logits"][-len(logits) :], logits) <= HALF


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense-Q4_K_M"])
def test_a_file_of_the_fixtures(fixtures: Path, name: str) -> None:
    """A few tokens of it, at real widths, as the reference has them; the known ones take minutes, below."""
    ids = [11, 503, 77]
    wanted, found = (probe(fixtures / f"{name}.gguf", ids, ops=ops, kv="f32") for ops in ("reference", "triton"))
    for array in wanted:
        assert distance(found[array], wanted[array]) <= FLOAT32


@pytest.mark.long
@pytest.mark.parametrize("quant", DENSE)
def test_quantised_dense_files(fixtures: Path, quant: str) -> None:
    with np.load(fixtures / "dense-quants.npz") as known:
        ids = [int(i) for i in known["ids"]]
        found = probe(fixtures / f"dense-{quant}.gguf", ids, ops="triton")

        assert distance(found["logits"][-4:], known[f"logits_{quant}"]) <= HALF
        assert distance(found["mtp_logits"][-4:], known[f"mtp_{quant}"]) <= HALF


@pytest.mark.long
@pytest.mark.parametrize("quant", MOE)
def test_quantised_files_with_experts(fixtures: Path, quant: str) -> None:
    """The first tokens in one forward, its experts sorted; the last ones in another, grouped."""
    with np.load(fixtures / "moe-quants.npz") as known:
        ids = [int(i) for i in known["ids"]]
        found = probe(fixtures / f"moe-{quant}.gguf", ids, ops="triton", chunk=len(ids) - 8)

        assert distance(found["logits"][-4:], known[f"logits_{quant}"]) <= HALF
        assert distance(found["mtp_logits"][-4:], known[f"mtp_{quant}"]) <= HALF


@pytest.mark.long
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_greedy_tokens_by_steps_with_drafts(fixtures: Path, name: str) -> None:
    """Twelve of them, two drafts each; exact, since no step has more than a few rows, nor has a piece of the prompt."""
    with np.load(fixtures / f"{name}.npz") as known:
        prompt, tokens = ([int(i) for i in known[f"greedy_{part}"]] for part in ("prompt", "tokens"))
    model = load_model(fixtures / f"{name}-f16.gguf", "triton").model
    state = model.new_state()
    for first in range(0, len(prompt), 8):
        hidden = model.forward(prompt[first : first + 8], state)
        state.commit()
    sampler = Sampler(SamplingParams(temperature=0), prompt, model.vocabulary)
    found = [int(model.logits(hidden[-1:]).argmax())]
    while len(found) < 12:
        read = step(model, state, found[-1:], 2, sampler)
        assert len(read.drafts) == 2
        right = 0
        while (token := read.choose(right)) == [*read.drafts, None][right]:
            found.append(token)
            right += 1
        found.append(token)
        state.commit(1 + right)
    assert found[:12] == tokens[:12]


@pytest.mark.long
def test_hot_experts_on_the_card_and_misses_on_the_processor(fixtures: Path) -> None:
    """Room for five of eight experts a layer, of which a token chooses three; eight tokens, and then some more.

    Eight tokens are up to 24 pairs with experts on the card, which multiplies so many in half precision.
    """
    with np.load(fixtures / "moe.npz") as known:
        ids, logits = [int(i) for i in known["ids_17"]], known["logits_17"]
    each = 3 * 256 * 256 * 2  # bytes of an expert's three products
    room = Placement((0,) * 5, ("memory",) * 5, 0, {0: 5 * 5 * each})
    model = load_model(fixtures / "moe-f16.gguf", "triton", room=room).model
    state, rows = model.new_state(), []
    for first in (0, 8, 16):
        rows.append(model.logits(model.forward(ids[first : first + 8], state)))
        state.commit()
    assert distance(torch.cat(rows)[-len(logits) :].numpy(), logits) <= HALF
    for block in model.trunk.blocks:
        assert isinstance(block.ffn, MoEFFN) and block.ffn.memory
        assert len(block.ffn.memory.hot.held) == 5
        assert block.ffn.memory.hits > 0 and block.ffn.memory.misses > 0
