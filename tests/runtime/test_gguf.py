"""GGUF files: what is read equals what independent programs wrote and read."""

from __future__ import annotations

import struct
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants
from gguf_bytes import (
    ARRAY,
    I32,
    STRING,
    U32,
    Gguf,
    array,
    key,
    part_of,
    refusal,
    string,
    tensor,
    u32,
    u64,
    written,
)

from runtime import gguf_header
from runtime.gguf import GGUFError, GGUFFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


# What is read


def test_a_small_file(path: Path) -> None:
    with GGUFFile.open(written(path, Gguf())) as file:
        assert (file.path, file.paths, file.file_bytes) == (path, (path,), path.stat().st_size)
        assert file.metadata == {"general.architecture": "qwen35"}
        assert {name: (info.shape, info.type.name, info.nbytes) for name, info in file.tensors.items()} == {
            "a": ((2, 4), "F32", 32),
            "b": ((32,), "Q8_0", 34),
        }
        assert file.tensor("a").dequantize().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert file.tensor("b").dequantize().tolist() == [0.5 * i for i in range(32)]


def test_version_2_reads_as_version_3(path: Path) -> None:
    with GGUFFile.open(written(path, Gguf(version=2))) as file:
        assert list(file.tensors) == ["a", "b"]


def test_strings_are_read_as_a_list_of_them_is(path: Path) -> None:
    texts = ["", "a", "Ġüber", "a" * 300, "\n"]
    many = key("many", ARRAY, array(STRING, len(texts), b"".join(map(string, texts))))
    with GGUFFile.open(written(path, Gguf(keys=(many,)))) as file:
        read = file.metadata["many"]
    assert read == texts
    assert texts == read
    assert read != texts[:-1]
    assert (list(read), len(read), read[2], read[-1], read[1:4], read[::-2]) == (
        texts, 5, "Ġüber", "\n", texts[1:4], texts[::-2],
    )  # fmt: skip
    assert "a" in read
    assert read.index("\n") == 4
    for beyond in (5, -6):
        with pytest.raises(IndexError):
            read[beyond]


