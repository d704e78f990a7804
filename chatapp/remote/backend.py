"""The backend on a server: vLLM, SGLang, llama-server, Ollama and others that speak the OpenAI chat API."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from chatapp.figures import duration
from chatapp.log import Log
from chatapp.remote import address, failures, family, request
from chatapp.remote.address import Address, AddressError
from chatapp.remote.dialects import UNKNOWN, Dialect, Fetch, context_of, dialect_of, is_loaded
from chatapp.remote.failures import ServerError
from chatapp.remote.profiles import TIMEOUT, Credentials, Profile, ProfileError, credentials
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

CONNECT_SECONDS = 10.0
REMIND_SECONDS = 30.0
"""After this much silence the user is told of the time-out."""
ATTEMPTS = 5
"""How often a request is made anew without the fields that the server has refused."""
LISTED = 8
DONE = object()


@dataclass(slots=True, eq=False)
class Connection:
    """One server and the model on it. It is closed with its client."""

    where: Address
    url: str
    profile: Profile
    secret: Credentials
    client: httpx2.AsyncClient
    models: tuple[str, ...] = ()
    model: str = ""
    dialect: Dialect = UNKNOWN
    context: int | None = None
    bare: bool | None = None  # see `Channels`
    refusals: request.Refusals = field(default_factory=request.Refusals)

    def failure(self, error: Exception) -> ServerError:
        """What an exception means, without secrets."""
        if not isinstance(error, ServerError):
            error = failures.of_transport(error, self.url, connect=CONNECT_SECONDS, silence=self.profile.timeout)
        redact = self.secret.redact
        return ServerError(redact(error.sentence), error.kind, error.status, redact(error.words))


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
            # Importing the client and reading certificates takes long enough to be felt.
            connection = await asyncio.to_thread(self._open, address.parse(command.path))
        except (AddressError, ProfileError) as error:
            yield Failed(str(error), "load", model_kept=kept)
            return
        try:
            notices = await self._connect(connection)
        except Exception as error:
            found = connection.failure(error)
            self._log.note(f"{found.sentence}")
            await connection.client.aclose()
            yield Failed(found.sentence, "load", model_kept=kept)
            return
        except BaseException:
            await connection.client.aclose()
            raise
        before, self._connection = self._connection, connection
        if before is not None:
            await before.client.aclose()
        self._model = _info(connection)
        for notice in notices:
            yield Notice(connection.secret.redact(notice))
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

    # Connecting.

    def _open(self, where: Address) -> Connection:
        import httpx2

        if where.profile:
            profile = self._profiles.get(where.profile)
            if profile is None:
                raise ProfileError(f"There is no server {where.profile!r} in the settings.")
        else:
            profile = Profile("", where.server, timeout=TIMEOUT)
        secret = credentials(profile, self._environment)
        near = address.is_loopback(profile.url)
        host = urlsplit(profile.url).hostname or ""
        direct = f"all://[{host}]" if ":" in host else f"all://{host}"
        client = httpx2.AsyncClient(
            headers={"User-Agent": "qwenchat", **secret.headers},
            timeout=httpx2.Timeout(profile.timeout, connect=CONNECT_SECONDS),
            follow_redirects=False,
            verify=not (near and profile.url.startswith("http:")),  # without TLS there are no certificates to read
            mounts={direct: None} if near else None,  # no proxy leads to this machine
        )
        return Connection(where, profile.url, profile, secret, client, model=where.model or profile.model)

    async def _connect(self, connection: Connection) -> list[str]:
        """Ask the server for its models and their context. Raises what the client raises, and ServerError."""
        notices = []
        entries = await self._list(connection)
        connection.models = tuple(entries)
        if not connection.model and not entries:
            raise ServerError("The server serves no model.")
        if not connection.model:
            connection.model = _choice(entries)
            if len(entries) > 1:
                notices.append(
                    f"The server has {len(entries)} models, and this is {connection.model}; /model shows them."
                )
        if entries and connection.model not in entries:
            some = ", ".join(list(entries)[:LISTED]) + (", …" if len(entries) > LISTED else "")
            raise ServerError(f"The server has no model {connection.model}. It has {some}.")
        entry = entries.get(connection.model, {})
        fetch = _fetching(connection)
        connection.dialect = await dialect_of(entry, fetch)
        connection.context = context_of(entry) or await connection.dialect.context(fetch, connection.model)
        if _in_the_open(connection):
            notices.append("The key goes to the server unencrypted: its address begins with http, not https.")
        return notices

    async def _list(self, connection: Connection) -> dict[str, dict[str, Any]]:
        """The server's models by their names; none where it has no list and a model is named."""
        response = await connection.client.get(f"{connection.url}/models")
        if response.status_code in (404, 405, 501) and connection.model:
            return {}
        if not response.is_success:
            raise self._of_response(connection, response, response.text, model="")
        try:
            found = response.json()
            return {entry["id"]: entry for entry in found["data"]}
        except (ValueError, KeyError, TypeError) as error:
            where = f"{connection.url}/models"
            raise ServerError(f"What answers at {where} is no chat API; its address often ends in /v1.") from error

    async def _ask_again(self, connection: Connection) -> None:
        """For servers that load a model when it is first asked."""
        if connection.context is None and connection.dialect.loads_late and connection is self._connection:
            connection.context = await connection.dialect.context(_fetching(connection), connection.model)
            self._model = _info(connection)

    # A reply.

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
            error = reading.exception()
            if error is None:
                await self._ask_again(connection)
                emit(reply.finished())
            elif isinstance(error, Exception):
                emit(self._failed(connection, command, reply, error))
        finally:
            stop.cancel()
            reading.cancel()
            if bare is None:
                connection.bare = channels.bare

    def _failed(self, connection: Connection, command: Generate, reply: Reply, error: Exception) -> Failed:
        found = connection.failure(error)
        sentence = found.sentence
        if reply.begun and found.kind == "server":
            sentence += " What came is kept: /continue goes on from there, /retry begins anew."
        self._log.note(sentence)
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
                async with connection.client.stream(
                    "POST", f"{connection.url}/chat/completions", json=sent
                ) as response:
                    if not response.is_success:
                        body = (await response.aread()).decode("utf-8", "replace")
                        raise self._of_response(connection, response, body, model=connection.model)
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

    def _of_response(self, connection: Connection, response: httpx2.Response, body: str, *, model: str) -> ServerError:
        return failures.of_response(
            response,
            body,
            model=model,
            key_source=connection.secret.source,
            sent_key=bool(connection.secret.source),
        )


