"""Whatever is done to conversations, and in whatever order: every state is that of a fresh prefill of its ids."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewrite import GOLDENS
from states import MANY, after, ask, assert_same_state, never, new_engine, new_store, prefilled, request

import runtime.engine
import runtime.kv_cache
import runtime.snapshots
from runtime.cache import SequenceState
from runtime.models.config import ModelConfig
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35

USER, ASSISTANT, SYSTEM, END = 300, 301, 302, 303
FORGETFUL = 30_000  # bytes of memory: about one conversation
SMALL_DISK = 100_000  # bytes: about one conversation with all its places, or a few with some
KINDS = ["turn", "turn", "turn", "regenerate", "edit", "edit", "fork", "settle", "save", "restart", "evict", "other"]


@dataclass(frozen=True)
class Operation:
    kind: str
    conversation: int
    seed: int
    cancel: int | None  # steps until it is cancelled
    settled: bool  # afterwards, as between turns
    saved: bool


@dataclass
class World:
    """Conversations as a chat holds them, over an engine. A message is (header, ids); thoughts are not kept."""

    model: Qwen35
    folder: Path
    memory: int
    disk: int
    conversations: list[list[tuple[int, ...]]] = field(default_factory=lambda: [[]])

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.engine = new_engine(
            self.model, memory=self.memory, store=new_store(self.model, self.folder, self.disk, [])
        )

    def do(self, op: Operation) -> None:
        number = op.conversation % len(self.conversations)
        messages, chance = self.conversations[number], random.Random(op.seed)
        cancelled = never if op.cancel is None else after(op.cancel)
        users = [i for i, message in enumerate(messages) if message[0] == USER]
        match op.kind:
            case "turn":
                self.turn(number, [*messages, (USER, *text(chance))], chance, cancelled)
            case "regenerate" if users:
                self.turn(number, messages[: users[-1] + 1], chance, cancelled)
            case "edit" if users:
                place = chance.choice(users)
                self.turn(number, [*messages[:place], (USER, *text(chance))], chance, cancelled)
            case "fork" if users:
                place = chance.choice(users)
                self.conversations.append([])
                fork = len(self.conversations) - 1
                self.turn(fork, [*messages[:place], (USER, *text(chance))], chance, cancelled)
            case "settle":
                assert self.settle(number, cancelled) or op.cancel is not None
            case "save":
                self.engine.pool.save(cancelled)
            case "restart":
                self.start()
            case "evict":
                self.engine.pool.clear()
            case "other":
                self.conversations.append([])
        if op.settled:
            self.settle(number, never)
        if op.saved:
            self.engine.pool.save(never)

    def settle(self, number: int, cancelled: Callable[[], bool]) -> bool:
        ids, boundaries, _ = rendered(self.conversations[number])
        return self.engine.settle(f"{number}", (*ids, USER), boundaries, cancelled)

    def turn(
        self,
        number: int,
        messages: list[tuple[int, ...]],
        chance: random.Random,
        cancelled: Callable[[], bool],
    ) -> None:
        ids, boundaries, shared = rendered(messages)
        prompt = (*ids, ASSISTANT)
        wanted = request(prompt, boundaries, max_tokens=chance.randint(1, 9), shared=shared)
        new, cached = ask(self.engine, f"{number}", wanted, cancelled)
        assert cached <= len(prompt)
        thought = chance.choice([0, 0, len(new) // 2])
        self.conversations[number] = [*messages, (ASSISTANT, *new[thought:], END)]
        if new:
            fresh = prefilled(self.model, [*prompt, *new[:-1]])
            logits = self.model.logits(fresh.last_hidden[None])[0]  # type: ignore[index]
            assert logits[new[-1]] >= logits.max() - 1e-3 * logits.abs().max()

    def states(self) -> Iterator[SequenceState]:
        """Every state that a prompt could go on from: in memory, at each checkpoint, and on disk at each place."""
        pool = self.engine.pool
        for state in pool._states.values():
            for place in (*state.checkpoints, state):
                yield state.fork(place.length)
        assert pool.snapshots
        for snapshot in pool.snapshots.all():
            for length in snapshot.manifest.places:
                restored = pool.snapshots.load(snapshot, length)
                assert restored
                yield restored


def text(chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.randrange(40, 60) for _ in range(chance.randint(1, 20)))


def rendered(messages: list[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Ids, where messages begin, and the length of the system prompt, which is the same in all conversations."""
    ids, boundaries = [SYSTEM, *range(40, 52), END], []
    shared = len(ids)
    for message in messages:
        boundaries.append(len(ids))
        ids += message
    boundaries.append(len(ids))
    return tuple(ids), tuple(boundaries), shared


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe"])
def model(request: pytest.FixtureRequest) -> Iterator[Qwen35]:
    """With blocks and chunks so small that a few messages fill several."""
    patch = pytest.MonkeyPatch()
    patch.setattr(runtime.kv_cache, "BLOCK", 8)
    patch.setattr(runtime.snapshots, "BLOCK", 8)
    patch.setattr(ModelConfig, "prefill_chunk", 7)
    patch.setattr(runtime.engine, "SETTLE_CHUNK", 7)
    yield load_model(GOLDENS / f"{request.param}.gguf").model
    patch.undo()


operations = st.lists(
    st.builds(
        Operation,
        st.sampled_from(KINDS),
        st.integers(0, 3),
        st.integers(0, 999),
        st.none() | st.none() | st.integers(0, 12),
        st.booleans(),
        st.booleans(),
    ),
    min_size=4,
    max_size=12,
)


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(operations=operations, forgetful=st.booleans(), small_disk=st.booleans())
def test_every_state_is_that_of_a_fresh_prefill(
    model: Qwen35, operations: list[Operation], forgetful: bool, small_disk: bool
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        world = World(model, folder, FORGETFUL if forgetful else MANY, SMALL_DISK if small_disk else MANY)
        for op in operations:
            world.do(op)
        fresh: dict[tuple[int, ...], SequenceState] = {}
        for state in world.states():
            ids = tuple(state.ids)
            if ids not in fresh:
                fresh[ids] = prefilled(model, ids)
            assert_same_state(state, fresh[ids])
            assert_next_logits_agree(model, state, fresh[ids])
    finally:
        shutil.rmtree(folder)


def assert_next_logits_agree(model: Qwen35, state: SequenceState, fresh: SequenceState) -> None:
    """On forks, so that blocks which several sequences hold are written to as in use."""
    logits = []
    for one in (state, fresh):
        fork = one.fork(one.length)
        logits.append(model.logits(model.forward([77, 78], fork))[-1])
    assert torch.linalg.vector_norm(logits[0] - logits[1]) <= 1e-3 * torch.linalg.vector_norm(logits[1])
