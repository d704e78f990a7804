"""The header of a GGUF file: its metadata and its table of tensors.

    magic "GGUF", version: u32, tensors: u64, keys: u64
    keys ×    name: string, type: u32, value
    tensors × name: string, dimensions: u32, that many u64 (fastest first), type: u32, offset: u64
    padding to `general.alignment`, then the data, where the offsets count from

A string is its length, u64, and UTF-8 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). A file comes from a
stranger: no count is believed before the file is seen to hold it.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import mmap
import struct
from array import array
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from kernels.quants import QuantError, QuantType, by_ggml_id
from runtime.errors import printable as printable
from runtime.machine import native_functions

# Vocabularies of 250,000 tokens make headers of 11 MB; anything far beyond is no model.
_LONGEST_HEADER = 1 << 26  # bytes
_LONGEST_ARRAY = 1 << 22  # entries
_DEEPEST_ARRAY = 4
_MANY = 1 << 12  # strings that are worth a native function
_MOST_DIMENSIONS = 4

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SMALLEST = {_STRING: 8, _ARRAY: 12} | {kind: struct.calcsize(f"<{code}") for kind, code in _SCALARS.items()}
_SMALLEST_KEY, _SMALLEST_TENSOR = 13, 32  # bytes of an entry with an empty name

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class HeaderError(ValueError):
    """What is wrong, as the end of a sentence that begins with the file's name and has no full stop yet."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` in torch's order (columns last); `offset` in bytes from the start of the file that holds the tensor."""

    name: str
    shape: tuple[int, ...]
    type: QuantType
    nbytes: int
    offset: int


@dataclass(frozen=True)
class Header:
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(data: mmap.mmap) -> Header:
    """Raises HeaderError. Takes time and memory in proportion to the header, not to what it claims."""
    _check_magic(data)
    cursor = _Cursor(data)
    cursor.at = 4
    _check_version(cursor.number(_U32))
    tensor_count, key_count = cursor.number(_U64), cursor.number(_U64)
    cursor.claim(key_count, _SMALLEST_KEY, "keys")
    cursor.claim(tensor_count, _SMALLEST_TENSOR, "tensors")
    metadata = _read_metadata(cursor, key_count)
    entries = [_read_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment.bit_count() != 1:
        raise HeaderError(f"is damaged: its alignment is {printable(str(alignment))}, which is no power of two")
    start = -(-cursor.at // alignment) * alignment
    return Header(metadata, _place(entries, start, alignment, len(data)))


def _check_magic(data: mmap.mmap) -> None:
    start = data[:512]
    if start[:4] == b"GGUF":
        return
    if b"GGUF".startswith(start):
        raise HeaderError("is cut off after a few bytes; download it again")
    if start.startswith(b"version https://git-lfs"):
        raise HeaderError("is only a Git LFS pointer to the model, not the model itself; fetch it with `git lfs pull`")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise HeaderError("is a web page that was saved in place of the model; download the file itself")
    if start[8:10] == b'{"':
        raise HeaderError("is a safetensors file; a GGUF file is needed")
    if start.startswith(b"PK"):
        raise HeaderError("is a zip archive or PyTorch checkpoint; a GGUF file is needed")
    if start[:4] in (b"lmgg", b"fmgg", b"tjgg"):
        raise HeaderError("is of an older format than GGUF, which nothing writes any more; download a newer file")
    if not any(start):
        raise HeaderError("begins with nothing but zeros: its download never finished; download it again")
    raise HeaderError("is not a GGUF file")


def _check_version(version: int) -> None:
    if version in (2, 3):
        return
    if version == 1:
        raise HeaderError("is of GGUF version 1, which is too old; download a newer file")
    if version and version & 0xFFFF == 0:
        raise HeaderError("is a big-endian GGUF file; a little-endian one is needed")
    raise HeaderError(f"is of GGUF version {version}; versions 2 and 3 can be read")


class Strings(Sequence[str]):
    """Strings where the file has them, read when they are asked for: as Python's own, a vocabulary and its merges take
    50 MB, and 13 as bytes. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, data: mmap.mmap, starts: array[int]) -> None:
        """In `data` there is of each its length, u64, and its bytes. `starts` is where these begin, and one more after
        the end.
        """
        self._data, self._starts = data, starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return str(self._data[self._starts[at] : self._starts[at + 1] - 8], "utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        data = self._data
        return (str(data[start : end - 8], "utf-8", "replace") for start, end in itertools.pairwise(self._starts))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | Strings) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class _Cursor:
    """Reads on from `at`; every read raises HeaderError unless the file holds it."""

    def __init__(self, data: mmap.mmap) -> None:
        self.at = 0
        self._data = data
        self._size = len(data)
        self._end = min(self._size, _LONGEST_HEADER)

    def number(self, layout: struct.Struct) -> int:
        self._need(layout.size)
        value: int = layout.unpack_from(self._data, self.at)[0]
        self.at += layout.size
        return value

    def numbers(self, code: str, count: int) -> list[Any]:
        layout = struct.Struct(f"<{count}{code}")
        self._need(layout.size)
        values = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return list(values)

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> Strings:
        # A vocabulary and its merges are half a million strings: in Python this is the time of opening a file.
        if count >= _MANY and (found := _found_natively(self._data, self.at, self._end, count)):
            self.at = found[-1] - 8
            return Strings(self._data, found)
        data, at, end, length = self._data, self.at, self._end, _U64.unpack_from
        starts = array("I")
        for _ in range(count):
            self.at = at
            start = at + 8
            if start > end:
                self._need(8)
            at = start + length(data, at)[0]
            if at > end:
                self._need(at - self.at)
            starts.append(start)
        self.at = at
        starts.append(at + 8)
        return Strings(data, starts)

    def claim(self, count: int, smallest: int, what: str) -> None:
        """Check that `count` things of at least `smallest` bytes may follow."""
        if count * smallest > self._size - self.at:
            raise HeaderError(f"is cut off or damaged: it claims to hold {count:,} {what}; download it again")

    def _need(self, nbytes: int) -> None:
        if self.at + nbytes > self._size:
            raise HeaderError(
                f"is cut off or damaged: its header should go on to byte {self.at + nbytes:,}, "
                f"but the file has {self._size:,}; download it again"
            )
        if self.at + nbytes > self._end:
            raise HeaderError(f"is damaged: its header is longer than {_LONGEST_HEADER >> 20} MiB")


