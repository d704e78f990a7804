"""The beginning of a GGUF file's metadata, without the rest of the file, its vocabulary or torch.

The format is told in `runtime.gguf_header`, which reads and checks whole headers; this reads what fits in a few hundred
kilobytes: the architecture's keys come before the vocabulary in files of this family.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

ENOUGH = 1 << 18  # bytes that hold the architecture's keys
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_ARRAY = 4096  # entries; a longer one is a vocabulary


class NotGGUFError(ValueError):
    """The bytes are not the beginning of a GGUF file."""


def beginning(data: bytes) -> dict[str, Any]:
    """The keys that lie whole in `data`, up to the vocabulary. Raises NotGGUFError."""
    if data[:4] != b"GGUF" or len(data) < 24 or struct.unpack_from("<I", data, 4)[0] not in (2, 3):
        raise NotGGUFError
    metadata: dict[str, Any] = {}
    at = 24
    try:
        for _ in range(struct.unpack_from("<Q", data, 16)[0]):
            key, at = _string(data, at)
            metadata[key], at = _value(data, at + 4, struct.unpack_from("<I", data, at)[0])
    except (struct.error, _EndError):
        pass
    return metadata


def read(path: Path) -> dict[str, Any]:
    """Raises OSError, NotGGUFError."""
    with path.open("rb") as file:
        return beginning(file.read(ENOUGH))


class _EndError(Exception):
    """What follows is not whole, or not wanted."""


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = at + 8 + struct.unpack_from("<Q", data, at)[0]
    if end > len(data):
        raise _EndError
    return data[at + 8 : end].decode("utf-8", "replace"), end


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind in _SCALARS:
        layout = struct.Struct("<" + _SCALARS[kind])
        return layout.unpack_from(data, at)[0], at + layout.size
    if kind != _ARRAY:
        raise _EndError
    item, count = struct.unpack_from("<IQ", data, at)
    if count > _LONGEST_ARRAY or item == _ARRAY:
        raise _EndError
    at += 12
    values = []
    for _ in range(count):
        value, at = _value(data, at, item)
        values.append(value)
    return values, at
