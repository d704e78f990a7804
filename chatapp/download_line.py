"""The line above the status line while something is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from chatapp.sanitize import shortened

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
        room = self.app.size.width // max(len(downloads), 1)
        parts = []
        for each in downloads:
            how_far = progress(each)
            parts.append(f"{shortened(each.file.rpartition('/')[2], max(room - len(how_far) - 8, 16))} {how_far}")
        self.update(Content(f"↓ {'   ↓ '.join(parts)}"))
