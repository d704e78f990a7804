"""The TOML files of this package."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def load(name: str) -> dict[str, Any]:
    """A TOML file of this package."""
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
