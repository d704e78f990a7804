"""What tests of states on disk share: a tiny model whose blocks are small, and what lies in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rewrite import GOLDENS

import runtime.kv_cache
import runtime.snapshots
from runtime import snapshot_folders
from runtime.cache import SequenceState
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.snapshots import SnapshotStore

BLOCK = 16
IDS = [5 + i * 7 % 200 for i in range(60)]


@contextmanager
def in_small_blocks() -> Iterator[Qwen35]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.kv_cache, "BLOCK", BLOCK)
        patch.setattr(runtime.snapshots, "BLOCK", BLOCK)
        yield load_model(GOLDENS / "tiny-dense.gguf").model


def state_of(model: Qwen35, ids: list[int], places: tuple[int, ...] = ()) -> SequenceState:
    state = model.new_state()
    for start, end in zip((0, *places), (*places, len(ids)), strict=True):
        model.forward(ids[start:end], state)
        state.commit()
        state.checkpoint()
    return state


def restored(store: SnapshotStore, prompt: list[int]) -> SequenceState | None:
    found = store.find(prompt, 0)
    return store.load(*found) if found else None


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Name → inode and time of change, the lock left out."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.glob("*/*/*")
        if path.name != snapshot_folders.LOCK
    }


def only_folder(root: Path) -> Path:
    [folder] = root.glob("*/*")
    return folder
