"""GGUF files: what is read equals what independent programs wrote and read; what is broken is refused in a sentence."""

from __future__ import annotations

import errno
import os
import struct
import time
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.gguf import GGUFError, GGUFFile, printable

U8, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 5, 6, 7, 8, 9, 10
U32 = 4
T_F32, T_Q8_0 = 0, 8


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return u32(kind) + u64(count) + body


def key(name: str | bytes, kind: int, body: bytes) -> bytes:
    return string(name) + u32(kind) + body


def tensor(name: str | bytes, dims: Sequence[int], kind: int = T_F32, offset: int = 0) -> bytes:
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


@dataclass
class Gguf:
    """The parts of a file, each of which a test may spoil. `dims` in the file's order, fastest first."""

    keys: Sequence[bytes] = (key("general.architecture", STRING, string("qwen35")),)
    tensors: Sequence[bytes] = (tensor("a", [4, 2]), tensor("b", [32], T_Q8_0, 32))
    data: bytes = struct.pack("<8f", *range(8)) + struct.pack("<e32b", 0.5, *range(32))
    version: int = 3
    tensor_count: int | None = None
    key_count: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        start = b"GGUF" + u32(self.version) + u64(tensors) + u64(keys)
        return start + b"".join(self.keys) + b"".join(self.tensors)

    def content(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def written(path: Path, content: bytes | Gguf) -> Path:
    path.write_bytes(content.content() if isinstance(content, Gguf) else content)
    return path


def refusal(path: Path) -> str:
    """The sentence with which a file is refused: at once, in flat memory, and harmless to a terminal."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(GGUFError) as caught:
            GGUFFile.open(path)
        assert time.perf_counter() - start < 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert sentence.endswith(".")
    return sentence


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


# Files that are no models


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"GG", "is cut off after a few bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 2740937888\n", "is only a Git LFS pointer"),
        (b"\n<!DOCTYPE html><html><head><title>404</title>", "is a web page"),
        (b"<HTML><body>", "is a web page"),
        (u64(1000) + b'{"__metadata__":{}}', "is a safetensors file"),
        (b"PK\x03\x04" + bytes(100), "is a zip archive"),
        (b"tjgg" + u32(3) + bytes(100), "older format than GGUF"),
        (bytes(1000), "begins with nothing but zeros"),
        (b"hello, world", "is not a GGUF file"),
        (b"\x1b]52;c;aGk=\x07", "is not a GGUF file"),
    ],
    ids=["empty", "two bytes", "git-lfs", "html", "HTML", "safetensors", "zip", "ggjt", "zeros", "text", "escapes"],
)
def test_other_files_are_named_for_what_they_are(path: Path, content: bytes, reason: str) -> None:
    sentence = refusal(written(path, content))
    assert sentence.startswith("model.gguf ")
    assert reason in sentence


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (1, "GGUF version 1, which is too old"),
        (0, "GGUF version 0; versions 2 and 3"),
        (4, "GGUF version 4; versions 2 and 3"),
        (3 << 24, "big-endian"),
    ],
)
def test_other_versions(path: Path, version: int, reason: str) -> None:
    assert reason in refusal(written(path, Gguf(version=version)))


def test_a_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf") == f"There is no file {tmp_path}/none.gguf."


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path.name} is a folder; name a .gguf file in it."


def test_a_pipe_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    assert refusal(path) == "model.gguf is not a file on disk."


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO], ids=["no permission", "bad disk"])
def test_a_file_that_cannot_be_read(path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    written(path, Gguf())
    monkeypatch.setattr(Path, "open", fail)
    assert refusal(path) == f"model.gguf cannot be read: {os.strerror(code).lower()}."


def test_a_path_that_is_none() -> None:
    assert "cannot be read: embedded null byte" in refusal(Path("a\0b.gguf"))
    assert "cannot be read: file name too long" in refusal(Path("x" * 5000))


def test_names_with_escapes_are_shown_harmless(tmp_path: Path) -> None:
    path = written(tmp_path / "\x1b]52;c;aGk=\x07\u202ebad\x9b.gguf", b"hello")
    assert refusal(path) == r"\x1b]52;c;aGk=\x07\u202ebad\x9b.gguf is not a GGUF file."
    name = "blk\x1b[2J\n" * 100
    sentence = refusal(written(path, Gguf(tensors=[tensor(name, [4, 0])])))
    assert r"“blk\x1b[2J\nblk" in sentence
    assert len(sentence) < 400


def test_printable() -> None:
    assert printable("naïve 世界 👩.gguf") == "naïve 世界 👩.gguf"
    assert printable("\x1b\x9b\x7f\0\n\u202e\u200b\udc80") == r"\x1b\x9b\x7f\x00\n\u202e\u200b\udc80"
    assert printable("x" * 100, 10) == "x" * 9 + "…"


# Broken headers


HUGE = [2**63, 2**64 - 1, 2**40]
BROKEN_COUNTS: dict[str, Callable[[int], Gguf]] = {
    "tensors": lambda n: Gguf(tensor_count=n),
    "keys": lambda n: Gguf(key_count=n),
    "key length": lambda n: Gguf([u64(n) + b"general.name"]),
    "string": lambda n: Gguf([key("k", STRING, u64(n) + b"abc")]),
    "array": lambda n: Gguf([key("k", ARRAY, array(U8, n))]),
    "array of strings": lambda n: Gguf([key("k", ARRAY, array(STRING, n))]),
    "array of arrays": lambda n: Gguf([key("k", ARRAY, array(ARRAY, n))]),
    "string in array": lambda n: Gguf([key("k", ARRAY, array(STRING, 2, string("a") + u64(n)))]),
    "tensor name": lambda n: Gguf(tensors=[u64(n) + b"blk.0"]),
    "columns": lambda n: Gguf(tensors=[tensor("t", [n, 1])]),
    "rows": lambda n: Gguf(tensors=[tensor("t", [32, n], T_Q8_0)]),
    "elements": lambda n: Gguf(tensors=[tensor("t", [n, n, n, n])]),
    "offset": lambda n: Gguf(tensors=[tensor("t", [4], T_F32, n & ~31)]),
}


@pytest.mark.parametrize("count", HUGE, ids=["2^63", "2^64-1", "2^40"])
@pytest.mark.parametrize("spec", BROKEN_COUNTS.values(), ids=BROKEN_COUNTS)
def test_counts_beyond_the_file(path: Path, spec: Callable[[int], Gguf], count: int) -> None:
    sentence = refusal(written(path, spec(count)))
    assert "damaged" in sentence
    assert "download it again" in sentence


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (key("k", STRING, u64(1 << 32)), "its header is longer than 64 MiB"),
        (key("k", ARRAY, array(U8, 1 << 32)), "has 4,294,967,296 entries"),
        (key("k", ARRAY, array(STRING, 1 << 27)), "has 134,217,728 entries"),
        (key("k", ARRAY, array(ARRAY, 1 << 27)), "has 134,217,728 entries"),
    ],
    ids=["string", "bytes", "strings", "arrays"],
)
def test_counts_that_a_huge_file_could_hold(path: Path, body: bytes, reason: str) -> None:
    written(path, Gguf([body], tensors=()).header())
    os.truncate(path, 5 << 30)  # sparse: takes no space
    assert reason in refusal(path)


def test_arrays_nested_without_end(path: Path) -> None:
    body = array(ARRAY, 1) * 1000 + array(U8, 0)
    assert "is an array nested too deeply" in refusal(written(path, Gguf([key("k", ARRAY, body)])))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Gguf([key("k", 13, b"")]), "the value of “k” is of the unknown type 13"),
        (Gguf([key("k", ARRAY, array(99, 1))]), "the value of “k” has entries of the unknown type 99"),
        (Gguf([key("k", U8, b"1"), key("k", U8, b"2")]), "it holds the key “k” twice"),
        (Gguf([key("", U8, b"1")]), "a key without a name"),
        (Gguf([key("general.alignment", U32, u32(0))]), "its alignment is 0, which is no power of two"),
        (Gguf([key("general.alignment", U32, u32(48))]), "its alignment is 48, which is no power of two"),
        (Gguf([key("general.alignment", STRING, string("\x1b"))]), r"its alignment is \x1b, which is no"),
        (Gguf([key("general.alignment", BOOL, b"\x01")]), "its alignment is True, which is no power of two"),
        (Gguf(tensors=[tensor("a", [4]), tensor("a", [4], T_F32, 32)]), "it holds the tensor “a” twice"),
        (Gguf(tensors=[tensor("", [4])]), "a tensor without a name"),
        (Gguf(tensors=[tensor("a", [])]), "tensor “a” has 0 dimensions"),
        (Gguf(tensors=[tensor("a", [1] * 5)]), "tensor “a” has 5 dimensions"),
        (Gguf(tensors=[string("a") + u32(2**32 - 1)]), "tensor “a” has 4,294,967,295 dimensions"),
        (Gguf(tensors=[tensor("a", [4, 0])]), "tensor “a” has a dimension of 0"),
        (Gguf(tensors=[tensor("a", [40, 2], T_Q8_0)]), "a row of 40 weights cannot be of type Q8_0"),
        (Gguf(tensors=[tensor("a", [4], T_F32, 16)]), "tensor “a” does not begin at a multiple of 32 bytes"),
        (Gguf(tensors=[tensor("a", [16]), tensor("b", [4], T_F32, 32)]), "tensors “a” and “b” overlap"),
        (Gguf(tensors=[tensor("b", [4], T_F32, 32), tensor("a", [16])]), "tensors “a” and “b” overlap"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_named(path: Path, spec: Gguf, reason: str) -> None:
    assert reason in refusal(written(path, spec))


def test_types_that_cannot_be_read_are_named_before_anything_else(path: Path) -> None:
    # 41 is Q1_0, which gguf-py knows by name but cannot unpack; its tensor claims 2⁶⁰ weights.
    tensors = [tensor("a", [4, 2]), tensor("b", [128, 1 << 53], 41, 32), tensor("c", [1], 99, 64)]
    sentence = refusal(written(path, Gguf(tensors=tensors)))
    assert sentence == "model.gguf holds tensors of the type Q1_0, which cannot be read (2 of 3, such as “b”)."
    sentence = refusal(written(path, Gguf(tensors=tensors[2:])))
    assert sentence == "model.gguf holds tensors of the type number 99, which cannot be read (1 of 1, such as “c”)."


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    content = Gguf().content()
    for length in range(len(content)):
        sentence = refusal(written(path, content[:length]))
        assert "download it again" in sentence


def test_a_cut_file_says_how_much_is_missing(path: Path) -> None:
    content = Gguf().content()
    written(path, content[:-10])
    assert refusal(path) == (
        f"model.gguf is incomplete or damaged: tensor “b” ends at byte {len(content)}, "
        f"but the file has {len(content) - 10}; download it again."
    )


FUZZED = Gguf(
    [
        key("general.architecture", STRING, string("qwen35")),
        key("general.alignment", U32, u32(32)),
        key("list", ARRAY, array(STRING, 3, string("a") + string("Ġb") + string(""))),
        key("nested", ARRAY, array(ARRAY, 2, array(I32, 1, u32(7)) + array(BOOL, 2, b"\0\1"))),
        key("rate", F32, struct.pack("<f", 0.5)),
    ]
).content()


def opens_or_is_refused(path: Path, content: bytes) -> None:
    try:
        file = GGUFFile.open(written(path, content))
    except GGUFError as error:
        assert str(error).isprintable()
        return
    with file:
        for name, info in file.tensors.items():
            assert file.tensor(name).dequantize().shape == info.shape


@pytest.fixture(scope="module")
def fuzzed_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed") / "model.gguf"


POSITIONS = st.integers(0, len(FUZZED) - 1)


@settings(max_examples=400, deadline=1000)
@given(changes=st.lists(st.tuples(POSITIONS, st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_open_or_are_refused(fuzzed_path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(FUZZED)
    for position, value in changes:
        content[position] = value
    opens_or_is_refused(fuzzed_path, bytes(content))


@settings(max_examples=400, deadline=1000)
@given(
    position=POSITIONS,
    value=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]),
    width=st.sampled_from([4, 8]),
)
def test_extreme_numbers_open_or_are_refused(fuzzed_path: Path, position: int, value: int, width: int) -> None:
    content = bytearray(FUZZED)
    content[position : position + width] = value.to_bytes(8, "little")[:width]
    opens_or_is_refused(fuzzed_path, bytes(content))


@settings(max_examples=200, deadline=1000)
@given(rest=st.binary(max_size=400))
def test_random_bytes_after_the_magic_open_or_are_refused(fuzzed_path: Path, rest: bytes) -> None:
    opens_or_is_refused(fuzzed_path, b"GGUF" + u32(3) + rest)


# Split models


def part_of(folder: Path, number: int, count: int, /, **changes: Any) -> Path:
    """Part `number` (from 0) of a model with one tensor of four weights, all equal to the number, in each part."""
    spec: dict[str, Any] = {"no": number, "count": count, "total": count, "name": f"t{number}"} | changes
    keys = [key("split.no", 2, struct.pack("<H", spec["no"])), key("split.count", 2, struct.pack("<H", spec["count"]))]
    keys.append(key("split.tensors.count", I32, u32(spec["total"])))
    if number == 0:
        keys.append(key("general.architecture", STRING, string("qwen35")))
    content = Gguf(keys, [tensor(spec["name"], [4])], struct.pack("<4f", *[number] * 4))
    return written(folder / f"model-{number + 1:05}-of-{count:05}.gguf", content)


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
