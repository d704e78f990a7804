"""What the transcript stands on, and the way back to its end."""

from __future__ import annotations

from textual import events
from textual.containers import Container
from textual.reactive import reactive
from textual.widgets import Static

from chatapp.key_names import key_of
from chatapp.plain_container import PlainContainer


class Stage(Container, PlainContainer):
    pass


class JumpToEnd(Static):
    """Over the transcript while its end is out of sight."""

    ALLOW_SELECT = False

    growing: reactive[bool] = reactive(False, layout=True)

    def show(self, out_of_sight: bool, growing: bool) -> None:
        self.display = out_of_sight
        self.growing = growing

    def render(self) -> str:
        return f"↓ {'new' if self.growing else 'end'} · {key_of(self, 'chat.follow', 'Ctrl+End')}"

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        await self.run_action("screen.follow")
