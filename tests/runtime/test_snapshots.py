"""States on disk: the same when read again, and written only once."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from saved import BLOCK, IDS, files, in_small_blocks, only_folder, restored, state_of
from states import after, ask, assert_same_state, never, new_engine, new_store, prefilled, request

from runtime import snapshot_files, snapshot_folders
from runtime.models.qwen35 import Qwen35
from runtime.snapshots import SnapshotStore


@pytest.fixture(scope="module")
def model() -> Iterator[Qwen35]:
    with in_small_blocks() as model:
        yield model


class TestRoundTrip:
    @pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 60])
    def test_another_process_reads_the_state_that_was_saved(self, model: Qwen35, tmp_path: Path, length: int) -> None:
        assert new_store(model, tmp_path).save("a", state_of(model, IDS[:length]), never)
        state = restored(new_store(model, tmp_path), IDS)
        assert state
        assert_same_state(state, prefilled(model, IDS[:length]))

    def test_a_place_before_the_end_is_read_where_the_prompt_turns_off(self, model: Qwen35, tmp_path: Path) -> None:
        new_store(model, tmp_path).save("a", state_of(model, IDS, (20, 40)), never)
        state = restored(new_store(model, tmp_path), [*IDS[:45], 250, 251])
        assert state
        assert_same_state(state, prefilled(model, IDS[:40]))

    def test_a_prompt_with_other_ids_of_the_same_length_finds_nothing(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS), never)
        assert store.find([IDS[0] + 1, *IDS[1:]], 0) is None

    def test_what_memory_has_already_is_not_asked_of_the_disk(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS), never)
        assert store.find(IDS, 59)
        assert store.find(IDS, 60) is None

    def test_another_model_s_states_are_not_seen(self, model: Qwen35, tmp_path: Path) -> None:
        new_store(model, tmp_path).save("a", state_of(model, IDS), never)
        assert new_store(model, tmp_path, key="other").find(IDS, 0) is None

    def test_going_on_from_it_leaves_the_files_as_they_are(self, model: Qwen35, tmp_path: Path) -> None:
        """Full blocks stay mapped; a sequence that turns off inside one writes to a copy."""
        new_store(model, tmp_path).save("a", state_of(model, IDS, (20,)), never)
        state = restored(new_store(model, tmp_path), [*IDS[:20], 250])
        assert state
        model.forward([250] * 30, state)
        state.commit()
        again = restored(new_store(model, tmp_path), IDS)
        assert again
        assert_same_state(again, prefilled(model, IDS))

    def test_a_conversation_that_was_read_holds_no_file_open(self, model: Qwen35, tmp_path: Path) -> None:
        """A long one has hundreds of blocks, and a process as few as 256 descriptors."""
        new_store(model, tmp_path).save("a", state_of(model, IDS), never)
        before = len(list(Path("/dev/fd").iterdir()))
        state = restored(new_store(model, tmp_path), IDS)
        assert state
        assert len(list(Path("/dev/fd").iterdir())) == before
        assert_same_state(state, prefilled(model, IDS))

    def test_8_bit_keys_and_values_come_back_as_they_were(self, model: Qwen35, tmp_path: Path) -> None:
        state = prefilled(model, IDS, "q8")
        new_store(model, tmp_path, kv="q8").save("a", state, never)
        found = restored(new_store(model, tmp_path, kv="q8"), IDS)
        assert found
        for one, other in zip(found.kv.blocks, state.kv.blocks, strict=True):
            for name, rows in one.rows(min(one.used, other.used)).items():
                torch.testing.assert_close(rows, other.rows(min(one.used, other.used))[name], rtol=0, atol=0)

    def test_the_files_are_safetensors(self, model: Qwen35, tmp_path: Path) -> None:
        state = state_of(model, IDS)
        new_store(model, tmp_path).save("a", state, never)
        [ids] = tmp_path.glob("*/*/ids-*.safetensors")
        assert load_file(ids)["ids"].tolist() == IDS
        blocks = [load_file(path)["keys"] for path in tmp_path.glob("*/*/kv-*.safetensors")]
        assert any(torch.equal(block, state.kv.blocks[0].tensors["keys"]) for block in blocks)


class TestHeld:
    def test_blocks_that_are_in_memory_are_not_read_again(
        self, model: Qwen35, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An edit after the first turn of a session reads one place, and the block in which it lies."""
        new_store(model, tmp_path).save("a", state_of(model, IDS, (20, 40)), never)
        store = new_store(model, tmp_path)
        [snapshot] = store.all()
        end = store.load(snapshot, 60)
        assert end
        model.forward([7, 8], end)
        end.commit()
        for path in (*tmp_path.glob("*/*/kv-*"), *tmp_path.glob("*/*/mtp-*")):
            if path.name.partition("-")[2].partition(".")[0] in {block.digest for block in end.blocks()}:
                path.unlink()
        state = store.load(snapshot, 40, [end])
        assert state
        model.forward(IDS[40:], state)
        state.commit()
        assert_same_state(state, prefilled(model, IDS), tolerance=2e-4)
        assert_same_state(end, prefilled(model, [*IDS, 7, 8]))


