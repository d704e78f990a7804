"""One thing after another: models that are opened, messages that are answered."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from chatapp.backend import Backend
from chatapp.blocks import ReplyBlock, Severity
from chatapp.figures import TokenRate, count
from chatapp.options import ChatOptions
from chatapp.session import Session, Turn
from chatapp.status import Status
from chatapp.store import StoreError
from runtime.protocol import (
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    LoadProgress,
    Notice,
    PromptProgress,
    Ready,
)

STATUS_SECONDS = 0.25
"""Between two changes of the figures while a reply runs: faster than this nobody reads them."""


class View(Protocol):
    """Where it is shown."""

    async def begin_reply(self) -> ReplyBlock:
        """A new reply at the end of the transcript."""

    def add_user(self, text: str) -> None: ...

    def drop_reply(self) -> None:
        """Take the last reply away: another comes in its place."""

    def say(self, text: str, severity: Severity = "info") -> None: ...

    def give_back(self, text: str) -> None:
        """A message that could not be taken."""

    def report(self, error: Exception) -> None:
        """A fault of the program itself."""

    def turns_changed(self) -> None:
        """`Turns.status` or `Turns.waiting` is not what it was."""


@dataclass(frozen=True, slots=True)
class _Open:
    path: str


@dataclass(frozen=True, slots=True)
class _Ask:
    text: str


@dataclass(frozen=True, slots=True)
class _Retry:
    pass


class Turns:
    """`run` is the loop; everything else may be called at any time."""

    def __init__(
        self,
        backend: Backend,
        session: Session,
        options: ChatOptions,
        view: View,
        clock: Callable[[], float] = time.monotonic,
        save_every: float = 1.0,
    ) -> None:
        self.thinking = options.thinking
        self._backend = backend
        self._session = session
        self._options = options
        self._view = view
        self._clock = clock
        self._save_every = save_every
        self._jobs: deque[_Open | _Ask | _Retry] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._request: str | None = None
        self._stopping = False
        self._status = Status()
        backend.on_event(self._heard)

    @property
    def status(self) -> Status:
        model = self._backend.model
        default = model.thinking_default if model is not None else None
        return replace(
            self._status,
            state="stopping…" if self._stopping else self._status.state,
            model=model.name if model is not None else None,
            thinking=self.thinking if self.thinking is not None else default,
            context_length=model.context_length if model is not None else None,
        )

    @property
    def waiting(self) -> list[str]:
        """Messages that are not sent yet, in their order."""
        return [job.text for job in self._jobs if isinstance(job, _Ask)]

    @property
    def generating(self) -> bool:
        return self._request is not None

    def open(self, path: str) -> None:
        """Open a model, before any message that waits."""
        self._jobs.appendleft(_Open(str(Path(path).expanduser().absolute())))
        self._wake.set()

    def submit(self, text: str) -> None:
        """Send a message, when all before it is done."""
        self._jobs.append(_Ask(text))
        self._wake.set()
        self._view.turns_changed()

    def retry(self) -> None:
        """Ask for another reply to the last message."""
        self._jobs.append(_Retry())
        self._wake.set()

    def take_back(self, number: int = -1) -> str | None:
        """Withdraw a waiting message; None if there is none of that number."""
        asks = [job for job in self._jobs if isinstance(job, _Ask)]
        if not -len(asks) <= number < len(asks):
            return None
        self._jobs = deque(job for job in self._jobs if job is not asks[number])
        self._view.turns_changed()
        return asks[number].text

    def withdraw(self) -> None:
        """Forget all that waits."""
        self._jobs.clear()
        self._view.turns_changed()

    def reset(self) -> None:
        """Another conversation: the figures of the last one go."""
        self._show(Status(state="ready" if self._backend.model is not None else ""))

    async def stop(self) -> None:
        """End the reply that runs, and wait until it has ended."""
        if (request := self._request) is not None:
            self._stopping = True
            self._view.turns_changed()
            await self._backend.cancel(request)
            await self._idle.wait()

    async def run(self) -> None:
        """Does what was asked for, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (job := self._next()) is not None:
                self._idle.clear()
                try:
                    await self._do(job)
                except Exception as error:
                    self._show(replace(self._status, state="failed", busy=False))
                    self._view.report(error)
                finally:
                    self._request = None
                    self._stopping = False
                    self._idle.set()

    def _next(self) -> _Open | _Ask | _Retry | None:
        """The next job; what needs a model waits for one."""
        if not self._jobs or not (isinstance(self._jobs[0], _Open) or self._backend.model is not None):
            return None
        job = self._jobs.popleft()
        self._view.turns_changed()
        return job

    async def _do(self, job: _Open | _Ask | _Retry) -> None:
        if isinstance(job, _Open):
            await self._load(job.path)
            return
        model = self._backend.model
        try:
            if isinstance(job, _Retry):
                turn = await self._session.retry()
            else:
                turn = await self._session.ask(job.text, model.name if model is not None else "")
        except StoreError as error:
            self._view.say(str(error), "error")
            if isinstance(job, _Ask):
                self._view.give_back(job.text)
            return
        if turn is None:
            self._view.say("There is no message to reply to yet.")
            return
        if isinstance(job, _Ask):
            self._view.add_user(job.text)
        else:
            self._view.drop_reply()
        await self._reply(turn)

    async def _load(self, path: str) -> None:
        self._show(Status(state="loading", busy=True))
        async for event in self._backend.load(self._options.load(path)):
            match event:
                case LoadProgress(done=done, total=total) if total > 0:
                    self._show(replace(self._status, state=f"loading {100 * done // total} %"))
                case Notice(message=message):
                    self._view.say(message)
                case Ready():
                    self._show(Status(state="ready"))
                case Failed(message=message):
                    self._show(Status(state="not loaded" if self._backend.model is None else "ready"))
                    self._view.say(message, "error")
                case _:
                    pass

    async def _reply(self, turn: Turn) -> None:
        reply = await self._view.begin_reply()
        request = Generate(
            uuid.uuid4().hex,
            turn.conversation_id,
            turn.messages,
            self._options.sampling,
            self.thinking,
            self._options.thinking_budget,
            self._options.preserve_thinking,
        )
        self._request = request.request_id
        self._show(replace(self._status, state="waiting", busy=True, tok_per_s=None, ttft_ms=None, cached=None))
        saving = asyncio.create_task(self._save(turn, reply))
        ended: Finished | Failed | None = None
        try:
            ended = await self._generate(request, reply)
        except Exception as error:
            self._view.report(error)
        finally:
            saving.cancel()
            await self._end(turn, reply, ended)

    async def _generate(self, request: Generate, reply: ReplyBlock) -> Finished | Failed | None:
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
                    self._show(replace(self._status, state=f"prefilling {count(done)}/{count(total)}", cached=cached))
                case Delta(channel=channel, text=text, n_tokens=new):
                    now = self._clock()
                    tokens += new
                    rate.add(now, new)
                    reply.feed(channel, text, new)
                    if now - shown >= STATUS_SECONDS:
                        shown = now
                        used = prompt + tokens if prompt is not None else None
                        self._show(replace(self._status, state="generating", tok_per_s=rate.value(), context_used=used))
                    await asyncio.sleep(0)  # a burst of events must not keep the screen from drawing
                case Notice(message=message):
                    self._view.say(message)
                case Finished() | Failed():
                    return event
                case _:
                    pass
        return None

    async def _end(self, turn: Turn, reply: ReplyBlock, ended: Finished | Failed | None) -> None:
        """Show and store how a reply has ended."""
        try:
            if isinstance(ended, Finished):
                await self._finished(turn, reply, ended)
            else:
                await self._failed(turn, reply, ended)
        except StoreError as error:
            self._view.say(str(error), "error")

    async def _finished(self, turn: Turn, reply: ReplyBlock, ended: Finished) -> None:
        stats = ended.stats
        await reply.finish(
            ended.reason,
            thought_closed=ended.thought_closed,
            thinking_ms=stats.thinking_ms,
            thinking_tokens=stats.thinking_tokens,
        )
        self._show(
            replace(
                self._status,
                state="stopped" if ended.reason == "cancelled" else "ready",
                busy=False,
                tok_per_s=stats.decode_tok_per_s,
                ttft_ms=stats.ttft_ms,
                context_used=stats.context_used or None,
                cached=stats.cached_tokens,
            )
        )
        meta = {"reason": ended.reason, "stats": dataclasses.asdict(stats)}
        status: Literal["cancelled", "complete"] = "cancelled" if ended.reason == "cancelled" else "complete"
        await self._session.finish(turn, reply.answer, reply.thought, status, ended.thought_closed, meta)

    async def _failed(self, turn: Turn, reply: ReplyBlock, ended: Failed | None) -> None:
        closed = bool(reply.answer) or not reply.thought
        await reply.finish("failed", thought_closed=closed)
        self._show(replace(self._status, state="failed", busy=False, tok_per_s=None))
        if ended is not None:
            self._view.say(ended.message, "error")
        meta = {"reason": "failed", "failure": ended.kind if ended is not None else "internal"}
        await self._session.finish(turn, reply.answer, reply.thought, "failed", closed, meta)

    async def _save(self, turn: Turn, reply: ReplyBlock) -> None:
        """Store what there is, about every second."""
        saved = ("", "")
        while True:
            await asyncio.sleep(self._save_every)
            now = (reply.answer, reply.thought)
            if now == saved:
                continue
            try:
                await self._session.save(turn, *now)
            except StoreError as error:
                self._view.say(f"{error} The reply goes on, unsaved for now.", "warning")
                return
            saved = now

    def _heard(self, event: Event) -> None:
        """What the backend tells outside a request: the engine's restarts."""
        match event:
            case Notice(message=message):
                self._view.say(message, "warning")
                if not self.generating:
                    self._show(replace(self._status, state="restarting", busy=True))
            case Ready():
                self._view.say("The engine is running again.")
                if not self.generating:
                    self._show(replace(self._status, state="ready", busy=False))
                self._wake.set()
            case Failed(message=message):
                self._view.say(message, "error")
                self._show(replace(self._status, state="failed", busy=False))
            case _:
                pass

    def _show(self, status: Status) -> None:
        if status != self._status:
            self._status = status
            self._view.turns_changed()
