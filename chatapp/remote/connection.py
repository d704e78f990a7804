"""One server and the model on it: what it says of itself, and how it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chatapp.remote import address, failures, family
from chatapp.remote.address import Address
from chatapp.remote.dialects import UNKNOWN, Body, Dialect, context_of, dialect_of, is_loaded
from chatapp.remote.failures import ServerError
from chatapp.remote.profiles import Credentials, Profile, ProfileError, credentials
from chatapp.remote.request import Refusals
from runtime.protocol import ModelInfo

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 10.0
LIST_SECONDS = 30.0
"""For the list of models, which no server takes long for."""
LISTED = 8
"""Models that are named where one is missing."""
ERROR_BYTES = 1 << 16
"""That are read of an error."""
_PROXY = "The proxy that the environment names cannot be used:"


@dataclass(slots=True, eq=False)
class Connection:
    """Made by `open_connection`; `connect` asks the server. Methods raise what the client raises, and ServerError."""

    where: Address
    profile: Profile
    secret: Credentials
    client: httpx2.AsyncClient
    models: tuple[str, ...] = ()
    model: str = ""
    dialect: Dialect = UNKNOWN
    context: int | None = None
    bare: bool | None = None  # see `Channels`
    budget_told: bool = False  # that the budget of thoughts is not kept
    refusals: Refusals = field(default_factory=Refusals)

    @property
    def url(self) -> str:
        return self.profile.url

    async def connect(self) -> list[str]:
        """Ask for the models and the context. Returns sentences for the user."""
        notices = []
        entries = await self._list()
        self.models = tuple(entries)
        if not self.model and not entries:
            raise ServerError("The server serves no model.")
        if not self.model:
            self.model = _choice(entries)
            if len(entries) > 1:
                notices.append(f"The server has {len(entries)} models, and this is {self.model}; /model shows them.")
        if entries and self.model not in entries:
            some = ", ".join(list(entries)[:LISTED]) + (", …" if len(entries) > LISTED else "")
            raise ServerError(f"The server has no model {self.model}. It has {some}.")
        entry = entries.get(self.model, {})
        self.dialect = await dialect_of(entry, self._fetch)
        self.context = context_of(entry) or await self.dialect.context(self._fetch, self.model)
        if self.secret.secrets and self.url.startswith("http:") and not address.is_loopback(self.url):
            notices.append("The key goes to the server unencrypted: its address begins with http, not https.")
        return [self.secret.redact(notice) for notice in notices]

    async def ask_again(self) -> bool:
        """For servers that load a model when it is first asked: whether its context is known now."""
        if self.context is not None or not self.dialect.loads_late:
            return False
        self.context = await self.dialect.context(self._fetch, self.model)
        return self.context is not None

    @asynccontextmanager
    async def complete(self, body: Body) -> AsyncGenerator[httpx2.Response, None]:
        """The response to a request for a completion, if it is a success."""
        async with self.client.stream("POST", f"{self.url}/chat/completions", json=body) as response:
            if not response.is_success:
                raise self._error(response, await _beginning(response), self.model)
            yield response

    def info(self) -> ModelInfo:
        """What is known of the model."""
        where = str(Address(self.where.server, self.model))
        return ModelInfo(
            path=where,
            name=address.label(where),
            architecture="",
            parameters=0,
            file_bytes=0,
            context_length=self.context or 0,
            trained_context=0,
            thinking_default=family.thinks_by_default(self.model),
            has_mtp=False,
            ops=f"{self.dialect.name} at {address.host(self.url)}",
            presets=family.presets(self.model),
            siblings=self.models,
        )

    def failure(self, error: Exception, *, connecting: bool = False) -> ServerError:
        """What an exception means, without secrets."""
        if not isinstance(error, ServerError):
            silence = self._list_seconds if connecting else self.profile.timeout
            error = failures.of_transport(error, self.url, connect=CONNECT_SECONDS, silence=silence)
        redact = self.secret.redact
        return ServerError(redact(error.sentence), error.kind, error.status, redact(error.words))

    @property
    def _list_seconds(self) -> float:
        return min(LIST_SECONDS, self.profile.timeout)

    async def _list(self) -> dict[str, dict[str, Any]]:
        """The server's models by their names; none where it has no list and a model is named."""
        import httpx2

        patience = httpx2.Timeout(self._list_seconds, connect=CONNECT_SECONDS)
        async with self.client.stream("GET", f"{self.url}/models", timeout=patience) as response:
            if response.status_code in (404, 405, 501) and self.model:
                return {}
            if not response.is_success:
                raise self._error(response, await _beginning(response), "")
            await response.aread()
        try:
            entries = response.json()["data"]
            return {entry["id"]: entry for entry in ([] if entries is None else entries)}
        except (ValueError, KeyError, TypeError) as error:
            where = f"{self.url}/models"
            raise ServerError(f"What answers at {where} is no chat API; its address often ends in /v1.") from error

    async def _fetch(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask one of the server's own endpoints, of which any may be missing."""
        import httpx2

        where = address.root(self.url) + path
        try:
            if body is None:
                response = await self.client.get(where, timeout=CONNECT_SECONDS)
            else:
                response = await self.client.post(where, json=body, timeout=CONNECT_SECONDS)
            return response.json() if response.is_success else None
        except (httpx2.HTTPError, ValueError):
            return None

    def _error(self, response: httpx2.Response, body: str, model: str) -> ServerError:
        return failures.of_response(response, body, model=model, key_source=self.secret.source)


def open_connection(where: Address, profiles: Mapping[str, Profile], environment: Mapping[str, str]) -> Connection:
    """Nothing is sent yet. Raises ProfileError.

    It takes a moment: the client is imported, and certificates are read.
    """
    import httpx2

    profile = profiles.get(where.profile) if where.profile else Profile("", where.server)
    if profile is None:
        raise ProfileError(f"There is no server {where.profile!r} in the settings.")
    secret = credentials(profile, environment)
    near = address.is_loopback(profile.url)
    verify = not (near and profile.url.startswith("http:"))  # without TLS there are no certificates to read
    try:
        client = httpx2.AsyncClient(
            headers={"User-Agent": "qwenchat", **secret.headers},
            timeout=httpx2.Timeout(profile.timeout, connect=CONNECT_SECONDS),
            follow_redirects=False,
            verify=verify,
            transport=httpx2.AsyncHTTPTransport(verify=verify) if near else None,  # no proxy leads to this machine
        )
    except ImportError:
        raise ProfileError(f"{_PROXY} SOCKS needs a package: pip install 'httpx2[socks]'.") from None
    except (ValueError, httpx2.InvalidURL):  # which may hold a password
        raise ProfileError(f"{_PROXY} its address begins with http:// or https://.") from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ProfileError(f"The certificates that SSL_CERT_FILE names cannot be read: {why}.") from error
    return Connection(where, profile, secret, client, model=where.model or profile.model)


async def _beginning(response: httpx2.Response) -> str:
    """As much of an error as can be worth reading."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) >= ERROR_BYTES:
            break
    return body.decode("utf-8", "replace")


def _choice(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The model when none is named: one that is in memory, else the first that is not for embeddings."""
    chat = [name for name in entries if "embed" not in name.lower()] or list(entries)
    return next((name for name in chat if is_loaded(entries[name])), chat[0])
