"""What the parts of the chat screen share."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import on
from textual.css.query import NoMatches
from textual.screen import Screen

from chatapp import commands
from chatapp.backend import Backend
from chatapp.block import Block, Severity
from chatapp.branch import News
from chatapp.commands import Call, CommandError
from chatapp.composer import Composer
from chatapp.entries import Entry
from chatapp.keeping import Keeper
from chatapp.options import ChatOptions
from chatapp.plain_container import PlainContainer
from chatapp.remote import address
from chatapp.remote.address import is_address
from chatapp.session import Session
from chatapp.settings import FIELDS, Settings, SettingsError, Value
from chatapp.stage import JumpToEnd
from chatapp.status import StatusLine
from chatapp.store import Node, Store, StoreError
from chatapp.transcript import Transcript
from chatapp.unsent import Unsent
from chatapp.waiting import Waiting
from chatapp.welcome import Welcome

if TYPE_CHECKING:
    from chatapp.keys import Keymap
    from chatapp.turns import Turns


class ChatBase(Screen[None], PlainContainer):
    """The widgets, the conversation and its turns, and how commands run. Implements `commands.Pages`."""

    turns: Turns
    transcript: Transcript
    composer: Composer

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
        self._backend = backend
        self._store = store
        self._session = Session(store, options.system)
        self._keeper = Keeper(self._session, self._unsent, lambda error: self.say(str(error), "warning"))
        self._store_notice = store.notice
        self._kept_queue: tuple[str, ...] = ()
        self._commands = asyncio.Lock()
        self._quit_until = float("-inf")
        self._opened = options.model  # the path or address of the model that is open, or is asked for
        self._local = options.local_model  # the path of the last one of this machine that was

    @property
    def keymap(self) -> Keymap:
        return getattr(self.app, "keymap", {})

    @property
    def comfort(self) -> Settings:
        """The settings as they are saved."""
        return getattr(self.app, "settings", None) or Settings()

    async def remember(self, changes: Mapping[str, Value]) -> None:
        """In the settings file and in the settings that are shown; None is the default. Raises SettingsError."""
        await asyncio.to_thread(self._keep, changes)
        if hasattr(self.app, "settings"):
            held: dict[str, Any] = {
                name: FIELDS[name].default if value is None else value for name, value in changes.items()
            }
            self.app.settings = replace(self.comfort, **held)

    def _unsent(self) -> Unsent:
        draft, *aside = [text for text in self.composer.unsent if not _is_command(text)] or [""]
        return Unsent(draft, (*self.turns.unsent, *(text for text in aside if text.strip())))

    def say(self, text: str, severity: Severity = "info") -> None:
        from chatapp.blocks import NoticeBlock

        self._add(NoticeBlock(text, severity))

    def _blocks(self, thread: Sequence[Node]) -> list[Block]:
        from chatapp.history import blocks_of

        return blocks_of(thread, self._session.versions)

    def _entries_of(self, thread: Sequence[Node]) -> list[Entry]:
        from chatapp.history import entries_of

        return entries_of(thread, self._session.versions)

    def show_news(self, news: News) -> None:
        """What other windows have written in this conversation."""
        raise NotImplementedError

    def show(self, markdown: str) -> None:
        """A page of the program itself; one that is longer than the screen begins at its top."""
        from chatapp.blocks import PageBlock

        async def show() -> None:
            await self.transcript.add(page)
            self.transcript.follow()
            self.call_after_refresh(self.transcript.begin_with, page)

        page = PageBlock(markdown)
        self.run_worker(self._guard(show), group="pages", exit_on_error=False)

    def _add(self, block: Block) -> None:
        self.transcript.add(block)

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (CommandError, SettingsError, StoreError) as error:
            self.say(str(error), "warning")
        except Exception as error:
            self.report(error)

    def end_search(self) -> None:
        """Nothing is looked for in the conversation any more: what was found may be gone."""
        raise NotImplementedError

    def _show_hint(self, text: str, seconds: float = 2.0) -> None:
        self.query_one(StatusLine).hint(text, seconds)

    def _run_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """For what may take as long as a reply does: other commands do not wait for it."""
        self.run_worker(self._guard(work), group="beside", exit_on_error=False)
        if self.turns.generating:
            self._show_hint("told after this reply")

    def go_back_to(self, source: str | None) -> None:
        """A conversation goes on where it was: on its server, or on this machine if a server answers now."""
        now = self.turns.model.path if self.turns.model is not None else None  # then one has just been asked for
        if source is None or now is None or source == now or not (is_address(source) or is_address(now)):
            return
        if is_address(source):
            if is_address(now) and address.parse(source).server == address.parse(now).server:
                return  # the choice of a model there is the user's
            self.say(f"This conversation goes on with {address.label(source)}, as before.")
        elif self._local:
            source = self._local
            self.say(f"This conversation goes on on this machine, with {address.label(source)}.")
        else:
            return
        self._show_opening(source)
        self.turns.open(source)

    def _show_opening(self, path: str) -> None:
        self._opened = path
        for welcome in self.query(Welcome):
            welcome.model_opens(path)

    def report(self, error: Exception) -> None:
        self.log.error("".join(traceback.format_exception(error)))
        self.say(
            f"Something went wrong in qwenchat itself ({type(error).__name__}: {error}). The chat goes on.", "error"
        )

    def turns_changed(self) -> None:
        if (model := self.turns.model) is not None and not self.turns.loading:
            self._opened = model.path  # what was asked for may have come to nothing
            if not is_address(model.path):
                self._local = model.path
        if self.is_mounted:
            self._watch_turns()
            if self.turns.unsent != self._kept_queue:
                self._kept_queue = self.turns.unsent
                self._keeper.changed()

    def _watch_turns(self) -> None:
        try:
            line = self.query_one(StatusLine)
        except NoMatches:  # the program ends, and its screen is being taken apart
            return
        line.show(self.turns.status)
        self.query_one(Waiting).show(self.turns.waiting, self.turns.held)
        self._show_jump()

    @on(Transcript.Moved)
    def _show_jump(self) -> None:
        jump = self.query_one(JumpToEnd)
        jump.show(not self.transcript.at_end, self.turns.generating)

    def _in_turn(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            async with self._commands:
                await self._guard(work)

        self.run_worker(run(), group="commands", exit_on_error=False)

    def _run_named(self, name: str) -> None:
        self._run(Call(commands.COMMANDS[name], ""))

    def _run(self, call: Call) -> None:
        self.run_worker(self._carry_out(call), group="commands", exit_on_error=False)

    async def _carry_out(self, call: Call) -> None:
        async with self._commands:
            before = list(self.transcript.entries)
            await self._guard(partial(call.command.run, self, call.argument))
            now = self.transcript.entries
            if len(now) > len(before) and now[: len(before)] == before:
                self.transcript.follow()  # what was answered is seen, wherever the view was


def _is_command(text: str) -> bool:
    """Whether this is a command, or one on its way: no draft of a message."""
    try:
        return bool(commands.matches(text)) or isinstance(commands.parse(text), Call)
    except CommandError:
        return len(text.split()) == 1
