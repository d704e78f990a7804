"""GGUF files put together byte by byte, any part of which a test may spoil."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.gguf import GGUFError, GGUFFile

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


def part_of(folder: Path, number: int, count: int, /, **changes: Any) -> Path:
    """Part `number` (from 0) of a model with one tensor of four weights, all equal to the number, in each part."""
    spec: dict[str, Any] = {"no": number, "count": count, "total": count, "name": f"t{number}"} | changes
    keys = [key("split.no", 2, struct.pack("<H", spec["no"])), key("split.count", 2, struct.pack("<H", spec["count"]))]
    keys.append(key("split.tensors.count", I32, u32(spec["total"])))
    if number == 0:
        keys.append(key("general.architecture", STRING, string("qwen35")))
    content = Gguf(keys, [tensor(spec["name"], [4])], struct.pack("<4f", *[number] * 4))
    return written(folder / f"model-{number + 1:05}-of-{count:05}.gguf", content)
