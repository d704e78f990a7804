"""Textual without its own command palette, which the chat has none of, and which takes a tenth of all imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

PALETTE = "textual.command"
NAMES = ("CommandListItem", "CommandPalette", "DiscoveryHit", "Hit", "Hits", "Provider", "SimpleProvider")
"""What the rest of Textual takes from it when it is imported."""


@contextmanager
def without_palette() -> Iterator[None]:
    """Imports Textual within this: it gets empty classes for those of the palette, unless that is there already.

    Later on the module can be imported as ever.
    """
    if PALETTE in sys.modules or "textual.app" in sys.modules:
        yield
        return
    sys.modules[PALETTE] = stand_in = ModuleType(PALETTE)
    for name in NAMES:
        setattr(stand_in, name, type(name, (), {}))
    try:
        yield
    finally:
        del sys.modules[PALETTE]
