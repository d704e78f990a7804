"""One turn of a conversation: messages → prompt ids → engine steps → text of the two channels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from runtime.chat_template import ChatTemplate, Prompt
from runtime.engine import Done, Engine, NewToken, Prefilled, Request, Thought
from runtime.protocol import Channel, Delta, Event, Finished, Generate, PromptProgress, Sampling, Stats
from runtime.sampling import SamplingParams
from runtime.tokenizer import StreamDecoder, Tokenizer

_FLUSH_SECONDS = 0.03  # between deltas: faster than any screen, slower than a small model's tokens


@dataclass(frozen=True)
class ChatModel:
    """Everything that answers a `Generate`: the engine and what stands between it and text."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    thinking_default: bool
    sampling: Callable[[Sampling, bool], SamplingParams]  # the user's choices, thinking → complete values

    def generate(
        self, command: Generate, cancelled: Callable[[], bool], clock: Callable[[], float] = time.perf_counter
    ) -> Iterator[Event]:
        """Yields PromptProgress and Delta, and ends with Finished.

        Raises TemplateError, TokenizerError, SamplingError, ContextError or NumbersError, each a sentence.
        """
        started = clock()
        thinking = self.thinking_default if command.thinking is None else command.thinking
        prompt, boundaries = self._prompt(command, thinking)
        request = Request(
            prompt=prompt.ids,
            sampling=self.sampling(command.sampling, thinking),
            stop_ids=self.tokenizer.stop_ids,
            max_tokens=command.sampling.max_tokens,
            thought=self._thought(command.thinking_budget) if prompt.opens_thought else None,
            boundaries=boundaries,
        )
        reply = _Reply(command.request_id, self.tokenizer, request, started, clock, self.engine.context_length)
        for step in self.engine.generate(command.conversation_id, request, cancelled):
            yield from reply.follow(step)

    def _prompt(self, command: Generate, thinking: bool) -> tuple[Prompt, tuple[int, ...]]:
        def render(generation: bool) -> Prompt:
            return self.template.render(
                command.messages,
                thinking=thinking,
                preserve_thinking=command.preserve_thinking,
                add_generation_prompt=generation,
            )

        # Where the assistant's header begins, the next turn still agrees with this one.
        prompt, history = render(True), render(False)
        before_header = len(history.ids)
        return prompt, (before_header,) if prompt.ids[:before_header] == history.ids else ()

    def _thought(self, budget: int | None) -> Thought | None:
        close_id = self.tokenizer.special_id("</think>")
        if close_id is None:
            return None
        newline, gap = self.tokenizer.encode("\n"), self.tokenizer.encode("\n\n")
        return Thought(close_id, (*newline, close_id, *gap), budget)


@dataclass
class _Reply:
    """Turns engine steps into events: splits the channels, decodes, coalesces, counts."""

    request_id: str
    tokenizer: Tokenizer
    request: Request
    started: float
    clock: Callable[[], float]
    context_length: int
    prompt: Prefilled = field(default_factory=lambda: Prefilled(0, 0, 0))
    generated: int = 0
    thinking_tokens: int = 0
    first_token: float | None = None
    last_token: float = 0.0
    thought_ended: float | None = None
    channel: Channel = "answer"
    text: _ChannelText = field(init=False)
    unsent: int = 0  # tokens since the last Delta
    flushed: float = 0.0

    def __post_init__(self) -> None:
        self.channel = "thinking" if self.request.thought else "answer"
        self.text = _ChannelText(self.tokenizer)

    def follow(self, step: Prefilled | NewToken | Done) -> Iterator[Event]:
        match step:
            case Prefilled():
                self.prompt = step
                yield PromptProgress(self.request_id, step.done, step.total, step.cached)
            case NewToken(id):
                yield from self._token(id)
            case Done():
                yield from self._flush(self.text.finish())
                yield self._finished(step)

    def _token(self, id: int) -> Iterator[Event]:
        now = self.clock()
        self.last_token = now
        if self.first_token is None:
            self.first_token = now
        if id in self.request.stop_ids:
            return
        self.generated += 1
        self.unsent += 1
        thought = self.request.thought
        if self.channel == "thinking" and thought and id == thought.close_id:
            yield from self._flush(self.text.finish())
            self.channel, self.thought_ended = "answer", now
            self.text = _ChannelText(self.tokenizer)
            return
        self.thinking_tokens += self.channel == "thinking"
        self.text.push(id)
        if now - self.flushed >= _FLUSH_SECONDS:
            yield from self._flush(self.text.take())

    def _flush(self, text: str) -> Iterator[Event]:
        if text:
            self.flushed = self.clock()
            yield Delta(self.request_id, self.channel, text, self.unsent)
            self.unsent = 0

    def _finished(self, done: Done) -> Finished:
        first, last = self.first_token, self.last_token
        steps = self.generated - 1
        thought_end = self.thought_ended or last
        stats = Stats(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.prompt.cached,
            prefilled_tokens=self.prompt.done - self.prompt.cached,
            generated_tokens=self.generated,
            ttft_ms=None if first is None else 1000 * (first - self.started),
            decode_tok_per_s=steps / (last - first) if first is not None and steps > 0 and last > first else None,
            thinking_tokens=self.thinking_tokens,
            thinking_ms=1000 * (thought_end - first) if first is not None and self.request.thought else None,
            context_used=self.prompt.done + self.generated,
            context_length=self.context_length,
        )
        return Finished(self.request_id, done.reason, stats, thought_closed=self.channel == "answer")


class _ChannelText:
    """A channel's text as it comes: no line breaks at its start, no white space at its end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._pending = ""
        self._begun = False

    def push(self, id: int) -> None:
        self._pending += self._decoder.push(id)

    def take(self) -> str:
        """What can be shown: white space at the end waits for the text after it."""
        if not self._begun:
            self._pending = self._pending.lstrip("\r\n")
        ready = self._pending.rstrip()
        self._pending = self._pending[len(ready) :]
        self._begun = self._begun or bool(ready)
        return ready

    def finish(self) -> str:
        self._pending += self._decoder.finish()
        return self.take()
