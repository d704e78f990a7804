"""States on disk: what the pool finds again after a restart, or after memory was short."""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from runtime.cache import Checkpoint, RecurrentState, SequenceState
from runtime.errors import Interrupted
from runtime.kv_cache import BLOCK, KVBlock, KVCache
from runtime.prefix import common_prefix
from runtime.snapshot_budget import DiskBudget, file_bytes, folder_bytes, last_used
from runtime.snapshot_files import (
    DamagedError,
    Manifest,
    NewerError,
    Target,
    digest_of,
    is_newer,
    read_tensors,
    write_tensors,
)
from runtime.snapshot_folders import LOCK, MANIFEST, folder_name, locked, sweep
from runtime.snapshot_places import PlaceFiles
from runtime.thinning import most_useful

_NEAR = 4  # tokens, more than a header has; of two checkpoints so close together the earlier one does for both
_READERS = 4  # threads
_TRIES = 3  # at reading what another process keeps replacing

_log = logging.getLogger("qwenchat.snapshots")
T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """What is known of one conversation's snapshot without reading its state."""

    folder: Path
    manifest: Manifest
    ids: list[int]
    signature: tuple[int, int, int]

    def reach(self, prompt: Sequence[int]) -> int:
        """The last place in it from which `prompt` can go on; 0 if there is none."""
        agreed = common_prefix(self.ids, prompt)
        return max((length for length in self.manifest.places if length <= agreed), default=0)

    @property
    def nbytes(self) -> int:
        return folder_bytes(self.folder)

    @property
    def state_bytes(self) -> int:
        """Of what is read to go on from its end."""
        manifest = self.manifest
        names = {*manifest.kv, *(manifest.mtp or ()), manifest.places[manifest.tokens]}
        return sum(file_bytes(self.folder / name) for name in names)


