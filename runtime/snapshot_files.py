"""The files of one snapshot: tensors that name their own content, and the manifest that makes them one.

A folder holds one conversation's snapshot. Its tensor files are never changed: a name ends in the hash of the
content. `manifest.json` names those that belong together, and replacing it by a rename is the moment at which a new
snapshot takes the place of the old; what it does not name is swept away afterwards.

Nothing is synced: a process that is killed loses no file it has written, and what a power failure tears does not
match its hash.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from runtime.errors import Interrupted
from runtime.snapshot_folders import MANIFEST

VERSION = 2
_READABLE = (1, VERSION)  # the first had exact places only
_NAME = re.compile(r"(?:ids|kv|mtp|place|place16)-([0-9a-f]{32})\.safetensors")
_CHUNK = 8 << 20  # bytes written between two looks at whether to go on
_LARGEST_MANIFEST = 16 << 20  # bytes
_DTYPES = {torch.float32: "F32", torch.int32: "I32", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16"}


class DamagedError(Exception):
    """A snapshot that is not as it was written."""


class NewerError(Exception):
    """A snapshot written by a later version of the program."""


@dataclass(frozen=True)
class Manifest:
    """What a snapshot consists of; file names are those of `write_tensors`.

    `kv`, `mtp`: the blocks in order, the last one perhaps not full (`mtp` None: the model has no MTP block).
    `places`: length in tokens → recurrent state there; the greatest length is that of the whole sequence, the end.
    """

    conversation: str
    tokens: int
    ids: str
    kv: tuple[str, ...]
    mtp: tuple[str, ...] | None
    places: dict[int, str]

    @property
    def names(self) -> set[str]:
        return {self.ids, *self.kv, *(self.mtp or ()), *self.places.values()}

    def write(self, folder: Path) -> None:
        body = {"version": VERSION, **asdict(self), "places": list(self.places.items())}
        body["hash"] = _text_hash(body)
        temporary = folder / f"{MANIFEST}.new"
        temporary.write_text(json.dumps(body))
        temporary.replace(folder / MANIFEST)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises DamagedError, NewerError, and OSError."""
        path = folder / MANIFEST
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise DamagedError(f"{path} is too large")
        try:
            body = json.loads(path.read_bytes())
            version, expected = body["version"], body.pop("hash", None)
            if type(version) is int and version > VERSION:
                raise NewerError(f"{path} is of version {version}")
            if version not in _READABLE or expected != _text_hash(body):
                raise DamagedError(f"{path} does not match its hash")
            del body["version"]
            found = cls(**{**body, **_typed(body)})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path} cannot be read") from error
        if not found.places or max(found.places) != found.tokens or not all(map(_NAME.fullmatch, found.names)):
            raise DamagedError(f"{path} names impossible files")
        return found


def is_newer(folder: Path) -> bool:
    """Whether a later version of the program wrote what is there."""
    try:
        Manifest.read(folder)
    except NewerError:
        return True
    except (DamagedError, FileNotFoundError):
        pass
    return False


def _typed(body: Mapping[str, Any]) -> dict[str, Any]:
    mtp = body["mtp"]
    return {
        "kv": tuple(body["kv"]),
        "mtp": None if mtp is None else tuple(mtp),
        "places": {int(length): str(name) for length, name in body["places"]},
    }


def _text_hash(body: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Hash of names, types, shapes and values; 32 hex digits."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().flatten()
    return memoryview(flat.view(torch.uint8).numpy().data)


@dataclass(frozen=True)
class Target:
    """Where the files of one snapshot go. `elsewhere`: by name, files of other snapshots on the same disk."""

    folder: Path
    cancelled: Callable[[], bool]
    elsewhere: Callable[[str], Path | None] = lambda name: None


def write_tensors(to: Target, kind: str, tensors: Mapping[str, Tensor], digest: str | None = None) -> str:
    """Store tensors under a name made of `kind` and their hash, unless they are there, and return it.

    What another snapshot holds too becomes a link to its file. Raises Interrupted, and OSError.
    """
    name = f"{kind}-{digest or digest_of(tensors)}.safetensors"
    path, size = to.folder / name, sum(tensor.nbytes for tensor in tensors.values())
    if _is_there(path, size) or _linked(path, to.elsewhere(name), size):
        return name
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("wb", buffering=0) as file:
            _write_all(file.write, _header(tensors), to.cancelled)
            for tensor in tensors.values():
                _write_all(file.write, _bytes(tensor), to.cancelled)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return name


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size > size  # a power failure leaves empty files
    except FileNotFoundError:
        return False


def _linked(path: Path, other: Path | None, size: int) -> bool:
    """Whether `path` is now another name of the other's file; not every disk can do that, and it may just have gone."""
    if other is None or not _is_there(other, size):
        return False
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.hardlink_to(other)
        return True
    return False


def _header(tensors: Mapping[str, Tensor]) -> memoryview:
    """A safetensors header: its length in 8 bytes, then JSON, padded so that the data begins at a multiple of 64."""
    entries, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return memoryview(len(text).to_bytes(8, "little") + text)


def _write_all(write: Callable[[memoryview], int | None], data: memoryview, cancelled: Callable[[], bool]) -> None:
    while data:
        if cancelled():
            raise Interrupted
        data = data[write(data[:_CHUNK]) or 0 :]


def read_tensors(folder: Path, name: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, mapped and checked; `expected` has their names, shapes and types (meta tensors do).

    Raises DamagedError, and OSError: FileNotFoundError if another process has swept the file away.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise DamagedError(f"{name!r} is no name of a file")
    with (folder / name).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = bytes(_header(expected))  # there is one way to write them
        if size != len(header) + sum(tensor.nbytes for tensor in expected.values()) or file.read(len(header)) != header:
            raise DamagedError(f"{name} holds other tensors")
    data = _mapped(folder / name, size)
    # Hashing maps the pages, without Python's lock: to have them all mapped first, with it, took longer.
    tensors, at = {}, len(header)
    for key, wanted in expected.items():
        tensors[key] = torch.frombuffer(data, dtype=wanted.dtype, count=wanted.numel(), offset=at).view(wanted.shape)
        at += wanted.nbytes
    if digest_of(tensors) != match[1]:
        raise DamagedError(f"{name} does not match its hash")
    return tensors


def _mapped(path: Path, size: int) -> memoryview:
    """A file's bytes; what is written to them stays in this process. Raises OSError."""
    # Python's own mmap holds a descriptor as long as it is mapped: one for each block of a conversation.
    try:
        return memoryview(torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy().data)
    except RuntimeError as error:
        path.stat()  # FileNotFoundError, if that is the reason
        raise OSError(str(error)) from error
