"""What becomes of messages that are there. Nothing is changed or lost: each change is another version beside."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType

from chatapp.block import Block
from chatapp.commands import CommandError
from chatapp.figures import plural
from chatapp.key_names import key_of
from chatapp.parts.base import ChatBase
from chatapp.store import Node
from chatapp.unsent import Unsent


class VersionsPart(ChatBase):
    """Implements `commands.versions`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("alt+up", "edit(1)", "Write an earlier message anew", id="chat.edit", priority=True, show=False),
        Binding("alt+down", "edit(-1)", "Back to a later message", id="chat.edit_later", priority=True, show=False),
        Binding("alt+left", "version(-1)", "The version before", id="chat.version_back", priority=True, show=False),
        Binding("alt+right", "version(1)", "The next version", id="chat.version_next", priority=True, show=False),
    ]

    editing: Node | None = None
    """The message that is being written anew."""
    _draft = ""
    _switched_last: tuple[int, int] | None = None  # the message whose version was changed, and the last one of then

    def edit(self, back: int) -> None:
        mine = [node for node in self._session.thread if node.role == "user"]
        if not mine:
            raise CommandError("You have not sent a message yet.")
        if back > len(mine):
            raise CommandError(f"You have sent {plural(len(mine), 'message')} so far.")
        if self.editing is None:
            self._draft = self.composer.unsent[0]
        self._mark(False)
        self.editing = mine[-back]
        self._mark(True)
        self.composer.put(self.editing.content)
        self.composer.focus()
        self.composer.add_class("-editing")
        self.composer.border_title = (
            f"message {len(mine) - back + 1} of {len(mine)} anew · "
            f"{key_of(self, 'chat.stop', 'Esc')} leaves it as it was"
        )

    def leave_edit(self) -> None:
        """The message stays as it was, and what was written before comes back."""
        if self.editing is not None:
            self._end_edit()
            self.composer.put(self._draft)

    def _unsent(self) -> Unsent:
        """While a message is written anew, the draft from before waits behind the queue."""
        words = super()._unsent()
        aside = (self._draft,) if self.editing is not None and self._draft.strip() else ()
        return Unsent(words.draft, (*words.queue, *aside))

    def _end_edit(self) -> None:
        self._mark(False)
        self.editing = None
        self.composer.remove_class("-editing")
        self.composer.border_title = ""

    def _edited_node(self) -> int | None:
        """The message that a sent one replaces; the edit is over."""
        node = self.editing
        if node is None:
            return None
        self._end_edit()
        self.composer.put(self._draft)
        return node.id

    def _mark(self, on_: bool) -> None:
        for block in self.transcript.blocks:
            if self.editing is not None and block.node == self.editing.id:
                block.set_class(on_, "-edited")
                if on_:
                    block.scroll_visible(animate=False)

    def action_edit(self, step: int) -> None:
        mine = [node.id for node in self._session.thread if node.role == "user"]
        back = step
        if self.editing is not None and self.editing.id in mine:
            back = len(mine) - mine.index(self.editing.id) + step
        if 0 < back <= len(mine):
            self.edit(back)
        elif back <= 0:
            self.leave_edit()
        elif not mine:
            self._show_hint("no message was sent yet")

    async def retry(self, back: int = 1) -> None:
        """Another reply to the message that is `back` from the end; what came after it stays with the other version."""
        mine = [place for place, node in enumerate(self._session.thread) if node.role == "user"]
        if back > 1 and back > len(mine):
            raise CommandError(f"You have sent {plural(len(mine), 'message')} so far.")
        if back == 1:
            await self._reply_anew(None)
        else:
            await self._reply_anew(self._session.thread[mine[-back]].id)

    async def action_retry_message(self) -> None:
        """Another reply in place of the marked one, or to the marked message."""
        cursor = self.transcript.cursor
        if cursor is None or (node := cursor.node) is None:
            return
        await self.transcript.set_cursor(None)
        self.composer.focus()
        self._in_turn(lambda: self._reply_anew(node))

    async def _reply_anew(self, node: int | None) -> None:
        """In place of this reply, or of the reply to this message; None: of the last one."""
        thread = self._session.thread
        place = next((place for place, each in enumerate(thread) if each.id == node), len(thread))
        replies = (each.id for each in thread[place:-1] if each.role == "assistant")  # the last one needs no name
        self.transcript.follow()
        self.turns.retry(next(replies, None))
        await self.turns.stop()  # after it, since what is next begins before this goes on

    async def go_on(self) -> None:
        if not self.turns.generating:
            self.turns.go_on()

    async def fork(self) -> None:
        if not self._session.thread:
            raise CommandError("There is nothing here yet that a new conversation could begin with.")
        self.turns.hold()  # what waits stays with the conversation that it was written in
        await self.turns.stop()
        several = any(self._session.versions(node.id)[1] > 1 for node in self._session.thread)
        made = await self._session.fork()
        await self.switch_to(made.id)
        left = " Of messages with several versions it has the ones that were shown." if several else ""
        self.say(f"This is a new conversation that begins as the other did.{left} Both go on by themselves.")

    async def switch_to(self, conversation_id: str | None, at: int | None = None) -> None:
        """Put this conversation away and show another, or with None a new one; `at`: this message in sight."""
        raise NotImplementedError

    def action_version(self, step: int) -> None:
        self.run_worker(self._switch_last(step), group="commands", exit_on_error=False)

    async def _switch_last(self, step: int) -> None:
        async with self._commands:
            await self._guard(lambda: self.switch_version(step))

    async def switch_version(self, step: int) -> None:
        """Of the message that is marked or written anew, else of the last one that has several.

        Where nothing was written since, the one whose version was changed before goes on: so the way back is the same.
        """
        thread = self._session.thread
        several = [node.id for node in thread if self._session.versions(node.id)[1] > 1]
        meant = self._message_meant()
        if not several:
            self._show_hint("every message has one version only · /retry and /edit make more", 4.0)
        elif meant is not None and meant not in several:
            self._show_hint("this message has one version only", 4.0)
        elif meant is not None:
            await self._switch(meant, step)
        else:
            before, end = self._switched_last or (None, None)
            await self._switch(before if before in several and end == thread[-1].id else several[-1], step)

    def _message_meant(self) -> int | None:
        """The message that is marked or written anew."""
        if self.transcript.has_focus and self.transcript.cursor is not None:
            return self.transcript.cursor.node
        return self.editing.id if self.editing is not None else None

    @on(Block.Switched)
    def _switched(self, event: Block.Switched) -> None:
        self.composer.focus()

        async def switch() -> None:
            async with self._commands:
                await self._guard(lambda: self._switch(event.node, event.step))

        self.run_worker(switch(), group="commands", exit_on_error=False)

    async def _switch(self, node: int, step: int) -> None:
        if self.turns.generating:
            self._show_hint("another version can be shown when this reply has ended")
            return
        shown = await self._session.show_version(node, step)
        if shown is None:
            place, number = self._session.versions(node)
            self._show_hint(f"version {place} of {number} is the {'last' if step > 0 else 'first'} one")
            return
        self.leave_edit()
        self._switched_last = shown, self._session.thread[-1].id
        marked = self.transcript.has_focus and self.transcript.cursor is not None
        self.end_search()
        await self.transcript.show(self._entries_of(self._session.thread), at=shown, mark=marked)
        self.turns.reset()
        self._show_hint("version {} of {}".format(*self._session.versions(shown)))
