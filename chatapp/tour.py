"""Exports the commands, keys and settings for the built-in model, which tells of them.

python -m chatapp.tour > runtime/builtin/tour.json
"""

from __future__ import annotations

import json
from typing import Any

from chatapp import keys, settings
from chatapp.commands import COMMANDS
from chatapp.commands.help import taught_keys

REAL_MODEL = "For a real model, type `/models` and choose one that suits your machine."


def entries() -> list[dict[str, str]]:
    """One for each command, key and setting; a key that does two things is told once."""
    found = [
        {
            "kind": "command",
            "name": f"/{known.name}",
            "usage": known.usage,
            "key": keys.of_command(known.name, known.key, {}).partition(",")[0],
            "about": known.help,
        }
        for known in COMMANDS.values()
    ]
    told: dict[str, str] = {}
    for key in taught_keys():
        told.setdefault(keys.label(key.keys[0]), key.about)
    found += [{"kind": "key", "name": name, "about": about} for name, about in told.items()]
    found += [
        {"kind": "setting", "name": name, "about": field.metadata["description"]}
        for name, field in settings.FIELDS.items()
    ]
    return found


def text() -> str:
    """The file: an entry a line."""
    lines: list[Any] = [json.dumps(entry, ensure_ascii=False) for entry in entries()]
    body = ",\n    ".join(lines)
    return f'{{\n  "real_model": {json.dumps(REAL_MODEL)},\n  "entries": [\n    {body}\n  ]\n}}\n'


if __name__ == "__main__":
    print(text(), end="")
