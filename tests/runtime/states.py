"""What tests of states share: engines over tiny models, fresh prefills to compare with, and comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from runtime.cache import SequenceState
from runtime.engine import Engine, NewToken, Prefilled, Request
from runtime.kv_cache import KVCache, KVType
from runtime.models.qwen35 import Qwen35
from runtime.pool import StatePool
from runtime.sampling import SamplingParams
from runtime.snapshots import SnapshotStore

GREEDY = SamplingParams(temperature=0, presence_penalty=0, repetition_penalty=1)
MANY = 1 << 40  # bytes


def never() -> bool:
    return False


def after(count: int) -> Callable[[], bool]:
    """Cancelled from the (count + 1)th question on."""
    asked = iter([False] * count)
    return lambda: next(asked, True)


def new_store(
    model: Qwen35,
    folder: Path,
    budget: int = MANY,
    notices: list[str] | None = None,
    key: str = "model",
    kv: KVType | None = None,
) -> SnapshotStore:
    notify = notices.append if notices is not None else unexpected
    return SnapshotStore(folder, key, partial(model.new_state, kv), model.config.hidden, budget, notify)


def unexpected(sentence: str) -> None:
    raise AssertionError(sentence)


def new_engine(
    model: Qwen35,
    *,
    memory: int = MANY,
    store: SnapshotStore | None = None,
    context: int = 2048,
    kv: KVType | None = None,
) -> Engine:
    return Engine(model, context, StatePool(partial(model.new_state, kv), memory, store))


def request(
    prompt: Sequence[int], boundaries: Sequence[int] = (), max_tokens: int = 4, shared: int = 0, stop: int = -1
) -> Request:
    stop_ids = frozenset({stop})
    return Request(tuple(prompt), GREEDY, stop_ids, max_tokens, boundaries=tuple(boundaries), shared=shared)


def ask(engine: Engine, name: str, wanted: Request, cancelled: Callable[[], bool] = never) -> tuple[list[int], int]:
    """The new tokens, and how many of the prompt's were cached."""
    steps = list(engine.generate(name, wanted, cancelled))
    return [s.id for s in steps if isinstance(s, NewToken)], next(s.cached for s in steps if isinstance(s, Prefilled))


def prefilled(model: Qwen35, ids: Sequence[int], kv: KVType | None = None) -> SequenceState:
    """A fresh state of `ids`, in one forward."""
    state = model.new_state(kv)
    if ids:
        model.forward(ids, state)
        state.commit()
    return state


def assert_same_state(found: SequenceState, wanted: SequenceState, tolerance: float = 1e-3) -> None:
    """All that the model remembers is the same up to rounding: KV rows, recurrent states, the last hidden state."""
    assert found.ids == wanted.ids
    for one, other in zip(contents(found), contents(wanted), strict=True):
        assert one.shape == other.shape
        assert torch.linalg.vector_norm(one - other) <= tolerance * torch.linalg.vector_norm(other) + 1e-6


def contents(state: SequenceState) -> Iterator[Tensor]:
    yield from rows(state.kv, state.length)
    if state.mtp_kv:
        yield from rows(state.mtp_kv, max(state.length - 1, 0))
    for layer in state.recurrent:
        yield layer.window
        yield layer.state
    if state.last_hidden is not None:
        yield state.last_hidden


def rows(cache: KVCache, length: int) -> Iterator[Tensor]:
    for name in ("keys", "values") if cache.blocks and length else ():
        yield torch.cat([block.tensors[name] for block in cache.blocks], dim=2)[:, :, :length].float()
