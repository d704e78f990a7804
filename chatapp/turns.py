"""One thing after another: models that are opened, messages that are answered."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from chatapp.backend import Backend
from chatapp.blocks import ReplyBlock
from chatapp.choices import Choices
from chatapp.coming import Coming
from chatapp.drafts import DraftRecord
from chatapp.figures import TokenRate, count
from chatapp.jobs import Ask, GoOn, Job, Jobs, Open, Question, Retry
from chatapp.options import ChatOptions
from chatapp.paths import model_path
from chatapp.remote.address import is_address, label
from chatapp.session import Session, Turn
from chatapp.status import Status
from chatapp.store import Node, StoreError
from chatapp.view import View
from runtime.protocol import (
    Channel,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    LoadProgress,
    Message,
    ModelInfo,
    Notice,
    PromptProgress,
    Ready,
    Sampling,
    Stats,
    WasThought,
)

ASIDE = "Another window goes on with another version of this conversation. Both are kept."
_NOTHING: dict[type[Job], str] = {
    Retry: "There is no message to reply to yet.",
    GoOn: "There is no reply that could go on: the last one has come to its end. /retry asks for another.",
}
STATUS_SECONDS = 0.25
"""Between two changes of the figures while a reply runs: faster than this nobody reads them."""


class QuestionError(Exception):
    """A question of the program itself has no answer; the message is a sentence for the user."""


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
        self.choices = Choices(options)
        self.records: dict[int, DraftRecord] = {}  # of the replies of this session, by their id
        self._backend = backend
        self._session = session
        self._options = options
        self._view = view
        self._clock = clock
        self.save_every = save_every
        self._jobs = Jobs()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._turning = False
        self._request: str | None = None  # the one that the backend has
        self._stopping = False
        self._storing: tuple[str, ...] = ()  # the message that is on its way into the store
        self._late: asyncio.Task[None] | None = None
        self._channel: Channel | None = None  # of the reply that runs; None: nothing has come of it
        self._status = Status()
        self._unheard: list[Event] = []
        self._loading: str | None = None  # the name of the file that is being opened
        self._model: ModelInfo | None = None  # the last that was ready, also while its engine restarts
        self._coming = Coming(backend, options, view)
        self._lost: str | None = None  # the path of a model whose engine does not come back
        backend.on_event(self._heard)

    @property
    def model(self) -> ModelInfo | None:
        """The one that is open."""
        return self._model

    @property
    def status(self) -> Status:
        model = self._backend.model or self._model
        default = model.thinking_default if model is not None else None
        return replace(
            self._status,
            state=" · ".join(
                s for s in ("stopping…" if self._stopping else self._status.state, self._coming.state) if s
            ),
            model=self._loading or (model.name if model is not None else None),
            thinking=self.choices.thinking if self.choices.thinking is not None else default,
            context_length=(model.context_length or None) if model is not None else None,
        )

    @property
    def _state(self) -> str:
        return "stopping…" if self._stopping else self._status.state

    @property
    def waiting(self) -> list[str]:
        """Messages that are not sent yet, in their order."""
        return self._jobs.texts

    @property
    def held(self) -> int:
        """How many of them, the last ones, wait until the user lets them go."""
        return self._jobs.held

    @property
    def unsent(self) -> tuple[str, ...]:
        """Messages that are not in the store."""
        return (*self._storing, *self._jobs.texts)

    @property
    def loading(self) -> bool:
        """Whether a model is being opened, or waits to be."""
        return self._loading is not None or self._coming.running or isinstance(self._jobs.first(), Open)

    def opens_beside(self, path: str) -> bool:
        """Whether the reply that runs can go on while this is opened."""
        return self._backend.beside(self._options.load(model_path(path)))

    @property
    def generating(self) -> bool:
        """Whether a reply runs, from the moment its message left the queue."""
        return self._turning

    def reconfigure(self, changes: Mapping[str, Any]) -> None:
        """The next model is opened with these fields of ChatOptions."""
        self._options = replace(self._options, **changes)

    def open(self, path: str, *, chosen: bool = False) -> None:
        """Open a model, before any message that waits; `chosen`: the user has just named it."""
        self._lost = None
        self._jobs.put_first(Open(model_path(path), chosen))
        self._wake.set()

    def submit(self, text: str, instead: int | None = None) -> None:
        """Send a message, when all before it is done; those on hold stay where they are.

        `instead`: beside this message of the conversation, not below the last one.
        """
        self._jobs.add(Ask(text, instead))
        self._begin()
        self._view.turns_changed()

    def retry(self, reply: int | None = None) -> None:
        """Ask for another version of a reply, of the last one if none is named."""
        self._jobs.put_first(Retry(reply))
        self._begin()

    def go_on(self) -> None:
        """Ask for the rest of the last reply."""
        self._jobs.put_first(GoOn())
        self._begin()

    def take_back(self, number: int = -1) -> str | None:
        """Withdraw a waiting message; None if there is none of that number."""
        text = self._jobs.take(number)
        if text is not None:
            self._view.turns_changed()
        return text

    def withdraw(self) -> None:
        """Forget all messages that wait."""
        self._jobs.clear()
        self._view.turns_changed()

    def hold(self, texts: Sequence[str] = ()) -> None:
        """Let the messages that wait, and these, wait until `let_go`."""
        self._jobs.hold(texts)
        self._view.turns_changed()

    def let_go(self) -> None:
        """Send what is on hold."""
        self._jobs.let_go()
        self._begin()
        self._view.turns_changed()

    def reset(self) -> None:
        """Another conversation: the figures of the last one go."""
        self.choices.take(self._session.own)
        ready = "ready" if self._backend.model is not None else ""
        self._show(Status(state=self._status.state if self._status.busy else ready, busy=self._status.busy))
        self._view.turns_changed()

    def freed(self, tokens: int) -> None:
        """So many tokens of the conversation are not sent any more."""
        used = self._status.context_used
        self._show(replace(self._status, context_used=max(used - tokens, 0) or None if used else None))

    async def stop(self) -> None:
        """End the reply that runs, and wait until it has ended."""
        if self._turning:
            self._stopping = True
            self._view.turns_changed()
            if self._request is not None:
                await self._backend.cancel(self._request)
            await self._idle.wait()

    async def answer_now(self) -> bool:
        """End the thought of the reply that runs, so that its answer follows; False if the backend cannot."""
        return self._request is not None and await self._backend.answer_now(self._request)

    @property
    def thinks(self) -> bool:
        """Whether the reply that runs is in its thought, or may come to one."""
        return self._turning and self._request is not None and self._channel != "answer"

    async def question(self, messages: tuple[Message, ...], max_tokens: int, state: str) -> str:
        """The model's answer to a question of the program itself, when what runs has ended. Raises QuestionError."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._jobs.put_first(Question(messages, max_tokens, state, answer))
        self._begin()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.cancelled():
                raise QuestionError("It was stopped.") from None
            raise

    async def run(self) -> None:
        """Does what was asked for, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (job := self._next()) is not None:
                self._idle.clear()
                self._turning = not isinstance(job, Open)
                try:
                    await self._do(job)
                except Exception as error:
                    self._show(replace(self._status, state="failed", busy=False))
                    self._view.report(error)
                finally:
                    self._request = None
                    self._turning = self._stopping = False
                    self._idle.set()
                    self._view.turns_changed()
                    self._catch_up()

    def _begin(self) -> None:
        """There is something to do; an engine that was given up gets another chance for it."""
        if self._lost is not None:
            self.open(self._lost)
        self._wake.set()

    def _next(self) -> Job | None:
        """The next job; what needs a model waits for one."""
        first = self._jobs.first()
        if first is None or not (isinstance(first, Open) or self._backend.model is not None):
            return None
        if isinstance(first, Open) and self._coming.running:
            return None  # one after the other
        job = self._jobs.pop()
        self._storing = (job.text,) if isinstance(job, Ask) else ()
        self._view.turns_changed()
        return job

    async def _do(self, job: Job) -> None:
        await self._view.make_way()
        if isinstance(job, Open):
            if self.opens_beside(job.path):
                self._coming.open(job, self._has_come)
            else:
                await self._load(job)
            return
        if isinstance(job, Question):
            await self._put(job)
            return
        turn = None
        try:
            turn = await self._begin_turn(job)
        except StoreError as error:
            self._view.say(str(error), "error")
        finally:
            self._storing = ()
            if turn is None and isinstance(job, Ask) and not self._view.give_back(job.text):
                self._jobs.hold()
                self._jobs.put_first(job)
                self._jobs.hold()
        if turn is None:
            if not self._stopping and not isinstance(job, Ask):
                self._view.say(_NOTHING[type(job)])
            return
        if turn.aside:
            self._view.say(ASIDE)
        self._view.show_news(turn.news)
        await self._view.begin_turn(turn)
        await self._reply(turn)

    async def _put(self, job: Question) -> None:
        """Ask the model a question of the program itself."""
        before = self._status
        conversation = self._session.conversation
        request = Generate(
            uuid.uuid4().hex,
            conversation.id if conversation is not None else "",
            job.messages,
            Sampling(max_tokens=job.max_tokens),
            thinking=False,
            aside=True,
        )
        self._request = request.request_id
        self._show(replace(before, state=job.state, busy=True))
        text: list[str] = []
        try:
            async for event in self._backend.generate(request):
                match event:
                    case Delta(channel="answer", text=new):
                        text.append(new)
                    case Finished(reason="cancelled"):
                        job.answer.cancel()
                    case Failed(message=message):
                        if not job.answer.done():
                            job.answer.set_exception(QuestionError(message))
                    case _:
                        pass
            if not job.answer.done():
                job.answer.set_result("".join(text).strip())
        finally:
            job.answer.cancel()  # unless it is done
            self._show(before)

    async def _begin_turn(self, job: Ask | Retry | GoOn) -> Turn | None:
        """None: it was stopped before it began, or there is nothing to reply to."""
        status = self._status

        def waits() -> None:
            self._view.say("Another window is answering in this conversation: this waits for its reply.")
            self._show(replace(status, state="waiting for another window", busy=True))

        model = self._backend.model
        name = model.name if model is not None else ""
        try:
            match job:
                case Ask(text, instead):
                    return await self._session.ask(text, name, instead, waits=waits, gives_up=lambda: self._stopping)
                case Retry(reply):
                    return await self._session.retry(reply, waits=waits, gives_up=lambda: self._stopping)
                case GoOn():
                    return await self._session.go_on(waits=waits, gives_up=lambda: self._stopping)
        finally:
            if self._status.busy:
                self._show(status)

    async def _load(self, job: Open) -> None:
        self._loading = label(job.path)
        self._show(Status(state="connecting" if is_address(job.path) else "loading", busy=True))
        try:
            await self._play_load(job)
        finally:
            self._model = self._backend.model
            self._loading = None
            self._view.turns_changed()

    async def _play_load(self, job: Open) -> None:
        async for event in self._backend.load(self._options.load(job.path)):
            match event:
                case LoadProgress(done=done, total=total) if total > 0:
                    self._show(replace(self._status, state=f"loading {100 * done // total} %"))
                case Notice(message=message):
                    self._view.say(message)
                case Ready():
                    self._show(Status(state="ready"))
                    if job.chosen:
                        self._view.model_chosen(job.path)
                case Failed(message=message):
                    self._show(Status(state="not loaded" if self._backend.model is None else "ready"))
                    self._view.say(message, "error")
                case _:
                    pass

    def _has_come(self) -> None:
        """The model that was opened beside the old one is ready, or will not be."""
        self._model = self._backend.model or self._model
        self._wake.set()

    async def _reply(self, turn: Turn) -> None:
        reply = await self._view.begin_reply(turn)
        request = Generate(
            uuid.uuid4().hex,
            turn.conversation_id,
            turn.messages,
            self.choices.sampling,
            self.choices.thinking,
            self.choices.thinking_budget,
            self.choices.preserve_thinking,
            self.choices.drafts,
        )
        self._request, self._channel = request.request_id, None
        self._show(Status(state="waiting", busy=True, context_used=self._status.context_used))
        record = DraftRecord()
        saving = asyncio.create_task(self._save(turn, reply))
        ended: Finished | Failed | None = None
        try:
            if self._stopping:
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
            await self._end(turn, reply, ended)

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
                    self._show(
                        replace(
                            self._status,
                            state=f"prefilling {count(done)}/{count(total)}",
                            cached=cached,
                            context_used=done,
                        )
                    )
                case Delta(channel=channel, text=text, n_tokens=new):
                    now = self._clock()
                    record.add(event)
                    tokens += new
                    rate.add(now, new)
                    reply.feed(channel, text, new)
                    if now - shown >= STATUS_SECONDS or channel != self._channel:
                        shown, self._channel = now, channel
                        used = prompt + tokens if prompt is not None else None
                        state = "thinking" if channel == "thinking" else "generating"
                        self._show(replace(self._status, state=state, tok_per_s=rate.value(), context_used=used))
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

    async def _end(self, turn: Turn, reply: ReplyBlock, ended: Finished | Failed | None) -> None:
        """Show and store how a reply has ended."""
        try:
            if isinstance(ended, Finished):
                await self._finished(turn, reply, ended)
            else:
                await self._failed(turn, reply, ended)
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

    async def _finished(self, turn: Turn, reply: ReplyBlock, ended: Finished) -> None:
        stats = ended.stats
        if turn.begun is not None:
            stats = _with_before(stats, turn.begun)
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
                cached=stats.told()["cached_tokens"],
                acceptance=stats.accepted / stats.drafted if stats.drafted else None,
            )
        )
        meta: dict[str, object] = {"reason": ended.reason, "stats": stats.told(), **self._source()}
        status: Literal["cancelled", "complete"] = "cancelled" if ended.reason == "cancelled" else "complete"
        await self._session.finish(turn, reply.answer, reply.thought, status, ended.thought_closed, meta)

    async def _failed(self, turn: Turn, reply: ReplyBlock, ended: Failed | None) -> None:
        closed = bool(reply.answer) or not reply.thought
        await reply.finish("failed", thought_closed=closed)
        restarts = ended is not None and ended.kind == "worker"  # the backend tells when it is done
        self._show(replace(self._status, state="restarting" if restarts else "failed", busy=restarts, tok_per_s=None))
        if ended is not None:
            self._view.say(ended.message, "error")
        self.hold()  # they would fail as well, one after the other
        if ended is not None and ended.kind == "context":
            self._view.context_full(ended.message)
            self._view.give_back(turn.messages[-1].content)
        meta = {"reason": "failed", "failure": ended.kind if ended is not None else "internal", **self._source()}
        await self._session.finish(turn, reply.answer, reply.thought, "failed", closed, meta)

    def _source(self) -> dict[str, str]:
        """Which model has replied, and where it is to be found again."""
        model = self._backend.model or self._model
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

    def _heard(self, event: Event) -> None:
        """What the backend tells outside a request, the engine's restarts; while a reply ends, it waits for the end."""
        self._unheard.append(event)
        if self._idle.is_set():
            self._catch_up()

    def _catch_up(self) -> None:
        events, self._unheard = self._unheard, []
        for event in events:
            match event:
                case Notice(message=message):
                    self._view.say(message, "warning")
                    if self._model is not None and self._backend.model is None:
                        self._show(replace(self._status, state="restarting", busy=True))
                case Ready(model=model):
                    self._model = model
                    self._view.say("The engine is running again.")
                    self._show(replace(self._status, state="ready", busy=False))
                    self._wake.set()
                case Failed(message=message):
                    self._view.say(message, "error")
                    self._lost = self._model.path if self._model is not None else None
                    self._show(replace(self._status, state="failed", busy=False))
                case _:
                    pass

    def _show(self, status: Status) -> None:
        if status != self._status:
            self._status = status
            self._view.turns_changed()


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
