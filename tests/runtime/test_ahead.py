"""Memory for weights that is there before torch is: for whom, how much, and that the model is the same in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_bytes import STRING, U32, Gguf, key, string, u32, written

from kernels.cpu.pages import Ahead
from runtime import ahead
from runtime.models.loading import load_model
from runtime.protocol import Load

GOLDENS = Path(__file__).parents[1] / "goldens"
SIZE = 3_000_000  # bytes of a file


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_LEAST", 1_000_000)
    monkeypatch.setattr(ahead, "gpu_driver", lambda: False)
    monkeypatch.setattr(ahead, "memory", lambda: (10**9, 10**9))


def model(path: Path, kind: int = 15, size: int = SIZE) -> Load:
    keys = key("general.architecture", STRING, string("qwen35")), key("general.file_type", U32, u32(kind))
    content = Gguf(keys=keys).content()
    return Load(str(written(path / "model.gguf", content + bytes(size - len(content)))))


def test_a_file_s_size_is_brought_in_but_for_what_is_no_weights(tmp_path: Path) -> None:
    found = ahead.bring_in(model(tmp_path))
    assert found
    assert found.nbytes == 2_910_000
    found.take()


def test_nothing_is_for_a_card_for_small_files_and_for_weights_that_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = model(tmp_path)
    assert ahead.bring_in(Load(load.path, ops="triton")) is None
    assert ahead.bring_in(Load(load.path, ops="reference")) is None
    assert ahead.bring_in(model(tmp_path, kind=1)) is None
    assert ahead.bring_in(model(tmp_path, size=900_000)) is None
    monkeypatch.setattr(ahead, "memory", lambda: (10**9, 5_000_000))
    assert ahead.bring_in(model(tmp_path)) is None
    monkeypatch.setattr(ahead, "memory", lambda: (10**9, 10**9))
    monkeypatch.setattr(ahead, "gpu_driver", lambda: True)
    assert ahead.bring_in(model(tmp_path)) is None


def test_what_cannot_be_read_is_left_to_the_load(tmp_path: Path) -> None:
    assert ahead.bring_in(Load(str(tmp_path / "none.gguf"))) is None
    (tmp_path / "page.gguf").write_bytes(b"<html>" * 500_000)
    assert ahead.bring_in(Load(str(tmp_path / "page.gguf"))) is None


@pytest.mark.parametrize("nbytes", [300_000, 20_000_000])
def test_a_model_is_the_same_in_it(nbytes: int) -> None:
    pytest.importorskip("llvmlite")
    path = GOLDENS / "tiny-dense.gguf"
    plain, other = (load_model(path, "cpu", threads=1, ahead=given).model for given in (None, Ahead(nbytes)))
    hidden = [model.forward([5, 6, 7, 8, 9, 10, 11], model.new_state()) for model in (plain, other)]
    assert torch.equal(*hidden)
    assert torch.equal(plain.logits(hidden[0]), other.logits(hidden[1]))
