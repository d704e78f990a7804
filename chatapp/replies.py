"""A reply: asked of the backend, shown as it comes, and stored as far as it has come."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from chatapp.backend import Backend
from chatapp.board import Board
from chatapp.branch import Turn
from chatapp.choices import Chosen
from chatapp.draft_record import DraftRecord
from chatapp.figures import TokenRate, count
from chatapp.records import refused
from chatapp.session import Session
from chatapp.status import Status
from chatapp.store import Node, StoreError
from chatapp.view import View
from runtime.protocol import (
    Channel,
    Delta,
    Failed,
    Finished,
    Generate,
    Notice,
    PromptProgress,
    Stats,
    WasThought,
)

if TYPE_CHECKING:
    from chatapp.blocks import ReplyBlock

STATUS_SECONDS = 0.25
"""Between two changes of the figures while a reply runs: faster than this nobody reads them."""


class Replies:
    """One at a time. `hold` puts the messages that wait on hold, and these behind them."""

    def __init__(
        self,
        backend: Backend,
        session: Session,
        view: View,
        board: Board,
        hold: Callable[[Sequence[str]], None],
        clock: Callable[[], float] = time.monotonic,
        save_every: float = 1.0,
    ) -> None:
        self.records: dict[int, DraftRecord] = {}  # of the replies of this session, by their id
        self.save_every = save_every
        self.request: str | None = None  # the one that the backend has
        self.channel: Channel | None = None  # of the reply that runs; None: nothing has come of it
        self._backend = backend
        self._session = session
        self._view = view
        self._board = board
        self._hold = hold
        self._clock = clock
        self._late: asyncio.Task[None] | None = None

    async def run(self, turn: Turn, chosen: Chosen, stopped: Callable[[], bool]) -> None:
        """From its beginning to its end; `stopped`: it is not wanted any more."""
        reply = await self._view.begin_reply(turn)
        source = self._source()  # another model may be open when the reply ends
        request = Generate(
            uuid.uuid4().hex,
            turn.conversation_id,
            turn.messages,
            chosen.sampling,
            chosen.thinking,
            chosen.thinking_budget,
            chosen.preserve_thinking,
            chosen.drafts,
        )
        self.request, self.channel = request.request_id, None
        self._board.show(Status(state="waiting", busy=True, context_used=self._board.status.context_used))
        record = DraftRecord()
        saving = asyncio.create_task(self._save(turn, reply))
        ended: Finished | Failed | None = None
        try:
            if stopped():
                ended = Finished(request.request_id, "cancelled", Stats())
            else:
                ended = await self._generate(request, reply, record)
        except Exception as error:
            self._view.report(error)
        finally:
            saving.cancel()
            if isinstance(ended, Finished):
                record.stats = ended.stats
                self.records[turn.reply_id] = record
            await self._end(turn, reply, ended, source)

    async def _generate(self, request: Generate, reply: ReplyBlock, record: DraftRecord) -> Finished | Failed | None:
        """Plays the events of a request; its last one, or None if it has none."""
        rate = TokenRate()
        tokens = 0
        shown = float("-inf")
        prompt: int | None = None
        async for event in self._backend.generate(request):
            match event:
                case PromptProgress(done=done, total=total, cached=cached):
                    prompt = total
                    reply.prefill(done, total)
                    self._board.change(
                        state=f"prefilling {count(done)}/{count(total)}",
                        cached=cached,
                        context_used=done,
                    )
                case Delta(channel=channel, text=text, n_tokens=new):
                    now = self._clock()
                    record.add(event)
                    tokens += new
                    rate.add(now, new)
                    reply.feed(channel, text, new)
                    if now - shown >= STATUS_SECONDS or channel != self.channel:
                        shown, self.channel = now, channel
                        used = prompt + tokens if prompt is not None else None
                        state = "thinking" if channel == "thinking" else "generating"
                        self._board.change(state=state, tok_per_s=rate.value(), context_used=used)
                    await asyncio.sleep(0)  # a burst of events must not keep the screen from drawing
                case WasThought():
                    await reply.was_thought()
                    record.was_thought()
                case Notice(message=message):
                    self._view.say(message)
                case Finished() | Failed():
                    return event
                case _:
                    pass
        return None

    async def _end(
        self, turn: Turn, reply: ReplyBlock, ended: Finished | Failed | None, source: dict[str, str]
    ) -> None:
        """Show and store how a reply has ended."""
        try:
            if isinstance(ended, Finished):
                await self._finished(turn, reply, ended, source)
            else:
                await self._failed(turn, reply, ended, source)
        except StoreError as error:
            self._view.say(f"{error} The end of the reply is saved as soon as it can be.", "error")
            if self._late is None:
                self._late = asyncio.create_task(self._save_late())

    async def _save_late(self) -> None:
        done = False
        while not done:
            await asyncio.sleep(self.save_every)
            done = await self._session.save_late()
        self._late = None
        self._view.say("The reply is saved now.")

    async def _finished(self, turn: Turn, reply: ReplyBlock, ended: Finished, source: dict[str, str]) -> None:
        stats = ended.stats
        if turn.begun is not None:
            stats = _with_before(stats, turn.begun)
        await reply.finish(
            ended.reason,
            thought_closed=ended.thought_closed,
            thinking_ms=stats.thinking_ms,
            thinking_tokens=stats.thinking_tokens,
        )
        self._board.change(
            state="stopped" if ended.reason == "cancelled" else "ready",
            busy=False,
            tok_per_s=stats.decode_tok_per_s,
            ttft_ms=stats.ttft_ms,
            context_used=(stats.context_used or None) if source == self._source() else None,
            cached=stats.told()["cached_tokens"],
            acceptance=stats.accepted / stats.drafted if stats.drafted else None,
        )
        meta: dict[str, object] = {"reason": ended.reason, "stats": stats.told(), **source}
        status: Literal["cancelled", "complete"] = "cancelled" if ended.reason == "cancelled" else "complete"
        await self._session.finish(turn, reply.answer, reply.thought, status, ended.thought_closed, meta)

    async def _failed(self, turn: Turn, reply: ReplyBlock, ended: Failed | None, source: dict[str, str]) -> None:
        closed = bool(reply.answer) or not reply.thought
        await reply.finish("failed", thought_closed=closed)
        restarts = ended is not None and ended.kind == "worker"  # the backend tells when it is done
        self._board.change(state="restarting" if restarts else "failed", busy=restarts, tok_per_s=None)
        full = ended is not None and ended.kind == "context"
        if ended is not None and not full:
            self._view.say(ended.message, "error")
        self._hold(())  # they would fail as well, one after the other
        failure = ended.kind if ended is not None else "internal"
        meta = {"reason": "failed", "failure": failure, "stats": reply.measured, **source}
        asked = turn.asked if refused(failure, reply.answer, reply.thought) else None
        try:
            if await self._session.finish(turn, reply.answer, reply.thought, "failed", closed, meta):
                await self._view.take_back(turn)
                self._board.change(state="ready")
        finally:  # what could leave is told of the conversation without the message that had no room
            if ended is not None and full:
                self._view.say(ended.message, "error")
                self._view.context_full(ended.message)
            if asked is not None and not self._view.give_back(asked.content):
                self._hold((asked.content,))

    def _source(self) -> dict[str, str]:
        """Which model replies, and where it is to be found again."""
        model = self._backend.model or self._board.model
        return {"model": model.name, "source": model.path} if model is not None else {}

    async def _save(self, turn: Turn, reply: ReplyBlock) -> None:
        """Store what there is, about every second; what there is no room for, as soon as there is."""
        saved = ("", "")
        told = False
        while True:
            await asyncio.sleep(self.save_every)
            now = (reply.answer, reply.thought)
            if now == saved:
                continue
            try:
                await self._session.save(turn, *now)
                saved, told = now, False
            except StoreError as error:
                if not told:
                    self._view.say(f"{error} The reply goes on, unsaved for now.", "warning")
                told = True


def _with_before(stats: Stats, begun: Node) -> Stats:
    """The figures of a reply that went on, with what its beginning took to think."""
    before = begun.meta.get("stats")
    before = before if isinstance(before, dict) else {}
    tokens, spent = before.get("thinking_tokens"), before.get("thinking_ms")
    return replace(
        stats,
        thinking_tokens=stats.thinking_tokens + (tokens if isinstance(tokens, int) else 0),
        thinking_ms=(stats.thinking_ms or 0) + spent if isinstance(spent, int | float) else stats.thinking_ms,
    )
