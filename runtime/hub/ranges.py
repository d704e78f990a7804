"""Which bytes of a file are still to come, and their record on disk, so that a download goes on after any end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

SMALLEST = 8 << 20  # bytes that are worth a connection of their own


@dataclass(slots=True)
class Range:
    """Bytes at … end−1 of the file are to come; `taken`: somebody fetches them."""

    at: int
    end: int
    taken: bool = False

    @property
    def left(self) -> int:
        return self.end - self.at


class Ranges:
    """Not locked: whoever shares it takes care of that."""

    def __init__(self, size: int, left: Iterable[tuple[int, int]] | None = None, smallest: int = SMALLEST) -> None:
        """Raises ValueError for a record that cannot be of a file of this size."""
        self.size = size
        self._smallest = smallest
        pairs = [(0, size)] if left is None else sorted(left)
        self._ranges = [Range(at, end) for at, end in pairs if at < end]
        bounds = [0, *(edge for pair in pairs for edge in pair), size]
        if bounds != sorted(bounds):
            raise ValueError("ranges that overlap or lie outside the file")

    def take(self) -> Range | None:
        """A range that nobody fetches, or the second half of the longest that somebody does; None if none is left."""
        self._ranges = [each for each in self._ranges if each.left]
        free = [each for each in self._ranges if not each.taken]
        if free:
            found = max(free, key=lambda each: each.left)
        else:
            longest = max(self._ranges, key=lambda each: each.left, default=None)
            if longest is None or longest.left < 2 * self._smallest:
                return None
            middle = longest.at + longest.left // 2
            found = Range(middle, longest.end)
            longest.end = middle
            self._ranges.append(found)
        found.taken = True
        return found

    def restart(self) -> None:
        """All is to come again."""
        self._ranges = [Range(0, self.size)]

    @property
    def left(self) -> list[tuple[int, int]]:
        return sorted((each.at, each.end) for each in self._ranges if each.left)

    @property
    def done(self) -> int:
        return self.size - sum(each.left for each in self._ranges)


@dataclass(frozen=True, slots=True)
class Record:
    """Of one file of a download. `item`: the file that stands for all of the model; `paused`: the user wanted so."""

    repo: str
    commit: str
    item: str
    file: str
    etag: str
    size: int
    left: tuple[tuple[int, int], ...]
    paused: bool = False

    @property
    def done(self) -> int:
        return self.size - sum(end - at for at, end in self.left)

    def write(self, path: Path) -> None:
        """In place of what was there, whole or not at all. Raises OSError."""
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """None if there is none, or none that makes sense."""
        try:
            fields = json.loads(path.read_bytes())
            record = cls(**{**fields, "left": tuple((int(at), int(end)) for at, end in fields["left"])})
            Ranges(record.size, record.left)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return record
