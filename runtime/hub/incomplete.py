"""What has arrived of a file that is on its way: where it lies, and who may write and delete it.

The bytes are in `blobs/ETAG.qwenchat.incomplete`, the ranges that are to come in `blobs/ETAG.qwenchat.json`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from runtime.hub import cache

PARTIAL, RECORD = ".qwenchat.incomplete", ".qwenchat.json"
_GLANCES, _GLANCE_SECONDS = 3, 0.02  # how often the lock is asked for, which `held` may have for a moment


def paths(repo: str, etag: str) -> tuple[Path, Path]:
    """The bytes and the record of a file that is on its way."""
    blob = cache.blob(repo, etag)
    return blob.with_name(blob.name + PARTIAL), blob.with_name(blob.name + RECORD)


def stored(repo: str, etag: str) -> int:
    """Bytes of disk that a file on its way takes already."""
    try:
        return paths(repo, etag)[0].stat().st_blocks * 512
    except OSError:
        return 0


def delete(repo: str, etag: str) -> None:
    """What has arrived of a file, and what a kill may have left beside it. Call it while `holding` the file."""
    partial, record = paths(repo, etag)
    for path in (partial, record.with_name(record.name + ".tmp"), record):
        path.unlink(missing_ok=True)


def held(repo: str, etag: str) -> bool:
    """Whether somebody is `holding` the file."""
    try:
        with paths(repo, etag)[0].open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def holding(repo: str, etag: str) -> Iterator[bool]:
    """Keep all others, in this process too, from fetching and deleting a file; False: somebody does so already."""
    partial = paths(repo, etag)[0]
    partial.parent.mkdir(parents=True, exist_ok=True)
    for last in (False, False, True):
        with partial.open("ab") as file:
            mine = _lock(file)
            if mine and not last and not _lies_at(partial, file):
                continue  # renamed or deleted since it was opened
            try:
                yield mine
            finally:
                if mine and _lies_at(partial, file) and not os.fstat(file.fileno()).st_size:
                    partial.unlink(missing_ok=True)
            return


def _lock(file: IO[bytes]) -> bool:
    for _ in range(_GLANCES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_GLANCE_SECONDS)
        except OSError:
            return True  # a file system without locks: then nothing tells of the others
        else:
            return True
    return False


def _lies_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False
