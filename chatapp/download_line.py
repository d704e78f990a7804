"""The line above the status line while something is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from chatapp.sanitize import clean_line

if TYPE_CHECKING:
    from runtime.hub.protocol import Download


class DownloadLine(Static):
    """Not there while nothing is downloaded."""

    DEFAULT_CSS = "DownloadLine { height: 1; padding: 0 2; color: $text-muted; display: none; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)

    def show(self, downloads: Sequence[Download]) -> None:
        from chatapp.wizard_pages import progress

        self.display = bool(downloads)
        parts = [f"{clean_line(each.file.rpartition('/')[2], 60)} {progress(each)}" for each in downloads]
        self.update(Content(f"↓ {'   ↓ '.join(parts)}"))
