"""Keys in sentences, as people write them and as the settings have changed them; and those of every list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding

if TYPE_CHECKING:
    from textual.widget import Widget


def key_of(widget: Widget, id: str, usual: str) -> str:
    """The first key of the binding `id`: `usual`, unless the settings name another."""
    keymap: dict[str, str] = getattr(widget.app, "keymap", {})
    if id not in keymap:
        return usual
    from chatapp.keys import label

    return label(keymap[id].split(",")[0])


def moves(scope: str, above: str = "Previous", below: str = "Next", action: str = "move") -> tuple[Binding, Binding]:
    """Up and Down in a list that has its own field to write in."""
    return (
        Binding("up", f"{action}(-1)", above, id=f"{scope}.previous", priority=True, show=False),
        Binding("down", f"{action}(1)", below, id=f"{scope}.next", priority=True, show=False),
    )
