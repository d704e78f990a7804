"""The conversation on the screen: what is written to the store, and what the model is sent."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from chatapp import unsent
from chatapp.branch import Branch, Cut, News, Turn
from chatapp.records import refused, title_of
from chatapp.store import Conversation, Node, Status, Store, StoreError
from chatapp.thread import messages
from chatapp.tree import Tree
from chatapp.unsent import Unsent
from chatapp.window import Window
from runtime.protocol import Message

T = TypeVar("T")


class Session(Branch):
    """Writes happen beside the event loop, in their order. Methods raise StoreError.

    Several windows may have one conversation open. One at a time writes a turn in it, from the question to the end of
    the reply, and goes on from what is stored by then, so that nobody's messages end up on a branch that is not seen.
    """

    def __init__(self, store: Store, default_system: str = "") -> None:
        super().__init__(store, default_system)
        self.own: dict[str, Any] = {}  # the settings of replies that are the conversation's own
        self._order = asyncio.Lock()
        self._window = Window(store)
        self._unsent = Unsent()
        self._late: list[Callable[[], object]] = []  # ends of replies for which there was no room
        self._version = -1

    def new(self) -> None:
        """An empty conversation, which the store learns of with its first words."""
        self._let_go()
        self.conversation, self.thread, self.system = None, [], self._default_system
        self.tree = Tree()
        self._stored_head, self._unsent = None, Unsent()
        self.own = {}

    async def open(self, conversation_id: str) -> bool:
        """Go on with a saved conversation; False if there is none of that id.

        A reply that another window is writing is left out: `look` brings it when it has ended.
        """

        def read() -> tuple[Conversation | None, list[Node], dict[str, Any], Tree]:
            written = self._store.claimed(conversation_id)
            thread = self._store.thread(conversation_id)
            if written and thread and thread[-1].status == "partial":
                del thread[-1]
            own, tree = self._store.choices(conversation_id), Tree(self._store.twigs(conversation_id))
            return self._store.get(conversation_id), thread, own, tree

        conversation, thread, own, tree = await self._in_order(read)
        if conversation is None:
            return False
        self._let_go()
        self.conversation, self.thread, self.own, self.tree = conversation, thread, own, tree
        self._stored_head, self._unsent = thread[-1].id if thread else None, Unsent()
        self.system = self._stored_system() if thread else self._default_system
        return True

    async def ask(
        self,
        text: str,
        model: str,
        instead: int | None = None,
        *,
        waits: Callable[[], None] = lambda: None,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> Turn | None:
        """Store what the user says, before anything is generated; `instead` of the message of that id, beside it.

        While another window's reply runs in this conversation, it `waits`, which is told once; None if it then
        `gives_up`, which is asked again and again.
        """
        if not await self._claim(waits, gives_up):
            return None

        def write() -> Turn:
            news = self._catch_up()
            conversation = self._known(model)
            self._window.take(conversation.id)
            before = self._end
            if instead is not None:
                self._cut(instead)
            with self._store.transaction():
                self._renew_system(conversation.id)
                asked = self._add(conversation.id, "user", text)
                turn = self._begin_reply(conversation.id)
                self._keep_unsent(self._unsent.without(text))
            return dataclasses.replace(turn, asked=asked, before=before, cut=instead is not None, news=news)

        return await self._begun(write)

    async def retry(
        self,
        reply: int | None = None,
        *,
        waits: Callable[[], None] = lambda: None,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> Turn | News | None:
        """Another version of a reply, of the last one if none is named; None if there is no message to reply to.

        With news nothing is asked for, since it was meant for what was shown.
        """
        conversation, before = self.conversation, self.thread
        if reply is not None:
            before = before[: self._place(reply)]
        last = max((place for place, node in enumerate(before) if node.role == "user"), default=None)
        if conversation is None or last is None or not await self._claim(waits, gives_up):
            return None
        cut = any(node.role == "user" for node in self.thread[last + 1 :])

        def write() -> Turn:
            before = self._end
            self._put_aside()
            self.thread = self.thread[: last + 1]
            with self._store.transaction():
                self._renew_system(conversation.id)
                return dataclasses.replace(self._begin_reply(conversation.id), before=before, cut=cut)

        return await self._begun_unless_news(write)

    async def go_on(
        self,
        *,
        waits: Callable[[], None] = lambda: None,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> Turn | News | None:
        """The last reply goes on where it ended, in a node of its own; None if it is not there or has come to its end.

        With news it does not, since it is the last one no more. With nothing of it there another one takes its place.
        """
        conversation = self.conversation
        begun = self.unfinished
        if conversation is None or begun is None or not await self._claim(waits, gives_up):
            return None

        def write() -> Turn:
            before = self._end
            self.thread = self.thread[:-1]
            meta = {"continues": begun.id}
            said = (Message("assistant", begun.content, begun.thought),) if begun.content or begun.thought else ()
            with self._store.transaction():
                if not said:
                    self._renew_system(conversation.id)
                sent = messages(self.thread)
                node = self._add(
                    conversation.id, "assistant", begun.content, "partial", begun.thought, begun.thought_closed, meta
                )
            return Turn(conversation.id, node.id, (*sent, *said), before=before, begun=begun)

        return await self._begun_unless_news(write)

    @property
    def unfinished(self) -> Node | None:
        """The last reply, if it ended before its end."""
        last = self.thread[-1] if self.thread else None
        if last is None or last.role != "assistant":
            return None
        return last if last.status != "complete" or last.meta.get("reason") == "length" else None

    def versions(self, node: int) -> tuple[int, int]:
        """The place of a message among its versions, from 1 on, and their number."""
        versions = self.tree.versions(node)
        return versions.index(node) + 1, len(versions)

    async def show_version(self, node: int, step: int) -> int | None:
        """Go on with the next (1) or the last (-1) version of a message; its id, or None if there is none."""
        versions = self.tree.versions(node)
        place = versions.index(node) + step
        conversation = self.conversation
        if conversation is None or not 0 <= place < len(versions):
            return None

        def write() -> list[Node]:
            self._put_aside()
            head = self._leaf(versions[place])
            self._store.set_head(conversation.id, head)
            self._stored_head = head
            return self._store.thread(conversation.id, head)

        follows = self.system == self._stored_system()
        self.thread = await self._in_order(write)
        if follows:
            self.system = self._stored_system()
        return versions[place]

    async def show_branch(self, node: int) -> None:
        """Go on with the version in which a message is, if it is not shown."""
        conversation = self.conversation
        if conversation is None or any(each.id == node for each in self.thread):
            return

        def write() -> list[Node]:
            self._put_aside()
            head = self._leaf(node)
            self._store.set_head(conversation.id, head)
            self._stored_head = head
            return self._store.thread(conversation.id, head)

        self.thread = await self._in_order(write)
        self.system = self._stored_system()

    async def fork(self) -> Conversation:
        """A new conversation that begins as this one does, as far as it is shown."""
        thread, conversation = self.thread, self.conversation

        def write() -> Conversation:
            origin = self._store.get(conversation.id) if conversation is not None else None
            title = f"{title_of(origin)} (fork)" if origin is not None and (origin.name or origin.title) else ""
            return self._store.fork(thread, title)

        return await self._in_order(write)

    async def save(self, turn: Turn, content: str, thought: str) -> None:
        """What there is of a reply so far."""
        await self._in_order(lambda: self._store.write_partial(turn.reply_id, content, thought))

    async def finish(
        self, turn: Turn, content: str, thought: str, status: Status, thought_closed: bool, meta: Mapping[str, Any]
    ) -> bool:
        """A reply has ended; `meta` is what is known of it.

        A turn for which there was no room in the context is taken back, for no later one would fit either; whether it
        was.

        If it cannot be written now, it raises, and `save_late` writes it when it can.
        """

        if turn.begun is not None:
            meta = {**meta, "continues": turn.begun.id}

        def write() -> bool:
            self._store.finish(turn.reply_id, content, thought, status, thought_closed, meta)
            return refused(meta.get("failure"), content, thought) and self._take_back(turn)

        self.thread = [
            dataclasses.replace(
                node, content=content, thought=thought, status=status, thought_closed=thought_closed, meta=meta
            )
            if node.id == turn.reply_id
            else node
            for node in self.thread
        ]
        try:
            return await self._in_order(write)
        except StoreError:
            self._late.append(write)
            raise
        finally:
            self._window.release()

    async def save_late(self) -> bool:
        """Write the ends of replies for which there was no room; whether none is left."""
        try:
            await self._in_order(self._write_late)
        except StoreError:
            return False
        return True

    def prefer_system(self, text: str) -> None:
        """The system prompt of new conversations, this one among them if it has not begun."""
        if not self.thread and self.system == self._default_system:
            self.system = text
        self._default_system = text

    async def cut(self, summary: str, meta: Mapping[str, Any]) -> Cut | None:
        """From here on the model is sent less, as `meta` says; None while anybody is replied to here."""
        conversation = self.conversation
        if conversation is None:
            return None

        def write() -> Cut | None:
            claim = self._store.claim(conversation.id)  # of its own: that of a turn is not to be let go
            if claim is None:
                return None
            try:
                news = self._catch_up()
                return Cut(self._add(conversation.id, "system", summary, meta=meta), news)
            finally:
                claim.release()

        return await self._written(write)

    async def keep_own(self, own: Mapping[str, Any]) -> None:
        """These settings are the conversation's own from now on; a new one is stored with them later."""
        self.own = dict(own)
        if (conversation := self.conversation) is not None:
            await self._in_order(lambda: self._store.keep_choices(conversation.id, own))

    async def look(self) -> News:
        """What other windows have written; nothing as long as one of them still writes."""
        conversation = self.conversation
        if conversation is None or self._window.writing:
            return News()

        def read() -> News:
            version = self._store.version()
            if version == self._version or self._store.claimed(conversation.id):
                return News()
            self._version = version
            return self._catch_up()

        return await self._in_order(read)

    async def keep(self, unsent_: Unsent) -> None:
        """What is written and not sent, in place of what was kept before; a new conversation becomes a saved one."""
        open_ = self.conversation

        def write() -> None:
            if self.conversation is None or open_ is None:
                same = self.conversation is open_
            else:
                same = self.conversation.id == open_.id
            if same and unsent_ != self._unsent:
                self._keep_unsent(unsent_)

        await self._in_order(write)

    async def unsent(self) -> Unsent:
        """What was kept of this conversation, by this window or one that is gone."""
        conversation = self.conversation
        if conversation is None:
            return Unsent()
        self._unsent = await self._in_order(lambda: unsent.take(self._store, conversation.id, self._window.key))
        return self._unsent

    async def leave(self) -> None:
        """The conversation is put away; a new one in which nothing was written is forgotten."""
        conversation = self.conversation
        if conversation is not None and not self.thread and self._unsent == Unsent():
            await self._in_order(lambda: self._store.drop_if_void(conversation.id))

    def close(self) -> None:
        """This window ends: what it keeps is for the next one."""
        self._window.close()

    async def asked(self, limit: int) -> list[str]:
        """The last messages of the user in all conversations, oldest first."""
        return await self._in_order(lambda: self._store.asked(limit))

    async def conversations(self) -> list[Conversation]:
        """The saved ones, last written first."""
        return await self._in_order(lambda: self._store.conversations(limit=500))

    async def find(self, key: str) -> Conversation | None:
        """A saved conversation by title, name or id, see `Store.find`."""
        return await self._in_order(lambda: self._store.find(key))

    async def _claim(self, waits: Callable[[], None], gives_up: Callable[[], bool]) -> bool:
        conversation = self.conversation
        return conversation is None or await self._window.begin(conversation.id, waits, gives_up)

    async def _in_order(self, work: Callable[[], T]) -> T:
        async with self._order:
            return await asyncio.to_thread(work)

    async def _begun(self, work: Callable[[], T]) -> T:
        """A turn begins: if it cannot be written, others may write."""
        try:
            return await self._written(work)
        except BaseException:
            self._window.release()
            raise

    async def _begun_unless_news(self, work: Callable[[], Turn]) -> Turn | News:
        def write() -> Turn | News:
            news = self._catch_up()
            return news if news.nodes else dataclasses.replace(work(), news=news)

        turn = await self._begun(write)
        if isinstance(turn, News):
            self._window.release()
        return turn

    async def _written(self, work: Callable[[], T]) -> T:
        """What goes below the thread: if it cannot be written, the thread is what it was."""

        def write() -> T:
            self._write_late()
            before = self.thread, self._stored_head, self._unsent
            self._grown = []
            try:
                made = work()
            except BaseException:
                self.thread, self._stored_head, self._unsent = before
                raise
            for twig in self._grown:
                self.tree.add(twig)
            return made

        return await self._in_order(write)

    def _let_go(self) -> None:
        self._window.release()
        self._version = -1

    def _known(self, model: str = "") -> Conversation:
        """The conversation, which the store learns of if it is new."""
        if self.conversation is None:
            self.conversation = self._store.create(model=model)
            if self.own:
                self._store.keep_choices(self.conversation.id, self.own)
        return self.conversation

    def _write_late(self) -> None:
        while self._late:
            self._late[0]()
            del self._late[0]

    def _keep_unsent(self, words: Unsent) -> None:
        if self.conversation is None and words == Unsent():
            return
        unsent.keep(self._store, self._known().id, self._window.key, words)
        self._unsent = words
