"""What a token costs on a GPU, counted from what would be launched; kernels compiled for cards that are not here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from kernels.triton import ahead
from kernels.triton.ahead import Compiled, Kept
from kernels.triton.tiles import tiles_of
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


def test_some_kernels_compile_for_cards_of_both_makers() -> None:
    """Of those that spilled once, with other tiles, the quickest."""
    some = "embed BJ=256 K=2560 KIND=12", "step BD=128 D=128 EACH=1 W=4 warps=16", "gemv_swiglu BJ=32 BN=4 K=2560 K0=8"
    told = compiled("sm_90", "gfx942", "gfx1100", "--only", *some)
    assert "None spills." in told
    assert [line.split()[0] for line in told.splitlines() if " warps=" in line] == ["sm_90", "gfx942", *["gfx1100"] * 3]


@pytest.mark.long
def test_every_kernel_compiles_for_every_card_and_none_spills(tmp_path: Path) -> None:
    """QWENCHAT_COMPILED names a file in which results are kept, so that a run that was broken off goes on."""
    assert "None spills." in compiled("--keep", os.environ.get("QWENCHAT_COMPILED", str(tmp_path / "kept.jsonl")))


class Kernel:
    """What a kernel is to those who keep results."""

    name, family = "attend D=4 warps=1", "attention"

    def key(self, target: str) -> str:
        return f"attend for {target}"


def test_what_was_compiled_once_is_known_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def compile_for(kernel: Kernel, target: str) -> Compiled:
        made.append(target)
        return Compiled(100 + len(made), 8 * (len(made) == 2), 2048)

    monkeypatch.setattr(ahead, "compile_for", compile_for)
    file, kernel = tmp_path / "kept.jsonl", cast(ahead.Kernel, Kernel())
    for targets in (["sm_90"], ["sm_90", "gfx942"]):
        kept = Kept(file)  # in a process of its own
        found = [(target, kernel, kept.compile_for(kernel, target)) for target in targets]
    assert made == ["sm_90", "gfx942"]
    assert list(ahead.table(found)) == [
        "| | sm_90 | gfx942 |", "|---|---|---|", "| attention | 1: 101, 2 kB | 1: 102, 2 kB, spills 8 |"
    ]  # fmt: skip


def test_a_card_that_is_not_known_is_like_others_of_its_maker() -> None:
    assert tiles_of("sm_100") == tiles_of("sm_90")
    assert tiles_of("gfx950") == tiles_of("gfx942") != tiles_of("gfx1100") == tiles_of("gfx1201")
