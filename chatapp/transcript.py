"""The blocks of a conversation: the newest are on the screen, older ones come when the user scrolls up to them."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widget import AwaitMount
from textual.widgets import Static

from chatapp.blocks import Block, ReplyBlock, UserBlock
from chatapp.figures import plural
from chatapp.plain_container import PlainContainer

SHOWN = 30
"""Blocks that are mounted when a conversation opens."""
MOST = 60
"""Blocks that are mounted at most while the view follows the end."""
PAGE = 20
ABOVE = 3
"""Blocks that are mounted above one that is to be seen."""


class Transcript(VerticalScroll, PlainContainer):
    """Follows the end until the user scrolls up, and again once the end is reached."""

    class Moved(Message):
        """What is in sight has changed: `Transcript.at_end` tells whether the end is."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._earlier: list[Block] = []
        self._loading = False
        self._marker = EarlierMarker()

    @property
    def blocks(self) -> list[Block]:
        """Those that are mounted, oldest first."""
        return [child for child in self.children if isinstance(child, Block)]

    @property
    def earlier(self) -> int:
        """Blocks that are not mounted."""
        return len(self._earlier)

    @property
    def at_end(self) -> bool:
        return self.scroll_y >= self.max_scroll_y

    def compose(self) -> ComposeResult:
        yield self._marker

    async def show(self, blocks: Sequence[Block], at: int | None = None) -> None:
        """Replace everything; the end is in sight, or the block of message `at`."""
        place = next((place for place, block in enumerate(blocks) if at is not None and block.node == at), len(blocks))
        first = max(min(len(blocks) - SHOWN, place - ABOVE), 0)
        async with self.batch():
            await self.remove_children(self.blocks)
            self._earlier = list(blocks[:first])
            self._marker.tell(len(self._earlier))
            self.anchor(False)
            await self.mount(*blocks[first:])
        if place < len(blocks):
            self.call_after_refresh(self._reveal, blocks[place])

    def _reveal(self, block: Block) -> None:
        """Bring a block into sight, if it is not."""
        if block.is_mounted:
            self.release_anchor()
            self.scroll_to_widget(block, animate=False, immediate=True)

    def add(self, block: Block) -> AwaitMount:
        """Append a block at the end; awaiting it is only needed to use its widgets at once."""
        if self.at_end:
            self._unload_old()
        return self.mount(block)

    def follow(self) -> None:
        """Go to the end and stay there."""
        if self.max_scroll_y > 0:
            self.anchor()

    def last_reply(self) -> ReplyBlock | None:
        return next((block for block in reversed(self.blocks) if isinstance(block, ReplyBlock)), None)

    def drop_after_user(self) -> None:
        """Unmount all that came after the last message of the user."""
        blocks = self.blocks
        last = max((place for place, block in enumerate(blocks) if isinstance(block, UserBlock)), default=-1)
        for block in blocks[last + 1 :]:
            block.remove()

    async def load_earlier(self) -> None:
        """Mount a page of older blocks above, without moving what is in sight."""
        if self._loading or not self._earlier:
            return
        self._loading = True
        page, self._earlier = self._earlier[-PAGE:], self._earlier[:-PAGE]
        height, place = self.virtual_size.height, self.scroll_y
        self.release_anchor()
        self._marker.tell(len(self._earlier))
        await self.mount_all(page, after=self._marker)

        def restore() -> None:
            self._loading = False
            self.scroll_to(y=place + self.virtual_size.height - height, animate=False, immediate=True)

        self.call_after_refresh(restore)

    def _unload_old(self) -> None:
        """Unmount the oldest blocks when there are too many."""
        blocks = self.blocks
        if len(blocks) < MOST:
            return
        old = blocks[:-SHOWN]
        self._earlier += [block.fresh() for block in old]
        self._marker.tell(len(self._earlier))
        self.remove_children(old)

    def watch_virtual_size(self) -> None:
        self._anchor_if_full()

    def on_resize(self) -> None:
        self._anchor_if_full()

    def _anchor_if_full(self) -> None:
        """Anchor once there is more than the view holds: an anchored view of less would begin above its first row."""
        if (self.max_scroll_y > 0) != self.is_anchored:
            self.anchor(not self.is_anchored)
            if not self.is_anchored:
                self.scroll_home(animate=False, immediate=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved())
        if new_value <= 0 < old_value and self._earlier:
            self.call_later(self.load_earlier)


class EarlierMarker(Static):
    """Says how much lies above."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False

    def tell(self, number: int) -> None:
        self.display = number > 0
        self.update(f"↑ {plural(number, 'earlier message')}")

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        transcript = self.query_ancestor(Transcript)
        await transcript.load_earlier()
