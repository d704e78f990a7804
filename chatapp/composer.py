"""Where the user writes: several lines, a history, and hints while a command is typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import TextArea

from chatapp.sanitize import clean

HISTORY = 200
NEWLINE_KEYS = ("shift+enter", "alt+enter", "ctrl+j")


class Composer(TextArea):
    """Enter sends, Shift+Enter or Ctrl+J begins a new line; Up and Down at the edges go through what was sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "up", "Go back to earlier messages", id="composer.earlier", show=False),
        Binding("down", "down", "Go on to later messages", id="composer.later", show=False),
        Binding(
            "tab",
            "complete",
            "Complete a command, or go to a thought",
            id="composer.complete",
            show=False,
        ),
    ]

    @dataclass
    class Sent(Message):
        text: str

    @dataclass
    class Recalled(Message):
        """Up in an empty composer: whoever holds queued messages may hand the last one back."""

    @dataclass
    class Nothing(Message):
        """Enter with nothing written: whoever holds messages back may let them go."""

    @dataclass
    class Completing(Message):
        text: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id, soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, placeholder=Content("Message…")
        )
        self._history: list[str] = []
        self._place = 0  # in the history; its length: the text being written
        self._draft = ""

    def remember(self, text: str) -> None:
        """Put a message at the end of the history."""
        if text and self._history[-1:] != [text]:
            self._history = [*self._history, text][-HISTORY:]
        self._place = len(self._history)

    def forget(self) -> None:
        """Empty the history."""
        self._history = []
        self._place = 0

    def put(self, text: str) -> None:
        """Replace the text, undoably, with the cursor at its end."""
        self.replace(text, (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def insert_typed(self, text: str) -> None:
        """Text typed elsewhere on the screen."""
        self.focus()
        self._replace_via_keyboard(text, *self.selection)

    async def _on_key(self, event: events.Key) -> None:
        # Here and not as bindings, which are looked up only after keys that were typed later have been inserted.
        if event.key == "enter":
            self.send()
        elif event.key in NEWLINE_KEYS:
            self._replace_via_keyboard("\n", *self.selection)
        else:
            return
        event.stop()
        event.prevent_default()

    def send(self) -> None:
        """Hand over what is written, unless it is blank."""
        text = self.text
        if not text.strip():
            self.post_message(self.Nothing())
            return
        self.remember(text)
        self._draft = ""
        self.put("")
        self.post_message(self.Sent(text))

    def action_up(self) -> None:
        if not self.cursor_at_first_line or not self.selection.is_empty:
            self.action_cursor_up()
        elif not self.text:
            self.post_message(self.Recalled())
        else:
            self.earlier()

    def action_down(self) -> None:
        if not self.cursor_at_last_line or not self.selection.is_empty:
            self.action_cursor_down()
        elif self._place < len(self._history):
            self._place += 1
            self.put(self._history[self._place] if self._place < len(self._history) else self._draft)

    def earlier(self) -> None:
        """Show the message before the one shown."""
        if self._place == 0:
            return
        if self._place == len(self._history):
            self._draft = self.text
        self._place -= 1
        self.put(self._history[self._place])

    def action_complete(self) -> None:
        if self.text.startswith("/"):
            self.post_message(self.Completing(self.text))
        else:
            self.screen.focus_next()

    async def _on_paste(self, event: events.Paste) -> None:
        event.text = clean(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        await super()._on_paste(event)
        event.stop()
        event.prevent_default()
