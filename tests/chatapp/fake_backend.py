"""A backend in this process that plays scripts: the deterministic other end for tests of the screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from runtime.protocol import (
    CacheReport,
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
    Ready,
    Sampling,
    Stats,
    WasThought,
)

MODEL = ModelInfo(
    path="/models/tiny.gguf",
    name="Tiny 4M",
    architecture="qwen35",
    parameters=4_000_000,
    file_bytes=8_000_000,
    context_length=4096,
    trained_context=262_144,
    thinking_default=True,
    has_mtp=True,
    ops="reference",
    presets={"thinking": Sampling(temperature=1.0), "non-thinking": Sampling(temperature=0.7)},
)
STATS = Stats(
    prompt_tokens=20,
    cached_tokens=12,
    prefilled_tokens=8,
    generated_tokens=30,
    ttft_ms=240.0,
    decode_tok_per_s=41.5,
    context_used=50,
    context_length=4096,
)


class Gate:
    """A step of a script: it is `reached`, and waits until the test opens it, or the reply is cancelled."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    def open(self) -> None:
        self.opened.set()


Step = Event | Gate | Exception


def think(text: str, tokens: int = 1) -> Delta:
    return Delta("", "thinking", text, tokens)


def say(text: str, tokens: int = 1) -> Delta:
    return Delta("", "answer", text, tokens)


def prefill(done: int, total: int, cached: int = 0) -> PromptProgress:
    return PromptProgress("", done, total, cached)


def end(reason: Any = "stop", thought_closed: bool = True, **stats: Any) -> Finished:
    """Figures agree: a context in use that is as long as is said holds a prompt of that length."""
    figures = replace(STATS, **stats)
    if "context_used" in stats:
        prompt = figures.context_used - figures.generated_tokens
        figures = replace(figures, prompt_tokens=prompt, prefilled_tokens=prompt - figures.cached_tokens)
    return Finished("", reason, figures, thought_closed)


class FakeBackend:
    """Implements `chatapp.backend.Backend`.

    The n-th request plays the n-th of `replies`, and after them "ok"; a reply without an end stops by itself. Each
    load plays `loading`. The events' request ids are filled in.
    """

    def __init__(self, *replies: Sequence[Step], loading: Sequence[Step] | None = None) -> None:
        self.replies = replies
        self.loading: Sequence[Step] = (
            loading if loading is not None else [LoadProgress(45, 100, "weights"), Ready(MODEL)]
        )
        self.loads: list[Load] = []
        self.requests: list[Generate] = []
        self.cancelled: list[str] = []
        self.hurried: list[str] = []
        self.can_hurry = True
        self._hurry = asyncio.Event()
        self.closed = False
        self.kept: CacheReport | Failed | None = CacheReport((), 0, 1000, 0, 1000)
        self.dropped: list[str | None] = []
        self._model: ModelInfo | None = None
        self._listeners: list[Callable[[Event], None]] = []
        self._stop = asyncio.Event()

    @property
    def model(self) -> ModelInfo | None:
        return self._model

    async def load(self, command: Load) -> AsyncIterator[Event]:
        self.loads.append(command)
        for step in self.loading:
            if isinstance(step, Gate):
                step.reached.set()
                await step.opened.wait()
                continue
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Ready):
                self._model = step.model
            yield step

    def beside(self, command: Load) -> bool:
        return False

    async def generate(self, command: Generate) -> AsyncIterator[Event]:
        number = len(self.requests)
        self.requests.append(command)
        self._stop.clear()
        self._hurry.clear()
        key = command.request_id
        in_thought = False
        for step in self.replies[number] if number < len(self.replies) else [say("ok")]:
            if isinstance(step, Gate):
                step.reached.set()
                await self._first(step.opened, self._stop, self._hurry)
            elif isinstance(step, Exception):
                raise step
            if self._stop.is_set():
                yield Finished(key, "cancelled", STATS, thought_closed=not in_thought)
                return
            if isinstance(step, Delta):
                if step.channel == "thinking" and self._hurry.is_set():
                    continue
                in_thought = step.channel == "thinking"
                yield replace(step, request_id=key)
            elif isinstance(step, PromptProgress | WasThought):
                yield replace(step, request_id=key)
            elif isinstance(step, Notice):
                yield step
            elif isinstance(step, Finished | Failed):
                yield replace(step, request_id=key)
                return
        yield Finished(key, "stop", STATS)

    async def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self._stop.set()

    def leave(self) -> None:
        """Nobody listens to the reply any more."""
        self._stop.set()

    async def answer_now(self, request_id: str) -> bool:
        """Gates open, and what is still to be thought is left out."""
        if self.can_hurry:
            self.hurried.append(request_id)
            self._hurry.set()
        return self.can_hurry

    async def cache(self) -> CacheReport | Failed | None:
        return self.kept

    async def drop_cache(self, conversation_id: str | None) -> CacheReport | Failed | None:
        self.dropped.append(conversation_id)
        return self.kept

    async def close(self) -> None:
        self.closed = True

    def on_event(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def tell(self, event: Event) -> None:
        """An event outside load and generate; the model is there after a Ready."""
        if isinstance(event, Ready):
            self._model = event.model
        for listener in self._listeners:
            listener(event)

    def die(self) -> None:
        """No model answers any more."""
        self._model = None

    @staticmethod
    async def _first(*signals: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(signal.wait()) for signal in signals]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
