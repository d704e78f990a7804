"""From prompt ids to new ids: prefix reuse, prefill, decode. Knows tokens, not text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.cache import SequenceState
from runtime.errors import UserError
from runtime.loops import ends_in_loop
from runtime.models.qwen35 import Qwen35
from runtime.pool import StatePool
from runtime.protocol import FinishReason
from runtime.sampling import Sampler, SamplingParams

PREFILL_CHUNK = 512  # tokens; also the longest wait for a cancel during prefill


class ContextError(UserError):
    """The prompt does not fit in the context; one sentence for the user."""

    kind = "context"


class NumbersError(UserError):
    """The model's arithmetic went wrong (NaN or infinity); one sentence for the user."""

    kind = "numbers"


@dataclass(frozen=True)
class Thought:
    """How a prompt that opens a thought is watched: `close_id` ends it.

    After `budget` tokens, or when it turns in circles, `closing` (which holds `close_id`) is forced in.
    """

    close_id: int
    closing: tuple[int, ...]
    budget: int | None = None


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stop_ids: frozenset[int]
    max_tokens: int | None = None  # None: to the end of the context
    thought: Thought | None = None
    boundaries: tuple[int, ...] = ()  # prompt lengths, ascending, to which a later prompt may want to come back


@dataclass(frozen=True)
class Prefilled:
    """Progress of the prompt: `done` of `total` tokens are in the state, `cached` of them were before."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True)
class NewToken:
    id: int


@dataclass(frozen=True)
class Done:
    reason: FinishReason


Step = Prefilled | NewToken | Done


class Engine:
    """Generates for one request at a time, from the states that the pool keeps."""

    def __init__(self, model: Qwen35, context_length: int, pool: StatePool) -> None:
        self.model = model
        self.context_length = context_length
        self.pool = pool

    def generate(self, conversation: str, request: Request, cancelled: Callable[[], bool]) -> Iterator[Step]:
        """Yields Prefilled at least once, then each NewToken (a stop token too), and ends with Done.

        `cancelled` is asked before every step. Raises ContextError before any work, NumbersError at any time;
        after an error the conversation's state is gone.
        """
        if len(request.prompt) >= self.context_length:
            raise ContextError(
                f"The conversation needs {len(request.prompt):,} tokens, and the context holds "
                f"{self.context_length:,} including the reply."
            )
        with self.pool.lend(conversation, request.prompt) as state:
            yield from self._prefill(state, request.prompt, request.boundaries, cancelled)
            if state.length == len(request.prompt):
                yield from self._decode(state, request, cancelled)
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
            for _ in self._prefill(state, ids, boundaries, cancelled):
                pass
            return state.length == len(ids)

    def _prefill(
        self, state: SequenceState, prompt: tuple[int, ...], boundaries: tuple[int, ...], cancelled: Callable[[], bool]
    ) -> Iterator[Prefilled]:
        total, cached = len(prompt), state.length
        yield Prefilled(cached, total, cached)
        places = {*boundaries, total}
        while state.length < total and not cancelled():
            stop = min(state.length + PREFILL_CHUNK, *(place for place in places if place > state.length))
            _check(self.model.forward(prompt[state.length : stop], state)[-1])
            state.commit()
            if stop in places:
                state.checkpoint()
            yield Prefilled(stop, total, cached)

    def _decode(self, state: SequenceState, request: Request, cancelled: Callable[[], bool]) -> Iterator[Step]:
        sampler = Sampler(request.sampling, request.prompt, self.model.vocabulary)
        room = self.context_length - len(request.prompt)
        limit = room if request.max_tokens is None else min(room, request.max_tokens)
        watch = _ThoughtWatch(request.thought)
        generated = 0
        reason: FinishReason = "stop"
        while generated < limit:
            if cancelled():
                yield Done("cancelled")
                return
            if state.last_hidden is None:
                raise NumbersError("The prompt is empty.")
            logits = self.model.logits(state.last_hidden[None])[0]
            _check(logits)
            token = sampler.sample(logits)
            new = watch.follow(token)
            for id in new[: limit - generated]:
                generated += 1
                sampler.accept(id)
                yield NewToken(id)
            if token in request.stop_ids and new == (token,):
                yield Done("budget" if watch.forced else reason)
                return
            self.model.forward(new, state)
            state.commit()
        yield Done("length")


class _ThoughtWatch:
    """Follows an open thought, and closes it when its budget is spent or it turns in circles."""

    def __init__(self, thought: Thought | None) -> None:
        self._thought = thought
        self._ids: list[int] = []
        self.forced = False

    def follow(self, token: int) -> tuple[int, ...]:
        """What comes next in place of the sampled token: itself, or the forced end of the thought."""
        thought = self._thought
        if thought is None:
            return (token,)
        if token == thought.close_id:
            self._thought = None
            return (token,)
        spent = thought.budget is not None and len(self._ids) >= thought.budget
        if spent or ends_in_loop(self._ids):
            self._thought = None
            self.forced = True
            return thought.closing
        self._ids.append(token)
        return (token,)


def _check(values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise NumbersError(
            "The model produced numbers that are not finite, so its reply would be noise; "
            "the file may be damaged or badly converted."
        )
