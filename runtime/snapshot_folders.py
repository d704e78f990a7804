"""The folders of snapshots: one for each conversation and model, which several processes share.

Standard library only: what is to be forgotten goes without a model, and without what a model needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

MANIFEST, LOCK = "manifest.json", "lock"


def folder_name(conversation: str) -> str:
    """That of its folder, the same for every model."""
    return hashlib.sha256(conversation.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def all_folders(root: Path, name: str = "*") -> list[Path]:
    """Of all models under `root`, or those of them with this name."""
    return [folder for folder in root.glob(f"*/{name}") if folder.is_dir() and not folder.is_symlink()]


def forget(root: Path, conversation: str | None) -> None:
    """Remove what is kept of one conversation, or with None of all, whatever model kept it.

    Raises the first OSError, after all that can be removed is.
    """
    failure = None
    for folder in all_folders(root) if conversation is None else all_folders(root, folder_name(conversation)):
        try:
            remove(folder)
        except OSError as error:
            failure = failure or error
    if failure:
        raise failure


def remove(folder: Path) -> None:
    """Remove a snapshot, unless another process is writing in it. Raises OSError."""
    if not folder.is_dir():
        return
    with locked(folder) as mine:
        if mine:
            (folder / MANIFEST).unlink(missing_ok=True)  # first: what is left of it is nothing
            sweep(folder, ())


def sweep(folder: Path, names: Collection[str]) -> None:
    """Remove all but the files that a manifest names, and without any the folder too. Only under its lock."""
    kept = {*names, MANIFEST, LOCK} if names else set()
    for entry in list(os.scandir(folder)):
        if entry.name not in kept:
            Path(entry.path).unlink(missing_ok=True)
    if not kept:
        with contextlib.suppress(OSError):  # somebody begins a new snapshot in it
            folder.rmdir()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether this process alone may write in the folder (which is made); never waits. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # it has just been removed
        yield False
        return
    try:
        yield _lock(descriptor) and _is_still(path, descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Whoever had the lock before may have removed the folder."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
