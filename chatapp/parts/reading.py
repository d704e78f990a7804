"""Looking at what was said, and taking it along."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Static

from chatapp.block import Block
from chatapp.commands import CommandError
from chatapp.figures import lines, plural
from chatapp.key_names import key_of
from chatapp.parts.finding import FindingPart

if TYPE_CHECKING:
    from chatapp.cache import Cache
    from chatapp.markdown_view import MarkdownView
    from chatapp.takings import Link

CURSOR_ACTIONS = {
    "mark",
    "copy_message",
    "copy_code",
    "open_links",
    "wrap_code",
    "shift_code",
    "fold_message",
    "retry_message",
}


class ReadingKeys(Static):
    """What the keys do while a message is marked."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False

    def render(self) -> str:
        wide = self.size.width >= 74
        named = (
            ("copy", "C", "copy"),
            ("code", "B", "code"),
            ("links", "O", "links" if wide else "link"),
            ("wrap", "W", "wrap"),
            ("fold", "Enter", "unfold" if wide else "fold"),
            *([("retry", "R", "reply anew")] if self.size.width >= 89 else []),
            ("leave", "Esc", "back" if wide else ""),
        )
        told = [f"{key_of(self, f'reading.{id}', usual)} {what}".rstrip() for id, usual, what in named]
        return " · ".join(["↑ ↓ message", *told] if wide else told)


