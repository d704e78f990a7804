"""A name that one holder at a time has, over all processes, until it lets go or ends in whatever way."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


class Claim:
    """Made by `take`. A lock of the system, so that nothing is left to clean up after a kill."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Claim | None:
        """None while somebody else has it. Where the system cannot lock, nobody is kept from anything."""
        while True:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                return cls(path, None)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:
                os.close(descriptor)
                return cls(path, None)
            # Whoever had it may have removed the file between the two calls: then this lock guards nothing.
            with suppress(OSError):
                if os.stat(path).st_ino == os.fstat(descriptor).st_ino:  # noqa: PTH116
                    return cls(path, descriptor)
            os.close(descriptor)

    @staticmethod
    def taken(path: Path) -> bool:
        """Whether somebody has it at this moment."""
        if not path.exists():
            return False
        claim = Claim.take(path)
        if claim is not None:
            claim.release()
        return claim is None

    def release(self) -> None:
        """Idempotent."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                self._path.unlink()
            os.close(descriptor)
