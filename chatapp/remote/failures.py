"""What can go wrong with a server, in words: what happened, and what to do."""

from __future__ import annotations

import email.utils
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from chatapp.figures import duration
from chatapp.remote.address import host
from chatapp.sanitize import clean_line
from runtime.protocol import Failure

if TYPE_CHECKING:
    import httpx2

WORDS = 400
"""Characters that are shown of what a server says."""

_CONTEXT = re.compile(
    r"context[ _-]?(length|size|window)|maximum context|exceed\w* (the )?(available )?context|n_ctx|too many tokens"
    r"|longer than the maximum",
    re.IGNORECASE,
)
_MODEL = re.compile(r"\bmodel\b", re.IGNORECASE)


class ServerError(Exception):
    """A request failed; `sentence` is for the user, `words` what the server itself said."""

    def __init__(self, sentence: str, kind: Failure = "server", status: int = 0, words: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.kind = kind
        self.status = status
        self.words = words


def of_transport(error: Exception, url: str, *, connect: float, silence: float) -> ServerError:
    """For an exception of the HTTP client; `connect` and `silence` are its time-outs in seconds."""
    import httpx2

    where = host(url)
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return ServerError(f"No safe connection to {where}: {_full_stop(cause.verify_message)}")
            case ssl.SSLError():
                reason = (cause.reason or "TLS failed").replace("_", " ").lower()
                return ServerError(f"No safe connection to {where} ({reason}). Does it speak https?")
            case socket.gaierror():
                name = where.rpartition(":")[0] or where
                return ServerError(f"The host {name} is not known: look at the address, or at the network.")
            case ConnectionRefusedError():
                return ServerError(f"Nothing answers at {where}: the connection was refused. Does the server run?")
    match error:
        case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return ServerError(f"{where} did not answer within {duration(connect)}, the time-out for connecting.")
        case httpx2.ReadTimeout() | httpx2.WriteTimeout():
            return ServerError(
                f"The server at {where} has said nothing for {duration(silence)}, the time-out; a `timeout` in its"
                " settings changes that."
            )
        case httpx2.ProxyError():
            return ServerError(f"The proxy of the environment does not lead to {where}: {_full_stop(str(error))}")
        case httpx2.ConnectError():
            return ServerError(f"There is no connection to {where}: {_full_stop(_deepest(error))}")
        case httpx2.RemoteProtocolError() | httpx2.NetworkError():
            return ServerError(f"The connection to {where} broke.")
        case TypeError() | AttributeError() | LookupError() | ValueError():  # of our own reading
            return ServerError(f"The server at {where} cannot be understood: it sent what no such server sends.")
    return ServerError(f"The server at {where} cannot be understood: {_full_stop(str(error) or type(error).__name__)}")


def of_response(response: httpx2.Response, body: str, *, model: str, key_source: str) -> ServerError:
    """For an answer that is no success. `key_source`: where the key that was sent came from; "" if none was."""
    status, words = response.status_code, said(body, response.headers.get("content-type", ""))
    told = f" It says: {_full_stop(words)}" if words else ""
    where = host(str(response.request.url))
    kind: Failure = "server"
    if response.is_redirect:
        target = clean_line(response.headers.get("location", "elsewhere"), 200)
        sentence = f"{where} sends on to {target}, which was not contacted: give that address if it is meant."
    elif status == 401 and key_source:
        sentence = f"The server does not take the key from {key_source} (401).{told}"
    elif status == 401:
        sentence = f"The server wants a key (401): put it into the settings, with key_env.{told}"
    elif status == 403:
        sentence = f"The server does not allow this (403).{told}"
    elif status == 429:
        sentence = f"The server is asked too much (429){_wait(response.headers)}{told}"
    elif status in (400, 413, 422) and _CONTEXT.search(body):
        sentence, kind = f"The conversation does not fit in the context of {model}.{told}", "context"
    elif status in (400, 404, 422) and model and _MODEL.search(words) and (status == 404 or model in words):
        sentence = f"The server has no model {model} ({status}): /model shows those it has.{told}"
    elif status in (404, 405):
        sentence = f"There is no chat API at {response.request.url} ({status}); its address often ends in /v1.{told}"
    elif status >= 500:
        wait = _wait(response.headers) if "retry-after" in response.headers else "; /retry asks again."
        sentence = f"The server has failed ({status} {response.reason_phrase}){wait}{told}"
    else:
        sentence = f"The server refuses the request ({status} {response.reason_phrase}).{told}"
    return ServerError(sentence, kind, status, words)


def of_stream(error: Any) -> ServerError:
    """For an error that is told in the middle of a stream."""
    words = _message(error)
    kind: Failure = "context" if _CONTEXT.search(json.dumps(error)) else "server"
    return ServerError(f"The server broke off the reply: {_full_stop(words)}", kind, words=words)


def said(body: str, content_type: str = "application/json") -> str:
    """The message in the body of an error, in one line; "" for a page of HTML."""
    try:
        return _message(json.loads(body))
    except ValueError:
        return "" if "html" in content_type or body.lstrip().startswith("<") else clean_line(body, WORDS)


def _message(found: Any) -> str:
    """The text in the forms that servers give their errors."""
    for _ in range(4):
        if isinstance(found, dict):
            found = next((found[key] for key in ("error", "message", "detail", "msg") if found.get(key)), found)
        if isinstance(found, str):
            return clean_line(found, WORDS)
        if not isinstance(found, dict):
            break
    return clean_line(json.dumps(found, ensure_ascii=False), WORDS)


def _wait(headers: Mapping[str, str]) -> str:
    """How long to wait, as the server says."""
    value = headers.get("retry-after", "").strip()
    seconds: float | None = None
    if value.replace(".", "", 1).isdigit():
        seconds = float(value)
    elif value:
        try:
            seconds = max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
        except (ValueError, OverflowError):
            seconds = None
    if seconds is None:
        return " and does not say for how long; /retry asks again."
    return f": it asks to wait {duration(seconds)}, then /retry."


def _causes(error: BaseException | None, depth: int = 12) -> Iterator[BaseException]:
    """An exception, what caused it, and the members of groups."""
    if error is None or depth == 0:
        return
    yield error
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each, depth - 1)
    yield from _causes(error.__cause__ or error.__context__, depth - 1)


def _deepest(error: Exception) -> str:
    texts = [str(cause) for cause in _causes(error) if str(cause)]
    return clean_line(texts[-1], WORDS) if texts else type(error).__name__


def _full_stop(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."
