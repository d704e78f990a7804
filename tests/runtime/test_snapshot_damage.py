"""States on disk that were spoilt, or could not be written: time is lost, and nothing else."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import xxhash
from rewrite import GOLDENS
from saved import IDS, files, in_small_blocks, only_folder, restored, state_of
from states import ask, assert_same_state, never, new_engine, new_store, prefilled, request

from runtime import snapshot_files, snapshot_folders, snapshot_places
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35


@pytest.fixture(scope="module")
def model() -> Iterator[Qwen35]:
    with in_small_blocks() as model:
        yield model


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

    @pytest.mark.parametrize("gone", [True, False])
    def test_a_file_that_cannot_be_mapped(
        self, model: Qwen35, saved: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
    ) -> None:
        """Swept away since it was looked at, or there is no memory for it: then it stays."""

        def refuse(name: str, **kwargs: object) -> None:
            if gone:
                Path(name).unlink()
            raise RuntimeError(f"unable to mmap 4096 bytes from file <{name}>: Cannot allocate memory (12)")

        notices: list[str] = []
        store = new_store(model, saved, notices=notices)
        [snapshot] = store.all()
        monkeypatch.setattr(torch, "from_file", refuse)
        assert store.load(snapshot, 60) is None
        assert len(notices) == 1
        assert (files(saved) == {}) == gone

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
        path = only_folder(saved) / snapshot_folders.MANIFEST
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": snapshot_files.VERSION + 1, "more": []}))
        before, notices = files(saved), list[str]()
        store = new_store(model, saved, notices=notices)
        assert restored(store, IDS) is None
        assert restored(store, IDS) is None
        assert store.save("a", state_of(model, IDS[:20]), never)
        assert files(saved) == before
        assert len(notices) == 1
        assert "newer" in notices[0]

    def test_the_first_version_is_read(self, model: Qwen35, saved: Path) -> None:
        """It had the same files, all places exact."""
        store = new_store(model, saved)
        [snapshot] = store.all()
        places = [[60, snapshot.manifest.places[60]]]
        path = snapshot.folder / snapshot_folders.MANIFEST
        body = {**json.loads(path.read_text()), "version": 1, "places": places}
        del body["hash"]
        body["hash"] = xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())
        path.write_text(json.dumps(body))
        state = restored(new_store(model, saved), IDS)
        assert state
        assert_same_state(state, prefilled(model, IDS))

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

    def test_a_disk_that_fills_up_while_places_are_written_has_the_end(
        self, model: Qwen35, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state, notices = state_of(model, IDS, (10, 20, 30, 40, 50)), list[str]()
        original, written = snapshot_places.write_tensors, []

        def write(to: snapshot_files.Target, kind: str, *args: object) -> str:
            if written.append(kind) or written.count("place16") > 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(to, kind, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(snapshot_places, "write_tensors", write)
        new_store(model, tmp_path, notices=notices).save("a", state, never)
        assert len(notices) == 1
        [snapshot] = new_store(model, tmp_path).all()
        assert snapshot.manifest.places.keys() == {40, 50, 60}
        found = restored(new_store(model, tmp_path), IDS)
        assert found
        assert_same_state(found, prefilled(model, IDS))

    def test_a_folder_that_cannot_be_made(self, model: Qwen35, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        notices: list[str] = []
        store = new_store(model, tmp_path / "file" / "snapshots", notices=notices)
        assert store.save("a", state_of(model, IDS), never)
        assert restored(store, IDS) is None
        assert store.nbytes == 0
        assert notices


def fails_after(count: int, error: Exception) -> Callable[..., None]:
    original, calls = snapshot_files._write_all, iter(range(1_000_000))

    def write(*args: object) -> None:
        if next(calls) >= count:
            raise error
        original(*args)  # type: ignore[arg-type]

    return write