@functools.cache
def _native_finder() -> tuple[Callable[..., int], object] | None:
    """The function `find_strings`, and what holds its code; made once, as a file has more than one such array."""
    try:
        from kernels.cpu import isa
        from kernels.cpu.jit import Compiler
        from kernels.cpu.strings import find_strings
    except ImportError:
        return None
    compiler = Compiler(isa.host(), native_functions())
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(compiler.address(find_strings)), compiler


def _found_natively(data: mmap.mmap, at: int, end: int, count: int) -> array[int] | None:
    """What `Strings` takes; None where they do not lie before `end`, or where no native functions can be made."""
    if (made := _native_finder()) is None:
        return None
    import numpy as np

    find, starts = made[0], array("I", bytes(4 * count))
    last: int = find(np.frombuffer(data, np.uint8).ctypes.data, at, end, count, starts.buffer_info()[0])
    if last > end:
        return None
    starts.append(last + 8)
    return starts


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        _check_new("key", key, metadata)
        kind = cursor.number(_U32)
        try:
            metadata[key] = _read_value(cursor, kind)
        except _UnreadableValueError as error:
            raise HeaderError(f"is damaged: the value of “{printable(key)}” {error}") from None
    return metadata


def _check_new(what: str, name: str, known: Container[str]) -> None:
    if not name:
        raise HeaderError(f"is damaged: it holds a {what} without a name")
    if name in known:
        raise HeaderError(f"is damaged: it holds the {what} “{printable(name)}” twice")


