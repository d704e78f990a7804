"""From prompt ids to new ids: prefix reuse, prefill, decode. Knows tokens, not text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runtime.cache import SequenceState
from runtime.errors import Interrupted, UserError
from runtime.loops import ends_in_loop
from runtime.models.qwen35 import Qwen35
from runtime.pool import StatePool
from runtime.protocol import FinishReason
from runtime.sampling import Sampler, SamplingParams
from runtime.speculative import DraftLength, FixedLength, StepCosts, check, first, step

_REMEMBERED_LENGTHS = 64  # conversations
SETTLE_CHUNK = 128  # the same while nobody waits: a tenth slower, and no more is lost when the next prompt comes
IDLE_CHUNK = 16  # the same where somebody who matters more may come at any time


class ContextError(UserError):
    """The prompt does not fit in the context; one sentence for the user."""

    kind = "context"


@dataclass(frozen=True)
class Thought:
    """How a prompt that opens a thought is watched: `close_id` ends it.

    After `budget` tokens, when it turns in circles, or when `answer_now` says so, `closing` (which holds `close_id`) is
    forced in.
    """

    close_id: int
    closing: tuple[int, ...]
    budget: int | None = None
    answer_now: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stop_ids: frozenset[int]
    max_tokens: int | None = None  # None: to the end of the context
    thought: Thought | None = None
    drafts: int | None = None  # per step; None: as many as pay
    boundaries: tuple[int, ...] = ()  # prompt lengths, ascending, to which a later prompt may want to come back
    shared: int = 0  # tokens of the system prompt, with which other conversations may begin too
    begun: int = 0  # tokens at the end of the prompt that are the beginning of the reply
    aside: bool = False  # nothing of it is kept
    awaited: bool = True  # False: it gives way at once


@dataclass(frozen=True)
class Prefilled:
    """Progress of the prompt: `done` of `total` tokens are in the state, `cached` of them were before."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True)
class NewToken:
    id: int
    drafted: bool = False


@dataclass(frozen=True)
class Done:
    """`drafted`, `accepted`: tokens of the whole reply."""

    reason: FinishReason
    drafted: int = 0
    accepted: int = 0


Step = Prefilled | NewToken | Done


