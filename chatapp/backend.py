"""What the chat asks of whatever produces the replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from runtime.protocol import CacheReport, Event, Failed, Generate, Load, ModelInfo


class Backend(Protocol):
    """A source of replies: the worker process on this machine, or a server.

    `load` and `generate` never raise for what a model or a machine can do wrong: they end in `Failed`.
    One request is in flight at a time.
    """

    @property
    def model(self) -> ModelInfo | None:
        """The model that answers now; None before the first `Ready`, and while there is none again."""

    def load(self, command: Load) -> AsyncIterator[Event]:
        """Yields LoadProgress and Notice, and ends with exactly one Ready or Failed."""

    def beside(self, command: Load) -> bool:
        """Whether `load` of this leaves the model that is open free to answer until the new one is ready."""

    def generate(self, command: Generate) -> AsyncIterator[Event]:
        """Yields PromptProgress, Delta, WasThought and Notice, and ends with exactly one Finished or Failed."""

    async def cancel(self, request_id: str) -> None:
        """Ask the request to end; its `generate` then ends with Finished("cancelled")."""

    async def answer_now(self, request_id: str) -> bool:
        """Ask the request to end its thought and to answer; False if this source of replies knows no such thing."""

    async def cache(self) -> CacheReport | Failed | None:
        """What is kept of which conversation, told after the reply that runs; None if that is not known."""

    async def drop_cache(self, conversation_id: str | None) -> CacheReport | Failed | None:
        """Forget what is kept of one conversation, with None of all; then as `cache`."""

    async def close(self) -> None:
        """End whatever runs in the background. Idempotent."""

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Hear of what happens outside `load` and `generate`: Notice, and the Ready or Failed of a restart."""
