"""What the user writes into: keys act in the order in which they were typed, and pastes are harmless."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.widgets import TextArea

from chatapp.sanitize import pasted


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


class Area(InOrder, TextArea):
    """Several lines to write into, whose keys act in order, and whose pastes hold nothing that a terminal obeys."""

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        if not self.read_only:
            self.insert_pasted(pasted(event.text))

    def action_paste(self) -> None:
        """What was copied in the program; an answer is copied as it was written."""
        if not self.read_only:
            self.insert_pasted(pasted(self.app.clipboard))

    def insert_pasted(self, text: str) -> None:
        """Put it in place of what is selected."""
        self._replace_via_keyboard(text, *self.selection)
