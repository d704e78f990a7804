"""GGUF files: metadata and packed tensors over a memory mapping."""

from __future__ import annotations

import contextlib
import mmap
import re
import stat
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO

import torch

from kernels.quants import QuantTensor
from runtime.errors import UserError, printable
from runtime.gguf_header import Header, HeaderError, TensorInfo, read_header

__all__ = ["GGUFError", "GGUFFile", "TensorInfo", "printable"]

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GGUFError(UserError):
    """A file that cannot be opened or read."""

    kind = "load"


@dataclass(frozen=True)
class _Part:
    """One file of a model, which is most often the only one."""

    path: Path
    data: mmap.mmap
    header: Header

    @property
    def shown(self) -> str:
        return _shown(self.path)

    def split(self, key: str, default: int | None = None) -> int:
        """A number of the metadata `split.*`, by which the parts of a model know each other."""
        value = self.header.metadata.get(f"split.{key}", default)
        if type(value) is not int or value < 0:
            raise GGUFError(f"{self.shown} is damaged: its split.{key} is {printable(str(value))}.")
        return value


class GGUFFile:
    """An open model file, or all parts of a split one; a context manager.

    `path` is the first part's, `paths` are all; `metadata` has Python values, arrays as lists, of strings as `Strings`,
    all as the file has them: show none of them unsanitised. Tensors stay valid after `close`.
    """

    def __init__(self, parts: tuple[_Part, ...]) -> None:
        self._parts: Mapping[str, _Part] = {name: part for part in parts for name in part.header.tensors}
        self._open = parts
        self._mapped = [(weakref.ref(part.data), _begin(part.header)) for part in parts]
        self.paths = tuple(part.path for part in parts)
        self.path = self.paths[0]
        self.file_bytes = sum(len(part.data) for part in parts)
        self.metadata: Mapping[str, Any] = MappingProxyType(parts[0].header.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: info for part in parts for name, info in part.header.tensors.items()}
        )

    @classmethod
    def open(cls, path: Path | str) -> GGUFFile:
        """Open a file, and if it is a part of a split model all other parts too. Raises GGUFError.

        Nothing but the headers is read.
        """
        with contextlib.ExitStack() as opened:
            part = _open_part(Path(path), opened, f"There is no file {printable(str(path), 300)}.")
            parts = (part,) if part.split("count", 1) <= 1 else _all_parts(part, opened)
            opened.pop_all()
        return cls(parts)

    def tensor(self, name: str) -> QuantTensor:
        """The tensor, its data a view of the mapped file. Raises GGUFError if there is none or the file is closed."""
        if not self._open:
            raise GGUFError(f"{_shown(self.path)} is closed.")
        if name not in self.tensors:
            raise GGUFError(f"{_shown(self.path)} has no tensor “{printable(name)}”.")
        info = self.tensors[name]
        data = torch.frombuffer(self._parts[name].data, dtype=torch.uint8, count=info.nbytes, offset=info.offset)
        return QuantTensor(data.view(*info.shape[:-1], -1), info.type, info.shape)

    def let_go(self, name: str) -> None:
        """A tensor's pages need not stay in memory; what is read again comes from the file again."""
        info = self.tensors[name]
        _let_go(self._parts[name].data, info.offset, info.offset + info.nbytes)

    def let_go_headers(self) -> None:
        """The same of what lies before the tensors, of which the vocabulary is the most; when closed too, since
        metadata and tensors keep the mapping.
        """
        for mapped, end in self._mapped:
            if (data := mapped()) is not None:
                _let_go(data, 0, end)

    def close(self) -> None:
        # A tensor keeps the mapping object alive, but not open: closing it would pull the memory from under the tensor.
        self._open, self._parts = (), {}

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _shown(path: Path) -> str:
    return printable(path.name or str(path))


def _open_part(path: Path, opened: contextlib.ExitStack, missing: str) -> _Part:
    """Map one file and read its header; `opened` closes it. Raises GGUFError, `missing` if there is no such file."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise GGUFError(f"{_shown(path)} is a folder; name a .gguf file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise GGUFError(f"{_shown(path)} is not a file on disk.")
        if status.st_size == 0:
            raise GGUFError(f"{_shown(path)} is empty; download it again.")
        with path.open("rb") as file:
            data = _map(file)
    except FileNotFoundError:
        raise GGUFError(missing) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or a file that has just become empty
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GGUFError(f"{_shown(path)} cannot be read: {printable(reason or 'unknown error').lower()}.") from error
    opened.callback(data.close)
    try:
        header = read_header(data)
    except HeaderError as error:
        raise GGUFError(f"{_shown(path)} {error}.") from None
    _let_go(data, 0, _begin(header))
    return _Part(path, data, header)


def _begin(header: Header) -> int:
    """Of the tensors."""
    return min((info.offset for info in header.tensors.values()), default=0)


def _let_go(data: mmap.mmap, start: int, end: int) -> None:
    """Whole pages between two bytes need not stay in memory; what is read again comes from the file again."""
    first, last = -(-start // mmap.PAGESIZE), end // mmap.PAGESIZE
    if first < last and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


def _map(file: BinaryIO) -> mmap.mmap:
    """A private mapping: torch wants memory that it may write to, and writes must not reach the file."""
    if sys.platform != "linux":
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    # Without MAP_NORESERVE Linux refuses a private mapping larger than memory and swap. Python has no name for it yet.
    noreserve = 0x4000
    return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | noreserve, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _all_parts(part: _Part, opened: contextlib.ExitStack) -> tuple[_Part, ...]:
    """Every part of the split model that `part` belongs to, in order."""
    count, number = part.split("count"), part.split("no") + 1
    name = _PART_NAME.fullmatch(part.path.name)
    if name is None or (int(name["number"]), int(name["count"])) != (number, count):
        raise GGUFError(
            f"{part.shown} is part {number} of {count} of a model, but is not named "
            f"…-{number:05}-of-{count:05}.gguf, so the other parts cannot be found; give it its name back."
        )
    parts = []
    for i in range(1, count + 1):
        path = part.path.with_name(f"{name['stem']}-{i:05}-of-{count:05}.gguf")
        missing = f"{part.shown} needs all its {count} parts in one folder, but {_shown(path)} is missing."
        parts.append(part if i == number else _open_part(path, opened, missing))
    _check_parts(parts)
    return tuple(parts)


def _check_parts(parts: list[_Part]) -> None:
    names: set[str] = set()
    for i, part in enumerate(parts):
        if (part.split("no", 0), part.split("count", 1)) != (i, len(parts)):
            raise GGUFError(
                f"{part.shown} is not what its name says: inside it is part {part.split('no', 0) + 1} "
                f"of {part.split('count', 1)}."
            )
        if twice := names & part.header.tensors.keys():
            raise GGUFError(f"{part.shown} holds tensor “{printable(min(twice))}”, which another part holds too.")
        names |= part.header.tensors.keys()
    if (total := parts[0].split("tensors.count", len(names))) != len(names):
        raise GGUFError(
            f"{parts[0].shown} and its other parts hold {len(names)} tensors in place of {total}: "
            "they do not belong together."
        )
