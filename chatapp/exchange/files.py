"""Files of conversations: nothing that is there is overwritten."""

from __future__ import annotations

import itertools
import stat
from contextlib import suppress
from pathlib import Path

from chatapp.exchange import read
from chatapp.exchange.export import FORMATS, Exported, Format, file_name
from chatapp.exchange.read import LARGEST, NotOursError
from chatapp.paths import absolute, expanded
from chatapp.sanitize import clean_line
from chatapp.store import Conversation, Store


class FileError(Exception):
    """A file cannot be read or written; the message is a sentence for the user."""


def format_of(path: Path) -> Format:
    """Told by its ending. Raises FileError."""
    ending = {"markdown": "md", "htm": "html"}.get(name := path.suffix.lower().lstrip("."), name)
    if ending not in FORMATS:
        with suppress(OSError):  # a name that is too long
            if expanded(path).is_dir():
                raise FileError(f"{_name(path)} is a folder: name a file in it.")
        raise FileError(f"A file of a conversation ends in .md, .html or .json, not in {path.suffix or 'nothing'}.")
    return ending


def write_in(folder: Path, exported: Exported, *, thoughts: bool) -> Path:
    """As Markdown, under a name that nothing has yet. Raises FileError."""
    first = folder / file_name(exported.conversation, "md")
    for number in itertools.count(2):
        try:
            return write(first, exported.text("md", thoughts=thoughts))
        except TakenError:
            first = folder / file_name(exported.conversation, "md")
            first = first.with_stem(f"{first.stem}-{number}")
    raise AssertionError


class TakenError(FileError):
    """There is a file of that name."""


def write(path: Path, text: str) -> Path:
    """All of it or nothing. Raises FileError."""
    path = absolute(expanded(path))
    made = False
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            made = True
            file.write(text)
    except FileExistsError:
        raise TakenError(f"There is a file {_name(path)} already, and it is left as it is.") from None
    except OSError as error:
        if made:
            with suppress(OSError):
                path.unlink()
        raise FileError(f"The file {_name(path)} cannot be written: {error.strerror}.") from error
    return path


def bring_in(store: Store, path: Path) -> Conversation:
    """The conversation in a file, as a new one. Raises FileError and StoreError."""
    path = expanded(path)
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # a device may have no end, and a pipe no beginning
            raise FileError(f"The file {_name(path)} cannot be read: it is a device or a pipe.")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise FileError(f"The file {_name(path)} is larger than any conversation: {LARGEST:,} bytes are the most.")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise FileError(f"The file {_name(path)} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise FileError(f"The file {_name(path)} is not a text, so it is no conversation.") from None
    try:
        found = read.conversation(text)
    except NotOursError as error:
        raise FileError(str(error)) from error
    return store.bring_in(found.conversation, found.nodes)


def _name(path: Path) -> str:
    return clean_line(str(path), 300)