class _UnreadableValueError(ValueError):
    """What is wrong with a value, to follow its key."""


def _read_value(cursor: _Cursor, kind: int, depth: int = 0) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind in _SCALARS:
        return cursor.numbers(_SCALARS[kind], 1)[0]
    if kind != _ARRAY:
        raise _UnreadableValueError(f"is of the unknown type {kind}")
    item, count = cursor.number(_U32), cursor.number(_U64)
    if item not in _SMALLEST:
        raise _UnreadableValueError(f"has entries of the unknown type {item}")
    cursor.claim(count, _SMALLEST[item], "array entries")
    if count > _LONGEST_ARRAY:
        raise _UnreadableValueError(f"has {count:,} entries, more than any model needs")
    if depth == _DEEPEST_ARRAY:
        raise _UnreadableValueError("is an array nested too deeply")
    if item == _STRING:
        return cursor.strings(count)
    if item == _ARRAY:
        return [_read_value(cursor, _ARRAY, depth + 1) for _ in range(count)]
    return cursor.numbers(_SCALARS[item], count)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the tensor table as the file has it, but for the order of the dimensions."""

    name: str
    shape: tuple[int, ...]
    ggml_id: int
    offset: int


def _read_entry(cursor: _Cursor) -> _Entry:
    name = cursor.string()
    dimensions = cursor.number(_U32)
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise HeaderError(f"is damaged: tensor “{printable(name)}” has {dimensions:,} dimensions")
    shape = tuple(reversed(cursor.numbers("Q", dimensions)))
    return _Entry(name, shape, cursor.number(_U32), cursor.number(_U64))


def _place(entries: list[_Entry], start: int, alignment: int, size: int) -> dict[str, TensorInfo]:
    """The tensors of a file of `size` bytes whose data begins at `start`, checked to lie in it side by side."""
    if unreadable := [entry for entry in entries if by_ggml_id(entry.ggml_id) is None]:
        raise HeaderError(
            f"holds tensors of the type {_type_name(unreadable[0].ggml_id)}, which cannot be read "
            f"({len(unreadable):,} of {len(entries):,}, such as “{printable(unreadable[0].name)}”)"
        )
    tensors: dict[str, TensorInfo] = {}
    for entry in entries:
        _check_new("tensor", entry.name, tensors)
        info, shown = _measure(entry, start), printable(entry.name)
        if entry.offset % alignment:
            raise HeaderError(f"is damaged: tensor “{shown}” does not begin at a multiple of {alignment} bytes")
        if info.offset + info.nbytes > size:
            raise HeaderError(
                f"is incomplete or damaged: tensor “{shown}” ends at byte {info.offset + info.nbytes:,}, "
                f"but the file has {size:,}; download it again"
            )
        tensors[entry.name] = info
    for a, b in itertools.pairwise(sorted(tensors.values(), key=lambda info: info.offset)):
        if a.offset + a.nbytes > b.offset:
            raise HeaderError(f"is damaged: tensors “{printable(a.name)}” and “{printable(b.name)}” overlap")
    return tensors


def _measure(entry: _Entry, start: int) -> TensorInfo:
    quant = by_ggml_id(entry.ggml_id)
    assert quant is not None
    if 0 in entry.shape:
        raise HeaderError(f"is damaged: tensor “{printable(entry.name)}” has a dimension of 0")
    try:
        nbytes = math.prod(entry.shape[:-1]) * quant.row_bytes(entry.shape[-1])
    except QuantError as error:
        raise HeaderError(f"is damaged: in tensor “{printable(entry.name)}” {error}") from None
    return TensorInfo(entry.name, entry.shape, quant, nbytes, start + entry.offset)


def _type_name(ggml_id: int) -> str:
    from gguf import GGMLQuantizationType

    try:
        return GGMLQuantizationType(ggml_id).name
    except ValueError:
        return f"number {ggml_id}"
