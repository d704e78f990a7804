"""The bytes that states may take on disk: which places and which snapshots go when there are too many."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from runtime.snapshot_files import DamagedError, Manifest, NewerError
from runtime.snapshot_folders import LOCK, MANIFEST, all_folders, forget, locked, remove, sweep
from runtime.thinning import FLOORS, thinned


class DiskBudget:
    """One budget for the snapshots of all models under `root`, which several processes share."""

    def __init__(self, root: Path, limit: int, on_failure: Callable[[str, OSError], None]) -> None:
        """`limit` in bytes; `on_failure`: told what could not be done, as a verb, and why."""
        self._root = root
        self.limit = limit
        self._on_failure = on_failure

    @property
    def nbytes(self) -> int:
        return sum(folder_bytes(folder) for folder in all_folders(self._root))

    def places(self, needed: int, place: int) -> int:
        """How many places, of `place` bytes each, a conversation may keep that takes `needed` without any.

        As many as fit in half of the budget, so that what is in use does not drive out everything else, and a few more
        if it is that large itself.
        """
        half, few = (max(limit - needed, 0) // place for limit in (self.limit // 2, self.limit))
        return max(half, min(few, FLOORS[-1]))

    def make_room(self, newest: Path) -> None:
        """Thin out the places of the other snapshots, the one used longest ago first, then let whole ones go."""
        others = sorted((folder for folder in all_folders(self._root) if folder != newest), key=last_used)
        sizes = {folder: folder_bytes(folder) for folder in (*others, newest)}
        steps: list[Callable[[Path, int], None]] = [partial(_thin, floor=floor) for floor in FLOORS]
        steps.append(lambda folder, excess: self.remove(folder))
        for step in steps:
            for folder in others:
                excess = sum(sizes.values()) - self.limit
                if excess <= 0:  # files of one that went may now be another's alone
                    sizes = {folder: folder_bytes(folder) for folder in sizes}
                    excess = sum(sizes.values()) - self.limit
                if excess <= 0:
                    return
                try:
                    step(folder, excess)
                except OSError as error:
                    self._on_failure("remove", error)
                sizes[folder] = folder_bytes(folder)

    def remove(self, folder: Path) -> None:
        """Unless another process is writing in it."""
        try:
            remove(folder)
        except OSError as error:
            self._on_failure("remove", error)

    def drop(self, conversation: str | None) -> None:
        """What is kept of one conversation, or with None of all, whatever model kept it."""
        try:
            forget(self._root, conversation)
        except OSError as error:
            self._on_failure("remove", error)


def folder_bytes(folder: Path) -> int:
    """Of its files; of one that several snapshots share, its part."""
    try:
        found = [entry.stat(follow_symlinks=False) for entry in os.scandir(folder)]
    except FileNotFoundError:  # removed meanwhile
        return 0
    return sum(-(-status.st_size // max(status.st_nlink, 1)) for status in found)


def _thin(folder: Path, excess: int, floor: int) -> None:
    """Remove the least useful places until `excess` bytes are free or `floor` are left besides the end."""
    if not (folder / MANIFEST).exists():
        return
    with locked(folder) as mine:
        if not mine:
            return
        try:
            manifest = Manifest.read(folder)
        except (DamagedError, NewerError, FileNotFoundError):
            return
        sizes = {length: file_bytes(folder / name) for length, name in sorted(manifest.places.items())}
        end = {length: sizes.pop(length) for length in (manifest.tokens,)}
        kept = thinned({0: 0, **sizes}, manifest.tokens, excess, 1 + floor)
        if len(kept) <= len(sizes):
            names = {length: manifest.places[length] for length in (*kept[1:], *end)}
            manifest = dataclasses.replace(manifest, places=names)
            manifest.write(folder)
            sweep(folder, manifest.names)


def file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def last_used(folder: Path) -> float:
    try:
        return (folder / LOCK).stat().st_mtime
    except FileNotFoundError:
        return 0.0
