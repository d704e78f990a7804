"""What the model can tell of the app: commands, keys and settings, read from the file that the chat exports.

The file is one JSON object:

    {"entries": [{"kind": "command", "name": "/new", "usage": "/new", "key": "Ctrl+N", "about": "Begin a new …"}, …],
     "real_model": "For a real model, …"}

`kind` is command, key or setting; `about` is the registry's own sentence, which the model says word for word; `usage`
and `key` belong to commands. `real_model` tells how to get a larger model. What users call these things stands in
`wishes.toml`, by name: the export need not know it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

DEFAULT_TOUR = Path(__file__).parents[1] / "tour.json"

Kind = Literal["command", "key", "setting"]


class TourError(Exception):
    """The tour cannot be used; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Entry:
    kind: Kind
    name: str
    about: str
    usage: str = ""
    key: str = ""

    @property
    def action(self) -> str:
        """`about` as a phrase: no capital, no full stop."""
        text = self.about.rstrip(".")
        return text if text[1:2].isupper() else text[:1].lower() + text[1:]


@dataclass(frozen=True, slots=True)
class Tour:
    entries: tuple[Entry, ...]
    real_model: str

    def of_kind(self, kind: Kind) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.kind == kind)


def read_tour(path: Path) -> Tour:
    """Raises TourError."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(Entry(**entry) for entry in body["entries"])
        tour = Tour(entries, body["real_model"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TourError(f"The tour {path} cannot be read: {error}.") from error
    for entry in tour.entries:
        if entry.kind not in get_args(Kind) or not entry.name or not entry.about:
            raise TourError(f"The tour {path} has an entry without kind, name or about: {entry}.")
    if len({(e.kind, e.name) for e in tour.entries}) != len(tour.entries):
        raise TourError(f"The tour {path} names an entry twice.")
    return tour
