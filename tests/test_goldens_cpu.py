"""The cpu column against known outputs of independent programs, and against the references."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from runtime.kv_cache import KVType
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.probe import probe

pytest.importorskip("llvmlite")

GOLDENS = Path(__file__).parent / "goldens"
FLOAT32 = 1e-4
FIXTURES = {"dense": 1e-3, "moe": 2e-3}  # for float32, says their README; for activations in int8 0.04
DENSE = ("f16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q2_K", "Q4_0", "Q5_1", "IQ4_XS", "IQ3_S")


def distance(found: np.ndarray, known: np.ndarray) -> float:
    assert found.shape == known.shape
    return float(np.linalg.norm(found - known) / np.linalg.norm(known))


@pytest.mark.parametrize(("kv", "chunk"), [("f32", None), ("f32", 1), ("f32", 3), ("f32", 7), ("f16", 1), ("f16", 7)])
@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe", "tiny-yarn"])
def test_float_files_are_exact(name: str, kv: KVType, chunk: int | None) -> None:
    """Op by op in longer chunks, recorded in shorter ones, MTP cache and routed experts included; with keys and values
    in 16 bits to the rounding of those.
    """
    exact = FLOAT32 if kv == "f32" else 2**-11
    with np.load(GOLDENS / f"{name}.npz") as known:
        ids = [int(i) for i in known["ids_65"]]
        wanted = probe(GOLDENS / f"{name}.gguf", ids, chunk=chunk)
        found = probe(GOLDENS / f"{name}.gguf", ids, ops="cpu", chunk=chunk, kv=kv)
        assert distance(found["logits"][-len(known["logits_65"]) :], known["logits_65"]) <= exact
    assert found.keys() == wanted.keys()
    for array in wanted:
        assert distance(found[array], wanted[array]) <= exact


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe"])
def test_greedy_tokens(name: str) -> None:
    with np.load(GOLDENS / f"{name}.npz") as known:
        tokens = [int(i) for i in known["greedy_tokens"]]
        prompt = [int(i) for i in known["greedy_prompt"]]
    assert probe(GOLDENS / f"{name}.gguf", prompt, ops="cpu", greedy=len(tokens))["greedy"].tolist() == tokens


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("quant", DENSE)
def test_quantised_dense_files(fixtures: Path, quant: str, chunk: int | None) -> None:
    with np.load(fixtures / "dense-quants.npz") as known:
        ids = [int(i) for i in known["ids"]]
        found = probe(fixtures / f"dense-{quant}.gguf", ids, ops="cpu", chunk=chunk)
        assert distance(found["logits"][-4:], known[f"logits_{quant}"]) <= FIXTURES["dense"]
        assert distance(found["mtp_logits"][-4:], known[f"mtp_{quant}"]) <= FIXTURES["dense"]


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("quant", ["f16", "Q4_K_M", "IQ4_XS", "MXFP4"])
def test_quantised_files_with_experts(fixtures: Path, quant: str, chunk: int | None) -> None:
    """With experts of its own choice: a near tie that falls the other way would show."""
    with np.load(fixtures / "moe-quants.npz") as known:
        ids = [int(i) for i in known["ids"]]
        found = probe(fixtures / f"moe-{quant}.gguf", ids, ops="cpu", chunk=chunk)
        assert distance(found["logits"][-4:], known[f"logits_{quant}"]) <= FIXTURES["moe"]
        assert distance(found["mtp_logits"][-4:], known[f"mtp_{quant}"]) <= FIXTURES["moe"]


@pytest.fixture(scope="module")
def model() -> Qwen35:
    return load_model(GOLDENS / "tiny-moe.gguf", "cpu", threads=2).model


def test_rejected_rows_leave_no_trace(model: Qwen35) -> None:
    ids = [int(i) for i in np.random.default_rng(7).integers(0, 300, 30)]
    state = model.new_state()
    model.forward(ids[:20], state)
    state.commit()
    model.forward([*ids[20:22], 299, 299, 299], state, each=True)
    state.commit(2)
    hidden = model.forward(ids[22:], state)
    plain = model.forward(ids, model.new_state())
    torch.testing.assert_close(hidden[-1], plain[-1], rtol=1e-3, atol=1e-4)


def test_a_fork_and_its_origin_go_on_side_by_side(model: Qwen35) -> None:
    """Recorded steps of two sequences that share blocks: neither writes where the other reads."""
    ids = [int(i) for i in np.random.default_rng(8).integers(0, 300, 12)]
    first = model.new_state()
    model.forward(ids[:6], first)
    first.commit()
    first.checkpoint()
    second = first.fork(6)
    ends = {}
    for step in range(6):
        for name, state, id_ in (("first", first, ids[6 + step]), ("second", second, ids[11 - step])):
            ends[name] = model.forward([id_], state)
            state.commit()
    for name, tail in (("first", ids[6:]), ("second", ids[:5:-1])):
        plain = model.forward([*ids[:6], *tail], model.new_state())
        torch.testing.assert_close(ends[name][-1], plain[-1], rtol=1e-3, atol=1e-4)


def test_a_sequence_grows_past_a_block_of_its_cache(model: Qwen35) -> None:
    ids = [int(i) for i in np.random.default_rng(9).integers(0, 300, 260)]
    state = model.new_state()
    model.forward(ids[:250], state)
    state.commit()
    for id_ in ids[250:]:
        hidden = model.forward([id_], state)
        state.commit()
    torch.testing.assert_close(hidden[-1], model.forward(ids, model.new_state())[-1], rtol=1e-3, atol=1e-4)


def test_nan_in_a_weight_reaches_the_logits(model: Qwen35) -> None:
    norm = model.trunk.blocks[1].attn_norm
    kept = norm[3].clone()
    norm[3] = torch.nan
    try:
        assert model.logits(model.forward([1, 2, 3], model.new_state())).isnan().all()
        assert model.logits(model.forward([1], model.new_state())).isnan().all()
    finally:
        norm[3] = kept


def test_files_of_the_fixtures_are_known(fixtures: Path) -> None:
    assert {path.stem.removeprefix("dense-") for path in fixtures.glob("dense-*.gguf")} == set(DENSE)
