"""The Hugging Face cache on disk: where a file of a repository lies, and how one is added or taken away.

models--OWNER--NAME/blobs/ETAG                    the bytes; for large files ETAG is their sha256
models--OWNER--NAME/snapshots/COMMIT/FILE         a relative link to them
models--OWNER--NAME/refs/main                     the commit
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class Cached:
    """A file of a repository as one snapshot has it."""

    repo: str
    commit: str
    file: str
    path: Path

    @property
    def etag(self) -> str:
        """The name of the blob, which is the sha256 of a large file."""
        return self.path.resolve().name if self.path.is_symlink() else ""


def root() -> Path:
    return Path(constants.HF_HUB_CACHE)


def folder(repo: str) -> Path:
    return root() / (_PREFIX + repo.replace("/", "--"))


def blob(repo: str, etag: str) -> Path:
    return folder(repo) / "blobs" / etag


def repos() -> list[str]:
    return [path.name.removeprefix(_PREFIX).replace("--", "/", 1) for path in matching(root(), f"{_PREFIX}*--*")]


def files(repo: str) -> Iterator[Cached]:
    """Every GGUF file that is there and may be read, those of the newest snapshot first."""
    try:
        newest = (folder(repo) / "refs" / "main").read_text().strip()
    except OSError:
        newest = ""
    snapshots = matching(folder(repo) / "snapshots", "*")
    for snapshot in sorted(snapshots, key=lambda path: (path.name == newest, _age(path)), reverse=True):
        for path in matching(snapshot, "**/*.gguf"):
            if os.path.isfile(path):  # noqa: PTH113 (raises nothing); not a link into nothing
                yield Cached(repo, snapshot.name, path.relative_to(snapshot).as_posix(), path)


def matching(folder: Path, pattern: str) -> list[Path]:
    """What lies below a folder, in order; nothing if it may not be entered, at which `Path.glob` raises."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def arrived(repo: str, commit: str, file: str, etag: str, size: int) -> bool:
    """Whether all bytes of a file are there: as a blob, or in the snapshot, where a file system has no links."""
    pointer = _pointer(repo, commit, file)
    return blob(repo, etag).exists() or (
        pointer.is_file() and not pointer.is_symlink() and pointer.stat().st_size == size
    )


def _pointer(repo: str, commit: str, file: str) -> Path:
    return folder(repo) / "snapshots" / commit / file


def add(repo: str, commit: str, file: str, etag: str) -> Path:
    """Show a blob as the file of a snapshot, and that snapshot as the newest. Raises OSError."""
    pointer, bytes_ = _pointer(repo, commit, file), blob(repo, etag)
    pointer.parent.mkdir(parents=True, exist_ok=True)
    if bytes_.exists() or not pointer.exists():
        _show(bytes_, pointer)
    ref = folder(repo) / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    temporary = ref.with_name(f"main.{uuid.uuid4().hex[:8]}.tmp")
    temporary.write_text(commit)
    temporary.replace(ref)
    return pointer


def _show(bytes_: Path, pointer: Path) -> None:
    temporary = pointer.with_name(f"{pointer.name}.{uuid.uuid4().hex[:8]}")
    try:
        temporary.symlink_to(os.path.relpath(bytes_, pointer.parent))
        temporary.replace(pointer)
    except OSError:
        temporary.unlink(missing_ok=True)
        if shown(bytes_.parent.parent, bytes_):
            raise  # there are links here, but no room for one more
        bytes_.replace(pointer)  # a file system without links: a copy would take the room twice


def shown(home: Path, bytes_: Path) -> bool:
    """Whether a snapshot of a repository's folder has a link to these bytes."""
    return any(path.is_symlink() and _leads(path, bytes_) for path in (home / "snapshots").rglob("*"))


def remove(path: Path) -> int:
    """Delete a file of a snapshot, and its bytes if no other snapshot shows them. Returns the bytes freed.

    Raises OSError, and ValueError for what does not lie in the cache.
    """
    place = path.absolute().relative_to(root().absolute())
    home = root() / place.parts[0]
    if len(place.parts) < 4 or place.parts[1] != "snapshots":
        raise ValueError(f"{path} is no file of a snapshot")
    linked = path.is_symlink()
    bytes_ = Path(os.path.normpath(path.parent / path.readlink())) if linked else path
    freed = 0 if bytes_.is_symlink() or not bytes_.exists() else bytes_.stat().st_size
    path.unlink()
    if linked:
        if shown(home, bytes_):
            freed = 0
        else:
            bytes_.unlink(missing_ok=True)
    tidy(home)
    return freed


def _leads(pointer: Path, to: Path) -> bool:
    return os.path.normpath(pointer.parent / pointer.readlink()) == os.path.normpath(to)


def tidy(home: Path) -> None:
    """Remove what is empty of a repository's folder, and the folder itself if nothing is left to see in it."""
    for top, _, _ in os.walk(home, topdown=False):
        path = Path(top)
        if path not in (home, home / "refs") and not any(path.iterdir()):
            path.rmdir()
    if not (home / "snapshots").exists() and not (home / "blobs").exists():
        shutil.rmtree(home, ignore_errors=True)