def _fetching(connection: Connection) -> Fetch:
    """Asks the server's own endpoints, of which any may be missing."""
    import httpx2

    base = address.root(connection.url)

    async def fetch(path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            if body is None:
                response = await connection.client.get(base + path, timeout=CONNECT_SECONDS)
            else:
                response = await connection.client.post(base + path, json=body, timeout=CONNECT_SECONDS)
            return response.json() if response.is_success else None
        except (httpx2.HTTPError, ValueError):
            return None

    return fetch


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


def _info(connection: Connection) -> ModelInfo:
    """What is known of a served model."""
    model, url = connection.model, connection.url
    where = Address(connection.where.server, model)
    return ModelInfo(
        path=str(where),
        name=address.label(str(where)),
        architecture="",
        parameters=0,
        file_bytes=0,
        context_length=connection.context or 0,
        trained_context=0,
        thinking_default=family.thinks_by_default(model),
        has_mtp=False,
        ops=f"{connection.dialect.name} at {address.host(url)}",
        presets=family.presets(model),
        siblings=connection.models,
    )


def _choice(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The model when none is named: one that is in memory, else the first that is not for embeddings."""
    chat = [name for name in entries if "embed" not in name.lower()] or list(entries)
    return next((name for name in chat if is_loaded(entries[name])), chat[0])


def _in_the_open(connection: Connection) -> bool:
    return (
        bool(connection.secret.secrets)
        and connection.url.startswith("http:")
        and not address.is_loopback(connection.url)
    )


def _nothing(request_id: str) -> Finished:
    figures = ("prompt_tokens", "cached_tokens", "prefilled_tokens", "context_used", "context_length")
    return Finished(request_id, "cancelled", Stats(unknown=figures))
