"""Downloads that run side by side, are paused, resumed and discarded, and outlive the process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from runtime.hub import cache, incomplete, remote, sentences, transfer
from runtime.hub.incomplete import RECORD
from runtime.hub.protocol import Download, State
from runtime.hub.ranges import Record
from runtime.hub.remote import HubFile, Item
from runtime.hub.sentences import HubError
from runtime.hub.transfer import RESERVE, StoppedError, Transfer, Tuning

_TELL_SECONDS = 0.25
_RATE_SECONDS = 10.0  # over which the speed is measured
_POLL_SECONDS = 0.1  # between two looks at a file that somebody else fetches
_DOUBTS = 5  # of these


def unfinished() -> list[Download]:
    """What is not complete, from the records in the cache.

    `running` if another process is at it, `paused` if the user wanted so, else `waiting` to go on.
    """
    found: dict[tuple[str, str], list[Record]] = {}
    for path in cache.matching(cache.root(), f"models--*/blobs/*{RECORD}"):
        if record := Record.read(path):
            found.setdefault((record.repo, record.item), []).append(record)
    return [
        Download(
            f"{repo}/{item}",
            repo,
            item,
            sum(record.done for record in records),
            sum(record.size for record in records),
            _state(records),
        )
        for (repo, item), records in found.items()
    ]


def _state(records: Iterable[Record]) -> State:
    if any(incomplete.held(record.repo, record.etag) for record in records):
        return "running"
    return "paused" if any(record.paused for record in records) else "waiting"


class Job(threading.Thread):
    """Fetches all files of one item. `tell` hears of each change of `download`, in this thread."""

    def __init__(self, item: Item, tell: Callable[[Download], None], tuning: Tuning | None = None) -> None:
        super().__init__(daemon=True, name=f"download {item.file}")
        key = f"{item.repo}/{item.file}"
        self.download = Download(key, item.repo, item.file, 0, item.size, "running")
        self._item = item
        self._tell = tell
        self._tuning = tuning or Tuning()
        self._ending = threading.Event()
        self._paused = self._discarded = False
        self._before = 0  # bytes of the files that are complete
        self._past: deque[tuple[float, int]] = deque()
        self._told = float("-inf")

    def pause(self) -> None:
        self._paused = True
        self._ending.set()

    def leave(self) -> None:
        """End, to go on at the next start."""
        self._ending.set()

    def discard(self) -> None:
        self._discarded = True
        self._ending.set()

    def run(self) -> None:
        try:
            self._show(message=self._begin())
            for file in self._item.files:
                self._fetch(file)
                self._before += file.size
            paths = [cache.add(self._item.repo, self._item.commit, f.path, f.etag) for f in self._item.files]
            for file in self._item.files:
                _forget(self._new(file))
            self._show(state="done", done=self._item.size, message="", path=str(paths[0]))
        except StoppedError:
            self._halt()
        except Exception as error:
            if self._ending.is_set():
                self._halt()
            else:
                self._show(state="failed", message=str(sentences.explain(error, self._item.repo, self._item.file)))

    # What the transfer asks of its watcher.

    def stopped(self) -> bool:
        return self._ending.is_set()

    def progress(self, done: int) -> None:
        now, done = time.monotonic(), self._before + done
        while self._past and (now - self._past[0][0] > _RATE_SECONDS or self._past[-1][1] > done):
            self._past.popleft()
        if not self._past or self._past[-1][1] != done or now - self._past[-1][0] > _TELL_SECONDS:
            self._past.append((now, done))
        start, first = self._past[0]
        rate = (done - first) / (now - start) if now - start > _TELL_SECONDS else None
        left = (self._item.size - done) / rate if rate else None
        self._show(state="running", done=done, rate=rate, seconds_left=left, seldom=True)

    def checking(self, done: int) -> None:
        self._show(state="checking", done=self._before + done, rate=None, seconds_left=None, seldom=True)

    def say(self, message: str) -> None:
        if message != self.download.message and (message or self.download.message.endswith(")")):
            self._show(message=message)

    # Inner workings.

    def _show(self, *, seldom: bool = False, **changes: object) -> None:
        download = replace(self.download, **changes)  # type: ignore[arg-type]
        if seldom and download.state == self.download.state and time.monotonic() - self._told < _TELL_SECONDS:
            return
        self._told = time.monotonic()
        self.download = download
        self._tell(download)

    def _begin(self) -> str:
        """Write all records, so that whatever happens the whole is known; what there is to say of the start."""
        message = self._drop_older()
        needed = 0
        for file in self._item.files:
            if self._arrived(file):
                continue
            needed += max(file.size - incomplete.stored(self._item.repo, file.etag), 0)
            with incomplete.holding(self._item.repo, file.etag) as mine:
                if mine:
                    replace(self._resumed(file), paused=False).write(self._record_of(file))
        free = transfer.free(cache.root())
        if needed and free < needed + RESERVE:
            self._forget_empty()
            raise HubError(
                f"The disk that holds {cache.root()} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are to "
                f"come and {RESERVE / 1e9:.1f} GB stay free for others. Make room, for instance with "
                "`qwenchat models rm`, choose a smaller file, or set HF_HOME to another disk."
            )
        return message

    def _new(self, file: HubFile) -> Record:
        item = self._item
        return Record(item.repo, item.commit, item.file, file.path, file.etag, file.size, ((0, file.size),))

    def _resumed(self, file: HubFile) -> Record:
        """As far as it has come."""
        new, known = self._new(file), Record.read(self._record_of(file))
        return replace(new, left=known.left) if known and known.size == file.size else new

    def _arrived(self, file: HubFile) -> bool:
        return cache.arrived(self._item.repo, self._item.commit, file.path, file.etag, file.size)

    def _record_of(self, file: HubFile) -> Path:
        return incomplete.paths(self._item.repo, file.etag)[1]

    def _drop_older(self) -> str:
        """What has arrived of an earlier version of these files is of no use; a sentence if there was some."""
        names, etags = {file.path for file in self._item.files}, {file.etag for file in self._item.files}
        dropped = False
        for record in _records(self._item.repo):
            if record.file in names and record.etag not in etags:
                dropped = _forget(record) or dropped
        return "The file has changed on the hub since its download began: it starts over." if dropped else ""

    def _fetch(self, file: HubFile) -> None:
        self._past.clear()
        ours = 0
        while not self._arrived(file):
            with incomplete.holding(self._item.repo, file.etag) as mine:
                if mine:
                    if not self._arrived(file):
                        Transfer(self._resumed(file), self, self._tuning).run()
                    return
            record = Record.read(self._record_of(file))
            # Whoever has just begun may not have written yet whose file it is.
            ours = ours + 1 if record and record.item == self._item.file else 0
            if ours > _DOUBTS:
                raise HubError("Another window, or another program of yours, is downloading this already.")
            if not ours:
                self.say(f"Waiting for {file.path} (the download of another model fetches it)")
            self.progress(record.done if record else 0)
            if self._ending.wait(_POLL_SECONDS):
                raise StoppedError

    def _halt(self) -> None:
        if self._discarded:
            for record in _records(self._item.repo, self._item.file):
                _forget(record)
            cache.tidy(cache.folder(self._item.repo))
            self._show(state="paused", done=0, message="discarded")
            return
        if self._paused:
            for record in _records(self._item.repo, self._item.file):
                with incomplete.holding(record.repo, record.etag) as mine:
                    if mine and (now := _again(record)):
                        replace(now, paused=True).write(incomplete.paths(record.repo, record.etag)[1])
        self._show(state="paused", message="", rate=None, seconds_left=None)

    def _forget_empty(self) -> None:
        """Nothing has arrived and nothing will: leave no trace."""
        for record in _records(self._item.repo, self._item.file):
            if not record.done:
                _forget(record)
        cache.tidy(cache.folder(self._item.repo))


def _records(repo: str, item: str | None = None) -> Iterable[Record]:
    """Of all files that are on their way, or those of one item; a file of several is whose download had it last."""
    for path in (cache.folder(repo) / "blobs").glob(f"*{RECORD}"):
        if (record := Record.read(path)) and item in (None, record.item):
            yield record


def _again(record: Record) -> Record | None:
    """As it is now on disk, unless another download has had the file since."""
    now = Record.read(incomplete.paths(record.repo, record.etag)[1])
    return now if now and now.item == record.item else None


def _forget(record: Record) -> bool:
    """Delete what has arrived of a file, unless another download has or has had it: then False."""
    with incomplete.holding(record.repo, record.etag) as mine:
        forgotten = mine and _again(record) is not None
        if forgotten:
            _delete(record)
    return forgotten


def _delete(record: Record) -> None:
    incomplete.delete(record.repo, record.etag)
    blob = cache.blob(record.repo, record.etag)
    if not cache.shown(cache.folder(record.repo), blob):  # of a model whose other files have not arrived
        blob.unlink(missing_ok=True)


def discard(repo: str, item: str) -> None:
    """Delete what has arrived of a download. Raises HubError, and deletes nothing, if it runs."""
    with ExitStack() as stack:
        records = list(_records(repo, item))
        if not all(stack.enter_context(incomplete.holding(repo, record.etag)) for record in records):
            raise HubError("Another window, or another program of yours, is downloading this: cancel it there.")
        for record in filter(_again, records):
            _delete(record)
    cache.tidy(cache.folder(repo))


def find_item(repo: str, file: str) -> Item:
    """The item of a repository that has a file of this name. Raises HubError and what the hub raises."""
    found = remote.listing(repo)
    for item in found.items:
        if file in (item.file, *(part.path for part in item.parts)):
            if item.missing:
                raise HubError(f"{repo} lacks parts of {item.name.stem}: choose another of its files.")
            return item
    raise HubError(f"{repo} has no file {file}: it was renamed or removed. Choose another from its list.")
