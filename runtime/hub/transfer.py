"""One file from the hub into the cache: in parallel ranges, from where it stopped, checked by its hash.

Bytes are on disk before the record says so. At the end they become the blob; the record goes when snapshots show it,
which is the caller's to do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import httpx2

from runtime.hub import cache, incomplete, remote, sentences
from runtime.hub.ranges import SMALLEST, Range, Ranges, Record
from runtime.hub.sentences import HubError

RESERVE = 512 << 20  # bytes of the disk that are left to others
_SHA256 = 64  # hexadecimal digits
_LONGEST_WAIT = 30.0  # seconds between two tries
_AGAIN = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Tuning:
    """Connections for one file, the bytes worth one, and tries in a row without progress before it is given up."""

    connections: int = 4
    smallest: int = SMALLEST
    tries: int = 8
    patience: float = 1.0  # seconds before the second try, doubled for each further one
    silence: float = remote.TIMEOUT
    record_every: float = 1.0  # seconds


class Watcher(Protocol):
    """Whoever wants the file."""

    def stopped(self) -> bool:
        """Whether to end now and keep what is there."""

    def progress(self, done: int) -> None:
        """So many bytes of this file have arrived."""

    def checking(self, done: int) -> None:
        """All have arrived, so many are checked."""

    def say(self, message: str) -> None:
        """What goes on, "" when it goes well again."""


class StoppedError(Exception):
    """The watcher wanted it."""


class _AgainError(Exception):
    """Worth another try; the message says why."""


class _NoRangesError(Exception):
    """The server sends the whole file whatever it is asked for."""


def free(folder: Path) -> int:
    """Bytes for us on the disk that holds a folder, which need not exist yet."""
    while not os.path.exists(folder):  # noqa: PTH110 (raises nothing)
        folder = folder.parent
    return shutil.disk_usage(folder).free


class Transfer:
    """Call `run` once."""

    def __init__(self, record: Record, watcher: Watcher, tuning: Tuning) -> None:
        """`record`: what to fetch, in its state on disk or none of it."""
        self._record = record
        self._watcher = watcher
        self._tuning = tuning
        self._ranges = Ranges(record.size, record.left, tuning.smallest)
        self._partial, self._record_path = incomplete.paths(record.repo, record.etag)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._answering: dict[threading.Thread, httpx2.Response] = {}
        self._end = threading.Event()
        self._error: Exception | None = None
        self._whole = False  # the server gives no ranges
        self._failures = 0  # in a row; connections that break at once are one
        self._until = 0.0  # monotonic: when to try again after the last of them

    def run(self) -> None:
        """Call it while `holding` the file; afterwards the blob is there.

        Raises HubError, OSError, StoppedError; what has arrived is kept by then. But not if its hash is wrong: then it
        is deleted.
        """
        self._record.write(self._record_path)  # it tells others whose file it is
        try:
            self._receive()
        except _NoRangesError:
            self._receive_whole()
        self._check()
        self._partial.replace(cache.blob(self._record.repo, self._record.etag))

    def _receive_whole(self) -> None:
        if self._ranges.done:
            self._watcher.say("The server cannot go on in the middle of a file: it starts over.")
        for thread in self._threads:
            while thread.is_alive():  # one whose answer is still to come would go on with the new beginning
                if self._watcher.stopped():
                    raise StoppedError
                thread.join(0.05)
        self._whole, self._error = True, None
        self._end.clear()
        self._ranges.restart()
        self._receive()

    def _receive(self) -> None:
        self._fd = os.open(self._partial, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if os.fstat(self._fd).st_size < max((at for at, _ in self._ranges.left), default=self._ranges.size):
                self._ranges.restart()  # the bytes that the record tells of are not there
            os.ftruncate(self._fd, self._ranges.size)
            connections = 1 if self._whole else self._tuning.connections
            self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(connections)]
            for thread in self._threads:
                thread.start()
            try:
                self._supervise()
            finally:
                self._hang_up()
                self._save()
        finally:
            os.close(self._fd)
        if self._error is not None:
            raise self._error

    def _hang_up(self) -> None:
        """Nothing is written after this; connections of which no answer has come yet end when they will."""
        with self._lock:
            self._end.set()
            answering = dict(self._answering)
            for response in answering.values():
                _shut(response)
        for thread in answering:
            thread.join()

    def _supervise(self) -> None:
        saved = time.monotonic()
        while any(thread.is_alive() for thread in self._threads):
            self._end.wait(0.05)
            if self._error is not None:
                return
            if self._watcher.stopped():
                raise StoppedError
            with self._lock:
                done = self._ranges.done
            self._watcher.progress(done)
            if time.monotonic() - saved > self._tuning.record_every:
                saved = time.monotonic()
                self._save()
                if free(self._partial.parent) < RESERVE // 2:
                    raise HubError(
                        f"The disk that holds {cache.root()} is nearly full: the download has stopped. Make room, for "
                        "instance with `qwenchat models rm`, and resume; what has arrived is kept."
                    )
        self._watcher.progress(self._ranges.done)

    def _save(self) -> None:
        with self._lock:
            left = tuple(self._ranges.left) if not self._whole else ((0, self._ranges.size),)
        if getattr(os, "fdatasync", None):
            os.fdatasync(self._fd)
        else:
            os.fsync(self._fd)
        replace(self._record, left=left).write(self._record_path)

    def _work(self) -> None:
        """One connection: range after range until none is left."""
        try:
            while not self._end.is_set():
                with self._lock:
                    range_ = self._ranges.take()
                if range_ is None:
                    return
                began = time.monotonic()
                try:
                    self._fetch(range_)
                except _AgainError as error:
                    self._pause(str(error), began)
                finally:
                    range_.taken = False
        except Exception as error:
            with self._lock:
                self._error = self._error or error
            self._end.set()

    def _pause(self, why: str, began: float) -> None:
        """Wait for the next try, after one that began then. Raises HubError after too many failures in a row."""
        with self._lock:
            if self._end.is_set():
                return  # and nothing more is said
            now = time.monotonic()
            if began >= self._until:  # a try from before is part of a failure that is counted
                self._failures += 1
                self._until = now + min(self._tuning.patience * 2 ** (self._failures - 1), _LONGEST_WAIT)
            failures, seconds = max(self._failures, 1), self._until - now
            if failures >= self._tuning.tries:
                raise HubError(f"{why}, after {failures} tries. What has arrived is kept: resume when it is better.")
            self._watcher.say(f"{why}; trying again ({failures} of {self._tuning.tries - 1})")
        self._end.wait(max(seconds, 0.0))

    def _fetch(self, range_: Range) -> None:
        record, end = self._record, range_.end - 1
        url = remote.address(record.repo, record.commit, record.file)
        headers = remote.headers() | ({} if self._whole else {"Range": f"bytes={range_.at}-{end}"})
        timeout = httpx2.Timeout(self._tuning.silence)
        host = sentences.host(url)
        try:
            with (
                remote.session().stream("GET", url, headers=headers, timeout=timeout) as response,
                self._listening(response) as wanted,
            ):
                if not wanted:
                    return
                if response.status_code in _AGAIN:
                    raise _AgainError(f"{host} has trouble ({response.status_code})")
                remote.check(response)
                self._admit(response, range_)
                self._store(response, range_)
        except (httpx2.TransportError, httpx2.StreamError) as error:
            if isinstance(error, httpx2.ProxyError | httpx2.UnsupportedProtocol):
                raise sentences.explain(error) from error
            silent = isinstance(error, httpx2.TimeoutException)
            raise _AgainError(f"{host} does not answer" if silent else f"The connection to {host} broke") from error
        finally:
            if self._whole and range_.left:
                with self._lock:
                    range_.at = 0
        if range_.left and not self._end.is_set():
            raise _AgainError(f"{host} ended before all had come")

    @contextmanager
    def _listening(self, response: httpx2.Response) -> Iterator[bool]:
        """Whether the answer is still wanted; `_hang_up` ends the wait for the rest of it."""
        me = threading.current_thread()
        with self._lock:
            wanted = not self._end.is_set()
            if wanted:
                self._answering[me] = response
        try:
            yield wanted
        finally:
            with self._lock:
                self._answering.pop(me, None)

    def _admit(self, response: httpx2.Response, range_: Range) -> None:
        """Whether the answer is what was asked for. Raises HubError, _NoRangesError."""
        size = self._ranges.size
        if response.status_code == 206:
            unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
            span, _, total = rest.partition("/")
            if unit != "bytes" or span.partition("-")[0] != str(range_.at) or total not in (str(size), "*"):
                raise HubError(self._changed(f"it sends {rest or 'unnamed bytes'} in place of {range_.at}-…/{size}"))
            return
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise HubError(
                f"{sentences.host(str(response.url))} sends a web page in place of the file: a network that wants you "
                "to log in first does that. Log in there and resume."
            )
        length = response.headers.get("Content-Length", str(size))
        if length != str(size):
            raise HubError(self._changed(f"it has {length} bytes in place of {size}"))
        if not self._whole:
            raise _NoRangesError

    def _store(self, response: httpx2.Response, range_: Range) -> None:
        """What comes goes to its place, up to the end of the range, which another connection may bring nearer."""
        for chunk in response.iter_raw():
            if self._end.is_set():
                return
            with self._lock:
                data, at = memoryview(chunk)[: range_.left], range_.at
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], at + written)
            with self._lock:
                range_.at += min(len(data), range_.left)
                if not self._whole:
                    self._failures = 0
                ended = not range_.left
            self._watcher.say("")
            if ended:
                return

    def _changed(self, what: str) -> str:
        return (
            f"The file {self._record.file} on the server is not the one that {self._record.repo} announces: {what}. "
            "Try again later; if a mirror is set (HF_ENDPOINT), it may be out of date."
        )

    def _check(self) -> None:
        """Raises HubError if the bytes are not those that were announced, and deletes them."""
        etag, size = self._record.etag, self._record.size
        git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)  # as git names small files
        digest = hashlib.sha256() if len(etag) == _SHA256 else git
        done = 0
        with self._partial.open("rb") as file:
            while chunk := file.read(4 << 20):
                if self._watcher.stopped():
                    raise StoppedError
                digest.update(chunk)
                done += len(chunk)
                self._watcher.checking(done)
        if digest.hexdigest() != etag:
            incomplete.delete(self._record.repo, etag)
            raise HubError(
                f"What has arrived of {self._record.file} is damaged: its hash is not the one that "
                f"{self._record.repo} names. It was deleted; try again."
            )


def _shut(response: httpx2.Response) -> None:
    """Wake whoever waits for more of an answer, which closing its connection would not."""
    with suppress(OSError):
        # not SSLSocket.shutdown, which takes the encryption from under the reader
        socket.socket.shutdown(response.extensions["network_stream"].get_extra_info("socket"), socket.SHUT_RDWR)
