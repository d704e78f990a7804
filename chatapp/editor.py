"""The user's own editor, for what is being written."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import tempfile
from pathlib import Path

from textual.app import App, SuspendNotSupported

from chatapp.sanitize import clean, clean_line

_USUAL = ("sensible-editor", "nano", "vim", "vi")


class EditorError(Exception):
    """The editor could not be used; the message is a sentence for the user."""


def editor_command() -> list[str]:
    """The words of $VISUAL or $EDITOR, else an editor that there is. Raises EditorError."""
    for variable in ("VISUAL", "EDITOR"):
        if chosen := os.environ.get(variable, "").strip():
            try:
                return shlex.split(chosen)
            except ValueError as error:
                raise EditorError(f"${variable} cannot be understood: {error}.") from error
    usual = next((name for name in _USUAL if shutil.which(name)), None)
    if usual is None:
        raise EditorError("There is no editor: set $VISUAL or $EDITOR to one.")
    return [usual]


async def edit(app: App[None], text: str) -> str:
    """The text as the user's editor leaves it. The terminal is the editor's meanwhile, and replies go on.

    Raises EditorError; what was written in the editor until then is in a file that the message names.
    """
    words = editor_command()
    path = _kept(text)
    code, failed = 0, None
    # Where the editor leaves Ctrl+C to the terminal, it interrupts both.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        # Nothing is drawn while the terminal belongs to another program.
        with app.batch_update(), app.suspend():
            try:
                child = await asyncio.create_subprocess_exec(*words, str(path))
                code = await child.wait()
            except OSError as error:  # one that leaves `suspend` leaves the terminal to nobody
                failed = error
    except SuspendNotSupported as error:
        _drop(path)
        raise EditorError("This terminal cannot be handed to an editor.") from error
    finally:
        signal.signal(signal.SIGINT, before)
    if failed is not None:
        _drop(path)
        raise EditorError(f"The editor {clean_line(words[0], 60)} does not start: {failed.strerror}.") from failed
    return _taken(path, text, code)


def _kept(text: str) -> Path:
    """A new file with the text."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", errors="replace", newline="\n", prefix="qwenchat-", suffix=".md", delete=False
    ) as file:
        file.write(text)
    return Path(file.name)


def _taken(path: Path, before: str, code: int) -> str:
    """The text of the file, which goes unless something of it would be lost with it."""
    try:
        written = path.read_bytes().decode("utf-8").replace("\r\n", "\n").rstrip("\n")
    except OSError as error:
        raise EditorError(f"What the editor wrote cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise EditorError(f"What the editor wrote is not UTF-8; it is in {path}.") from error
    if code != 0 and written != before.rstrip("\n"):
        raise EditorError(f"The editor ended with code {code}: nothing is changed here. What it wrote is in {path}.")
    _drop(path)
    if code != 0:
        raise EditorError(f"The editor ended with code {code}: nothing is changed.")
    return clean(written)


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)
