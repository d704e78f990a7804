"""The blocks of a conversation: the newest are on the screen, others come when the user goes there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.scrollbar import ScrollBar
from textual.widget import AwaitMount, Widget
from textual.widgets import Static

from chatapp.block import Block
from chatapp.entries import Entry
from chatapp.figures import plural
from chatapp.plain_container import PlainContainer
from chatapp.plain_scrollbar import PlainScrollBar

if TYPE_CHECKING:
    from chatapp.blocks import ReplyBlock

SHOWN = 30
"""Blocks that are mounted at most when a conversation opens: as many as fill a few screens."""
TALL = 90
"""Rows that they take together, at a guess, if the screen is not very tall."""
MOST_ROWS = 25
"""A block is not taken for taller than this: it may be folded."""
MOST = 60
"""Blocks that are mounted at most while the view follows the end."""
PAGE = 20
FAR = 60
"""From how many blocks above on a place is shown by itself, without all that is between."""


class Transcript(VerticalScroll, PlainContainer):
    """Follows the end until the user scrolls up, and again once the end is reached.

    Mounted are the last blocks and, where the user has gone far back, some around that place, with a gap between.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "screen.mark(-1)", "Go to the message before", id="reading.up", priority=True, show=False),
        Binding("down", "screen.mark(1)", "Go to the next message", id="reading.down", priority=True, show=False),
        Binding("c", "screen.copy_message", "Copy the message", id="reading.copy", priority=True, show=False),
        Binding(
            "b",
            "screen.copy_code",
            "Copy its code, one block after another",
            id="reading.code",
            priority=True,
            show=False,
        ),
        Binding("o", "screen.open_links", "Open one of its links", id="reading.links", priority=True, show=False),
        Binding(
            "w", "screen.wrap_code", "Fold long lines of code, or not", id="reading.wrap", priority=True, show=False
        ),
        Binding(
            "left",
            "screen.shift_code(-8)",
            "Move unfolded code to the right",
            id="reading.left",
            priority=True,
            show=False,
        ),
        Binding(
            "right",
            "screen.shift_code(8)",
            "Move unfolded code to the left",
            id="reading.right",
            priority=True,
            show=False,
        ),
        Binding(
            "enter,space",
            "screen.fold_message",
            "Unfold the message or its thought",
            id="reading.fold",
            priority=True,
            show=False,
        ),
        Binding("r", "screen.retry_message", "Reply to it anew", id="reading.retry", priority=True, show=False),
        Binding("n", "screen.found(1)", "Go to the next place found", id="reading.next", priority=True, show=False),
        Binding(
            "N", "screen.found(-1)", "Go to the last place found", id="reading.previous", priority=True, show=False
        ),
        Binding("escape", "screen.leave_reading", "Go back to writing", id="reading.leave", priority=True, show=False),
    ]

    class Moved(Message):
        """What is in sight has changed: `Transcript.at_end` tells whether the end is."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._entries: list[Entry] = []
        self._loading = False
        self._was_at_end = True
        self.cursor: Entry | None = None
        """The message that keys act upon while this has the focus."""
        self._marker = HiddenMarker("↑ {} above", self.load_earlier)
        self._gap = HiddenMarker("⋯ {} between", self.load_between)

    @property
    def entries(self) -> list[Entry]:
        """All there is, oldest first."""
        # What others have removed from the screen is gone.
        self._entries = [entry for entry in self._entries if entry.block is None or not entry.block.is_gone]
        return self._entries

    @property
    def blocks(self) -> list[Block]:
        """Those that are mounted, oldest first."""
        return [entry.block for entry in self.entries if entry.block is not None]

    @property
    def earlier(self) -> int:
        """Blocks that are not mounted."""
        return sum(entry.block is None for entry in self.entries)

    @property
    def at_end(self) -> bool:
        return self.scroll_y >= self.max_scroll_y

    def compose(self) -> ComposeResult:
        yield self._marker
        yield self._gap

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = bar = PlainScrollBar(name="vertical", thickness=self.scrollbar_size_vertical)
            bar.display = False
            self.app._start_widget(self, bar)
        return self._vertical_scrollbar

    async def show(self, entries: Sequence[Entry | Block], at: int | None = None, *, mark: bool = False) -> None:
        """Replace everything; the end is in sight, or the block of message `at`, which can be marked as well."""
        async with self.batch():
            await self.remove_children(self.blocks)
            self._entries = [Entry.later(each) if isinstance(each, Block) else each for each in entries]
            self.anchor(False)
            await self.mount(*[entry.made() for entry in self._last()])
            self._tell()
        self.call_after_refresh(self._fill)
        wanted = next((entry for entry in self._entries if at is not None and entry.node == at), None)
        self.cursor = None
        if wanted is not None and mark:
            await self.set_cursor(wanted)
        elif wanted is not None:
            block = await self.reach(wanted)
            self.call_after_refresh(lambda: self.bring(block, 0, height=block.size.height))

    def _last(self) -> list[Entry]:
        """The last entries, enough to fill a few screens."""
        wanted = max(TALL, 3 * self.size.height)
        count = 0
        for entry in reversed(self._entries[-SHOWN:]):
            if wanted <= 0:
                break
            count += 1
            wanted -= min(_rows(entry), MOST_ROWS)
        return self._entries[len(self._entries) - count :]

    async def _fill(self, patience: int = 20) -> None:
        """Mount older blocks if those that are mounted turn out to leave room, which their layout tells."""
        if patience and (blocks := self.blocks) and not blocks[-1].size.height:  # on a busy machine that may come later
            self.call_after_refresh(self._fill, patience - 1)
            return
        entries = self.entries
        top = next((place for place, entry in enumerate(entries) if entry.block is not None), 0)
        if top and self.max_scroll_y <= 0 and not self._loading:
            await self.mount_all([entry.made() for entry in entries[max(top - PAGE, 0) : top]], after=self._marker)
            self._tell()
            self.call_after_refresh(self._fill)

    def add(self, block: Block) -> AwaitMount:
        """Append a block at the end; awaiting it is only needed to use its widgets at once."""
        if self.at_end:
            self._unload_old()
        self._entries.append(Entry.of(block))
        return self.mount(block)

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._close_gap()
        if self.max_scroll_y > 0:
            self.anchor()

    def last_reply(self) -> ReplyBlock | None:
        from chatapp.blocks import ReplyBlock

        return next((block for block in reversed(self.blocks) if isinstance(block, ReplyBlock)), None)

    def drop_after_user(self) -> None:
        """Unmount all that came after the last message of the user."""
        from chatapp.blocks import UserBlock

        blocks = self.blocks
        last = max((place for place, block in enumerate(blocks) if isinstance(block, UserBlock)), default=-1)
        for block in blocks[last + 1 :]:
            block.remove()

    def drop(self, *nodes: int) -> None:
        """Unmount the blocks of these messages."""
        for block in self.blocks:
            if block.node in nodes:
                block.remove()

    async def load_earlier(self) -> None:
        """Mount a page of older blocks above, without moving what is in sight."""
        entries = self.entries
        top = next((place for place, entry in enumerate(entries) if entry.block is not None), len(entries))
        if self._loading or not top:
            return
        self._loading = True
        height, place = self.virtual_size.height, self.scroll_y
        self.release_anchor()
        await self.mount_all([entry.made() for entry in entries[max(top - PAGE, 0) : top]], after=self._marker)
        self._tell()

        def restore() -> None:
            self._loading = False
            self.scroll_to(y=place + self.virtual_size.height - height, animate=False, immediate=True)

        self.call_after_refresh(restore)

    async def load_between(self) -> None:
        """Mount a page of the gap, below what is above it."""
        start, end = self._gap_range()
        if start < end:
            await self._mount_between(start, min(start + PAGE, end))

    async def reach(self, entry: Entry) -> Block:
        """The block of an entry, mounted together with some around it."""
        entries = self.entries
        place = entries.index(entry)
        if entry.block is None:
            self.release_anchor()
            top = next((number for number, each in enumerate(entries) if each.block is not None), len(entries))
            start, end = self._gap_range()
            if place < top - FAR:
                self._close_gap()
                start = max(place - PAGE // 2, 0)
                await self.mount_all([each.made() for each in entries[start : place + PAGE // 2]], after=self._marker)
                self._tell()
            elif place < top:
                await self.mount_all([each.made() for each in entries[max(place - 2, 0) : top]], after=self._marker)
                self._tell()
            else:
                await self._mount_between(start, min(place + PAGE // 2, end))
        return entry.made()

    async def move_cursor(self, step: int) -> bool:
        """Mark the next message, or the one before; the first time the last one in sight. False past the end."""
        messages = [entry for entry in self.entries if entry.is_message]
        if not messages:
            return False
        if self.cursor in messages:
            place = max(messages.index(self.cursor) + step, 0)
            if place >= len(messages):
                return False
        else:
            seen = [n for n, each in enumerate(messages) if each.block is not None and self._sees(each.block)]
            place = seen[-1] if seen else len(messages) - 1
        await self.set_cursor(messages[place])
        return True

    async def set_cursor(self, entry: Entry | None) -> None:
        """Mark a message, or none."""
        if self.cursor is not None and self.cursor.block is not None:
            self.cursor.block.remove_class("-cursor")
        self.cursor = entry
        if entry is not None:
            block = await self.reach(entry)
            block.add_class("-cursor")
            self.focus(scroll_visible=False)
            self.call_after_refresh(lambda: self.bring(block, 0, height=block.size.height))

    def _sees(self, block: Block) -> bool:
        return block.region.overlaps(self.scrollable_content_region)

    def bring(self, view: Widget, row: int, *, height: int = 1) -> None:
        """Scroll so that a row of a widget is in sight, with `height` rows from it on if they fit."""
        block = next((each for each in view.ancestors_with_self if each.parent is self), None)
        if block is None:
            return  # something else has taken its place meanwhile
        assert isinstance(block, Widget)
        self._anchor_if_full()  # else the next change of size would, and go to the end
        self.release_anchor()
        # A region on the screen is that of the last layout, which may be one from before a scroll: none is used alone.
        top = block.virtual_region.y + view.content_region.y - block.region.y + row
        seen = self.scrollable_content_region.height
        if top < self.scroll_y + 1 or top + min(height, seen - 2) > self.scroll_y + seen - 1:
            above = 1 if height > 1 else seen // 3
            self.scroll_to(y=max(top - above, 0), animate=False, immediate=True)

    def begin_with(self, block: Block) -> None:
        """Scroll to the top of a block that is longer than what is in sight."""
        if block.size.height > self.scrollable_content_region.height:
            self.release_anchor()
            self.scroll_to(y=max(block.virtual_region.y - 1, 0), animate=False, immediate=True)

    def _gap_range(self) -> tuple[int, int]:
        """The entries of the gap: those that are not mounted between some that are."""
        entries = self.entries
        mounted = [place for place, entry in enumerate(entries) if entry.block is not None]
        for before, after in pairwise(mounted):
            if after != before + 1:
                return before + 1, after
        return 0, 0

    async def _mount_between(self, start: int, end: int) -> None:
        anchor = self._entries[start - 1].block
        await self.mount_all([entry.made() for entry in self._entries[start:end]], after=anchor)
        self._tell()

    def _close_gap(self) -> None:
        """Unmount what lies above the gap."""
        start, end = self._gap_range()
        if end:
            for entry in self._entries[:start]:
                if entry.block is not None:
                    entry.block.remove()
                    entry.unload()
            self._tell()

    def _unload_old(self) -> None:
        """Unmount the oldest blocks when there are too many."""
        self._close_gap()
        mounted = [entry for entry in self.entries if entry.block is not None]
        if len(mounted) < MOST:
            return
        for entry in mounted[:-SHOWN]:
            assert entry.block is not None
            entry.block.remove()
            entry.unload()
        self._tell()

    def _tell(self) -> None:
        """Bring what is said of the blocks that are not mounted up to date."""
        start, end = self._gap_range()
        top = next((place for place, entry in enumerate(self._entries) if entry.block is not None), 0)
        self._marker.tell(top)
        self._gap.tell(end - start)
        if end and (above := self._entries[start - 1].block) is not None:
            self.move_child(self._gap, after=above)

    def watch_virtual_size(self) -> None:
        self._anchor_if_full()
        self._tell_end()

    def on_resize(self) -> None:
        self._anchor_if_full()
        self._tell_end()

    def _tell_end(self) -> None:
        """The end comes into sight without any scrolling when what is shown becomes less, as with another version."""
        if self.at_end and not self._was_at_end:
            self._was_at_end = True
            self.post_message(self.Moved())

    def _anchor_if_full(self) -> None:
        """Anchor once there is more than the view holds: an anchored view of less would begin above its first row."""
        if (self.max_scroll_y > 0) != self.is_anchored:
            self.anchor(not self.is_anchored)
            if not self.is_anchored:
                self.scroll_home(animate=False, immediate=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._was_at_end = self.at_end
        self.post_message(self.Moved())
        if new_value <= 0 < old_value and self._entries and self._entries[0].block is None:
            self.call_later(self.load_earlier)
        elif new_value > old_value and self._gap.display and self._gap.region.overlaps(self.region):
            self.call_later(self.load_between)


def _rows(entry: Entry) -> int:
    """About how many rows a block takes, the blank one below it included; three for one that says little."""
    return 2 + sum(1 + len(line) // 100 for line in entry.texts[0].split("\n")) if entry.texts else 3


class HiddenMarker(Static):
    """Says how many messages are not mounted here; a click brings some of them."""

    ALLOW_SELECT = False

    def __init__(self, words: str, load: Callable[[], Awaitable[None]]) -> None:
        super().__init__(markup=False)
        self.display = False
        self._words = words
        self._load = load

    def tell(self, number: int) -> None:
        self.display = number > 0
        self.update(self._words.format(plural(number, "message")))

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        await self._load()
