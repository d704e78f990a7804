"""The arithmetic against known outputs of independent programs.

Two sources: the tiny files in tests/goldens, and the larger fixtures beside a checkout, where there are any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.attention import rope
from runtime.models.config import RopeConfig, YarnConfig
from runtime.models.loading import load_model
from runtime.probe import probe
from runtime.rope import RotaryEmbedding

GOLDENS = Path(__file__).parent / "goldens"
FLOAT32 = 1e-4  # fp32 against fp32 on the same weights; measured below 1e-5
CHUNKS = (1, 7, 33, 64)


@dataclass(frozen=True)
class Golden:
    """A file with its known outputs; a fixture lies beside the checkout and has the tolerance of its README."""

    name: str
    file: str
    lengths: tuple[int, ...]
    tolerance: float = FLOAT32
    mtp: bool = True
    fixture: bool = False


TINY_LENGTHS = (1, 2, 3, 5, 17, 64, 65, 100)
FIXTURE_LENGTHS = (1, 2, 3, 17, 64, 65, 150)
ALL = (
    Golden("tiny-dense", "tiny-dense.gguf", TINY_LENGTHS),
    Golden("tiny-moe", "tiny-moe.gguf", TINY_LENGTHS),
    Golden("tiny-quants", "tiny-quants.gguf", TINY_LENGTHS),
    Golden("tiny-yarn", "tiny-yarn.gguf", TINY_LENGTHS, mtp=False),
    Golden("dense", "dense-f16.gguf", FIXTURE_LENGTHS, tolerance=1e-3, fixture=True),
    Golden("moe", "moe-f16.gguf", FIXTURE_LENGTHS, tolerance=2e-3, fixture=True),
)
WITH_MTP = [golden for golden in ALL if golden.mtp]
QUANTS = {
    "dense": ("f16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q2_K", "Q4_0", "Q5_1", "IQ4_XS", "IQ3_S"),
    "moe": ("f16", "Q4_K_M", "MXFP4", "IQ4_XS"),
}


@dataclass(frozen=True)
class Known:
    """A golden found on the disk."""

    path: Path
    outputs: dict[str, NDArray[Any]]
    tolerance: float

    def ids(self, name: str) -> list[int]:
        return [int(i) for i in self.outputs[name]]

    def expect(self, name: str, found: NDArray[Any]) -> None:
        """The last rows of `found` are the known ones."""
        known = self.outputs[name]
        assert distance(found[-len(known) :], known) <= self.tolerance


def load(folder: Path, golden: Golden) -> Known:
    with np.load(folder / f"{golden.name}.npz") as outputs:
        return Known(folder / golden.file, dict(outputs), golden.tolerance)


@pytest.fixture
def known(request: pytest.FixtureRequest, golden: Golden) -> Known:
    return load(request.getfixturevalue("fixtures") if golden.fixture else GOLDENS, golden)


def distance(found: NDArray[Any], known: NDArray[Any]) -> float:
    """‖found − known‖ / ‖known‖."""
    assert found.shape == known.shape
    return float(np.linalg.norm(found - known) / np.linalg.norm(known))


def prompts() -> Iterator[object]:
    for golden in ALL:
        for length in golden.lengths:
            yield pytest.param(golden, length, id=f"{golden.name}-{length}")


every = pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.name)
every_with_mtp = pytest.mark.parametrize("golden", WITH_MTP, ids=lambda golden: golden.name)


@pytest.mark.parametrize(("golden", "length"), prompts())
def test_logits_and_hidden_states(known: Known, length: int) -> None:
    found = probe(known.path, known.ids(f"ids_{length}"))
    known.expect(f"logits_{length}", found["logits"])
    assert distance(found["hidden"][-1], known.outputs[f"hidden_{length}"]) <= known.tolerance


@pytest.mark.parametrize("chunk", CHUNKS)
@every
def test_prefill_in_chunks_is_the_same(known: Known, golden: Golden, chunk: int) -> None:
    length = golden.lengths[-1]
    whole = probe(known.path, known.ids(f"ids_{length}"))
    chunked = probe(known.path, known.ids(f"ids_{length}"), chunk=chunk)
    known.expect(f"logits_{length}", chunked["logits"])
    assert chunked.keys() == whole.keys()
    for name in whole:
        assert distance(chunked[name], whole[name]) <= FLOAT32


@pytest.mark.parametrize("chunk", [None, 7], ids=["whole", "chunks"])
@every
def test_greedy_tokens(known: Known, chunk: int | None) -> None:
    tokens = known.ids("greedy_tokens")
    found = probe(known.path, known.ids("greedy_prompt"), greedy=len(tokens), chunk=chunk)
    assert found["greedy"].tolist() == tokens


@every_with_mtp
def test_mtp_logits(known: Known) -> None:
    ids = known.ids("mtp_ids")
    found = probe(known.path, ids)["mtp_logits"]
    assert len(found) == len(ids) - 1
    known.expect("mtp_logits", found)


@every_with_mtp
def test_mtp_drafts_a_chain(known: Known) -> None:
    """A draft of three over the MTP cache that the prefill filled: each step feeds the block its own normed output."""
    model = load_model(known.path).model
    ids, state = known.ids("mtp_ids"), model.new_state()
    hidden = model.forward(ids, state)[-2:-1]
    state.commit()
    token, drafted = ids[-1], []
    for position in range(len(ids) - 2, len(ids) + 1):
        hidden = model.draft([token], hidden, state, position)
        token = int(model.draft_logits(hidden).argmax())
        drafted.append(token)
    assert drafted == known.ids("mtp_chain3")


def test_a_file_without_mtp_block_gives_no_mtp_logits() -> None:
    found = probe(GOLDENS / "tiny-yarn.gguf", [1, 2, 3], greedy=1)
    assert found.keys() == {"logits", "hidden", "greedy"}


@pytest.mark.parametrize(("family", "quant"), [(family, quant) for family in QUANTS for quant in QUANTS[family]])
def test_quantised_files(fixtures: Path, family: str, quant: str) -> None:
    tolerance = next(golden.tolerance for golden in ALL if golden.name == family)
    known = load(fixtures, Golden(f"{family}-quants", f"{family}-{quant}.gguf", (), tolerance))
    found = probe(known.path, known.ids("ids"))
    known.expect(f"logits_{quant}", found["logits"])
    known.expect(f"mtp_{quant}", found["mtp_logits"])


def test_no_quantised_file_is_left_out(fixtures: Path) -> None:
    listed = {f"{family}-{quant}.gguf" for family in QUANTS for quant in QUANTS[family]}
    assert {path.name for family in QUANTS for path in fixtures.glob(f"{family}-*.gguf")} == listed


@pytest.fixture(scope="module")
def ops() -> dict[str, NDArray[Any]]:
    with np.load(GOLDENS / "ops.npz") as outputs:
        return dict(outputs)


def test_mrope_interleaves_its_sections(ops: dict[str, NDArray[Any]]) -> None:
    temporal, height, width = (int(n) for n in ops["mrope_sections"])
    config = RopeConfig(float(ops["mrope_base"]), int(ops["mrope_dim"]), (temporal, height, width))
    cos, sin = RotaryEmbedding(config)(torch.from_numpy(ops["mrope_positions"]))
    half = config.dim // 2  # transformers writes the angles twice, once for each half
    np.testing.assert_allclose(cos, ops["mrope_cos"][:, :half], atol=1e-4)
    np.testing.assert_allclose(sin, ops["mrope_sin"][:, :half], atol=1e-4)


def test_rope_rotates_halves_and_leaves_the_rest_of_the_head(ops: dict[str, NDArray[Any]]) -> None:
    half = int(ops["mrope_dim"]) // 2
    q, cos, sin = (torch.from_numpy(ops[name]) for name in ("mrope_q", "mrope_cos", "mrope_sin"))
    rotated = rope.reference(q, cos[:, :half], sin[:, :half])
    np.testing.assert_allclose(rotated, ops["mrope_q_rotated"], atol=1e-6)


def test_yarn_stretches_the_slow_frequencies(ops: dict[str, NDArray[Any]]) -> None:
    yarn = YarnConfig(float(ops["yarn_factor"]), int(ops["yarn_original_context"]))
    config = RopeConfig(float(ops["yarn_base"]), int(ops["yarn_dim"]), (11, 11, 10), yarn)
    positions = np.array([0, 1, 100, 5000])
    cos, sin = RotaryEmbedding(config)(torch.from_numpy(positions))
    angles = positions[:, None] * ops["yarn_inv_freq"].astype(np.float64)
    np.testing.assert_allclose(cos, ops["yarn_attention_factor"] * np.cos(angles), atol=1e-3)
    np.testing.assert_allclose(sin, ops["yarn_attention_factor"] * np.sin(angles), atol=1e-3)
