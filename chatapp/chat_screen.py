"""The chat: what the user does becomes commands and requests, and what comes back becomes blocks."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from chatapp import commands
from chatapp.backend import Backend
from chatapp.blocks import Block, NoticeBlock, PageBlock, ReplyBlock, Severity, UserBlock
from chatapp.cache import Cache
from chatapp.commands import Call, CommandError
from chatapp.composer import Composer
from chatapp.drafts import DraftsScreen
from chatapp.history import blocks_of, choices_of
from chatapp.options import ChatOptions, Draft, drafts
from chatapp.picker import Choice, Picker
from chatapp.plain_container import PlainContainer
from chatapp.sanitize import clean, clean_line
from chatapp.session import Session
from chatapp.settings import SettingsError, Value
from chatapp.stage import JumpToEnd, Stage
from chatapp.status import StatusLine
from chatapp.store import Store, StoreError
from chatapp.transcript import Transcript
from chatapp.turns import Turns
from chatapp.waiting import Waiting
from chatapp.welcome import Welcome

QUIT_SECONDS = 3.0
"""How long a second Ctrl+C still quits."""
LEAVE_SECONDS = 3.0
"""How long leaving waits for a reply to stop."""
HINTS = 6
"""Commands shown while one is typed."""


class ChatScreen(Screen[None], PlainContainer):
    """Implements `commands.Chat` and `view.View`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "Copy, stop, clear or quit", id="chat.interrupt", priority=True, show=False),
        Binding("escape", "stop", "Stop the reply", id="chat.stop", show=False),
        Binding("ctrl+n", "command('new')", "New conversation", id="chat.new", priority=True, show=False),
        Binding("ctrl+r", "command('resume')", "Saved conversations", id="chat.resume", priority=True, show=False),
        Binding("ctrl+t", "toggle_thinking", "Thinking on or off", id="chat.thinking", priority=True, show=False),
        Binding("pageup", "page(-1)", "Scroll up", id="chat.page_up", priority=True, show=False),
        Binding("pagedown", "page(1)", "Scroll down", id="chat.page_down", priority=True, show=False),
        Binding("ctrl+home", "top", "Go to the beginning", id="chat.top", priority=True, show=False),
        Binding("ctrl+end", "follow", "Go to the end and follow", id="chat.follow", priority=True, show=False),
        Binding("end", "follow", "Go to the end and follow", id="chat.end", show=False),
    ]

    def __init__(
        self,
        backend: Backend,
        store: Store,
        options: ChatOptions,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[Mapping[str, Value]], object] = lambda changes: None,
    ) -> None:
        super().__init__()
        self._keep = keep
        self._options = options
        self._clock = clock
        self._session = Session(store, options.system)
        self._cache = Cache(backend, self._session)
        self._store_notice = store.notice
        self.turns = Turns(backend, self._session, options, self, clock)
        self._commands = asyncio.Lock()
        self._quit_until = float("-inf")
        self._has_model = options.model is not None

    def compose(self) -> ComposeResult:
        with Stage(id="stage"):
            yield Transcript(id="transcript")
            yield JumpToEnd(id="jump")
        with Container(id="desk"):
            yield Waiting(id="waiting")
            yield Static("", id="hints", markup=False)
            yield Composer(id="composer")
        yield StatusLine(id="status")

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    def on_mount(self) -> None:
        self.composer.focus()
        self._watch_turns()
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
            self.turns.submit(call)
        else:
            self._run(call)

    @on(Composer.Changed)
    def _typed(self, event: Composer.Changed) -> None:
        found = commands.matches(event.text_area.text)
        hints = self.query_one("#hints", Static)
        hints.display = bool(found)
        lines = [Content.assemble((f"{known.usage:<21}", "bold"), known.help) for known in found[:HINTS]]
        hints.update(Content("\n").join(lines))

    @on(Composer.Completing)
    def _complete(self, event: Composer.Completing) -> None:
        if found := commands.matches(event.text):
            self.composer.put(f"/{found[0].name}{' ' * bool(found[0].takes)}")

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
        if text is not None and not self.composer.text:
            self.composer.put(text)

    def on_key(self, event: events.Key) -> None:
        """What is typed anywhere goes to the composer."""
        if event.is_printable and event.character and not self.composer.has_focus:
            event.stop()
            self.composer.insert_typed(event.character)

    def on_paste(self, event: events.Paste) -> None:
        if not self.composer.has_focus:
            event.stop()
            self.composer.insert_typed(clean(event.text.replace("\r\n", "\n").replace("\r", "\n")))

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
            self._show_hint("Ctrl+C again quits", QUIT_SECONDS)

    def action_stop(self) -> None:
        if self.turns.generating:
            self._run_named("stop")
        else:
            self.composer.focus()

    def action_command(self, name: str) -> None:
        self._run_named(name)

    def action_toggle_thinking(self) -> None:
        self.set_thinking(not self.turns.status.thinking)

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

    # What commands ask for.

    async def new(self) -> None:
        self.turns.withdraw()
        await self.turns.stop()
        await self._open(None)

    async def resume(self, key: str) -> None:
        try:
            if key:
                found = await self._session.find(key)
                chosen = found.id if found is not None else None
                if chosen is None:
                    raise CommandError(f"There is no saved conversation {clean_line(key, 60)!r}.")
            else:
                choices = choices_of(await self._session.conversations())
                if not choices:
                    raise CommandError("There are no saved conversations yet.")
                chosen = await self.app.push_screen_wait(Picker("Conversations", choices))
        except StoreError as error:
            raise CommandError(str(error)) from error
        if chosen is not None:
            self.turns.withdraw()
            await self.turns.stop()
            await self._open(chosen)

    async def open_model(self, path: str) -> None:
        await self.turns.stop()
        self._has_model = True
        for welcome in self.query(Welcome):
            welcome.model_opens()
        self.turns.open(path, chosen=True)

    async def stop(self) -> None:
        await self.turns.stop()

    async def retry(self) -> None:
        await self.turns.stop()
        self.turns.retry()

    async def set_theme(self, name: str) -> None:
        names = sorted(self.app.available_themes)
        if not name:
            choices = [Choice(each, each, "in use" if each == self.app.theme else "") for each in names]
            name = await self.app.push_screen_wait(Picker("Themes", choices)) or self.app.theme
        if name not in names:
            raise CommandError(f"There is no theme {clean_line(name, 40)!r}. /theme shows those there are.")
        self.app.theme = name

    def set_thinking(self, on: bool | None) -> None:
        if on is not None:
            self.turns.thinking = on
        self.turns_changed()
        state = self.turns.status.thinking
        if state is not None:
            self._show_hint(f"thinking is {'on' if state else 'off'}{' from the next message on' * (on is not None)}")

    def set_draft(self, choice: Draft | None) -> None:
        if choice is not None:
            self.turns.drafts = drafts(choice)
        model = self.turns.model
        if model is not None and not model.has_mtp:
            self._show_hint("this model has no MTP block: it drafts nothing", 4.0)
            return
        state = {None: "as many as pay", 0: "none"}.get(self.turns.drafts, f"{self.turns.drafts} at each step")
        self._show_hint(f"drafts: {state}{' from the next message on' * (choice is not None)}")

    def show_drafts(self) -> None:
        replies = [node for node in self._session.thread if node.role == "assistant"]
        record = self.turns.records.get(replies[-1].id) if replies else None
        if not replies:
            raise CommandError("There is no reply yet.")
        if record is None:
            raise CommandError("What was drafted is known of replies of this session only, once they have ended.")
        if not record.stats.drafted:
            raise CommandError("The last reply was made without drafts.")
        self.app.push_screen(DraftsScreen(record))

    def show_cache(self) -> None:
        async def show() -> None:
            self.show(await self._cache.page())

        self._run_beside(show)

    def drop_cache(self, *, everything: bool) -> None:
        async def drop() -> None:
            self.say(await self._cache.drop(everything=everything))

        self._run_beside(drop)

    def set_system(self, text: str) -> None:
        if text:
            self._session.system = "" if text == "-" else text
        now = self._session.system
        self.say(f"System prompt: {now}" if now else "There is no system prompt.")

    def copy_reply(self) -> None:
        reply = self.transcript.last_reply()
        if reply is None or not reply.answer:
            raise CommandError("There is no reply to copy yet.")
        self.copy(reply.answer)

    def quit(self) -> None:
        self.run_worker(self._leave(), exit_on_error=False)

    # What the turns ask for.

    async def begin_reply(self) -> ReplyBlock:
        reply = ReplyBlock(clock=self._clock)
        await self.transcript.add(reply)
        return reply

    def add_user(self, text: str) -> None:
        self._add(UserBlock(text))

    def drop_reply(self) -> None:
        self.transcript.drop_after_user()

    def say(self, text: str, severity: Severity = "info") -> None:
        self._add(NoticeBlock(text, severity))

    def show(self, markdown: str) -> None:
        self._add(PageBlock(markdown))

    def give_back(self, text: str) -> None:
        if not self.composer.text:
            self.composer.put(text)

    def report(self, error: Exception) -> None:
        self.log.error("".join(traceback.format_exception(error)))
        self.say(
            f"Something went wrong in qwenchat itself ({type(error).__name__}: {error}). The chat goes on.", "error"
        )

    def model_chosen(self, path: str) -> None:
        async def keep() -> None:
            await asyncio.to_thread(self._keep, {"model": path})

        self.run_worker(self._guard(keep), exit_on_error=False)

    def turns_changed(self) -> None:
        if self.is_mounted:
            self._watch_turns()

    # Inner workings.

    async def _start(self) -> None:
        try:
            await self._open(self._options.conversation_id)
        except Exception as error:
            self.report(error)
            await self._open(None)
        if self._options.system_override is not None:
            self._session.system = self._options.system_override
        for notice in (self._store_notice, *self._options.notices):
            if notice:
                self.say(notice, "warning")
        if self._options.prompt:
            self.turns.submit(self._options.prompt)
        if self._options.model:
            self.turns.open(self._options.model, chosen=self._options.model_named)
        await self.turns.run()

    async def _open(self, conversation_id: str | None) -> None:
        """Show a saved conversation, or a new one."""
        self._session.new()
        if conversation_id is not None:
            try:
                if not await self._session.open(conversation_id):
                    self.say("That conversation is gone: this is a new one.", "warning")
            except StoreError as error:
                self.say(str(error), "error")
        blocks = blocks_of(self._session.thread)
        await self.transcript.show(blocks or [Welcome(self._has_model)])
        self.composer.forget()
        for node in self._session.thread:
            if node.role == "user":
                self.composer.remember(node.content)
        self.turns.reset()

    def _run_named(self, name: str) -> None:
        self._run(Call(commands.COMMANDS[name], ""))

    def _run(self, call: Call) -> None:
        self.run_worker(self._carry_out(call), group="commands", exit_on_error=False)

    async def _carry_out(self, call: Call) -> None:
        async with self._commands:
            await self._guard(partial(call.command.run, self, call.argument))

    def _run_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """For what may take as long as a reply does: other commands do not wait for it."""
        self.run_worker(self._guard(work), group="beside", exit_on_error=False)
        if self.turns.generating:
            self._show_hint("told after this reply")

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (CommandError, SettingsError, StoreError) as error:
            self.say(str(error), "warning")
        except Exception as error:
            self.report(error)

    async def _leave(self) -> None:
        """What is being written is kept as far as it has come."""
        self.turns.withdraw()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.turns.stop(), LEAVE_SECONDS)
        self.app.exit()

    def _add(self, block: Block) -> None:
        self.transcript.add(block)

    def copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)
        self._show_hint("copied")

    def _show_hint(self, text: str, seconds: float = 2.0) -> None:
        self.query_one(StatusLine).hint(text, seconds)

    @on(Transcript.Moved)
    def _show_jump(self) -> None:
        jump = self.query_one(JumpToEnd)
        jump.show(not self.transcript.at_end, self.turns.generating)

    def _watch_turns(self) -> None:
        self.query_one(StatusLine).show(self.turns.status)
        self.query_one(Waiting).show(self.turns.waiting)
        self._show_jump()
