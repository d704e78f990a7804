"""Texts with a name: those that come with the program, and the user's own, which stand before them."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from chatapp.sanitize import clean_line

_NAME = re.compile(r"[\w][\w .+-]{0,59}")


class ShelfError(Exception):
    """A text cannot be read or kept; the message is a sentence for the user."""


class Shelf:
    """The files `NAME.suffix` of a folder of this package and of one of the user's."""

    def __init__(self, kind: str, suffix: str, own: Path) -> None:
        """`kind`: the name of the folder in this package, in the plural."""
        from importlib import resources  # the first paint needs none

        self.kind = kind
        self.own = own
        self._suffix = suffix
        self._shipped = resources.files("chatapp") / kind

    def names(self) -> list[str]:
        """In the order of the alphabet."""
        shipped = {Path(file.name).stem for file in self._shipped.iterdir() if file.name.endswith(self._suffix)}
        return sorted(shipped | {path.stem for path in self._own_files()}, key=str.casefold)

    def is_own(self, name: str) -> bool:
        return name in {path.stem for path in self._own_files()}  # not any file that a path leads to

    def read(self, name: str) -> str:
        """Raises ShelfError."""
        if name not in self.names():
            raise ShelfError(
                f"There is no {self.kind[:-1]} {clean_line(name, 60)!r}. There are: {', '.join(self.names())}."
            )
        path = self._path(name)
        try:
            if path.is_file():
                return path.read_text("utf-8-sig")
            return (self._shipped / f"{name}{self._suffix}").read_text("utf-8")
        except OSError as error:
            raise ShelfError(f"The {self.kind[:-1]} {path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError:
            raise ShelfError(f"The {self.kind[:-1]} {path} is not UTF-8.") from None

    def check_name(self, name: str) -> None:
        """Raises ShelfError for a name under which nothing can be saved."""
        if _NAME.fullmatch(name) is None:
            raise ShelfError(
                f"{clean_line(name, 60)!r} is no name for a {self.kind[:-1]}: letters, digits, spaces, - and . will do."
            )

    def save(self, name: str, text: str) -> None:
        """Whole or not at all. Raises ShelfError."""
        self.check_name(name)
        path, temporary = self._path(name), None
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self.own, delete=False) as file:
                temporary = Path(file.name)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            if temporary is not None:
                temporary.unlink(missing_ok=True)
            raise ShelfError(f"The {self.kind[:-1]} {path} cannot be written: {error.strerror}.") from error

    def delete(self, name: str) -> None:
        """One of the user's own. Raises ShelfError."""
        if not self.is_own(name):
            raise ShelfError(f"There is no {self.kind[:-1]} {clean_line(name, 60)!r} of yours.")
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise ShelfError(f"The {self.kind[:-1]} {name!r} cannot be deleted: {error.strerror}.") from error

    def _path(self, name: str) -> Path:
        return self.own / f"{name}{self._suffix}"

    def _own_files(self) -> list[Path]:
        try:
            return [path for path in self.own.iterdir() if path.suffix == self._suffix and path.is_file()]
        except OSError:
            return []
