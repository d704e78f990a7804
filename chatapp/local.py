"""The backend on this machine: the worker process, started when first needed and again when it dies."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import field
from pathlib import Path

from chatapp.log import Log
from chatapp.process import Exit, WorkerProcess
from runtime import protocol
from runtime.protocol import (
    AnswerNow,
    CacheDrop,
    CacheList,
    CacheReport,
    Cancel,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    LoadProgress,
    ModelInfo,
    Notice,
    PromptProgress,
    ProtocolError,
    Ready,
    Settled,
    Shutdown,
    Stats,
)
from runtime.quick_dataclass import standard_dataclass

# -P: a folder `runtime` or a file torch.py where the user happens to stand must not be taken for ours.
WORKER = (sys.executable, "-P", "-X", "faulthandler", "-m", "runtime.worker")
RESTARTS = 3  # in a row, without a reply between them


class _NotRunningError(Exception):
    """There is no worker, for the reason in the message."""


@standard_dataclass(slots=True, eq=False)
class _Load:
    command: Load
    events: asyncio.Queue[Event] | None  # None: nobody waits, the listeners hear how it ends


@standard_dataclass(slots=True, eq=False)
class _Question:
    command: CacheList | CacheDrop
    answer: asyncio.Future[CacheReport | Failed]


@standard_dataclass(slots=True, eq=False)
class _Request:
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    sent: bool = False
    cancelled: bool = False
    to_answer: bool = False


class LocalBackend:
    """Implements `chatapp.backend.Backend`.

    The worker answers commands in their order, so a Ready, a CacheReport and a Failed that names no request belong to
    the oldest open Load or question.
    """

    def __init__(
        self,
        command: Sequence[str] = WORKER,
        log: Path | None = None,
        patience: float = 60.0,
        snapshots: Path | None = None,
    ) -> None:
        """`patience`: seconds within which a cancelled request must end before the worker is killed for it;
        `snapshots`: the folder of states on disk, from which they can be dropped whether a model is open or not.
        """
        self._command = tuple(command)
        self._log = Log(log)
        self._patience = patience
        self._snapshots = None if snapshots is None else str(snapshots)
        self._listeners: list[Callable[[Event], None]] = []
        self._model: ModelInfo | None = None
        self._loaded: Load | None = None
        self._asked: deque[_Load | _Question] = deque()
        self._requests: dict[str, _Request] = {}
        self._worker: WorkerProcess | None = None
        self._starting = asyncio.Lock()
        self._restart: asyncio.Task[None] | None = None
        self._deaths = 0
        self._closed = False

    @property
    def model(self) -> ModelInfo | None:
        return self._model

    def on_event(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    async def load(self, command: Load) -> AsyncGenerator[Event, None]:
        self._deaths = 0
        events: asyncio.Queue[Event] = asyncio.Queue()
        load = _Load(command, events)
        try:
            worker = await self._running(reload=False)
        except _NotRunningError as error:
            yield Failed(str(error), "worker")
            return
        self._ask(worker, load)
        try:
            while True:
                event = await events.get()
                yield event
                if isinstance(event, Ready | Failed):
                    return
        finally:
            load.events = None
            while not events.empty():  # what came and nobody took
                if not isinstance(event := events.get_nowait(), LoadProgress):
                    self._tell(event)

    def beside(self, command: Load) -> bool:
        return False

    async def generate(self, command: Generate) -> AsyncGenerator[Event, None]:
        if command.request_id in self._requests:
            raise ValueError(f"a request {command.request_id!r} is in flight")
        request = self._requests[command.request_id] = _Request()
        try:
            try:
                worker = await self._running(reload=True)
            except _NotRunningError as error:
                yield Failed(str(error), "worker", request_id=command.request_id)
                return
            if not request.cancelled:
                worker.send(protocol.encode(command))
                request.sent = True
                if request.to_answer:
                    worker.send(protocol.encode(AnswerNow(command.request_id)))
            while True:
                event = await request.events.get()
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            if self._requests.pop(command.request_id, None) and request.sent and self._worker is not None:
                self._worker.send(protocol.encode(Cancel(command.request_id)))

    async def cancel(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is None or request.cancelled:
            return
        request.cancelled = True
        if request.sent and self._worker is not None:
            self._worker.send(protocol.encode(Cancel(request_id)))
        if not request.sent or self._loads:  # it waits for the model: nothing of it has begun
            self._end(request_id, Finished(request_id, "cancelled", Stats()))
        else:
            asyncio.get_running_loop().call_later(self._patience, self._give_up, request)

    async def answer_now(self, request_id: str) -> bool:
        request = self._requests.get(request_id)
        if request is not None and not request.to_answer:
            request.to_answer = True
            if request.sent and self._worker is not None:
                self._worker.send(protocol.encode(AnswerNow(request_id)))
        return True

    async def cache(self) -> CacheReport | Failed:
        return await self._question(CacheList())

    async def drop_cache(self, conversation_id: str | None) -> CacheReport | Failed:
        return await self._question(CacheDrop(conversation_id, self._snapshots))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart])
        async with self._starting:
            worker = self._worker
        if worker is not None:
            worker.send(protocol.encode(Shutdown()))
            await worker.stop()
        self._fail_all("The engine was closed.")

    async def _running(self, *, reload: bool) -> WorkerProcess:
        """The worker, started if there is none, then with the last model if `reload`."""
        async with self._starting:
            if self._closed:
                raise _NotRunningError("The engine was closed.")
            if self._worker is None:
                try:
                    self._worker = await WorkerProcess.start(self._command, environment(), self._receive, self._log)
                except OSError as error:
                    raise _NotRunningError(f"The engine could not be started: {error.strerror}.") from error
                self._worker.exit.add_done_callback(lambda future: self._died(future.result()))
                if reload and self._loaded is not None:
                    self._ask(self._worker, _Load(self._loaded, None))
            return self._worker

    async def _question(self, command: CacheList | CacheDrop) -> CacheReport | Failed:
        needs_model = isinstance(command, CacheList) or command.snapshots is None
        if needs_model and self._loaded is None and not self._loads:
            return Failed("No model is open, and what is kept is kept of a model.", "load")
        question = _Question(command, asyncio.get_running_loop().create_future())
        try:
            worker = await self._running(reload=True)
        except _NotRunningError as error:
            return Failed(str(error), "worker")
        self._ask(worker, question)
        return await question.answer

    def _ask(self, worker: WorkerProcess, what: _Load | _Question) -> None:
        self._asked.append(what)
        worker.send(protocol.encode(what.command))

    @property
    def _loads(self) -> list[_Load]:
        return [asked for asked in self._asked if isinstance(asked, _Load)]

    def _receive(self, line: bytes) -> None:
        try:
            event = protocol.decode_event(line)
        except ProtocolError as error:
            self._log.note(str(error))
            return
        if isinstance(event, Failed) and event.detail:
            self._log.note(f"{event.message}\n{event.detail}")
        match event:
            case PromptProgress(request_id=key) | Delta(request_id=key):
                if request := self._requests.get(key):
                    request.events.put_nowait(event)
            case Finished(request_id=key) | Failed(request_id=str(key)):
                self._deaths = 0
                self._end(key, event)
            case CacheReport() | Failed() if self._asked and isinstance(question := self._asked[0], _Question):
                self._asked.popleft()
                if not question.answer.done():  # whoever asked may have gone
                    question.answer.set_result(event)
            case LoadProgress():
                if (loads := self._loads) and (events := loads[0].events):
                    events.put_nowait(event)
            case Ready() | Failed():
                self._end_load(event)
            case Notice():
                waiting = [load.events for load in self._loads] or [r.events for r in self._requests.values()]
                self._tell(event, waiting[0] if waiting else None)
            case Settled() | CacheReport():
                pass

    def _end_load(self, event: Ready | Failed) -> None:
        load = next(iter(self._loads), None)
        if load is not None:
            self._asked.remove(load)
        if isinstance(event, Ready):
            self._model = event.model
            self._loaded = load.command if load else Load(event.model.path)
        elif not event.model_kept:
            self._model = self._loaded = None
        self._tell(event, load.events if load else None)

    def _tell(self, event: Event, events: asyncio.Queue[Event] | None = None) -> None:
        """To whoever waits, else to the listeners."""
        if events is not None:
            events.put_nowait(event)
            return
        for listener in self._listeners:
            listener(event)

    def _end(self, request_id: str, event: Finished | Failed) -> None:
        if request := self._requests.pop(request_id, None):
            request.events.put_nowait(event)

    def _give_up(self, request: _Request) -> None:
        if request in self._requests.values() and self._worker is not None:
            self._log.note("A cancelled request did not end: the worker is killed.")
            self._worker.kill()

    def _fail_all(self, sentence: str) -> bool:
        """Ends all that is open; whether somebody waited for it."""
        waiting = [load.events for load in self._loads if load.events]
        for events in waiting:
            self._model = self._loaded = None
            events.put_nowait(Failed(sentence, "worker"))
        requests = list(self._requests)
        for key in requests:
            self._end(key, Failed(sentence, "worker", request_id=key))
        questions = [asked.answer for asked in self._asked if isinstance(asked, _Question) and not asked.answer.done()]
        for answer in questions:
            answer.set_result(Failed(sentence, "worker"))
        self._asked.clear()
        return bool(waiting or requests or questions)

    def _died(self, exit_: Exit) -> None:
        self._worker = self._model = None
        if self._closed:
            return
        sentence = exit_.sentence()
        self._log.note(sentence)
        told = "" if self._fail_all(sentence) else sentence + " "
        self._deaths += 1
        if self._loaded is None:
            if told:
                self._tell(Failed(sentence, "worker"))
        elif self._deaths > RESTARTS:
            self._tell(Failed(f"{told}It has failed {self._deaths} times in a row and is not restarted.", "worker"))
        else:
            self._tell(Notice(f"{told}The engine is being restarted."))
            self._restart = asyncio.create_task(self._restarted())

    async def _restarted(self) -> None:
        try:
            await self._running(reload=True)
        except _NotRunningError as error:
            self._tell(Failed(str(error), "worker"))


def environment() -> dict[str, str]:
    """That of a child process: ours, and where the packages are not installed, the folder they lie in.

    So they are found whatever folder the user stands in.
    """
    root = Path(protocol.__file__).absolute().parents[1]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    others = [path for path in [os.environ.get("PYTHONPATH", "")] if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *others])}
