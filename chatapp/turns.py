"""One thing after another: models that are opened, messages that are answered."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatapp.backend import Backend
from chatapp.board import Board
from chatapp.branch import News, Turn
from chatapp.choices import Choices
from chatapp.coming import Coming
from chatapp.jobs import Ask, Between, GoOn, Job, Jobs, Open, Retry
from chatapp.options import ChatOptions
from chatapp.paths import BUILT_IN, model_path
from chatapp.remote.address import is_address, label
from chatapp.replies import Replies
from chatapp.session import Session
from chatapp.status import Status
from chatapp.store import StoreError
from chatapp.thread import held
from chatapp.view import View
from runtime.protocol import (
    BUILT_IN_MODEL,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    LoadProgress,
    Message,
    ModelInfo,
    Notice,
    Ready,
    Sampling,
)

_TRY_AGAIN = "No model is open: the next message tries it once more, and /models finds others."
_NO_MODEL = "No model is open: /models finds and opens one."
_STOPPED = "It was stopped."
_NOTHING: dict[type[Job], str] = {
    Retry: "There is no message to reply to yet.",
    GoOn: "There is no reply that could go on: the last one has come to its end. /retry asks for another.",
}
_OVERTAKEN: dict[type[Job], str] = {
    Retry: "So no other reply was asked for: /retry is about the last message that is here now.",
    GoOn: "So the reply did not go on: it is not the last one any more.",
}


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
        self._backend = backend
        self._session = session
        self._options = options
        self._view = view
        self._board = Board(view.turns_changed)
        self.replies = Replies(backend, session, view, self._board, self.hold, clock, save_every)
        self._jobs = Jobs()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._turning = False
        self._stopping = False
        self._storing: tuple[str, ...] = ()  # the message that is on its way into the store
        self._unheard: list[Event] = []
        self._loading: str | None = None  # the name of the file that is being opened
        self._coming = Coming(backend, view)
        self._lost: str | None = None  # the path of a model that could not be opened, or whose engine is gone
        backend.on_event(self._heard)

    @property
    def model(self) -> ModelInfo | None:
        """The one that is open."""
        return self._board.model

    @property
    def status(self) -> Status:
        model = self._backend.model or self._board.model
        default = model.thinking_default if model is not None else None
        return replace(
            self._board.status,
            state=" · ".join(
                s for s in ("stopping…" if self._stopping else self._board.status.state, self._coming.state) if s
            ),
            model=self._loading or (model.name if model is not None else None),
            thinking=self.choices.thinking if self.choices.thinking is not None else default,
            context_length=(model.context_length or None) if model is not None else None,
        )

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
        self._jobs.add(Ask(text, instead, self.choices.now))
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
        self._jobs.let_go(self.choices.now)
        self._begin()
        self._view.turns_changed()

    def reset(self) -> None:
        """Another conversation or version: the figures of the last one go, but for what is known of this one."""
        self.choices.take(self._session.own)
        ready, before = "ready" if self._backend.model is not None else "", self._board.status
        state = before.state if before.busy else ready
        self._board.show(Status(state=state, busy=before.busy, context_used=self._held()))
        self._view.turns_changed()

    def _held(self) -> int | None:
        """Tokens that the conversation takes, if the model that is open has answered last."""
        model = self._backend.model
        return held(self._session.thread, model.path if model is not None else None)

    def freed(self, tokens: int) -> None:
        """So many tokens of the conversation are not sent any more."""
        used = self._board.status.context_used
        self._board.change(context_used=max(used - tokens, 0) or None if used else None)

    async def stop(self) -> None:
        """End the reply that runs, and wait until it has ended."""
        if self._turning:
            idle = self._idle  # the next job has its own
            self._stopping = True
            self._view.turns_changed()
            if self.replies.request is not None:
                await self._backend.cancel(self.replies.request)
            await idle.wait()

    async def answer_now(self) -> bool:
        """End the thought of the reply that runs, so that its answer follows; False if the backend cannot."""
        return self.replies.request is not None and await self._backend.answer_now(self.replies.request)

    @property
    def thinks(self) -> bool:
        """Whether the reply that runs is in its thought, or may come to one."""
        return self._turning and self.replies.request is not None and self.replies.channel != "answer"

    async def between(self, work: Callable[[], Awaitable[None]], *, asks: bool = False) -> None:
        """Do this when what runs has ended, before any message that waits; `asks`: it calls `question`.

        Raises what it raises, and QuestionError if it is withdrawn.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._jobs.put_first(Between(work, asks, done))
        if asks:
            self._begin()
        self._wake.set()
        try:
            await done
        except asyncio.CancelledError:
            if done.cancelled():
                raise QuestionError(_STOPPED) from None
            raise

    async def run(self) -> None:
        """Does what was asked for, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (job := self._next()) is not None:
                self._idle = asyncio.Event()
                self._turning = not isinstance(job, Open)
                try:
                    await self._do(job)
                except Exception as error:
                    self._board.change(state="failed", busy=False)
                    self._view.report(error)
                finally:
                    self.replies.request = None
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
        if first is None:
            return None
        bare = isinstance(first, Open) or (isinstance(first, Between) and not first.asks)
        if not bare and self._backend.model is None:
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
                self._coming.open(job, self._options, self._has_come)
            else:
                await self._load(job)
            return
        if isinstance(job, Between):
            await self._do_between(job)
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
        if isinstance(turn, News):
            self._view.show_news(turn)
            self._view.say(_OVERTAKEN[type(job)])
            return
        self._view.show_news(turn.news)
        await self._view.begin_turn(turn)
        chosen = job.chosen if isinstance(job, Ask) else None
        await self.replies.run(turn, chosen or self.choices.now, lambda: self._stopping)

    async def _do_between(self, job: Between) -> None:
        if job.done.cancelled():  # nobody waits for it any more
            return
        try:
            await job.work()
        except Exception as error:
            if not job.done.done():
                job.done.set_exception(error)
        finally:
            if not job.done.done():
                job.done.set_result(None)

    async def question(self, messages: tuple[Message, ...], max_tokens: int, state: str) -> str:
        """The model's answer to a question of the program itself, inside `between`. Raises QuestionError."""
        if self._stopping:
            raise QuestionError(_STOPPED)
        before = self._board.status
        conversation = self._session.conversation
        request = Generate(
            uuid.uuid4().hex,
            conversation.id if conversation is not None else "",
            messages,
            Sampling(max_tokens=max_tokens),
            thinking=False,
            aside=True,
        )
        self.replies.request = request.request_id
        self._board.show(replace(before, state=state, busy=True))
        text: list[str] = []
        try:
            async for event in self._backend.generate(request):
                match event:
                    case Delta(channel="answer", text=new):
                        text.append(new)
                    case Finished(reason="cancelled"):
                        raise QuestionError(_STOPPED)
                    case Failed(message=message):
                        raise QuestionError(message)
                    case _:
                        pass
            return "".join(text).strip()
        finally:
            self.replies.request = None
            self._board.show(before)

    async def _begin_turn(self, job: Ask | Retry | GoOn) -> Turn | News | None:
        """None: it was stopped before it began, or there is nothing to reply to."""
        status = self._board.status

        def waits() -> None:
            self._view.say("Another window is answering in this conversation: this waits for its reply.")
            self._board.show(replace(status, state="waiting for another window", busy=True))

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
            if self._board.status.busy:
                self._board.show(status)

    async def _load(self, job: Open) -> None:
        self._loading = BUILT_IN if job.path == str(BUILT_IN_MODEL) else label(job.path)
        self._board.show(Status(state="connecting" if is_address(job.path) else "loading", busy=True))
        try:
            await self._play_load(job)
        finally:
            self._board.model = self._backend.model
            self._loading = None
            self._view.turns_changed()

    async def _play_load(self, job: Open) -> None:
        async for event in self._backend.load(self._options.load(job.path)):
            match event:
                case LoadProgress(done=done, total=total) if total > 0:
                    self._board.change(state=f"loading {100 * done // total} %")
                case Notice(message=message):
                    self._view.say(message)
                case Ready():
                    self._board.show(Status(state="ready", context_used=self._held()))
                    if job.chosen:
                        self._view.model_chosen(job.path)
                case Failed(message=message) if self._backend.model is not None:
                    self._board.show(Status(state="ready", context_used=self._held()))
                    self._view.say(message, "error")
                case Failed(message=message, kind=kind):
                    again = kind != "load" or is_address(job.path)  # a file that is no model stays one
                    self._lost = job.path if again else None
                    self._board.show(Status(state="not loaded"))
                    self._view.say(f"{message} {_TRY_AGAIN if again else _NO_MODEL}", "error")
                case _:
                    pass

    def _has_come(self) -> None:
        """The model that was opened beside the old one is ready, or will not be."""
        before, self._board.model = self._board.model, self._backend.model or self._board.model
        if before != self._board.model and not self._turning:
            self._board.show(Status(state="ready", context_used=self._held()))  # the figures were the old one's
        self._wake.set()

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
                    if self._board.model is not None and self._backend.model is None:
                        self._board.change(state="restarting", busy=True)
                case Ready(model=model):
                    self._board.model = model
                    self._view.say("The engine is running again.")
                    self._board.change(state="ready", busy=False)
                    self._wake.set()
                case Failed(message=message):
                    self._view.say(message, "error")
                    self._lost = self._board.model.path if self._board.model is not None else None
                    self._board.change(state="failed", busy=False)
                case _:
                    pass
