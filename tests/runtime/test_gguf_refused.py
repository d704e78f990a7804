"""GGUF files: what is broken, or is none, is refused in a sentence, at once and in flat memory."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    T_F32,
    T_Q8_0,
    U8,
    U32,
    Gguf,
    array,
    key,
    refusal,
    string,
    tensor,
    u32,
    u64,
    written,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.gguf import GGUFError, GGUFFile, printable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


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