def resident(path: Path) -> int:
    """kB of a mapped file that are in this process's memory."""
    _, _, rest = Path("/proc/self/smaps").read_text().partition(f"{path}\n")
    return int(rest[rest.index("Rss:") :].split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_header_that_was_read_does_not_stay_in_memory(path: Path) -> None:
    many = key("many", ARRAY, array(STRING, 40_000, 40_000 * string("a" * 100)))
    with GGUFFile.open(written(path, Gguf(keys=(many,)))) as file:
        assert resident(path) < 500
        assert file.tensor("a").dequantize().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(list(file.metadata["many"])) == 40_000  # as the tokenizer does, when the weights are loaded
    assert resident(path) > 4000
    file.let_go_headers()
    assert resident(path) < 500


def test_a_file_without_tensors_need_not_be_padded(path: Path) -> None:
    with GGUFFile.open(written(path, Gguf(tensors=()).header())) as file:
        assert not file.tensors


def test_nested_arrays_and_empty_ones(path: Path) -> None:
    inner = array(I32, 2, struct.pack("<2i", 1, -2)) + array(STRING, 1, string("ü"))
    keys = [key("nested", ARRAY, array(ARRAY, 2, inner)), key("empty", ARRAY, array(STRING, 0))]
    with GGUFFile.open(written(path, Gguf(keys))) as file:
        assert file.metadata == {"nested": [[1, -2], ["ü"]], "empty": []}


def test_strings_are_exact_and_bad_utf8_is_replaced(path: Path) -> None:
    exact = "\x1b[31m\0 e\u0301 \u202e \U0001f469\u200d\U0001f467"
    keys = [key("exact", STRING, string(exact)), key("bad", ARRAY, array(STRING, 2, string(b"a\xffb") + string("é")))]
    with GGUFFile.open(written(path, Gguf(keys))) as file:
        assert file.metadata == {"exact": exact, "bad": ["a\ufffdb", "é"]}


@pytest.mark.parametrize("alignment", [1, 8, 256])
def test_alignment_is_the_files_own(path: Path, alignment: int) -> None:
    keys = [key("general.alignment", U32, u32(alignment))]
    values = struct.pack("<8f", *range(8))
    spec = Gguf(keys, [tensor("odd-name", [4, 2])], values, alignment=alignment)
    with GGUFFile.open(written(path, spec)) as file:
        assert file.tensor("odd-name").dequantize().flatten().tolist() == list(range(8))


def test_what_gguf_py_writes(path: Path) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((5, 64), dtype=np.float32)
    packed = {
        GGMLQuantizationType.Q8_0: quants.quantize(matrix, GGMLQuantizationType.Q8_0),
        GGMLQuantizationType.Q4_1: quants.quantize(matrix, GGMLQuantizationType.Q4_1),
        GGMLQuantizationType.BF16: quants.quantize(matrix, GGMLQuantizationType.BF16),
    }
    values: dict[str, tuple[Any, GGUFValueType]] = {
        "u8": (255, GGUFValueType.UINT8),
        "i8": (-128, GGUFValueType.INT8),
        "u16": (65535, GGUFValueType.UINT16),
        "i16": (-32768, GGUFValueType.INT16),
        "u32": (2**32 - 1, GGUFValueType.UINT32),
        "i32": (-(2**31), GGUFValueType.INT32),
        "u64": (2**64 - 1, GGUFValueType.UINT64),
        "i64": (-(2**63), GGUFValueType.INT64),
        "f32": (0.5, GGUFValueType.FLOAT32),
        "f64": (1e-6, GGUFValueType.FLOAT64),
        "yes": (True, GGUFValueType.BOOL),
        "no": (False, GGUFValueType.BOOL),
        "text": ("Ġ世界", GGUFValueType.STRING),
    }
    arrays: dict[str, list[Any]] = {"strings": ["a", "", "Ċ"], "ints": [1, -2, 3], "flags": [True, False]}
    writer = GGUFWriter(path, "qwen35")
    writer.add_custom_alignment(64)
    for name, (value, kind) in values.items():
        writer.add_key_value(name, value, kind)
    for name, items in arrays.items():
        writer.add_array(name, items)
    writer.add_tensor("plain", matrix)
    writer.add_tensor("experts", matrix.reshape(5, 2, 32).astype(np.float16))
    for quant, raw in packed.items():
        writer.add_tensor(quant.name, raw, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with GGUFFile.open(path) as file:
        expected = {name: value for name, (value, _) in values.items()} | arrays
        assert {name: file.metadata[name] for name in expected} == expected
        assert type(file.metadata["yes"]) is bool
        assert torch.equal(file.tensor("plain").dequantize(), torch.from_numpy(matrix))
        assert file.tensors["experts"].shape == (5, 2, 32)
        assert np.array_equal(file.tensor("experts").dequantize(torch.float16), matrix.reshape(5, 2, 32).astype("e"))
        for quant, raw in packed.items():
            assert file.tensors[quant.name].shape == (5, 64)
            assert np.array_equal(file.tensor(quant.name).dequantize(), quants.dequantize(raw, quant))


DENSE = ["BF16", "IQ3_S", "IQ4_XS", "Q2_K", "Q4_0", "Q4_K_M", "Q5_1", "Q5_K_M", "Q6_K", "Q8_0", "f16"]
MOE = ["IQ4_XS", "MXFP4", "Q4_K_M", "f16"]


@pytest.mark.parametrize("name", [*(f"dense-{kind}" for kind in DENSE), *(f"moe-{kind}" for kind in MOE)])
def test_a_converted_model_as_gguf_py_sees_it(fixtures: Path, name: str) -> None:
    reader = GGUFReader(fixtures / f"{name}.gguf")
    with GGUFFile.open(fixtures / f"{name}.gguf") as file:
        fields = {k: v.contents() for k, v in reader.fields.items() if not k.startswith("GGUF.")}
        assert dict(file.metadata) == fields
        assert list(file.tensors) == [known.name for known in reader.tensors]
        unpacked = set()
        for known in reader.tensors:
            packed = file.tensor(known.name)
            assert packed.type.name == known.tensor_type.name
            assert packed.shape == tuple(reversed(known.shape.tolist()))
            assert np.array_equal(packed.data.flatten(), known.data.view(np.uint8).ravel())
            if (kind := (packed.type.name, len(packed.shape))) not in unpacked:
                unpacked.add(kind)
                assert np.array_equal(packed.dequantize(), quants.dequantize(known.data, known.tensor_type))


def test_the_real_vocabulary_opens_at_once(fixtures: Path) -> None:
    start = time.process_time()
    with GGUFFile.open(fixtures / "vocab-qwen35.gguf") as file:
        assert time.process_time() - start < 0.6
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert (len(tokens), tokens[248044], tokens[248046]) == (248_320, "<|endoftext|>", "<|im_end|>")
        assert len(file.metadata["tokenizer.ggml.merges"]) == 247_556
        assert len(file.metadata["tokenizer.ggml.token_type"]) == 248_320
        assert not file.tensors


# The mapping


def test_tensors_are_views_without_warnings_and_writes_do_not_reach_the_file(path: Path) -> None:
    content = Gguf().content()
    with GGUFFile.open(written(path, content)) as file, warnings.catch_warnings():
        warnings.simplefilter("error")
        first = file.tensor("a").dequantize()
        assert first.data_ptr() == file.tensor("a").data.data_ptr()
        first.zero_()
    assert path.read_bytes() == content


def test_tensors_outlive_the_file(path: Path) -> None:
    file = GGUFFile.open(written(path, Gguf()))
    kept = file.tensor("a")
    file.close()
    file.close()
    assert kept.dequantize().flatten().tolist() == list(range(8))
    with pytest.raises(GGUFError, match=r"model\.gguf is closed\."):
        file.tensor("a")


def test_an_unknown_tensor(path: Path) -> None:
    with GGUFFile.open(written(path, Gguf())) as file, pytest.raises(GGUFError, match="has no tensor “c”"):
        file.tensor("c")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_nothing_stays_open(tmp_path: Path) -> None:
    def in_use() -> str:
        """Every open file and every mapping of this process."""
        files = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return "\n".join(files) + Path("/proc/self/maps").read_text()

    file = GGUFFile.open(written(tmp_path / "good.gguf", Gguf()))
    kept = file.tensor("a")
    file.close()
    assert str(tmp_path) in in_use()
    del kept
    with pytest.raises(GGUFError):
        GGUFFile.open(written(tmp_path / "bad.gguf", Gguf().header()))
    first = part_of(tmp_path, 0, 2)
    with pytest.raises(GGUFError):
        GGUFFile.open(first)
    assert str(tmp_path) not in in_use()


@pytest.mark.parametrize("natively", [True, False])
def test_many_strings_are_found_where_they_lie(path: Path, natively: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a native function, or without one."""
    if natively:
        pytest.importorskip("llvmlite")
    monkeypatch.setattr(gguf_header, "_MANY", 1 if natively else 10**9)
    words = ["", "ä", "x" * 300, *(str(i) for i in range(5000)), ""]
    body = b"".join(string(word) for word in words)
    written(path, Gguf([key("words", ARRAY, array(STRING, len(words), body)), key("after", U32, u32(7))]))
    with GGUFFile.open(path) as gguf:
        assert gguf.metadata["words"] == words
        assert gguf.metadata["words"][2:5] == words[2:5]
        assert gguf.metadata["after"] == 7


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 25])
def test_a_string_among_many_that_is_too_long_is_refused_alike(
    path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llvmlite")
    body = string("a") * 9 + u64(length) + b"b" * 24
    written(path, Gguf([key("words", ARRAY, array(STRING, 10, body))]))
    sentences = []
    for many in (1, 10**9):
        monkeypatch.setattr(gguf_header, "_MANY", many)
        sentences.append(refusal(path))
    assert sentences[0] == sentences[1]
    assert "damaged" in sentences[0]