class Engine:
    """Generates for one request at a time, from the states that the pool keeps."""

    def __init__(self, model: Qwen35, context_length: int, pool: StatePool) -> None:
        self.model = model
        self.context_length = context_length
        self.pool = pool
        self._step_costs = StepCosts()
        self._lengths: dict[str, DraftLength] = {}  # of conversations, the last one used last

    def generate(self, conversation: str, request: Request, cancelled: Callable[[], bool]) -> Iterator[Step]:
        """Yields Prefilled at least once, then each NewToken (a stop token too), and ends with Done.

        `cancelled` is asked before every step, and in a long prefill more often. Raises ContextError before any work,
        NumbersError at any time; after an error the conversation's state is gone.
        """
        if len(request.prompt) >= self.context_length:
            raise ContextError(
                f"The conversation needs {len(request.prompt):,} tokens, and the context holds "
                f"{self.context_length:,} including the reply: begin a new one, or open the model with more context."
            )
        lent = self.pool.borrow(request.prompt) if request.aside else self.pool.lend(conversation, request.prompt)
        with lent as state:
            chunk = self.model.config.prefill_chunk if request.awaited else IDLE_CHUNK
            yield from self._prefill(state, request.prompt, request.boundaries, cancelled, request.shared, chunk=chunk)
            if state.length == len(request.prompt):
                yield from self._decode(conversation, state, request, cancelled)
            else:
                yield Done("cancelled")

    def settle(
        self, conversation: str, ids: tuple[int, ...], boundaries: tuple[int, ...], cancelled: Callable[[], bool]
    ) -> bool:
        """Bring the conversation's state to exactly `ids`, ahead of the prompt that will begin with them.

        Returns whether it got there before it was cancelled.
        """
        if len(ids) >= self.context_length:
            return False
        with self.pool.lend(conversation, ids) as state:
            for _ in self._prefill(state, ids, boundaries, cancelled, chunk=SETTLE_CHUNK):
                pass
            return state.length == len(ids)

    def _prefill(
        self,
        state: SequenceState,
        prompt: tuple[int, ...],
        boundaries: tuple[int, ...],
        cancelled: Callable[[], bool],
        shared: int = 0,
        *,
        chunk: int,
    ) -> Iterator[Prefilled]:
        total, cached = len(prompt), state.length
        yield Prefilled(cached, total, cached)
        places = {*boundaries, total} | ({shared} - {0})
        while state.length < total and not cancelled():
            stop = min(state.length + chunk, *(place for place in places if place > state.length))
            try:
                hidden = self.model.forward(prompt[state.length : stop], state, cancelled=cancelled)
            except Interrupted:
                return
            check(hidden[-1])
            state.commit()
            self.pool.follow(state)
            if stop in places:
                self.pool.checkpoint(state)
            if stop == shared:
                self.pool.share(state)
            yield Prefilled(stop, total, cached)

    def _decode(
        self, conversation: str, state: SequenceState, request: Request, cancelled: Callable[[], bool]
    ) -> Iterator[Step]:
        if state.last_hidden is None:
            raise ContextError("There is nothing to answer: the prompt is empty.")
        room = self.context_length - len(request.prompt)
        reply = _Reply(request, self.model.vocabulary, room)
        length = self._draft_length(conversation, request)
        drafted = accepted = 0
        self.model.note(request.prompt)
        if cancelled():
            yield Done("cancelled")
            return
        new = reply.take(first(self.model.logits(state.last_hidden[None])[0], reply.sampler))
        while True:
            yield from map(NewToken, new)
            if reply.ended or cancelled():
                yield Done(reply.ended or "cancelled", drafted, accepted)
                return
            started = time.perf_counter()
            count = min(length.choose(), reply.room - 1) if len(new) == 1 else 0
            read = step(self.model, state, new, count, reply.sampler)
            drafts, kept, right = read.drafts, len(new), 0
            while (new := reply.take(read.choose(right))) == tuple(drafts[right : right + 1]):
                right += 1
                if not reply.goes_on():
                    new = ()  # it has been counted as a draft
                    break
            state.commit(kept + right - (not new))  # nothing follows the last token, so that is not read
            self.pool.follow(state)
            drafted, accepted = drafted + len(drafts), accepted + right
            self.model.note(drafts[:right])
            self.model.note(new)
            length.record(len(drafts), right, time.perf_counter() - started)
            yield from (NewToken(id, drafted=True) for id in drafts[:right])

    def _draft_length(self, conversation: str, request: Request) -> DraftLength | FixedLength:
        if self.model.mtp is None:
            return FixedLength(0)
        if request.drafts is not None:
            return FixedLength(request.drafts)
        length = self._lengths.pop(conversation, None) or DraftLength(self._step_costs)
        self._lengths[conversation] = length
        while len(self._lengths) > _REMEMBERED_LENGTHS:
            del self._lengths[next(iter(self._lengths))]
        return length


class _Reply:
    """A reply as it grows, token by token, and when it ends."""

    def __init__(self, request: Request, vocabulary: int, room: int) -> None:
        asked = len(request.prompt) - request.begun
        self.sampler = Sampler(request.sampling, request.prompt[:asked], vocabulary)
        self.room = room if request.max_tokens is None else min(room, request.max_tokens)  # tokens still to come
        self.ended: FinishReason | None = None
        self._stop_ids = request.stop_ids
        self._watch = _ThoughtWatch(request.thought)
        for id in request.prompt[asked:]:
            self.sampler.accept(id)
            self._watch.pass_by(id)

    def goes_on(self) -> bool:
        return self.ended is None

    def take(self, token: int) -> tuple[int, ...]:
        """What comes next: `token`, or in its place the forced end of a thought; sets `ended`."""
        new = self._watch.follow(token)[: self.room]
        for id in new:
            self.sampler.accept(id)
        self.room -= len(new)
        if new == (token,) and token in self._stop_ids:
            self.ended = "budget" if self._watch.forced else "stop"
        elif self.room == 0:
            self.ended = "length"
        return new


class _ThoughtWatch:
    """Follows an open thought, and closes it when its budget is spent, it turns in circles, or somebody asks for it.

    `forced`: nobody had asked.
    """

    def __init__(self, thought: Thought | None) -> None:
        self._thought = thought
        self._ids: list[int] = []
        self.forced = False

    def pass_by(self, token: int) -> None:
        """A token of the reply that is there already."""
        if self._thought is not None and token == self._thought.close_id:
            self._thought = None
        elif self._thought is not None:
            self._ids.append(token)

    def follow(self, token: int) -> tuple[int, ...]:
        """What comes next in place of the sampled token: itself, or the forced end of the thought."""
        thought = self._thought
        if thought is None:
            return (token,)
        if token == thought.close_id:
            self._thought = None
            return (token,)
        spent = thought.budget is not None and len(self._ids) >= thought.budget
        asked = thought.answer_now()
        if asked or spent or ends_in_loop(self._ids):
            self._thought = None
            self.forced = not asked
            return thought.closing
        self._ids.append(token)
        return (token,)
