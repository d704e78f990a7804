"""The backend on a scripted server: connected, asked, and what came of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from chat_server import ChatServer, serving

from chatapp.remote.backend import RemoteBackend
from runtime.protocol import (
    Delta,
    Event,
    Finished,
    Generate,
    Load,
    Message,
    ModelInfo,
    Ready,
    WasThought,
)

QUESTION = (Message("user", "q"),)


async def load(backend: RemoteBackend, path: str) -> list[Event]:
    return [event async for event in backend.load(Load(path))]


async def ask(backend: RemoteBackend, **choices: Any) -> list[Event]:
    command = Generate(**{"request_id": "r", "conversation_id": "c", "messages": QUESTION, **choices})
    return [event async for event in backend.generate(command)]


def texts(events: list[Event]) -> tuple[str, str]:
    """The thought and the answer that came."""
    thought = answer = ""
    for event in events:
        match event:
            case Delta(channel="thinking", text=text):
                thought += text
            case Delta(text=text):
                answer += text
            case WasThought():
                thought, answer = thought + answer, ""
            case _:
                pass
    return thought, answer


def ended(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events
    return events[-1]


@asynccontextmanager
async def connected(server: ChatServer, **options: Any) -> AsyncIterator[RemoteBackend]:
    """A backend with the server's model open."""
    async with serving(server):
        backend = RemoteBackend({}, {}, **options)
        events = await load(backend, server.url)
        assert isinstance(events[-1], Ready), events
        server.requests.clear()
        yield backend
        await backend.close()


def model_of(backend: RemoteBackend) -> ModelInfo:
    assert backend.model is not None
    return backend.model
