"""Keys in the order in which they were typed, in whatever the user writes into."""

from __future__ import annotations

from typing import Any

from textual import events


class InOrder:
    """Mixed into a widget that inserts printable keys itself: its bindings act as early as those.

    Textual looks bindings up once a key has come to the program and back. Of keys that arrive together, as over a slow
    line or from a macro, all letters are inserted by then, and Backspace and the arrows would come after them.
    """

    async def _on_key(self: Any, event: events.Key) -> None:  # no widget by itself: Textual looks for one base alone
        if event.is_printable:
            return
        for widget, bindings in self.screen._modal_binding_chain:
            if widget is not self:
                continue
            for binding in bindings.key_to_bindings.get(event.key, ()):
                if not binding.priority and await self.app.run_action(binding.action, self):
                    event.stop()
                    event.prevent_default()
                    return
