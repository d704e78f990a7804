"""GGUF files in parts: any of them opens the whole, and what does not fit together is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf_bytes import (
    I32,
    STRING,
    Gguf,
    key,
    part_of,
    refusal,
    string,
    u32,
    written,
)

from runtime.gguf import GGUFFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


# Split models


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_the_whole_model(tmp_path: Path, opened: int) -> None:
    parts = [part_of(tmp_path, i, 3) for i in range(3)]
    with GGUFFile.open(parts[opened]) as file:
        assert file.path == parts[0]
        assert file.paths == tuple(parts)
        assert file.file_bytes == sum(part.stat().st_size for part in parts)
        assert file.metadata["general.architecture"] == "qwen35"
        assert {name: file.tensor(name).dequantize().tolist() for name in file.tensors} == {
            f"t{i}": [float(i)] * 4 for i in range(3)
        }


def test_a_split_that_gguf_py_wrote(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "qwen35", split_max_tensors=2)
    matrices = {f"t{i}": np.full((2, 32), i, dtype=np.float32) for i in range(5)}
    for name, matrix in matrices.items():
        writer.add_tensor(name, matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(tmp_path / "model-00002-of-00003.gguf") as file:
        assert file.metadata["general.architecture"] == "qwen35"
        assert list(file.tensors) == list(matrices)
        assert all(np.array_equal(file.tensor(name).dequantize(), matrix) for name, matrix in matrices.items())


def test_a_missing_part(tmp_path: Path) -> None:
    part_of(tmp_path, 0, 3)
    assert refusal(part_of(tmp_path, 1, 3)) == (
        "model-00002-of-00003.gguf needs all its 3 parts in one folder, but model-00003-of-00003.gguf is missing."
    )


def test_a_broken_part_is_named(tmp_path: Path) -> None:
    first = part_of(tmp_path, 0, 2)
    os.truncate(part_of(tmp_path, 1, 2), 50)
    assert refusal(first).startswith("model-00002-of-00002.gguf is cut off")


def test_a_renamed_part(tmp_path: Path) -> None:
    renamed = part_of(tmp_path, 1, 3).rename(tmp_path / "mine.gguf")
    assert refusal(renamed).startswith("mine.gguf is part 2 of 3 of a model, but is not named …-00002-of-00003.gguf")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"no": 0}, "model-00002-of-00002.gguf is not what its name says: inside it is part 1 of 2."),
        ({"count": 3}, "model-00002-of-00002.gguf is not what its name says: inside it is part 2 of 3."),
        ({"name": "t0"}, "model-00002-of-00002.gguf holds tensor “t0”, which another part holds too."),
    ],
    ids=["number", "count", "tensor twice"],
)
def test_parts_that_do_not_fit_each_other(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    first = part_of(tmp_path, 0, 2)
    part_of(tmp_path, 1, 2, **changes)
    assert refusal(first) == reason


def test_tensors_are_counted_over_all_parts(tmp_path: Path) -> None:
    part_of(tmp_path, 1, 2)
    assert "hold 2 tensors in place of 3" in refusal(part_of(tmp_path, 0, 2, total=3))


@pytest.mark.parametrize("body", [key("split.count", STRING, string("\x1b")), key("split.count", I32, u32(2**32 - 1))])
def test_a_count_of_parts_that_is_none(path: Path, body: bytes) -> None:
    assert "is damaged: its split.count is " in refusal(written(path, Gguf([body])))


def test_a_whole_model_named_like_a_part_is_whole(tmp_path: Path) -> None:
    with GGUFFile.open(written(tmp_path / "model-00001-of-00003.gguf", Gguf())) as file:
        assert len(file.paths) == 1