class ReadingPart(FindingPart):
    """Implements `commands.reading`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+up,f7",
            "message(-1)",
            "Mark the message before, to copy or unfold it",
            id="chat.message_up",
            priority=True,
            show=False,
        ),
        Binding(
            "ctrl+down,f8",
            "message(1)",
            "Mark the next message",
            id="chat.message_down",
            priority=True,
            show=False,
        ),
    ]

    _code = 0
    _code_of: Block | None = None

    def show_drafts(self) -> None:
        from chatapp.drafts import DraftsScreen

        replies = [node for node in self._session.thread if node.role == "assistant"]
        record = self.turns.replies.records.get(replies[-1].id) if replies else None
        if not replies:
            raise CommandError("There is no reply yet.")
        if record is None:
            raise CommandError("What was drafted is known of replies of this session only, once they have ended.")
        if not record.stats.drafted:
            raise CommandError("The last reply was made without drafts.")
        self.app.push_screen(DraftsScreen(record))

    def show_cache(self) -> None:
        async def show() -> None:
            self.show(await self._kept_states().page())

        self._run_beside(show)

    def drop_cache(self, *, everything: bool) -> None:
        async def drop() -> None:
            self.say(await self._kept_states().drop(everything=everything))

        self._run_beside(drop)

    def _kept_states(self) -> Cache:
        from chatapp.cache import Cache

        return Cache(self._backend, self._session)

    # A cursor over the messages.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the cursor are letters: they are keys only while there is one, and text otherwise."""
        if action == "found":
            return self.finding and self.transcript.has_focus
        if action == "leave_reading":
            return self.transcript.has_focus and (self.finding or self.transcript.cursor is not None)
        if action in CURSOR_ACTIONS:
            return self.transcript.has_focus and self.transcript.cursor is not None
        return super().check_action(action, parameters)

    async def action_message(self, step: int) -> None:
        """Mark the message before or after; below the last one is the composer."""
        if not await self.transcript.move_cursor(step):
            await self.action_leave_reading()
        self._show_reading()

    async def action_mark(self, step: int) -> None:
        await self.action_message(step)

    async def action_leave_reading(self) -> None:
        if self.finding:
            self.end_search()
        await self.transcript.set_cursor(None)
        self.composer.focus()
        self._show_reading()

    def on_descendant_focus(self) -> None:
        self._show_reading()

    def _show_reading(self) -> None:
        self.query_one(ReadingKeys).display = self.transcript.has_focus and self.transcript.cursor is not None

    @property
    def _marked(self) -> Block | None:
        cursor = self.transcript.cursor
        return cursor.block if cursor is not None else None

    def action_copy_message(self) -> None:
        if (block := self._marked) is not None:
            self.copy(block.copied)

    def action_copy_code(self) -> None:
        block = self._marked
        codes = block.codes() if block is not None else []
        if not codes:
            self._show_hint("there is no code in this message")
            return
        self._code = self._code + 1 if self._code_of is block else 0
        self._code_of = block
        number = self._code % len(codes)
        place = f"code {number + 1} of {len(codes)}, " if len(codes) > 1 else "code, "
        self.copy(codes[number].text, place)

    async def action_fold_message(self) -> None:
        if (block := self._marked) is not None:
            await block.fold()

    def action_open_links(self) -> None:
        block = self._marked
        found = block.links() if block is not None else []
        self._run_beside(lambda: self._open_link(found))

    async def open_links(self) -> None:
        await self._open_link([link for block in reversed(self.transcript.blocks) for link in block.links()])

    async def _open_link(self, links: list[Link]) -> None:
        """Open the only address, or the one that is chosen from a list."""
        from chatapp.picker import Choice, Picker

        if not links:
            raise CommandError("There is no link here.")
        address = links[0].address
        if any(link.address != address for link in links):
            choices = [Choice(link.address, link.text, link.address) for link in links]
            address = await self.app.push_screen_wait(Picker("Links", choices)) or ""
        if address:
            await self.app.run_action(f"app.open_link({address!r})")

    code_wraps = True

    def wrap_code(self) -> None:
        """Fold long lines of code, or let them run out of sight."""
        from chatapp.markdown_view import MarkdownView

        self.code_wraps = not self.code_wraps
        for view in self.query(MarkdownView):
            view.wrap(self.code_wraps)
        self._show_hint("long lines of code are folded" if self.code_wraps else "code is not folded: ← → move it", 3.0)

    def action_wrap_code(self) -> None:
        self.wrap_code()

    def action_shift_code(self, cells: int) -> None:
        if (block := self._marked) is not None:
            for view in block.views():
                view.shift(cells)

    # Thoughts, the newest first.

    def go_to_thought(self, step: int = -1) -> None:
        """Focus the newest thought, or from one the thought before (-1) or after it; past the ends, the composer."""
        from chatapp.thought import ThoughtHead

        heads = list(self.transcript.query(ThoughtHead))
        here = next((place for place, head in enumerate(heads) if head.has_focus), len(heads))
        place = here + step
        if 0 <= place < len(heads):
            self.transcript.release_anchor()
            heads[place].focus()
        else:
            self.composer.focus()

    def action_thought(self, step: int) -> None:
        self.go_to_thought(step)

    # Copies.

    def copy_reply(self, what: str) -> None:
        reply = self.transcript.last_reply()
        if reply is None or not reply.answer:
            raise CommandError("There is no reply to copy yet.")
        if what == "code":
            codes = reply.answer_view.codes()
            if not codes:
                raise CommandError("There is no code in the last reply.")
            self.copy("\n\n".join(code.text for code in codes), "code, ")
        else:
            self.copy(reply.answer)

    def on_markdown_view_copying(self, event: MarkdownView.Copying) -> None:
        self.copy(event.code.text, f"{event.code.language or 'code'}, ")

    def copy(self, text: str, what: str = "") -> None:
        """To the terminal's clipboard, and to those of the system and of tmux where there are such."""
        from chatapp import clipboard

        size = len(text.encode("utf-8", "replace"))
        if 4 * (size + 2) // 3 <= clipboard.OSC_52_LIMIT:
            self.app.copy_to_clipboard(text)
        extent = plural(lines(text), "line")

        async def give() -> None:
            taken = await clipboard.copy(text)
            if not taken and 4 * (size + 2) // 3 > clipboard.OSC_52_LIMIT:
                raise CommandError("That is too much for the terminal's clipboard, and there is no other here.")
            self._show_hint(f"copied: {what}{extent}")

        self._show_hint(f"copied: {what}{extent}")
        self.run_worker(self._guard(give), group="copies", exit_on_error=False)
