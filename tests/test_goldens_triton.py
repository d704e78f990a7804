"""The triton column, in Triton's interpreter, against known outputs of independent programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from runtime.probe import probe

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

GOLDENS = Path(__file__).parent / "goldens"
FLOAT32 = 1e-4
# Of operands rounded to 8 bits where a chunk has more rows than a few.
BF16 = 0.02
DENSE = ("f16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q2_K", "Q4_0", "Q5_1", "IQ4_XS", "IQ3_S")


def distance(found: np.ndarray, known: np.ndarray) -> float:
    assert found.shape == known.shape
    return float(np.linalg.norm(found - known) / np.linalg.norm(known))


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe"])
def test_a_few_rows_and_one_row_are_exact(name: str) -> None:
    """Chunks of 4 rows and of 1, the MTP block's too."""
    with np.load(GOLDENS / f"{name}.npz") as known:
        ids, logits = [int(i) for i in known["ids_5"]], known["logits_5"]
    found = probe(GOLDENS / f"{name}.gguf", ids, ops="triton", chunk=4)
    assert distance(found["logits"][-len(logits) :], logits) <= FLOAT32
    wanted = probe(GOLDENS / f"{name}.gguf", ids)
    for array in wanted:
        assert distance(found[array], wanted[array]) <= FLOAT32


@pytest.mark.parametrize("name", ["tiny-dense", pytest.param("tiny-moe", marks=pytest.mark.long)])
def test_many_rows_are_as_near_as_bfloat16_is(name: str) -> None:
    with np.load(GOLDENS / f"{name}.npz") as known:
        ids, logits = [int(i) for i in known["ids_17"]], known["logits_17"]
    found = probe(GOLDENS / f"{name}.gguf", ids, ops="triton")

    assert distance(found["logits"][-len(logits) :], logits) <= BF16


@pytest.mark.long
@pytest.mark.parametrize("quant", DENSE)
def test_quantised_dense_files(fixtures: Path, quant: str) -> None:
    with np.load(fixtures / "dense-quants.npz") as known:
        ids = [int(i) for i in known["ids"]]
        found = probe(fixtures / f"dense-{quant}.gguf", ids, ops="triton")

        assert distance(found["logits"][-4:], known[f"logits_{quant}"]) <= BF16
        assert distance(found["mtp_logits"][-4:], known[f"mtp_{quant}"]) <= BF16
