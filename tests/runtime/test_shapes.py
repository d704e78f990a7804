"""What a token costs on a GPU, counted from what would be launched; kernels compiled for cards that are not here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from runtime.shapes import SHAPES, Shaped, decode_bytes

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)


@pytest.mark.parametrize(("name", "most"), [("4b", 260), ("35b-a3b", 420)])
def test_launches_of_a_token(name: str, most: int) -> None:
    assert 100 < len(Shaped.of(SHAPES[name]).step()) <= most


@pytest.mark.parametrize("name", ["4b", "35b-a3b"])
@pytest.mark.parametrize("context", [1024, 32_768])
def test_a_token_reads_little_more_than_it_must(name: str, context: int) -> None:
    shaped = Shaped.of(SHAPES[name])
    nbytes = sum(launch.nbytes for launch in shaped.step(context=context))
    least = decode_bytes(shaped, context)
    assert least <= nbytes <= 1.03 * least


def test_drafts_are_verified_at_the_cost_of_one_reading() -> None:
    """Of the dense model's layers: what drafting itself reads is the MTP block and the head, once for each draft."""
    shaped = Shaped.of(SHAPES["4b"])
    plain, drafted = (sum(launch.nbytes for launch in shaped.step(drafts)) for drafts in (0, 3))
    own = sum(size for name, size in shaped.weights.used.items() if name.startswith("blk.32."))
    head = shaped.weights.used["token_embd.weight"]
    assert drafted <= 1.03 * (plain + 3 * (own + head))


def test_no_tensor_of_a_step_is_made_elsewhere_than_on_the_card() -> None:
    """Every launch of a model whose card is the device of shapes has its tensors there."""
    for launch in Shaped.of(SHAPES["35b-a3b"]).step(3):
        assert all(a.is_meta for a in launch.arguments if hasattr(a, "is_meta")), launch.name


def compiled(*arguments: str) -> str:
    """The table of `runtime.shapes --compile`, in a process whose kernels are not interpreted."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "runtime.shapes", "--compile", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("card", ["sm_90", "gfx942"])
def test_a_kernel_compiles_for_cards_of_both_makers(card: str) -> None:
    assert "None spills." in compiled(card, "--only", "embed BJ=256 K=2560 KIND=12")


@pytest.mark.long
def test_every_kernel_compiles_for_every_card_and_none_spills() -> None:
    assert "None spills." in compiled()
