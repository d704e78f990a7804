"""One turn of a conversation: messages → prompt ids → engine steps → text of the two channels."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernels.cpu.memory import trim
from runtime.chat_template import ChatTemplate, Prompt
from runtime.engine import Done, Engine, NewToken, Prefilled, Request, Thought
from runtime.errors import UserError
from runtime.presets import resolve
from runtime.protocol import (
    Channel,
    Delta,
    Event,
    Finished,
    FinishReason,
    Generate,
    Message,
    PromptProgress,
    Settled,
    Stats,
)
from runtime.sampling import SamplingParams
from runtime.tokenizer import StreamDecoder, Tokenizer

_HEADER = "<|im_start|>"  # begins each message
_UNFINISHED_REMEMBERED = 64  # conversations
_FLUSH_SECONDS = 0.03  # between deltas: faster than any screen, slower than a small model's tokens


class ChatModel:
    """Everything that answers a `Generate`: the engine and what stands between it and text."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        presets: Mapping[str, SamplingParams],
        *,
        thinking_default: bool,
    ) -> None:
        """`presets`: complete values for "thinking" and "non-thinking"."""
        self.engine = engine
        self._tokenizer = tokenizer
        self._template = template
        self._presets = presets
        self._thinking_default = thinking_default
        self._unsettled: tuple[Generate, Message] | None = None
        self._unfinished: dict[str, _Unfinished] = {}  # by conversation, the last one last

    def generate(
        self,
        command: Generate,
        cancelled: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
        answer_now: Callable[[], bool] = lambda: False,
    ) -> Generator[Event, None, None]:
        """Yields PromptProgress and Delta, and ends with Finished. Raises UserError.

        `cancelled` and, while a thought is open, `answer_now` are asked at every step.
        """
        started = clock()
        if not command.aside:
            self._unsettled = None
        asked, begun = command.messages, None
        if asked and asked[-1].role == "assistant":
            asked, begun = asked[:-1], asked[-1]
        thinking = self._thinks(command) if begun is None else self._thought_before(command.conversation_id, begun)
        prompt = self._template.render(asked, thinking=thinking, preserve_thinking=command.preserve_thinking)
        said = self._said(command.conversation_id, prompt, begun) if begun is not None else ()
        ids = prompt.ids + said
        preset = self._presets["thinking" if thinking else "non-thinking"]
        request = Request(
            prompt=ids,
            sampling=resolve(command.sampling, preset),
            stop_ids=self._tokenizer.stop_ids,
            max_tokens=command.sampling.max_tokens,
            thought=self._thought(command.thinking_budget, answer_now) if prompt.opens_thought else None,
            drafts=command.drafts,
            boundaries=() if command.aside else self._boundaries(ids),
            shared=0 if command.aside else self._system_tokens(asked, ids),
            begun=len(said),
            aside=command.aside,
            awaited=command.awaited,
        )
        reply = _Reply(command.request_id, self._tokenizer, request, started, clock, self.engine.context_length)
        if begun is not None:
            reply.resume(said, begun)
        for step in self.engine.generate(command.conversation_id, request, cancelled):
            yield from reply.follow(step)
        if command.aside:
            return
        message = reply.message()
        if reply.prompt.done == reply.prompt.total:  # else it was stopped, and to settle would be to read on
            self._unsettled = replace(command, messages=asked), message
        self._unfinished.pop(command.conversation_id, None)
        if reply.reason in ("cancelled", "length") and reply.ids:
            self._unfinished[command.conversation_id] = _Unfinished(message, prompt, tuple(reply.ids), thinking)
            while len(self._unfinished) > _UNFINISHED_REMEMBERED:
                del self._unfinished[next(iter(self._unfinished))]
            self.engine.pool.set_aside(command.conversation_id)

    def settle(self, cancelled: Callable[[], bool]) -> Settled | None:
        """Read the last turn as the next prompt will show it, while the user reads the reply.

        The template shows a finished turn otherwise than it was generated: thoughts are dropped, ids may differ.
        Returns None if there is nothing to do, or it cannot be done, or it was cancelled; it can then be asked again.
        """
        if self._unsettled is None:
            return None
        command, reply = self._unsettled
        try:
            ids = self._template.stable_prefix(
                (*command.messages, reply),
                thinking=self._thinks(command),
                preserve_thinking=command.preserve_thinking,
            )
            done = self.engine.settle(command.conversation_id, ids, self._boundaries(ids), cancelled)
        except UserError:  # what cannot be prepared is said when it is asked for
            self._unsettled = None
            return None
        if done:
            self._unsettled = None
        return Settled(command.conversation_id, len(ids)) if done else None

    def drop(self, conversation_id: str | None) -> None:
        """Forget what is kept of a conversation, or of all, in memory and on disk."""
        if self._unsettled and conversation_id in (None, self._unsettled[0].conversation_id):
            self._unsettled = None
        if conversation_id is None:
            self._unfinished.clear()
            self.engine.pool.drop_all()
        else:
            self._unfinished.pop(conversation_id, None)
            self.engine.pool.drop(conversation_id)

    def warm_up(self) -> None:
        """Do once what is slow the first time, on a state that nobody keeps: rendering, a prefill, a decode."""
        ids = self._template.render([Message("user", "Hello")], thinking=self._thinking_default).ids
        model = self.engine.model
        state = self.engine.pool.new_state()
        for rows in (ids, ids[-1:]):
            hidden = model.forward(rows, state)
            state.commit()
            model.logits(hidden[-1:])
        model.prepare_steps(state)
        trim()

    def preload(self, cancelled: Callable[[], bool]) -> bool:
        """Bring to memory what the next turn is likely to go on from. Returns whether it got there."""
        return self.engine.pool.preload(cancelled, self._tokenizer.expect)

    def save(self, cancelled: Callable[[], bool]) -> None:
        """Bring the states that have changed to disk, while nobody waits; it can be asked again."""
        self.engine.pool.save(cancelled)

    def _thought_before(self, conversation: str, begun: Message) -> bool:
        """Whether a reply that goes on began with a thought, or with the place for one."""
        known = self._unfinished.get(conversation)
        return known.thinking if known is not None and known.reply == begun else bool(begun.thought)

    def _said(self, conversation: str, prompt: Prompt, begun: Message) -> tuple[int, ...]:
        """The ids of a reply that goes on: those it was made of, and of one that is not remembered those of its text.

        Without an answer, its thought is taken for unfinished.
        """
        known = self._unfinished.get(conversation)
        if known is not None and (known.reply, known.prompt.ids) == (begun, prompt.ids):
            return known.ids
        close_id = self._tokenizer.special_id("</think>")
        if not prompt.opens_thought or close_id is None:
            return tuple(self._tokenizer.encode(begun.content))
        if not begun.content:
            return tuple(self._tokenizer.encode(begun.thought))
        before, after = self._tokenizer.encode(f"{begun.thought}\n"), self._tokenizer.encode(f"\n\n{begun.content}")
        return (*before, close_id, *after)

    def _thinks(self, command: Generate) -> bool:
        return self._thinking_default if command.thinking is None else command.thinking

    def _boundaries(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Where messages begin: the places to which an edit, a new answer or another conversation comes back."""
        header = self._tokenizer.special_id(_HEADER)
        return tuple(i for i, id in enumerate(ids) if id == header and i > 0)

    def _system_tokens(self, messages: Sequence[Message], ids: Sequence[int]) -> int:
        """The length of the system prompt, which other conversations have too; 0 if there is none."""
        if all(message.role != "system" or not message.content.strip() for message in messages):
            return 0
        return next(iter(self._boundaries(ids)), 0)

    def _thought(self, budget: int | None, answer_now: Callable[[], bool]) -> Thought | None:
        close_id = self._tokenizer.special_id("</think>")
        if close_id is None:
            return None
        newline, gap = self._tokenizer.encode("\n"), self._tokenizer.encode("\n\n")
        return Thought(close_id, (*newline, close_id, *gap), budget, answer_now)


@dataclass(frozen=True)
class _Unfinished:
    """A reply that was stopped or reached a limit, token by token: its text could be cut into others."""

    reply: Message
    prompt: Prompt
    ids: tuple[int, ...]
    thinking: bool


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
    prefill_began: float = 0.0
    prefill_ended: float = 0.0
    first_token: float | None = None
    last_token: float = 0.0
    thought_ended: float | None = None
    channel: Channel = "answer"
    text: _ChannelText = field(init=False)
    texts: dict[Channel, str] = field(default_factory=lambda: {"thinking": "", "answer": ""})
    unsent: int = 0  # tokens since the last Delta
    ids: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    thought_before: bool = False  # the thought had ended when the reply went on
    flushed: float = 0.0

    def __post_init__(self) -> None:
        self.channel = "thinking" if self.request.thought else "answer"
        self.text = _ChannelText(self.tokenizer)

    def resume(self, ids: Sequence[int], said: Message) -> None:
        """The reply goes on behind these ids, whose text is known."""
        close_id = self.request.thought.close_id if self.request.thought else None
        for id in ids:
            if self.channel == "thinking" and id == close_id:
                self.channel, self.text = "answer", _ChannelText(self.tokenizer)
            else:
                self.text.push(id, False)
        self.text.take()
        self.thought_before = self.channel == "answer"
        self.texts = {"thinking": said.thought, "answer": said.content}
        self.ids = list(ids)

    def follow(self, step: Prefilled | NewToken | Done) -> Iterator[Event]:
        match step:
            case Prefilled():
                self.prefill_ended = self.clock()
                self.prefill_began = self.prefill_began or self.prefill_ended
                self.prompt = step
                yield PromptProgress(self.request_id, step.done, step.total, step.cached)
            case NewToken(id, drafted):
                yield from self._token(id, drafted)
            case Done():
                yield from self._flush(self.text.finish())
                yield self._finished(step)

    def message(self) -> Message:
        """The reply as the next prompt's history holds it."""
        return Message("assistant", self.texts["answer"], self.texts["thinking"])

    def _token(self, id: int, drafted: bool) -> Iterator[Event]:
        now = self.clock()
        self.last_token = now
        if self.first_token is None:
            self.first_token = now
        if id in self.request.stop_ids:
            return
        self.ids.append(id)
        self.generated += 1
        self.unsent += 1
        thought = self.request.thought
        if self.channel == "thinking" and thought and id == thought.close_id:
            yield from self._flush(self.text.finish())
            self.channel, self.thought_ended = "answer", now
            self.text = _ChannelText(self.tokenizer)
            return
        self.thinking_tokens += self.channel == "thinking"
        self.text.push(id, drafted)
        if now - self.flushed >= _FLUSH_SECONDS:
            yield from self._flush(self.text.take())

    def _flush(self, pieces: list[_Piece]) -> Iterator[Event]:
        if pieces:
            self.flushed = self.clock()
            text = "".join(piece.text for piece in pieces)
            self.texts[self.channel] += text
            yield Delta(self.request_id, self.channel, text, self.unsent, _drafted_spans(pieces))
            self.unsent = 0

    def _finished(self, done: Done) -> Finished:
        self.reason = done.reason
        first, last = self.first_token, self.last_token
        steps = self.generated - 1
        thought_end = self.thought_ended or last
        thinks = self.request.thought is not None and not self.thought_before
        stats = Stats(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.prompt.cached,
            prefilled_tokens=self.prompt.done - self.prompt.cached,
            generated_tokens=self.generated,
            drafted=done.drafted,
            accepted=done.accepted,
            ttft_ms=None if first is None else 1000 * (first - self.started),
            prefill_ms=1000 * (self.prefill_ended - self.prefill_began),
            decode_tok_per_s=steps / (last - first) if first is not None and steps > 0 and last > first else None,
            thinking_tokens=self.thinking_tokens,
            thinking_ms=1000 * (thought_end - first) if first is not None and thinks else None,
            context_used=self.prompt.done + self.generated,
            context_length=self.context_length,
        )
        return Finished(self.request_id, done.reason, stats, thought_closed=self.channel == "answer")


@dataclass(frozen=True)
class _Piece:
    text: str
    drafted: bool


def _drafted_spans(pieces: list[_Piece]) -> tuple[tuple[int, int], ...]:
    """Where, in the pieces' joined text, accepted drafts stand; neighbours as one."""
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        end = at + len(piece.text)
        if piece.drafted and at < end:
            if spans and spans[-1][1] == at:
                spans[-1] = spans[-1][0], end
            else:
                spans.append((at, end))
        at = end
    return tuple(spans)


class _ChannelText:
    """A channel's text as it comes: no line breaks at its start, no white space at its end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._pending: list[_Piece] = []
        self._begun = False

    def push(self, id: int, drafted: bool) -> None:
        self._add(self._decoder.push(id), drafted)

    def take(self) -> list[_Piece]:
        """What can be shown: white space at the end waits for the text after it."""
        last = max((i for i, piece in enumerate(self._pending) if not piece.text.isspace()), default=None)
        if last is None:
            return []
        piece = self._pending[last]
        shown = piece.text.rstrip()
        ready = [*self._pending[:last], _Piece(shown, piece.drafted)]
        rest = _Piece(piece.text[len(shown) :], piece.drafted)
        self._pending = [*([rest] if rest.text else []), *self._pending[last + 1 :]]
        return ready

    def finish(self) -> list[_Piece]:
        self._add(self._decoder.finish(), False)
        return self.take()

    def _add(self, text: str, drafted: bool) -> None:
        if not self._begun:
            text = text.lstrip("\r\n")
            self._begun = bool(text)
        if text:
            self._pending.append(_Piece(text, drafted))
