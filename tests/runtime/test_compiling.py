"""What a card needs is compiled before the first reply, and nothing that it needs is left out."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from kernels.op import OpTable
from kernels.triton.ahead import Kernel, kernels_of
from kernels.triton.card import Card, Launch
from runtime import compiling
from runtime.models.loading import load_model
from runtime.shapes import Noted

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

GOLDENS = Path(__file__).parents[1] / "goldens"


def noted(name: str) -> Noted:
    card = Card.notes("sm_90")
    return Noted(load_model(GOLDENS / f"{name}.gguf", OpTable("triton", card=card)).model, card)


def programs(launches: Iterable[Launch]) -> set[tuple[object, ...]]:
    return _told(kernels_of(launches, alignments=True))


def _told(kernels: list[Kernel]) -> set[tuple[object, ...]]:
    return {(k.function.fn.__name__, k.signature, k.constants, k.aligned, k.warps) for k in kernels}


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe", "tiny-quants"])
def test_prompts_and_steps_of_any_length_need_no_other_program(name: str) -> None:
    model = noted(name)
    known = programs(compiling.launches(model))
    assert len(known) > 50
    for rows in [*range(1, 70), 100, 111, 112, 128, 255, 256]:
        for context in (0, 7, 300, 5000):
            assert programs(model.prefill(rows, context)) <= known, (rows, context)
    for drafts in range(5):
        for context in (7, 300, 5000):
            assert programs(model.step(drafts, context)) <= known, (drafts, context)


def test_a_file_of_other_types_needs_other_programs() -> None:
    """The weights' own types count, and the cases by which a card is tried are there."""
    files = (GOLDENS / f"{name}.gguf" for name in ("tiny-dense", "tiny-quants"))
    some, others = (_told(compiling.needed(file, "sm_90")) for file in files)
    assert some - others and others - some and some & others
    assert programs(compiling.launches(noted("tiny-dense"))) < some


def card() -> Card:
    return Card(torch.device("cpu"), "compiled", "sm_90")


def test_it_is_done_once_for_a_file_a_card_and_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done: list[tuple[str, str]] = []
    monkeypatch.setattr(compiling, "together", lambda path, target, kv, shares: done.append((Path(path).stem, kv)))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    told: list[str] = []
    for name, kv in (("tiny-dense", "f32"), ("tiny-dense", "f32"), ("tiny-dense", "q8"), ("tiny-moe", "f32")):
        compiling.compile_needed(GOLDENS / f"{name}.gguf", card(), kv, told.append)  # type: ignore[arg-type]
    assert done == [("tiny-dense", "f32"), ("tiny-dense", "q8"), ("tiny-moe", "f32")]
    assert told == ["The model's kernels are being compiled for this GPU, once."] * 3

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "another"))
    compiling.compile_needed(GOLDENS / "tiny-dense.gguf", card(), "f32", told.append)
    assert len(done) == 4


def test_nothing_is_done_without_a_card_or_for_a_file_that_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the file says what is wrong with it."""
    monkeypatch.setattr(compiling, "together", lambda *arguments: pytest.fail("begun"))
    compiling.compile_needed(GOLDENS / "tiny-dense.gguf", Card.notes(), "f32", pytest.fail)
    (tmp_path / "no.gguf").write_bytes(b"GGUF of no kind")
    compiling.compile_needed(tmp_path / "no.gguf", card(), "f32", pytest.fail)
    compiling.compile_needed(tmp_path / "absent.gguf", card(), "f32", pytest.fail)


@pytest.mark.slow
def test_what_a_process_compiles_another_finds(tmp_path: Path) -> None:
    """A few of the programs; the second time all are there, and nothing is written."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "runtime.compiling", str(GOLDENS / "tiny-dense.gguf"), "sm_90", "f32", "0", "80"]

    def found() -> set[Path]:
        return set(tmp_path.rglob("*.cubin"))

    subprocess.run(command, env=environment, check=True)
    first = found()
    assert first
    changed = {file: file.stat().st_mtime_ns for file in first}
    subprocess.run(command, env=environment, check=True)
    assert {file: file.stat().st_mtime_ns for file in found()} == changed
