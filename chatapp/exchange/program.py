"""`qwenchat export` and `qwenchat import`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from chatapp import paths
from chatapp.cli import UsageError
from chatapp.exchange import files
from chatapp.exchange.export import FORMATS, Exported
from chatapp.records import title_of
from chatapp.sanitize import clean_line
from chatapp.store import Store
from chatapp.words import Parser


def export(words: Sequence[str]) -> int:
    """Writes a conversation to stdout, or into a file."""
    parser = _parser("export", "Write a conversation as Markdown, HTML or JSON; import reads the JSON.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="its title, name or id; without one, the latest")
    parser.add_argument("-o", "--output", metavar="FILE", help="the file, which must not be there; else stdout")
    parser.add_argument("--format", choices=FORMATS, help="else that of the file's ending, else md")
    parser.add_argument("--thoughts", action="store_true", help="with the model's thoughts")
    found = parser.parse_args(list(words))
    with closing(Store(paths.database_path())) as store:
        conversation = store.find(found.name) if found.name else store.latest()
        if conversation is None:
            raise UsageError(
                f"There is no conversation {found.name!r}." if found.name else "There is no conversation yet."
            )
        exported = Exported.of(store, conversation)
    try:
        format = found.format or (files.format_of(Path(found.output)) if found.output else "md")
        text = exported.text(format, thoughts=found.thoughts)
        if found.output:
            files.write(Path(found.output), text)
    except files.FileError as error:
        raise UsageError(str(error)) from error
    if not found.output:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UsageError(f"The conversation cannot be written: {error.strerror}.") from error
    return 0


def import_(words: Sequence[str]) -> int:
    """Reads conversations into the store, and says what each is called."""
    parser = _parser("import", "Read conversations that export has written as JSON.")
    parser.add_argument("files", nargs="+", metavar="FILE")
    found = parser.parse_args(list(words))
    with closing(Store(paths.database_path())) as store:
        for name in found.files:
            try:
                made = files.bring_in(store, Path(name))
            except files.FileError as error:
                raise UsageError(str(error) if name in str(error) else f"{name}: {error}") from error
            print(f"{clean_line(title_of(made))}  {made.id}")
    return 0


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return Parser(prog=f"qwenchat {name}", description=description, allow_abbrev=False)
