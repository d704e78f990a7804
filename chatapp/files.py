"""Files that the user may send: which there are below a folder, which of them is meant, and their text."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.figures import size
from chatapp.paths import absolute, expanded
from chatapp.sanitize import clean, clean_line

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT = 1_000_000
"""The most bytes of a file that can be sent."""
MOST = 20_000
SECONDS = 2.0

_PROBE = 8192
_KINDS = (
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a compressed file"),
    (b"\x7fELF", "a program"),
    (b"GGUF", "a model"),
    (b"SQLite format 3", "a database"),
)
_BIG_ENOUGH = ("node_modules", "__pycache__", "venv", "target")  # folders that nobody means, ignored or not


class FileError(Exception):
    """A file cannot be sent; the message is a sentence for the user."""


def read(path: Path) -> str:
    """The text of a file, with newlines only between its lines. Raises FileError."""
    name = clean_line(path.name, 60)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise FileError(f"{name} is a folder: name a file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{name} is not a file that can be read.")
        if status.st_size > LIMIT:
            raise FileError(f"{name} has {size(status.st_size)}: files up to {size(LIMIT)} can be sent.")
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT:  # it has grown, or its size is not told
            raise FileError(f"{name} has more than {size(LIMIT)}, which are the most that can be sent.")
    except OSError as error:
        raise FileError(f"{name} cannot be read: {error.strerror}.") from error
    if not data.strip():
        raise FileError(f"{name} is empty.")
    kind = next((what for magic, what in _KINDS if data.startswith(magic)), None)
    utf_16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        if kind is None and (utf_16 or b"\0" not in data[:_PROBE]):
            text = data.decode("utf-16" if utf_16 else "utf-8-sig")
            return text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    except UnicodeDecodeError:
        pass
    raise FileError(f"{name} is {kind or 'binary'}: only text can be sent.")


def below(folder: Path, most: int = MOST, seconds: float = SECONDS) -> list[str]:
    """The files below a folder, as paths from it; not those that are hidden or that a .gitignore leaves out.

    The shallow ones come first, and are all there is of a folder too large for `most` files or so many `seconds`.
    """
    until = time.monotonic() + seconds
    found: list[str] = []
    queue: list[tuple[Path, str, tuple[tuple[str, GitIgnoreSpec], ...]]] = [(folder, "", _above(folder))]
    for place, prefix, specs in queue:  # which grows
        if len(found) >= most or time.monotonic() > until:
            break
        if (spec := _spec(place)) is not None:
            specs = (*specs, (prefix, spec))
        for entry, is_folder in _entries(place):
            path = f"{prefix}{entry}"
            if _ignored(f"{path}/" if is_folder else path, specs):
                continue
            if is_folder:
                queue.append((place / entry, f"{path}/", specs))
            else:
                found.append(path)
    return found[:most]


def inside(start: str) -> list[str]:
    """What there is at a path that is being written, as it would go on: folders end in a slash."""
    cut = start.rfind("/") + 1
    folder = expanded(start[:cut] or ".")
    hidden = start[cut:].startswith(".")
    entries = _entries(folder, hidden=hidden)
    names = sorted(f"{name}/" if is_folder else name for name, is_folder in entries)
    return [start[:cut] + name for name in names if name.casefold().startswith(start[cut:].casefold())]


def ranked(query: str, paths: Sequence[str], most: int) -> list[str]:
    """The paths that `query` may mean, the likeliest first.

    A path holds it as it is, or its file's name holds its characters in their order, or each of its parts between
    slashes is in a folder of its own. Takes a time proportional to the length of the paths.
    """
    wanted = query.casefold()
    scattered = re.compile("".join(f"[^{re.escape(character)}]*+{re.escape(character)}" for character in wanted))
    parts = wanted.split("/")
    scored = []
    for path in paths:
        low = path.casefold()
        name = low[low.rfind("/") + 1 :]
        if wanted in low:
            place = 0 if name == wanted else 1 if name.startswith(wanted) else 2 if wanted in name else 3
        elif scattered.match(name) is not None:
            place = 4
        elif len(parts) > 1 and _in_folders(parts, low):
            place = 5
        else:
            continue
        scored.append((place, low.count("/"), len(low), path))
    return [path for *_, path in sorted(scored)[:most]]


def _in_folders(parts: Sequence[str], path: str) -> bool:
    """Whether each part occurs in the path, further down than the one before it."""
    at = 0
    for number, part in enumerate(parts):
        place = path.find(part, at)
        at = place + len(part) if number == len(parts) - 1 else path.find("/", place + len(part)) + 1
        if place < 0 or not at:
            return False
    return True


def _entries(folder: Path, *, hidden: bool = False) -> Iterator[tuple[str, bool]]:
    """Names and whether they are folders; links to folders are left alone, for they may lead in a circle."""
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        if (entry.name.startswith(".") and not hidden) or entry.name in _BIG_ENOUGH:
            continue
        if clean(entry.name) != entry.name or "\n" in entry.name:  # what a terminal obeys is no name to write
            continue
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder or entry.is_file():
                yield entry.name, is_folder
        except OSError:
            continue


def _spec(folder: Path) -> GitIgnoreSpec | None:
    try:
        lines = (folder / ".gitignore").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    from pathspec import GitIgnoreSpec  # only needed once a file is looked for

    return GitIgnoreSpec.from_lines(lines)


def _above(folder: Path) -> tuple[tuple[str, GitIgnoreSpec], ...]:
    """What the .gitignore files above say, up to the root of the repository; prefixes as `../` for each step."""
    specs: list[tuple[str, GitIgnoreSpec]] = []
    here = absolute(folder)
    within = ""
    while not (here / ".git").exists() and here.parent != here:
        within = f"{here.name}/{within}"
        here = here.parent
        if (spec := _spec(here)) is not None:
            specs.append((f"<{within}", spec))
    return tuple(reversed(specs)) if (here / ".git").exists() else ()


def _ignored(path: str, specs: Sequence[tuple[str, GitIgnoreSpec]]) -> bool:
    """Whether the last spec that has something to say about a path leaves it out."""
    ignored = False
    for prefix, spec in specs:
        inner = prefix[1:] + path if prefix.startswith("<") else path.removeprefix(prefix)
        result = spec.check_file(inner)
        if result.include is not None:
            ignored = result.include
    return ignored
