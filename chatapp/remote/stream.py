"""The chunks of a streamed completion as events of the protocol, and the figures of the turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from chatapp.remote.failures import of_stream
from chatapp.remote.tags import Channels, Mark
from runtime.protocol import Delta, Event, Finished, FinishReason, Notice, PromptProgress, Stats, WasThought

_LEAST_SECONDS = 0.05
"""From the first piece to the last: in less time than this no speed can be told."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


class Reply:
    """One completion. Times are those of the clock here, figures those that the server tells."""

    def __init__(self, request_id: str, channels: Channels, context: int | None, clock: Callable[[], float]) -> None:
        self.ended = False  # the server said how
        self.channels = channels
        self._id = request_id
        self._context = context
        self._clock = clock
        self._began = clock()
        self._first: float | None = None
        self._last = self._began
        self._thought: tuple[float, float] | None = None  # from its first piece to the end of its last
        self._tokens: int | None = None  # generated so far, if the server tells
        self._thought_tokens: int | None = None
        self._channel = "answer"
        self._said = False
        self._reason: FinishReason = "stop"
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}

    @property
    def begun(self) -> bool:
        """Whether something of the reply has come."""
        return self._said

    @property
    def answering(self) -> bool:
        """Whether some of the answer has come, from which it could be gone on with."""
        return self._said and self._channel == "answer"

    def take(self, chunk: Any) -> Iterator[Event]:
        """The events of one chunk. Raises ServerError for one that tells an error."""
        if not isinstance(chunk, dict) or chunk.get("error"):
            raise of_stream(chunk)
        before = self._tokens
        self._figures(chunk)
        progress = chunk.get("prompt_progress")
        if isinstance(progress, dict) and (total := _whole(progress, "total")):
            cached = _whole(progress, "cache") or 0
            yield PromptProgress(self._id, _whole(progress, "processed") or cached, total, cached)
        choices = chunk.get("choices")
        choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
        said = _object(choice.get("delta")) or _object(choice.get("message"))
        new = 1 if self._tokens is None else self._tokens - (before or 0)
        for name in _THOUGHTS:
            if isinstance(text := said.get(name), str) and text:
                yield from self._parts(self.channels.reasoning(text), new)
                break
        if isinstance(text := said.get("content"), str) and text:
            yield from self._parts(self.channels.content(text), new)
        if isinstance(reason := choice.get("finish_reason"), str):
            self.ended = True
            self._reason = "length" if reason == "length" else "stop"
            if reason == "content_filter":
                yield Notice("The server's filter has ended the reply.")

    def rest(self) -> Iterator[Event]:
        """What was held back."""
        yield from self._parts(self.channels.end(), 0)

    def finished(self, reason: FinishReason | None = None) -> Finished:
        """The end of the turn; `reason` if it is not the server's."""
        closed = self._channel == "answer"
        return Finished(self._id, reason or self._reason, self._stats(), thought_closed=closed)

    def _parts(self, parts: list[Any], tokens: int) -> Iterator[Event]:
        for part in parts:
            if part is Mark.WAS_THOUGHT:
                self._channel = "answer"
                self._thought = (self._first or self._began, self._clock())
                self._thought_tokens = self._tokens
                yield WasThought(self._id)
                continue
            channel, text = part
            now = self._last = self._clock()
            self._said = True
            self._first = now if self._first is None else self._first
            if channel == "thinking":
                self._thought = (self._thought[0] if self._thought else now, now)
                self._thought_tokens = self._tokens
            self._channel = channel
            yield Delta(self._id, channel, text, tokens)
            tokens = 0

    def _figures(self, chunk: dict[str, Any]) -> None:
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage |= usage
            self._tokens = _whole(usage, "completion_tokens") or self._tokens
        if isinstance(timings := chunk.get("timings"), dict):
            self._timings |= timings
            self._tokens = _whole(timings, "predicted_n") or self._tokens

    def _stats(self) -> Stats:
        usage, timings = self._usage, self._timings
        read, cached = _whole(timings, "prompt_n"), _whole(timings, "cache_n")
        prompt = _whole(usage, "prompt_tokens")
        if prompt is None and read is not None:
            prompt = read + (cached or 0)
        if cached is None:
            cached = _whole(usage.get("prompt_tokens_details"), "cached_tokens")
        if read is None and prompt is not None and cached is not None:
            read = prompt - cached
        generated = self._tokens
        seconds = self._last - self._first if self._first is not None else 0.0
        speed = _fraction(timings, "predicted_per_second")
        if speed is None and generated is not None and generated > 1 and seconds >= _LEAST_SECONDS:
            speed = (generated - 1) / seconds
        thought = _whole(usage.get("completion_tokens_details"), "reasoning_tokens") or self._thought_tokens
        known: dict[str, int | None] = {
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "prefilled_tokens": read,
            "generated_tokens": generated,
            "drafted": _whole(timings, "draft_n"),
            "accepted": _whole(timings, "draft_n_accepted"),
            "thinking_tokens": thought if self._thought else 0,
            "context_used": prompt + generated if prompt is not None and generated is not None else None,
            "context_length": self._context,
        }
        return Stats(
            **{name: value or 0 for name, value in known.items()},
            ttft_ms=None if self._first is None else 1000 * (self._first - self._began),
            prefill_ms=_fraction(timings, "prompt_ms"),
            decode_tok_per_s=speed,
            thinking_ms=1000 * (self._thought[1] - self._thought[0]) if self._thought else None,
            unknown=tuple(name for name, value in known.items() if value is None),
        )


def _object(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _whole(found: Any, name: str) -> int | None:
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _fraction(found: dict[str, Any], name: str) -> float | None:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
