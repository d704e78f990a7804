"""Several processes on one folder of states, and one that is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from rewrite import GOLDENS
from saved import IDS, files, in_small_blocks, only_folder, restored, state_of
from states import ask, assert_same_state, never, new_engine, new_store, prefilled, request

from runtime import snapshot_files, snapshot_folders
from runtime.models.qwen35 import Qwen35


@pytest.fixture(scope="module")
def model() -> Iterator[Qwen35]:
    with in_small_blocks() as model:
        yield model


class TestTwoProcesses:
    """`flock` belongs to an open file, so two stores in one process lock each other out as two processes do."""

    def test_a_conversation_that_another_is_saving_is_left_to_it(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS[:40]), never)
        before = files(tmp_path)
        with (only_folder(tmp_path) / snapshot_folders.LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert not store.save("a", state_of(model, IDS), never)
            store.drop("a")
            assert restored(store, IDS)  # reading needs no lock
        assert files(tmp_path) == before
        assert store.save("a", state_of(model, IDS), never)

    def test_a_reader_survives_that_the_snapshot_is_replaced(self, model: Qwen35, tmp_path: Path) -> None:
        """The reader has looked, the writer replaces everything, the reader reads."""
        reader, writer = new_store(model, tmp_path), new_store(model, tmp_path)
        writer.save("a", state_of(model, IDS[:30]), never)
        found = reader.find(IDS, 0)
        assert found
        writer.save("a", state_of(model, IDS, (30,)), never)
        for path in tmp_path.glob("*/*/kv-*"):
            assert path.exists()
        state = reader.load(*found)
        assert state
        assert_same_state(state, prefilled(model, IDS[:30]))

    def test_a_place_that_the_replacement_has_not_is_not_read(self, model: Qwen35, tmp_path: Path) -> None:
        reader, writer = new_store(model, tmp_path), new_store(model, tmp_path)
        writer.save("a", state_of(model, IDS[:30]), never)
        found = reader.find(IDS, 0)
        assert found
        writer.save("a", state_of(model, IDS[::-1]), never)
        assert reader.load(*found) is None
        assert len(writer.all()) == 1

    def test_a_state_in_use_outlives_its_files(self, model: Qwen35, tmp_path: Path) -> None:
        reader, writer = new_store(model, tmp_path), new_store(model, tmp_path)
        writer.save("a", state_of(model, IDS), never)
        state = restored(reader, IDS)
        assert state
        writer.drop(None)
        assert_same_state(state, prefilled(model, IDS))

    def test_each_finds_what_the_other_saved(self, model: Qwen35, tmp_path: Path) -> None:
        one, other = (new_engine(model, store=new_store(model, tmp_path)) for _ in range(2))
        assert ask(other, "b", request(IDS[::-1]))[1] == 0
        ask(one, "a", request(IDS))
        one.pool.save(never)
        assert ask(other, "a", request(IDS))[1] == len(IDS)


WRITER = """
    import sys
    from pathlib import Path
    import runtime.kv_cache, runtime.snapshots
    from runtime.models.loading import load_model
    from runtime.snapshots import SnapshotStore

    runtime.kv_cache.BLOCK = runtime.snapshots.BLOCK = 16
    model = load_model(sys.argv[1]).model
    store = SnapshotStore(Path(sys.argv[2]), "model", model.new_state, model.config.hidden, 1 << 40, print)
    states = []
    for first in (7, 9):
        state = model.new_state()
        for _ in range(6):
            model.forward([first] * 10, state)
            state.commit()
            state.checkpoint()
        states.append(state)
    print("ready", flush=True)
    while True:
        for state in states:
            store.save("a", state, lambda: False)
"""


def test_kill_9_at_any_moment_leaves_the_old_or_the_new(model: Qwen35, tmp_path: Path) -> None:
    """A child that does nothing but replace one snapshot by another is killed at random moments."""
    chance, found = random.Random(1), set()
    wanted = {first: prefilled(model, [first] * 60) for first in (7, 9)}
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(GOLDENS / "tiny-dense.gguf"), str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout
    assert child.stdout.readline() == b"ready\n"
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0.2)
    for _ in range(40):
        # stopped, it is as if killed here: what it holds in its own memory does not reach the disk
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(chance.uniform(0, 0.02))
        os.kill(child.pid, signal.SIGSTOP)
        store = new_store(model, tmp_path)
        [snapshot] = store.all()
        state = store.load(snapshot, 60)
        assert state
        assert_same_state(state, wanted[snapshot.ids[0]])
        found.add(snapshot.ids[0])
        os.kill(child.pid, signal.SIGCONT)
    child.kill()
    child.wait()
    store = new_store(model, tmp_path)
    [snapshot] = store.all()
    assert store.load(snapshot, 60)
    assert store.save("a", state_of(model, IDS), never)  # nobody holds its lock, and its debris is swept away
    manifest = snapshot_files.Manifest.read(only_folder(tmp_path))
    assert files(tmp_path).keys() == manifest.names | {snapshot_folders.MANIFEST}
    assert found == {7, 9}
