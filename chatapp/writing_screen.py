"""A screen to write a longer text on."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, Static

from chatapp.in_order import Area
from chatapp.key_names import key_of
from chatapp.sanitize import clean


class WritingScreen(ModalScreen[str]):
    """Ends with the text, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "keep", "Keep the text", id="writing.keep", priority=True, show=False),
        Binding("escape", "dismiss(None)", "Leave it as it was", id="writing.close", priority=True, show=False),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(id="writing"):
            yield Label(self._title, id="writing-title", markup=False)
            yield Area(clean(self._text), soft_wrap=True, tab_behavior="focus", id="writing-text")
            keep, close = key_of(self, "writing.keep", "Ctrl+S"), key_of(self, "writing.close", "Esc")
            yield Static(f"{keep} keeps it · {close} leaves it as it was", id="writing-help", markup=False)

    def on_mount(self) -> None:
        text = self.query_one(Area)
        text.move_cursor(text.document.end)
        text.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that come before the text is there do nothing."""
        return bool(self.query(Area))

    def action_keep(self) -> None:
        self.dismiss(self.query_one(Area).text)
