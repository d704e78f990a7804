"""How much of the disk states may take, and what goes when it is more."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from saved import IDS, files, in_small_blocks, restored, state_of
from states import never, new_store

from runtime import snapshot_folders
from runtime.models.qwen35 import Qwen35
from runtime.snapshots import SnapshotStore


@pytest.fixture(scope="module")
def model() -> Iterator[Qwen35]:
    with in_small_blocks() as model:
        yield model


class TestBudget:
    def test_the_least_recently_used_go_when_the_budget_is_spent(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        prompts = {name: [ord(name), *IDS[1:]] for name in "abcd"}
        for name in "abc":
            store.save(name, state_of(model, prompts[name]), never)
        size = store.nbytes // 3
        stamps = iter(range(1_000_000, 1_000_100))
        for name in "abc":
            os.utime(store._folder_of(name) / snapshot_folders.LOCK, (0, next(stamps)))
        assert restored(store, prompts["a"])  # used now
        tight = new_store(model, tmp_path, budget=3 * size + size // 2)
        tight.save("d", state_of(model, prompts["d"]), never)
        assert {found.manifest.conversation for found in tight.all()} == {"a", "c", "d"}
        assert tight.nbytes <= tight.budget

    def test_the_budget_is_one_for_all_models(self, model: Qwen35, tmp_path: Path) -> None:
        old = new_store(model, tmp_path, key="old")
        old.save("a", state_of(model, IDS), never)
        store = new_store(model, tmp_path, budget=old.nbytes * 3 // 2)
        store.save("a", state_of(model, IDS), never)
        assert old.all() == []
        assert len(store.all()) == 1

    def test_what_is_larger_than_the_budget_is_not_written(self, model: Qwen35, tmp_path: Path) -> None:
        notices: list[str] = []
        store = new_store(model, tmp_path, budget=1000, notices=notices)
        assert store.save("a", state_of(model, IDS), never)
        assert files(tmp_path) == {}
        assert len(notices) == 1

    def test_what_conversations_share_is_free_only_when_all_are_gone(self, model: Qwen35, tmp_path: Path) -> None:
        store, state = new_store(model, tmp_path), state_of(model, IDS)
        for stamp, name in enumerate(("a", "fork of a")):
            store.save(name, state.fork(60), never)
            os.utime(store._folder_of(name) / snapshot_folders.LOCK, (0, 1_000_000 + stamp))
        room = store.nbytes * 5 // 4
        tight = new_store(model, tmp_path, budget=room)
        tight.save("b", state_of(model, [9, *IDS[1:]]), never)
        assert [found.manifest.conversation for found in tight.all()] == ["b"]
        assert sum(path.stat().st_size for path in tmp_path.glob("*/*/*")) <= room

    def test_dropping(self, model: Qwen35, tmp_path: Path) -> None:
        """The ids are the text: they stay with no model, whichever is open."""
        store, other = new_store(model, tmp_path), new_store(model, tmp_path, key="other")
        for name in "abc":
            for one in (store, other):
                one.save(name, state_of(model, [ord(name), *IDS]), never)
        store.drop("b")
        for one in (store, other):
            assert {found.manifest.conversation for found in one.all()} == {"a", "c"}
        store.drop(None)
        assert store.all() == other.all() == []
        assert files(tmp_path) == {}

    def test_earlier_places_of_others_go_before_whole_conversations(self, model: Qwen35, tmp_path: Path) -> None:
        """Used longest ago, first to 16 places and then to 4; the one in use keeps all."""
        store, ids = new_store(model, tmp_path), [1 + i * 13 % 250 for i in range(200)]
        names, starts = "abc", tuple(range(5, 200, 5))
        for stamp, name in enumerate(names):
            store.save(name, state_of(model, [ord(name), *ids[1:]], starts), never)
            os.utime(store._folder_of(name) / snapshot_folders.LOCK, (0, 1_000_000 + stamp))
        whole, place = store.nbytes // 3, _place_bytes(store)
        last = state_of(model, [ord("d"), *ids[1:]], starts)
        counts = []
        for fewer in (1, 24, 50, 73, 100, 115):
            tight = new_store(model, tmp_path, budget=4 * whole - fewer * place + place // 2)
            tight.save("d", last, never)
            assert tight.nbytes <= tight.budget
            stored = {found.manifest.conversation: found.manifest for found in tight.all()}
            counts.append([len(stored[name].places) if name in stored else 0 for name in (*names, "d")])
            for name in names:
                assert name not in stored or restored(tight, [ord(name), *ids[1:]])
        every = len(starts) + 1
        assert counts[:-1] == [
            [every - 1, every, every, every],
            [17, every - 1, every, every],
            [17, 17, every - 4, every],
            [13, 17, 17, every],
            [5, 5, 10, every],
        ]
        assert counts[-1][:3] == [0, 5, 5]

    def test_the_last_places_of_what_is_thinned_stay(self, model: Qwen35, tmp_path: Path) -> None:
        starts = tuple(range(5, 60, 5))
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS, starts), never)
        size = store.nbytes
        tight = new_store(model, tmp_path, budget=size * 3 // 2)
        tight.save("b", state_of(model, [9, *IDS], ()), never)
        [old] = [found for found in tight.all() if found.manifest.conversation == "a"]
        assert {45, 50, 55, 60} <= old.manifest.places.keys()

    def test_one_conversation_keeps_places_on_half_of_it(self, model: Qwen35, tmp_path: Path) -> None:
        ids = [1 + i * 13 % 250 for i in range(200)]
        state = state_of(model, ids, tuple(range(5, 200, 5)))
        budget = 1 << 20
        store = new_store(model, tmp_path, budget=budget)
        store.save("a", state, never)
        [found] = store.all()
        assert 6 < len(found.manifest.places) < 40
        assert budget // 3 < store.nbytes < budget * 6 // 10

    def test_a_conversation_as_large_as_the_budget_has_its_end(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        state = state_of(model, IDS, (10, 20, 30, 40, 50))
        tight = new_store(model, tmp_path, budget=store._least(state))
        tight.save("a", state, never)
        [found] = tight.all()
        assert found.manifest.places.keys() == {60}

    def test_a_snapshot_that_another_process_writes_is_not_thinned(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS, tuple(range(5, 60, 5))), never)
        before = store.all()
        tight = new_store(model, tmp_path, budget=store.nbytes * 11 // 10)
        with (store._folder_of("a") / snapshot_folders.LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tight.save("b", state_of(model, [9, *IDS], ()), never)
            assert [found for found in tight.all() if found.manifest.conversation == "a"] == before


def _place_bytes(store: SnapshotStore) -> int:
    [size] = {path.stat().st_size for path in store._folder.glob("*/place16-*")}
    return size
