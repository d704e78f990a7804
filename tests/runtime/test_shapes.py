"""What a token costs on a GPU, counted from what would be launched; kernels compiled for cards that are not here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kernels.triton import ahead
from kernels.triton.ahead import TARGETS
from kernels.triton.kept import Compiled, Kept
from kernels.triton.tiles import tiles_of
from runtime.shapes import SHAPES, Shaped, decode_bytes, every_kernel

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

KNOWN = Path(__file__).parents[1] / "kernels" / "compiled.txt"


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


def not_interpreted(*arguments: str) -> str:
    """What Python prints in a process whose kernels are compiled."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_kernel_was_compiled_for_every_card_and_none_spills() -> None:
    """From the same sources, at least, as `KNOWN` says: `python -m runtime.shapes --compile --keep` mends it."""
    kept, missing, count = Kept(KNOWN, ""), [], 0
    for target, kernel in every_kernel(list(TARGETS)):
        found = kept.known(target, kernel.key, of_any=True)
        if found is None:
            missing.append(f"{target} {kernel.name}")
        else:
            assert found.spills == 0, f"{target} {kernel.name}"
            assert found.registers <= (512 if target == "gfx942" else 256)
            assert found.shared <= TARGETS[target][3], f"{target} {kernel.name}"
            count += 1
    assert not missing
    assert count > 200 * len(TARGETS)


# Wide ones, and those that spilled once with other tiles, the quickest to compile.
SOME = {
    "sm_80": "attend BC=256 BD=256 BLOCK=256 BM=16 BP=16 D=256 GROUP=4 PRECISION=bf16x3 Q8=0 SPLITS=32 TURNED=0",
    "sm_86": "embed BJ=256 K=2560 KIND=12",
    "sm_89": "embed BJ=256 K=2560 KIND=12",
    "sm_90": "step BD=128 D=128 EACH=1 W=4 warps=8",
    "sm_120": "gemv_swiglu BJ=64 BN=4 K=64 K0=0",
    "gfx942": "step BD=128 D=128 EACH=1 W=4 warps=8",
    "gfx1100": "step BD=128 D=128 EACH=1 W=4 warps=16",
}


@pytest.mark.slow
def test_some_kernels_compile_for_every_card_as_is_known() -> None:
    """Numbers are told to be those of `KNOWN` where that is of this Triton; sm_86 and sm_89 without what other cards
    shared with them.
    """
    told = not_interpreted("-c", _SOME, json.dumps(SOME))
    triton = importlib.metadata.version("triton")
    kept, kernels = Kept(KNOWN, triton), [json.loads(line) for line in told.splitlines()]
    assert {target for target, *_ in kernels} == set(TARGETS)
    for target, key, *numbers in kernels:
        assert numbers[1] == 0
        assert kept.known(target, key) in (Compiled(*numbers), None)


_SOME = """
import json, sys
from dataclasses import astuple
from kernels.triton.ahead import compile_for
from runtime.shapes import every_kernel

some = json.loads(sys.argv[1])
for target, kernel in every_kernel(list(some)):
    if kernel.name.startswith(some[target]):
        print(json.dumps([target, kernel.key, *astuple(compile_for(kernel, target, alone=True))]))
"""


@pytest.mark.slow
def test_what_is_compiled_ahead_is_what_a_card_compiles_at_run_time() -> None:
    """Types, constants and alignments are those that Triton finds in the arguments of the launches."""
    same, other = json.loads(not_interpreted("-c", _AT_RUN_TIME))
    assert same > 200
    assert other == []


_AT_RUN_TIME = """
import json
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from kernels.triton.ahead import _source, kernels_of
from runtime.shapes import every_launch

class Card:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

def instead_of_compiling(*, compile, **_):
    told.append([compile["signature"], compile["constants"], compile["configs"][0]])
    return True

told, same, other = [], 0, []
driver.set_active(Card())
knobs.runtime.jit_cache_hook = instead_of_compiling
for launch in every_launch("sm_90"):
    if any(isinstance(a, torch.Tensor) and a.storage_offset() * a.itemsize % 16 for a in launch.arguments):
        continue  # no address tells here that it begins at an odd one
    launch.kernel.warmup(*launch.arguments, grid=launch.grid, num_warps=launch.warps, **launch.constants)
    source = _source(*kernels_of([launch]))
    if told.pop() == [source.signature, source.constants, source.attrs]:
        same += 1
    else:
        other.append(launch.name)
print(json.dumps([same, other]))
"""


@pytest.mark.long
def test_every_kernel_compiles_for_every_card_and_none_spills(tmp_path: Path) -> None:
    """QWENCHAT_COMPILED names a file in which results are kept, so that a run that was broken off goes on."""
    keep = os.environ.get("QWENCHAT_COMPILED", str(tmp_path / "kept.txt"))
    assert "None spills." in not_interpreted("-m", "runtime.shapes", "--compile", "--keep", keep)


def test_what_was_compiled_once_is_known_afterwards(tmp_path: Path) -> None:
    file, made = tmp_path / "kept.txt", list[str]()

    def compile_for(target: str) -> Compiled:
        made.append(target)
        return Compiled(100 + len(made), 8 * (len(made) == 2), 2048)

    for targets in (["sm_90"], ["sm_90", "gfx942"]):
        kept = Kept(file, "3.9.0")  # in a process of its own
        found = [kept.compile_for(target, "abc", partial(compile_for, target)) for target in targets]
    assert made == ["sm_90", "gfx942"]
    kernel = cast(ahead.Kernel, SimpleNamespace(family="attention"))
    assert list(ahead.table(zip(targets, [kernel, kernel], found, strict=True))) == [
        "| | sm_90 | gfx942 |", "|---|---|---|", "| attention | 1: 101, 2 kB | 1: 102, 2 kB, spills 8 |"
    ]  # fmt: skip

    other = Kept(file, "3.10.0")
    assert other.known("gfx942", "abc") is None
    assert other.known("gfx942", "abc", of_any=True) == Compiled(102, 8, 2048)
    assert kept.known("gfx942", "abd", of_any=True) is None
    kept.keep_only([("gfx942", "abc")])
    assert Kept(file, "3.9.0").known("sm_90", "abc") is None
    assert Kept(file, "3.9.0").known("gfx942", "abc") == Compiled(102, 8, 2048)


def test_a_change_of_what_a_kernel_calls_or_names_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.triton import decode, matmul
    from kernels.triton.kept import sources

    before = sources.__wrapped__(matmul.gemv)
    assert "def one_row(" in before and "def _gemv_part(" in before  # which it calls, and the first in turn
    assert "kernels.triton.decode.Q4_K: 10" in before
    assert "def some_rows(" not in before and "triton.language" not in before
    monkeypatch.setattr(decode, "_BY_KIND", {})
    assert sources.__wrapped__(matmul.gemv) != before


def test_a_card_that_is_not_known_is_like_others_of_its_maker() -> None:
    assert tiles_of("sm_100") == tiles_of("sm_90")
    assert tiles_of("gfx950") == tiles_of("gfx942") != tiles_of("gfx1100") == tiles_of("gfx1201")