class SnapshotStore:
    """The snapshots of one model under a folder that several processes and models share.

    Nothing raises: a snapshot that cannot be written or read costs time, and one sentence through `notify`.
    """

    def __init__(
        self,
        root: Path,
        model_key: str,
        new: Callable[[], SequenceState],
        hidden: int,
        budget: int,
        notify: Callable[[str], None],
    ) -> None:
        """`hidden`: the width of the model; `budget`: bytes for all models together, least recently used out first."""
        self._folder = root / model_key
        self._budget = DiskBudget(root, budget, self._tell_failure)
        self._notify = notify
        self._known: dict[Path, Snapshot] = {}
        self._told: set[str] = set()
        self._empty = new()
        self._places = PlaceFiles(self._empty, hidden)

    def find(self, prompt: Sequence[int], beyond: int) -> tuple[Snapshot, int] | None:
        """The snapshot from which `prompt` goes on furthest, and the place; None if none gets further than `beyond`."""
        best, furthest = None, beyond
        for snapshot in self._snapshots():
            if (reached := snapshot.reach(prompt)) > furthest:
                best, furthest = snapshot, reached
        return (best, furthest) if best else None

    def recent(self) -> list[Snapshot]:
        """All snapshots, the one used last first."""
        return sorted(self._snapshots(), key=lambda snapshot: last_used(snapshot.folder), reverse=True)

    def load(self, snapshot: Snapshot, length: int, held: Iterable[SequenceState] = ()) -> SequenceState | None:
        """The state at one of the snapshot's places, mapped and checked; None if it is no longer there.

        Blocks that one of the `held` states has are shared with it instead of being read.
        """
        blocks = {block.digest: block for state in held for block in state.blocks() if block.digest}
        for _ in range(_TRIES):
            try:
                state = self._read(snapshot, length, blocks)
                os.utime(snapshot.folder / LOCK)
                return state
            except FileNotFoundError:
                renewed = self._look(snapshot.folder)
                if renewed is None or length not in renewed.manifest.places:
                    return None
                if renewed.signature == snapshot.signature:
                    self._discard(snapshot.folder, "a file is missing")
                    return None
                snapshot = renewed
            except DamagedError as error:
                self._discard(snapshot.folder, str(error))
                return None
            except OSError as error:
                self._tell_failure("read", error)
                return None
        return None

    def save(self, conversation: str, state: SequenceState, cancelled: Callable[[], bool]) -> bool:
        """Write what is not yet there. Returns False if it was cancelled, or another process was at it.

        The end comes first, so that whatever happens then costs only places to come back to. Nothing is written over
        what a newer version wrote.
        """
        if state.length == 0:
            return True
        folder = self._folder_of(conversation)
        try:
            with locked(folder) as mine:
                if not mine:
                    return False
                before = self._look(folder)
                if before is None and is_newer(folder):
                    return True
                if self._least(state) > self.budget:
                    self._tell_once(
                        "The conversation's state is larger than the budget for states on disk; it is not kept."
                    )
                    return True
                to = Target(folder, cancelled, self._elsewhere(folder))
                manifest = self._write(to, conversation, state, before)
                manifest.write(folder)
                self._add_places(to, manifest, state)
                os.utime(folder / LOCK)
            self._look(folder)
            self._budget.make_room(folder)
            self._told.discard("write")
        except Interrupted:
            return False
        except OSError as error:
            self._tell_failure("write", error)
            self._clear_debris(folder)
        return True

    def drop(self, conversation: str | None) -> None:
        """Remove one conversation's snapshots, or with None all, those of other models too."""
        self._budget.drop(conversation)

    def all(self) -> list[Snapshot]:
        return [*self._snapshots()]

    @property
    def nbytes(self) -> int:
        """Bytes on disk, of all models."""
        return self._budget.nbytes

    @property
    def budget(self) -> int:
        return self._budget.limit

    # what is there

    def _folder_of(self, conversation: str) -> Path:
        return self._folder / folder_name(conversation)

    def _folders(self) -> Iterator[Path]:
        try:
            yield from [Path(entry.path) for entry in os.scandir(self._folder) if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell_failure("read", error)

    def _snapshots(self) -> Iterator[Snapshot]:
        for folder in self._folders():
            if snapshot := self._look(folder):
                yield snapshot

    def _look(self, folder: Path) -> Snapshot | None:
        """The folder's snapshot as it is now; ids and manifest are read only when they have changed."""
        try:
            for _ in range(_TRIES):
                status = (folder / MANIFEST).stat()
                signature = status.st_ino, status.st_size, status.st_mtime_ns
                known = self._known.get(folder)
                if known and known.signature == signature:
                    return known
                manifest = Manifest.read(folder)
                try:
                    ids = read_tensors(folder, manifest.ids, _ids_shape(manifest.tokens))["ids"].tolist()
                except FileNotFoundError:  # replaced since
                    continue
                self._known[folder] = Snapshot(folder, manifest, ids, signature)
                return self._known[folder]
            self._discard(folder, "a file is missing")
        except FileNotFoundError:
            pass  # none has been finished
        except NewerError as error:
            _log.info("%s", error)
            self._tell_once("States on disk that a newer version of qwenchat wrote are left alone.")
        except DamagedError as error:
            self._discard(folder, str(error))
        except OSError as error:
            self._tell_failure("read", error)
        self._known.pop(folder, None)
        return None

    # reading

    def _read(self, snapshot: Snapshot, length: int, held: Mapping[str, KVBlock]) -> SequenceState:
        folder, manifest = snapshot.folder, snapshot.manifest
        state = self._empty.fork(0)
        if (state.mtp_kv is None) != (manifest.mtp is None):
            raise DamagedError("a model with an MTP block wrote it for one without, or the other way round")
        caches = [(manifest.kv, state.kv, manifest.tokens, length)]
        if state.mtp_kv and manifest.mtp is not None:
            caches.append((manifest.mtp, state.mtp_kv, max(manifest.tokens - 1, 0), max(length - 1, 0)))
        jobs: list[Callable[[], Any]] = [functools.partial(self._places.read, folder, manifest.places[length], length)]
        for names, cache, stored, wanted in caches:
            jobs += _block_readers(folder, held, names, cache, stored, wanted)
        place, *found = _side_by_side(jobs)
        for names, cache, stored, wanted in caches:
            count = -(-wanted // BLOCK)
            _append(cache, names, found[:count], stored)
            del found[:count]
        state.ids = snapshot.ids[:length]
        state.recurrent = list(place.recurrent)
        state.last_hidden = place.last_hidden
        state.checkpoint()
        return state

    # writing

    def _elsewhere(self, folder: Path) -> Callable[[str], Path | None]:
        """Finds files of this model's other snapshots by their names."""

        @functools.cache
        def found() -> dict[str, Path]:
            others = [snapshot for snapshot in self._snapshots() if snapshot.folder != folder]
            return {name: other.folder / name for other in others for name in other.manifest.names}

        return lambda name: found().get(name)

    def _write(self, to: Target, conversation: str, state: SequenceState, before: Snapshot | None) -> Manifest:
        """The sequence and its end, and of the places that are stored those that still hold."""
        kv = self._write_kv(to, "kv", state.kv, state.length)
        mtp = None
        if state.mtp_kv:
            mtp = self._write_kv(to, "mtp", state.mtp_kv, max(state.length - 1, 0))
        stored: dict[int, str] = {}
        if before:
            agreed = common_prefix(before.ids, state.ids)
            stored = {length: name for length, name in before.manifest.places.items() if length <= agreed}
        end = Checkpoint(state.length, tuple(state.recurrent), state.last_hidden)
        return Manifest(
            conversation=conversation,
            tokens=state.length,
            ids=write_tensors(to, "ids", {"ids": torch.tensor(state.ids, dtype=torch.int32)}),
            kv=kv,
            mtp=mtp,
            places={**stored, state.length: self._places.write(to, end, exact=True)},
        )

    def _write_kv(self, to: Target, kind: str, cache: KVCache, length: int) -> tuple[str, ...]:
        names = []
        for index, block in enumerate(cache.blocks[: -(-length // BLOCK)]):
            rows = min(length - index * BLOCK, BLOCK)
            if rows == BLOCK and block.digest is None:
                block.digest = digest_of(block.tensors)
            names.append(write_tensors(to, kind, block.rows(rows), block.digest if rows == BLOCK else None))
        return tuple(names)

    def _add_places(self, to: Target, manifest: Manifest, state: SequenceState) -> None:
        """All checkpoints that lie apart, the latest first, or the most useful if the budget is small."""
        held = {place.length: place for place in state.checkpoints}
        apart = [0]
        for length in sorted(held.keys() | manifest.places.keys()):
            if length - apart[-1] >= _NEAR and length < state.length:
                apart.append(length)
        count = self._budget.places(self._least(state), self._places.nbytes)
        wanted = most_useful(apart, state.length, 1 + count)[1:]
        del wanted[: max(len(wanted) - count, 0)]
        end = {state.length: manifest.places[state.length]}
        places = {length: manifest.places[length] for length in wanted if length in manifest.places}
        try:
            for length in reversed(wanted):
                if length not in places:
                    places[length] = self._places.write(to, held[length], exact=False)
        finally:
            manifest = dataclasses.replace(manifest, places=places | end)
            manifest.write(to.folder)
            sweep(to.folder, manifest.names)

    def _least(self, state: SequenceState) -> int:
        """Bytes that the state takes on disk without any place but its end."""
        parts: list[KVBlock | RecurrentState] = [*state.blocks(), *state.recurrent]
        return sum(part.nbytes for part in parts)

    def _discard(self, folder: Path, reason: str) -> None:
        _log.warning("%s is dropped: %s", folder, reason)
        self._tell_once("A conversation's state on disk was damaged and is not used; the conversation is read again.")
        self._budget.remove(folder)

    def _clear_debris(self, folder: Path) -> None:
        """After a failed write: what no manifest names would only fill the disk."""
        try:
            with locked(folder) as mine:
                if mine and not is_newer(folder):
                    snapshot = self._look(folder)
                    sweep(folder, snapshot.manifest.names if snapshot else ())
        except OSError:
            _log.exception("cannot clear %s", folder)

    def _tell_failure(self, verb: str, error: OSError) -> None:
        _log.warning("cannot %s a snapshot: %s", verb, error)
        reason = (
            "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or "unknown error"
        )
        self._tell_once(
            f"Conversations' states cannot be kept on disk ({reason[:1].lower()}{reason[1:]}); "
            "after a restart they are read again, and nothing else is lost.",
            verb,
        )

    def _tell_once(self, sentence: str, topic: str = "") -> None:
        if (key := topic or sentence) not in self._told:
            self._told.add(key)
            self._notify(sentence)


def _side_by_side(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all, in order. Each thread, this one too, has its share at once: to hand over one file after the
    other took as long as reading it."""
    count = min(_READERS, os.cpu_count() or 1)
    results: list[T | None] = [None] * len(jobs)

    def share(first: int) -> None:
        results[first::count] = [job() for job in jobs[first::count]]

    with ThreadPoolExecutor(max(count - 1, 1)) as others:  # whose work is hashing, without Python's lock
        shares = [others.submit(share, first) for first in range(1, count)]
        share(0)
        for one in shares:
            one.result()
    return cast(list[T], results)


def _block_readers(
    folder: Path, held: Mapping[str, KVBlock], names: Sequence[str], cache: KVCache, stored: int, wanted: int
) -> list[Callable[[], KVBlock | dict[str, Tensor]]]:
    """Each gives a block that is held, or the tensors of one; of those with the first `wanted` of `stored` rows."""
    if len(names) != -(-stored // BLOCK):
        raise DamagedError("the number of blocks is not that of the tokens")
    readers: list[Callable[[], KVBlock | dict[str, Tensor]]] = []
    like = cache.new_block()
    for start, name in zip(range(0, wanted, BLOCK), names, strict=False):
        if block := held.get(_digest_in(name)):
            readers.append(functools.partial(_same, block))
        else:
            readers.append(functools.partial(read_tensors, folder, name, like.rows(min(stored - start, BLOCK))))
    return readers


def _same(block: KVBlock) -> KVBlock:
    return block


def _append(cache: KVCache, names: Sequence[str], found: Sequence[KVBlock | dict[str, Tensor]], stored: int) -> None:
    """Blocks of what was read."""
    like = cache.new_block()
    for index, one in enumerate(found):
        rows = min(stored - index * BLOCK, BLOCK)
        if isinstance(one, KVBlock):
            cache.blocks.append(one)
            continue
        tensors = _placed(one, like.tensors)
        if rows == BLOCK:  # stays mapped: what is part of a sequence is never written to
            cache.blocks.append(KVBlock(tensors, BLOCK, _digest_in(names[index])))
            continue
        block = cache.new_block()
        block.used = rows
        for key, tensor in block.rows(rows).items():
            tensor.copy_(tensors[key])
        cache.blocks.append(block)


def _ids_shape(tokens: int) -> dict[str, Tensor]:
    return {"ids": torch.empty(tokens, dtype=torch.int32, device="meta")}


def _placed(tensors: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the devices on which the model wants them."""
    return {name: tensor.to(like[name].device) for name, tensor in tensors.items()}


def _digest_in(name: str) -> str:
    return name.partition("-")[2].partition(".")[0]