class TestForks:
    """What conversations share is on the disk once."""

    def save_both(self, model: Qwen35, root: Path) -> SnapshotStore:
        store, state = new_store(model, root), state_of(model, IDS, (20, 40))
        store.save("a", state, never)
        fork = state.fork(40)
        model.forward(IDS[50:], fork)
        fork.commit()
        store.save("fork", fork, never)
        return store

    def test_the_blocks_and_places_before_it_are_the_same_files(self, model: Qwen35, tmp_path: Path) -> None:
        store = self.save_both(model, tmp_path)
        one, other = (store._folder_of(name) for name in ("a", "fork"))
        same = [path for path in one.iterdir() if (other / path.name).exists() and path.samefile(other / path.name)]
        kinds = sorted(path.name.partition("-")[0] for path in same)
        assert kinds == ["kv"] * (40 // BLOCK) + ["mtp"] * (39 // BLOCK) + ["place16"] * 2
        stats = {path.stat().st_ino: path.stat().st_size for path in tmp_path.glob("*/*/*")}
        assert sum(stats.values()) <= store.nbytes <= sum(stats.values()) + len(stats)

    @pytest.mark.parametrize("gone", ["a", "fork"])
    def test_each_outlives_the_other(self, model: Qwen35, tmp_path: Path, gone: str) -> None:
        self.save_both(model, tmp_path).drop(gone)
        wanted = IDS if gone == "fork" else [*IDS[:40], *IDS[50:]]
        state = restored(new_store(model, tmp_path), wanted)
        assert state
        assert_same_state(state, prefilled(model, wanted))

    def test_on_a_disk_without_links_they_are_written_again(
        self, model: Qwen35, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
        store = self.save_both(model, tmp_path)
        state = restored(new_store(model, tmp_path), [*IDS[:40], *IDS[50:]])
        assert state
        assert_same_state(state, prefilled(model, [*IDS[:40], *IDS[50:]]))
        assert store.nbytes == sum(path.stat().st_size for path in tmp_path.glob("*/*/*"))

    def test_a_torn_file_of_another_conversation_is_not_shared(self, model: Qwen35, tmp_path: Path) -> None:
        """A power failure leaves empty files."""
        store, state = new_store(model, tmp_path), state_of(model, IDS)
        store.save("a", state, never)
        for path in store._folder_of("a").glob("kv-*"):
            os.truncate(path, 0)
        store.save("fork", state.fork(60), never)
        store.drop("a")
        found = restored(new_store(model, tmp_path), IDS)
        assert found
        assert_same_state(found, prefilled(model, IDS))


class TestIncrement:
    def test_full_blocks_and_old_places_are_written_once(self, model: Qwen35, tmp_path: Path) -> None:
        store, state = new_store(model, tmp_path), state_of(model, IDS[:40], (20,))
        store.save("a", state, never)
        before = files(tmp_path)
        model.forward(IDS[40:], state)
        state.commit()
        state.checkpoint()
        store.save("a", state, never)
        now = files(tmp_path)
        kept = {name for name in before if now.get(name) == before[name]}
        assert sum(name.startswith("kv-") for name in kept) == 40 // BLOCK
        assert sum(name.startswith("mtp-") for name in kept) == 39 // BLOCK
        assert sum(name.startswith("place") for name in kept) == 2

    def test_what_the_manifest_does_not_name_is_swept_away(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS, (20,)), never)
        store.save("a", state_of(model, IDS[::-1]), never)
        manifest = snapshot_files.Manifest.read(only_folder(tmp_path))
        assert files(tmp_path).keys() == manifest.names | {snapshot_folders.MANIFEST}

    def test_places_of_a_former_session_stay_while_they_hold(self, model: Qwen35, tmp_path: Path) -> None:
        new_store(model, tmp_path).save("a", state_of(model, IDS[:50], (10, 20, 30)), never)
        store = new_store(model, tmp_path)
        state = restored(store, IDS)
        assert state
        assert [place.length for place in state.checkpoints] == [0, 50]
        state = restored(store, [*IDS[:25], 250])
        assert state
        model.forward([250] * 20, state)
        state.commit()
        store.save("a", state, never)
        [snapshot] = store.all()
        assert snapshot.manifest.places.keys() == {10, 20, 40}

    def test_every_place_is_kept_and_is_that_of_a_fresh_prefill(self, model: Qwen35, tmp_path: Path) -> None:
        """As many as a conversation of a hundred messages has."""
        ids = [1 + i * 13 % 250 for i in range(500)]
        starts = tuple(range(5, 500, 5))
        state = state_of(model, ids, starts)
        new_store(model, tmp_path).save("a", state, never)
        store = new_store(model, tmp_path)
        [snapshot] = store.all()
        assert snapshot.manifest.places.keys() == {*starts, 500}
        for length in (5, 250, 495, 500):
            found = store.load(snapshot, length)
            assert found
            assert_same_state(found, prefilled(model, ids[:length]), tolerance=1e-4)

    def test_of_the_end_not_a_bit_is_lost(self, model: Qwen35, tmp_path: Path) -> None:
        state = state_of(model, IDS, (20,))
        new_store(model, tmp_path).save("a", state, never)
        found = restored(new_store(model, tmp_path), IDS)
        assert found
        for one, other in zip(found.recurrent, state.recurrent, strict=True):
            assert torch.equal(one.state, other.state)
            assert torch.equal(one.window, other.window)

    def test_each_turn_writes_its_own_places_only(self, model: Qwen35, tmp_path: Path) -> None:
        """The end of one turn, a little after the next message's beginning, is none of them."""
        store, state = new_store(model, tmp_path), model.new_state()
        names: set[str] = set()
        for turn in range(4):
            for rows in (5, 7, 3):  # to the reply, to the next message, and what the next turn begins with
                model.forward(IDS[state.length : state.length + rows], state)
                state.commit()
                state.checkpoint()
            store.save("a", state, never)
            now = {name for name in files(tmp_path) if name.startswith("place")}
            assert len(now - names) == 3
            assert len(now) == 2 * (turn + 1) + 1
            names = now

    def test_of_places_close_together_the_first_is_kept(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS, (20, 23, 40, 57)), never)
        [snapshot] = store.all()
        assert snapshot.manifest.places.keys() == {20, 40, 57, 60}


