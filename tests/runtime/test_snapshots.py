"""States on disk: the same when read again, and nothing worse than lost whatever happens to them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import xxhash
from rewrite import GOLDENS
from safetensors.torch import load_file
from states import after, ask, assert_same_state, never, new_engine, new_store, prefilled, request

import runtime.cache
import runtime.snapshots
from runtime import snapshot_files
from runtime.cache import SequenceState
from runtime.fingerprint import fingerprint
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.snapshots import SnapshotStore

BLOCK = 16
IDS = [5 + i * 7 % 200 for i in range(60)]


@pytest.fixture(scope="module")
def model() -> Iterator[Qwen35]:
    patch = pytest.MonkeyPatch()
    patch.setattr(runtime.cache, "BLOCK", BLOCK)
    patch.setattr(runtime.snapshots, "BLOCK", BLOCK)
    yield load_model(GOLDENS / "tiny-dense.gguf").model
    patch.undo()


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
        if path.name != snapshot_files.LOCK
    }


def only_folder(root: Path) -> Path:
    [folder] = root.glob("*/*")
    return folder


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
        assert sum(name.startswith("place-") for name in kept) == 2

    def test_what_the_manifest_does_not_name_is_swept_away(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS, (20,)), never)
        store.save("a", state_of(model, IDS[::-1]), never)
        manifest = snapshot_files.Manifest.read(only_folder(tmp_path))
        assert files(tmp_path).keys() == manifest.names | {snapshot_files.MANIFEST}

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

    def test_of_places_close_together_the_first_is_kept(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS, (20, 23, 40, 57)), never)
        [snapshot] = store.all()
        assert snapshot.manifest.places.keys() == {20, 40, 57, 60}


class TestDamage:
    @pytest.fixture
    def saved(self, model: Qwen35, tmp_path: Path) -> Path:
        new_store(model, tmp_path).save("a", state_of(model, IDS, (20,)), never)
        return tmp_path

    def damaged(self, model: Qwen35, root: Path, spoil: Callable[[Path], None], pattern: str) -> list[str]:
        """What is said after one file was spoilt; nothing of the snapshot may be used or left."""
        path = sorted(root.glob(f"*/*/{pattern}"))[0]
        spoil(path)
        notices: list[str] = []
        store = new_store(model, root, notices=notices)
        assert restored(store, IDS) is None
        assert store.find(IDS, 0) is None
        assert files(root) == {}
        return notices

    @pytest.mark.parametrize("pattern", ["ids-*", "kv-*", "mtp-*", "place-*", "manifest.json"])
    @pytest.mark.parametrize("where", [0, 9, 0.5, -1], ids=["first", "tenth", "middle", "last"])
    def test_one_byte_changed(self, model: Qwen35, saved: Path, pattern: str, where: float) -> None:
        def spoil(path: Path) -> None:
            data = bytearray(path.read_bytes())
            data[int(where * len(data)) if isinstance(where, float) else where] ^= 0x11
            path.write_bytes(data)

        if pattern == "place-*":  # of two, the one that is read
            manifest = snapshot_files.Manifest.read(only_folder(saved))
            pattern = manifest.places[60]
        [notice] = self.damaged(model, saved, spoil, pattern)
        assert "damaged" in notice

    @pytest.mark.parametrize("pattern", ["ids-*", "kv-*", "mtp-*", "manifest.json"])
    @pytest.mark.parametrize("left", [0, 7, 100])
    def test_cut_short(self, model: Qwen35, saved: Path, pattern: str, left: int) -> None:
        assert len(self.damaged(model, saved, lambda path: os.truncate(path, left), pattern)) == 1

    @pytest.mark.parametrize("pattern", ["ids-*", "kv-*", "mtp-*"])
    def test_a_file_missing(self, model: Qwen35, saved: Path, pattern: str) -> None:
        assert len(self.damaged(model, saved, Path.unlink, pattern)) == 1

    @pytest.mark.parametrize(
        "changes",
        [
            {"kv": ["../../../etc/passwd"]},
            {"places": [[59, "place-" + "0" * 32 + ".safetensors"]]},
            {"mtp": None},
            {"kv": []},
            {"tokens": 59},
            {"places": "x"},
        ],
        ids=str,
    )
    def test_a_foreign_manifest_with_a_right_hash(self, model: Qwen35, saved: Path, changes: dict[str, object]) -> None:
        def spoil(path: Path) -> None:
            body = {**json.loads(path.read_text()), **changes}
            del body["hash"]
            body["hash"] = xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())
            path.write_text(json.dumps(body))

        assert len(self.damaged(model, saved, spoil, "manifest.json")) == 1

    def test_the_state_of_a_model_of_another_shape(self, model: Qwen35, saved: Path) -> None:
        other = load_model(GOLDENS / "tiny-moe.gguf").model
        notices: list[str] = []
        assert restored(new_store(other, saved, notices=notices), IDS) is None
        assert len(notices) == 1

    def test_a_newer_version_is_left_alone(self, model: Qwen35, saved: Path) -> None:
        path = only_folder(saved) / snapshot_files.MANIFEST
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2, "more": []}))
        before, notices = files(saved), list[str]()
        store = new_store(model, saved, notices=notices)
        assert restored(store, IDS) is None
        assert restored(store, IDS) is None
        assert files(saved) == before
        assert len(notices) == 1
        assert "newer" in notices[0]

    def test_the_conversation_is_prefilled_and_saved_anew(self, model: Qwen35, saved: Path) -> None:
        for path in saved.glob("*/*/kv-*"):
            path.write_bytes(b"")
        notices: list[str] = []
        engine = new_engine(model, store=new_store(model, saved, notices=notices))
        tokens, cached = ask(engine, "a", request(IDS))
        assert cached == 0
        assert tokens == ask(new_engine(model), "a", request(IDS))[0]
        assert engine.pool.save(never)
        assert len(notices) == 1
        assert ask(new_engine(model, store=new_store(model, saved)), "a", request(IDS)) == (tokens, len(IDS))


class TestDisk:
    def test_a_full_disk_costs_the_snapshot_and_one_notice(
        self, model: Qwen35, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        notices: list[str] = []
        engine = new_engine(model, store=new_store(model, tmp_path, notices=notices))
        ask(engine, "a", request(IDS[:40]))
        engine.pool.save(never)
        before = files(tmp_path)
        with monkeypatch.context() as full:
            full.setattr(snapshot_files, "_write_all", fails_after(4, OSError(errno.ENOSPC, "No space left on device")))
            tokens, _ = ask(engine, "a", request(IDS))
            assert engine.pool.save(never)
            ask(engine, "a", request([*IDS, 9]))
            assert engine.pool.save(never)
        assert tokens == ask(new_engine(model), "a", request(IDS))[0]
        assert files(tmp_path) == before
        assert len(notices) == 1
        assert "disk is full" in notices[0]
        ask(engine, "a", request(IDS))
        assert engine.pool.save(never)
        assert ask(new_engine(model, store=new_store(model, tmp_path)), "a", request(IDS))[1] == len(IDS)

    def test_a_folder_that_cannot_be_made(self, model: Qwen35, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        notices: list[str] = []
        store = new_store(model, tmp_path / "file" / "snapshots", notices=notices)
        assert store.save("a", state_of(model, IDS), never)
        assert restored(store, IDS) is None
        assert store.nbytes == 0
        assert notices

    def test_the_least_recently_used_go_when_the_budget_is_spent(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        prompts = {name: [ord(name), *IDS[1:]] for name in "abcd"}
        for name in "abc":
            store.save(name, state_of(model, prompts[name]), never)
        size = store.nbytes // 3
        stamps = iter(range(1_000_000, 1_000_100))
        for name in "abc":
            os.utime(store._folder_of(name) / snapshot_files.LOCK, (0, next(stamps)))
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

    def test_dropping(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        for name in "abc":
            store.save(name, state_of(model, [ord(name), *IDS]), never)
        store.drop("b")
        assert {found.manifest.conversation for found in store.all()} == {"a", "c"}
        store.drop(None)
        assert store.all() == []
        assert files(tmp_path) == {}


def fails_after(count: int, error: Exception) -> Callable[..., None]:
    original, calls = snapshot_files._write_all, iter(range(1_000_000))

    def write(*args: object) -> None:
        if next(calls) >= count:
            raise error
        original(*args)  # type: ignore[arg-type]

    return write


class TestCancel:
    @pytest.mark.parametrize("count", [0, 1, 5, 12])
    def test_saving_gives_way_and_goes_on_later(self, model: Qwen35, tmp_path: Path, count: int) -> None:
        engine = new_engine(model, store=new_store(model, tmp_path))
        ask(engine, "a", request(IDS))
        assert not engine.pool.save(after(count))
        assert new_store(model, tmp_path).all() == []
        assert engine.pool.save(never)
        assert ask(new_engine(model, store=new_store(model, tmp_path)), "a", request(IDS))[1] == len(IDS)


class TestTwoProcesses:
    """`flock` belongs to an open file, so two stores in one process lock each other out as two processes do."""

    def test_a_conversation_that_another_is_saving_is_left_to_it(self, model: Qwen35, tmp_path: Path) -> None:
        store = new_store(model, tmp_path)
        store.save("a", state_of(model, IDS[:40]), never)
        before = files(tmp_path)
        with (only_folder(tmp_path) / snapshot_files.LOCK).open() as lock:
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
    import runtime.cache, runtime.snapshots
    from runtime.models.loading import load_model
    from runtime.snapshots import SnapshotStore

    runtime.cache.BLOCK = runtime.snapshots.BLOCK = 16
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
    assert files(tmp_path).keys() == manifest.names | {snapshot_files.MANIFEST}
    assert found == {7, 9}


class TestFingerprint:
    def test_is_the_same_for_the_same_bytes_and_traits(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(bytes(1000))
        one, other = (fingerprint([tmp_path / name], "cpu", "auto") for name in ("a", "b"))
        assert one == other
        assert one != fingerprint([tmp_path / "a"], "cpu", "q8")
        assert one != fingerprint([tmp_path / "a", tmp_path / "b"], "cpu", "auto")

    @pytest.mark.parametrize("size", [999, 1001])
    def test_tells_sizes_apart(self, tmp_path: Path, size: int) -> None:
        (tmp_path / "a").write_bytes(bytes(1000))
        (tmp_path / "b").write_bytes(bytes(size))
        assert fingerprint([tmp_path / "a"]) != fingerprint([tmp_path / "b"])

    def test_tells_other_weights_apart_and_is_fast_on_a_large_file(self, tmp_path: Path) -> None:
        """A sparse file of 20 GB: whoever reads all of it will be noticed."""
        path = tmp_path / "large"
        with path.open("wb") as file:
            file.truncate(20_000_000_000)
        before = fingerprint([path])
        with path.open("r+b") as file:
            file.seek(12_000_000_000)
            file.write(b"\1" * (20_000_000_000 // 256 + 4096))  # as much as lies between two samples
        assert fingerprint([path]) != before
