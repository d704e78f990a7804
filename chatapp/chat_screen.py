"""The chat: what the user does becomes commands and requests, and what comes back becomes blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from chatapp import commands
from chatapp.attachments import detach
from chatapp.backend import Backend
from chatapp.branch import Turn
from chatapp.chip_row import ChipRow
from chatapp.commands import CommandError
from chatapp.completion import Completions
from chatapp.composer import HISTORY, Composer
from chatapp.download_line import DownloadLine
from chatapp.key_names import key_of
from chatapp.options import ChatOptions
from chatapp.parts.comfort import ComfortPart
from chatapp.parts.conversations import ConversationsPart
from chatapp.parts.models import ModelsPart
from chatapp.parts.reading import ReadingKeys, ReadingPart
from chatapp.parts.talk import TalkPart
from chatapp.parts.versions import VersionsPart
from chatapp.parts.writing import WritingPart
from chatapp.sanitize import clean_line, pasted
from chatapp.settings import Value
from chatapp.stage import JumpToEnd, Stage
from chatapp.status import StatusLine
from chatapp.store import Store, StoreError
from chatapp.transcript import Transcript
from chatapp.turns import Turns
from chatapp.waiting import Waiting
from chatapp.welcome import Welcome

if TYPE_CHECKING:
    from chatapp.blocks import ReplyBlock

LATER_STYLES = Path(__file__).with_name("later.tcss")
"""The styles of all that the first paint does not show."""
QUIT_SECONDS = 3.0
"""How long a second Ctrl+C still quits."""


class ChatScreen(ConversationsPart, VersionsPart, TalkPart, WritingPart, ReadingPart, ModelsPart, ComfortPart):
    """Implements `commands.Chat` and `view.View`."""

    AUTO_FOCUS = "#composer"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+c",
            "interrupt",
            "Copy what is selected, else stop, else clear the line, else twice: quit",
            id="chat.interrupt",
            priority=True,
            show=False,
        ),
        Binding(
            "ctrl+b",
            "command('sidebar')",
            "Show or hide the conversations",
            id="chat.sidebar",
            priority=True,
            show=False,
        ),
        Binding("escape", "stop", "Stop the reply", id="chat.stop", show=False),
        Binding("ctrl+n", "command('new')", "Begin a new conversation", id="chat.new", priority=True, show=False),
        Binding(
            "ctrl+r",
            "command('resume')",
            "Go on with a saved conversation",
            id="chat.resume",
            priority=True,
            show=False,
        ),
        Binding(
            "ctrl+t",
            "toggle_thinking",
            "Think before answering, or answer at once",
            id="chat.thinking",
            priority=True,
            show=False,
        ),
        Binding(
            "ctrl+o", "command('answer')", "End the thought and answer now", id="chat.answer", priority=True, show=False
        ),
        Binding("ctrl+g", "command('editor')", "Write in your editor", id="chat.editor", priority=True, show=False),
        Binding("pageup", "page(-1)", "Scroll back", id="chat.page_up", priority=True, show=False),
        Binding("pagedown", "page(1)", "Scroll on", id="chat.page_down", priority=True, show=False),
        Binding("ctrl+home", "top", "Go to the beginning", id="chat.top", priority=True, show=False),
        Binding(
            "ctrl+end", "follow", "Go back to the end and follow again", id="chat.follow", priority=True, show=False
        ),
        Binding("end", "follow", "Go back to the end and follow again", id="chat.end", show=False),
    ]

    def __init__(
        self,
        backend: Backend,
        store: Store,
        options: ChatOptions,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[Mapping[str, Value]], object] = lambda changes: None,
    ) -> None:
        super().__init__(backend, store, options, clock, keep)
        self.opened = asyncio.Event()
        """The first conversation is shown."""
        self._resumed = False
        self.turns = Turns(backend, self._session, options, self, clock)

    def compose(self) -> ComposeResult:
        self.transcript = Transcript(id="transcript")
        completions = Completions(id="completions")
        self.composer = Composer(completions, id="composer")
        with Stage(id="stage"):
            yield self.transcript
            yield JumpToEnd(id="jump")
        with Container(id="desk"):
            yield ReadingKeys()
            yield Waiting(id="waiting")
            yield ChipRow(id="chips")
            yield completions
            yield self.composer
        yield DownloadLine(id="downloads")
        yield StatusLine(id="status")

    def _extend_compose(self, widgets: list[Widget]) -> None:
        """What Textual puts over a screen, hints and the like, comes after the first paint."""

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        # At first each widget has just got its styles.
        event.refresh_styles, self._resumed = event.refresh_styles and self._resumed, True

    def on_mount(self) -> None:
        self._watch_turns()
        # The rest waits until all this is on the screen.
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.app.stylesheet.read(LATER_STYLES)  # none of them is for what is there already
        over: list[Widget] = []
        super()._extend_compose(over)
        if self.is_attached:
            self.mount(*over, before=0)
        self.app.stylesheet.parse()
        self.run_worker(self._start(), group="turns", exit_on_error=False)

    # What the user does.

    @on(Composer.Sent)
    def _sent(self, event: Composer.Sent) -> None:
        try:
            call = commands.parse(event.text)
        except CommandError as error:
            self.say(str(error), "warning")
            return
        if isinstance(call, str):
            self.transcript.follow()
            self.turns.submit(call, self._edited_node())
            if missing := self.composer.chips.missing(detach(call)[0]):
                self._show_hint(f"there is no file {clean_line(missing[0], 40)}: its name alone was sent", 5.0)
        else:
            self._run(call)

    @on(Composer.Refused)
    def _refused(self, event: Composer.Refused) -> None:
        self.say(event.text, "warning")

    @on(Composer.Changed)
    def _typed(self) -> None:
        self.composer.offer()
        self.query_one(ChipRow).show(self.composer.found, self.turns.status.context_length)

    @on(Completions.Chosen)
    def _complete(self, event: Completions.Chosen) -> None:
        self.composer.accept(event.number)
        self.composer.focus()

    @on(ChipRow.Pressed)
    def _unfold(self, event: ChipRow.Pressed) -> None:
        if event.chip.paste:
            self.composer.unfold(event.chip)
        self.composer.focus()

    @on(Composer.Editing)
    def _edit(self) -> None:
        self._run_named("editor")

    @on(Composer.Left)
    def _leave_composer(self) -> None:
        self.go_to_thought()

    @on(Composer.Nothing)
    def _let_go(self) -> None:
        if self.turns.held:
            self.turns.let_go()

    @on(Composer.Recalled)
    def _recall(self) -> None:
        text = self.turns.take_back()
        if text is not None:
            self.composer.put(text)
        else:
            self.composer.earlier()

    @on(Waiting.Withdrawn)
    def _withdraw(self, event: Waiting.Withdrawn) -> None:
        text = self.turns.take_back(event.number)
        if text is not None and not self.give_back(text):
            self.composer.remember_beside(text)
            self._show_hint("taken back, to the earlier messages", 4.0)

    def on_key(self, event: events.Key) -> None:
        """What is typed anywhere goes to the composer."""
        if self.move(event.key):
            event.stop()
            return
        if event.is_printable and event.character and not self.composer.has_focus:
            event.stop()
            self.composer.insert_typed(event.character)

    def on_paste(self, event: events.Paste) -> None:
        if not self.composer.has_focus:
            event.stop()
            self.composer.insert_typed(pasted(event.text))

    async def action_interrupt(self) -> None:
        """One key: copy what is selected, else stop, else clear what is written, else quit at the second press."""
        if self.composer.selected_text:
            self.copy(self.composer.selected_text)
        elif selected := self.get_selected_text():
            self.copy(selected)
            self.clear_selection()
        elif self.turns.generating:
            self._run_named("stop")
        elif self.composer.text:
            self.composer.put("")
        elif self._clock() < self._quit_until:
            self.quit()
        else:
            self._quit_until = self._clock() + QUIT_SECONDS
            self._show_hint(f"{key_of(self, 'chat.interrupt', 'Ctrl+C')} again quits", QUIT_SECONDS)

    def action_stop(self) -> None:
        if self.editing is not None:
            self.leave_edit()
        elif self.turns.generating:
            self._run_named("stop")
        elif self.comfort.vim_moves and self.composer.has_focus:
            self.transcript.focus()
        else:
            self.composer.focus()

    def action_command(self, name: str) -> None:
        self._run_named(name)

    async def action_toggle_thinking(self) -> None:
        await self._guard(lambda: self.set_thinking(not self.turns.status.thinking))

    def action_page(self, direction: int) -> None:
        if direction < 0:
            self.transcript.scroll_page_up(animate=False)
        elif self.transcript.at_end:
            self.transcript.follow()
        else:
            self.transcript.scroll_page_down(animate=False)

    def action_top(self) -> None:
        self.transcript.scroll_home(animate=False)

    def action_follow(self) -> None:
        self.transcript.follow()
        self._show_jump()

    # What the turns ask for.

    async def begin_turn(self, turn: Turn) -> None:
        from chatapp.blocks import UserBlock

        if turn.cut or turn.asked is None:
            self.end_search()
        if turn.cut:
            thread = self._session.thread
            await self.transcript.show(self._entries_of(thread[: -1 if turn.asked is None else -2]))
        elif turn.asked is None:
            self.transcript.drop_after_user()
        if turn.asked is not None:
            self._add(UserBlock(turn.asked.content, turn.asked.id, self._session.versions(turn.asked.id)))

    async def begin_reply(self, turn: Turn) -> ReplyBlock:
        from chatapp.blocks import ReplyBlock
        from chatapp.history import as_block

        reply = ReplyBlock(clock=self._clock, node=turn.reply_id, versions=self._session.versions(turn.reply_id))
        await self.transcript.add(reply)
        if turn.begun is not None:
            await reply.resume(as_block(turn.begun))
        return reply

    async def take_back(self, turn: Turn) -> None:
        thread = self._session.thread
        if turn.cut or turn.asked is None or not thread:
            self.end_search()
            await self.transcript.show(self._entries_of(thread) or [Welcome(self._opened)])
        else:
            self.transcript.drop(turn.asked.id, turn.reply_id)

    def give_back(self, text: str) -> bool:
        if self.composer.text:
            return False
        self.composer.put(text)
        return True

    # Inner workings.

    async def _start(self) -> None:
        try:
            await self._open(self._options.conversation_id)
        except Exception as error:
            self.report(error)
            await self._open(None)
        self.opened.set()
        with suppress(StoreError):
            self.composer.remember_earlier(await self._session.asked(HISTORY))
        if self._options.system_override is not None:
            self._session.system = self._options.system_override
        for notice in (self._store_notice, *self._options.notices):
            if notice:
                self.say(notice, "warning")
        if self._options.prompt:
            self.turns.submit(self._options.prompt)
        if self._options.model:
            self.turns.open(self._options.model, chosen=self._options.model_named)
        self.run_worker(self._guard(self.go_on_downloading), exit_on_error=False)
        self.run_worker(self._guard(self._purge), group="purge", exit_on_error=False)
        await self.turns.run()


_IMPLEMENTS: type[commands.Chat] = ChatScreen
