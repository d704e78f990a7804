"""The backend on a server: vLLM, SGLang, llama-server, Ollama and others that speak the OpenAI chat API."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from chatapp.figures import count, duration
from chatapp.log import Log
from chatapp.remote import address, failures, request
from chatapp.remote.address import AddressError
from chatapp.remote.connection import Connection, open_connection
from chatapp.remote.failures import ServerError
from chatapp.remote.profiles import Profile, ProfileError
from chatapp.remote.stream import Reply
from chatapp.remote.tags import Channels
from runtime.protocol import (
    CacheReport,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    ModelInfo,
    Notice,
    Ready,
    Stats,
)

if TYPE_CHECKING:
    import httpx2

REMIND_SECONDS = 30.0
"""After this much silence the user is told of the time-out."""
ATTEMPTS = 5
"""How often a request is made anew without the fields that the server has refused."""
SLACK = 64
"""Tokens that a thought may take beyond its budget, to end its sentence."""
DONE = object()


class RemoteBackend:
    """Implements `chatapp.backend.Backend`. `Load.path` is the address of a served model."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        environment: Mapping[str, str],
        log: Log | None = None,
        *,
        hold: bool = False,
        clock: Callable[[], float] = time.monotonic,
        remind: float = REMIND_SECONDS,
    ) -> None:
        """`hold`: for an output that cannot take back what it has shown, see `Channels`."""
        self._profiles = profiles
        self._environment = environment
        self._log = log or Log(None)
        self._hold = hold
        self._clock = clock
        self._remind = remind
        self._connection: Connection | None = None
        self._model: ModelInfo | None = None
        self._running: dict[str, asyncio.Event] = {}  # set: cancelled
        self._closed = False

    @property
    def model(self) -> ModelInfo | None:
        return self._model

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Nothing happens here outside `load` and `generate`."""

    async def cache(self) -> CacheReport | Failed | None:
        return None

    async def drop_cache(self, conversation_id: str | None) -> CacheReport | Failed | None:
        return None

    async def load(self, command: Load) -> AsyncGenerator[Event, None]:
        kept = self._model is not None
        try:
            where = address.parse(command.path)
            connection = await asyncio.to_thread(open_connection, where, self._profiles, self._environment)
        except (AddressError, ProfileError) as error:
            yield Failed(str(error), "load", model_kept=kept)
            return
        try:
            notices = await connection.connect()
        except Exception as error:
            found = connection.failure(error, connecting=True)
            self._log.note(found.sentence)
            await connection.client.aclose()
            yield Failed(found.sentence, "load", model_kept=kept)
            return
        except BaseException:
            await connection.client.aclose()
            raise
        before, self._connection = self._connection, connection
        if before is not None:
            await before.client.aclose()
        self._model = connection.info()
        for notice in notices:
            yield Notice(notice)
        yield Ready(self._model)

    def beside(self, command: Load) -> bool:
        return False

    async def generate(self, command: Generate) -> AsyncGenerator[Event, None]:
        connection = self._connection
        if connection is None:
            yield Failed("No server is connected.", "load", request_id=command.request_id)
            return
        if request.goes_on(command) and not command.messages[-1].content:
            sentence = "A served model cannot go on inside its thought: /retry begins the reply anew."
            yield Failed(sentence, "prompt", request_id=command.request_id)
            return
        cancelled = self._running[command.request_id] = asyncio.Event()
        events: asyncio.Queue[Event] = asyncio.Queue()
        task = asyncio.create_task(self._play(connection, command, events.put_nowait, cancelled))
        reminded = False
        try:
            while True:
                try:
                    event = await asyncio.wait_for(events.get(), None if reminded else self._remind)
                except TimeoutError:
                    reminded = True
                    limit = connection.profile.timeout
                    if limit > self._remind:
                        silent, end = duration(self._remind), duration(limit)
                        yield Notice(f"Nothing has come from the server for {silent}; its time-out is {end}.")
                    continue
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            del self._running[command.request_id]
            task.cancel()
            await asyncio.wait([task])

    async def cancel(self, request_id: str) -> None:
        if request_id in self._running:
            self._running[request_id].set()

    async def answer_now(self, request_id: str) -> bool:
        return False

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for cancelled in self._running.values():
            cancelled.set()
        if self._connection is not None:
            await self._connection.client.aclose()
        self._model = None

    async def _play(
        self, connection: Connection, command: Generate, emit: Callable[[Event], None], cancelled: asyncio.Event
    ) -> None:
        """Emits the events of a request, and at last exactly one Finished or Failed."""
        bare = False if request.goes_on(command) or command.thinking is False else connection.bare
        channels = Channels(bare=bare, hold=self._hold)
        reply = Reply(command.request_id, channels, connection.context, self._clock)
        reading = asyncio.create_task(self._read(connection, command, reply, emit))
        stop = asyncio.create_task(cancelled.wait())
        try:
            await asyncio.wait([reading, stop], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()  # which closes the stream, and so the server's work
                await asyncio.wait([reading])
            for event in reply.rest():
                emit(event)
            if cancelled.is_set():
                emit(reply.finished("cancelled") if reply.begun else _nothing(command.request_id))
                return
            await reading
            if await connection.ask_again() and connection is self._connection:
                self._model = connection.info()
            end = reply.finished()
            if sentence := _over_budget(connection, command, end):
                connection.budget_told = True
                emit(Notice(sentence))
            emit(end)
        except Exception as error:
            emit(self._failed(connection, command, reply, error))
        finally:
            stop.cancel()
            if not reading.cancel() and not reading.cancelled():
                reading.exception()  # of a reply that was stopped nobody asks for it
            if bare is None:
                connection.bare = channels.bare

    def _failed(self, connection: Connection, command: Generate, reply: Reply, error: Exception) -> Failed:
        found = connection.failure(error)
        sentence = found.sentence
        if reply.begun and found.kind in ("server", "context"):
            goes_on = "/continue goes on from there, " if reply.answering else ""
            sentence += f" What came is kept: {goes_on}/retry begins anew."
        self._log.note(sentence)
        if not isinstance(error, ServerError):
            self._log.write(connection.secret.redact("".join(traceback.format_exception(error))))
        return Failed(sentence, found.kind, request_id=command.request_id)

    async def _read(
        self, connection: Connection, command: Generate, reply: Reply, emit: Callable[[Event], None]
    ) -> None:
        """The stream of a reply. Raises what the client raises, and ServerError."""
        refused: tuple[str, ...] = ()
        words = ""
        for _ in range(ATTEMPTS):
            wanted = connection.refusals.without(request.body(command, connection.model, connection.dialect))
            sent = {name: value for name, value in wanted.items() if name not in refused}
            try:
                async with connection.complete(sent) as response:
                    if refused:
                        connection.refusals.add(wanted, refused)
                        emit(Notice(request.told(refused, words)))
                    async for chunk in _chunks(response):
                        if chunk is DONE:
                            return
                        for event in reply.take(chunk):
                            emit(event)
                    if not reply.ended:
                        raise ServerError("The connection broke in the middle of the reply.")
                    return
            except ServerError as error:
                blamed = connection.refusals.blame(sent, error.words) if error.status in (400, 422) else ()
                if not blamed or error.kind == "context" or reply.begun:
                    raise
                refused, words = (*refused, *blamed), connection.secret.redact(error.words)
        raise ServerError(f"The server refuses the request. It says: {words}")


async def _chunks(response: httpx2.Response) -> AsyncIterator[Any]:
    """The JSON objects of a stream, and DONE if it says so; of an answer that is whole, the one object."""
    import httpx2

    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        yield json.loads(await response.aread())
        return
    if kind != "text/event-stream":
        raise ServerError(f"What answers is no chat API: it sends {kind or 'something without a type'}.")
    async for event in httpx2.EventSource(response):
        if event.data.strip() == "[DONE]":
            yield DONE
            return
        if not event.data:
            continue
        try:
            yield json.loads(event.data)
        except ValueError:
            raise ServerError(f"The server broke off the reply: {failures.said(event.data)}") from None


def _over_budget(connection: Connection, command: Generate, end: Finished) -> str:
    """What the user should know of the budget of thoughts, once."""
    budget, thought = command.thinking_budget, end.stats.thinking_tokens
    if budget is None or command.thinking is False or connection.budget_told or end.stats.thinking_ms is None:
        return ""
    if connection.dialect.budget is None:
        return f"{connection.dialect.name} takes no budget for thoughts: the model thinks as long as it likes."
    if thought > budget + SLACK:
        return f"The server does not keep to the budget of {count(budget)} tokens for thoughts."
    return ""


def _nothing(request_id: str) -> Finished:
    figures = ("prompt_tokens", "cached_tokens", "prefilled_tokens", "context_used", "context_length")
    return Finished(request_id, "cancelled", Stats(unknown=figures))
