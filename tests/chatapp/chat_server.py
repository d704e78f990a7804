"""A scripted server on loopback that speaks the OpenAI chat API, as far as a test wants it to."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

MODEL = "Qwen/Qwen3.5-397B-A17B"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]  # by their names in small letters
    body: Any  # of a POST, its JSON
    gone: asyncio.Event  # the client has closed the connection


@dataclass
class Answer:
    """`body`: text, or what is made JSON of. `stream`: pieces that are sent one by one; `cut`: it does not end well."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[str] | None = None
    cut: bool = False


Handler = Callable[[Request], Awaitable[Answer] | Answer]


class ChatServer:
    """`completions` answers `/v1/chat/completions`; `pages` any other path, as JSON; the rest is 404."""

    def __init__(
        self, completions: Handler | None = None, *, models: tuple[Any, ...] = (MODEL,), owner: str = "vllm"
    ) -> None:
        self.completions = completions or (lambda request: streamed(say("ok"), stop()))
        entries = [each if isinstance(each, dict) else {"id": each, "owned_by": owner} for each in models]
        self.pages: dict[str, Any] = {"/v1/models": {"object": "list", "data": entries}}
        self.requests: list[Request] = []
        self.url = ""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was asked of the model."""
        return [request.body for request in self.requests if request.path == "/v1/chat/completions"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            raw = await reader.readexactly(int(headers.get("content-length", 0)))
            gone = asyncio.Event()
            request = Request(method, path, headers, json.loads(raw) if raw else None, gone)
            self.requests.append(request)
            watch = asyncio.create_task(_watch(reader, gone))
            try:
                await _send(writer, await self._answer(request))
            finally:
                watch.cancel()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request) -> Answer:
        if request.path == "/v1/chat/completions":
            answer = self.completions(request)
            return answer if isinstance(answer, Answer) else await answer
        page = self.pages.get(request.path)
        if page is None:
            return Answer(404, {"detail": "Not Found"})
        return page if isinstance(page, Answer) else Answer(body=page)


@asynccontextmanager
async def serving(server: ChatServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[ChatServer]:
    """The server, listening at `server.url`."""
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    server.url = f"{scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listener.close()


def streamed(*chunks: Any, cut: bool = False, done: bool = True) -> Answer:
    """A stream of these chunks, strings as they are; an awaitable among them is waited for."""

    async def pieces() -> AsyncIterator[str]:
        for chunk in chunks:
            if isinstance(chunk, str):
                yield chunk
            elif isinstance(chunk, dict):
                yield event(chunk)
            else:
                await chunk
        if done and not cut:
            yield "data: [DONE]\n\n"

    return Answer(stream=pieces(), cut=cut)


def event(chunk: Any) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def chunk(delta: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A chunk of a completion; `finish_reason` goes into its choice."""
    choice = {"index": 0, "delta": dict(delta), "finish_reason": more.pop("finish_reason", None)}
    return {"object": "chat.completion.chunk", "choices": [choice], **more}


def say(text: str, **more: Any) -> dict[str, Any]:
    return chunk({"content": text}, **more)


def think(text: str, name: str = "reasoning_content", **more: Any) -> dict[str, Any]:
    return chunk({name: text}, **more)


def stop(reason: str = "stop", **more: Any) -> dict[str, Any]:
    return chunk({}, finish_reason=reason, **more)


def usage(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    """The last chunk, which has no choice."""
    figures = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}
    return {"choices": [], "usage": figures}


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    await reader.read(1)
    gone.set()


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    body = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
    headers = {"Content-Type": "application/json", "Connection": "close", **answer.headers}
    if answer.stream is not None:
        headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **answer.headers}
    else:
        headers["Content-Length"] = str(len(body.encode()))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {answer.status} Told\r\n{head}\r\n".encode())
    if answer.stream is None:
        writer.write(body.encode())
        await writer.drain()
        return
    async for piece in answer.stream:
        data = piece.encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
    if not answer.cut:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