class TestCancel:
    @pytest.mark.parametrize("count", [0, 1, 5, 12])
    def test_saving_gives_way_and_goes_on_later(self, model: Qwen35, tmp_path: Path, count: int) -> None:
        engine = new_engine(model, store=new_store(model, tmp_path))
        ask(engine, "a", request(IDS))
        assert not engine.pool.save(after(count))
        assert new_store(model, tmp_path).all() == []  # nothing is half done
        assert engine.pool.save(never)
        assert ask(new_engine(model, store=new_store(model, tmp_path)), "a", request(IDS))[1] == len(IDS)

    def test_what_it_has_no_time_for_are_the_earliest_places(self, model: Qwen35, tmp_path: Path) -> None:
        places = (10, 20, 30, 40, 50)
        state, store = state_of(model, IDS, places), new_store(model, tmp_path)
        kept: set[tuple[int, ...]] = set()
        for count in range(0, 300, 5):
            done = store.save("a", state, after(count))
            found = [tuple(sorted(snapshot.manifest.places)) for snapshot in new_store(model, tmp_path).all()]
            kept.update(found)
            assert done == (found == [(*places, 60)])
            store.drop("a")
        assert kept == {(*places, 60)[first:] for first in range(6)}

    def test_it_goes_on_where_it_was_cancelled(self, model: Qwen35, tmp_path: Path) -> None:
        """However short the pauses are, they lead to the end."""
        state, store = state_of(model, IDS, (10, 20, 30, 40, 50)), new_store(model, tmp_path)
        pauses = 1
        while not store.save("a", state, after(50)):
            pauses += 1
            assert pauses < 20
        assert pauses > 1
