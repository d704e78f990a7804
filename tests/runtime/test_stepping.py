"""Steps as one native program: they leave what the same tokens leave one by one, whatever part of them is kept."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Sequence

import pytest
import torch
from rewrite import GOLDENS
from states import assert_same_state

from kernels.sample import UNDECIDED
from runtime.cache import SequenceState
from runtime.engine import Engine, NewToken, Request
from runtime.kv_cache import KVType
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.models.slabs import ROWS, Carried
from runtime.models.stepping import Stepper
from runtime.pool import StatePool
from runtime.sampling import Sampler, SamplingParams
from runtime.speculative import NumbersError, step, verify

pytest.importorskip("llvmlite")

IDS = [int(i) for i in torch.randint(0, 300, (80,), generator=torch.Generator().manual_seed(5))]


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe"])
def model(request: pytest.FixtureRequest) -> Qwen35:
    return load_model(GOLDENS / f"{request.param}.gguf", "cpu", threads=1).model


@pytest.fixture(params=["small", "large"])
def stepper(model: Qwen35, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stepper:
    """Of states that are small, and as if they were large: they are then brought further where they are."""
    assert isinstance(model.stepper, Stepper)
    monkeypatch.setattr(model.stepper, "_large", request.param == "large")
    return model.stepper


def greedy(model: Qwen35) -> Sampler:
    return Sampler(SamplingParams(temperature=0), IDS, model.vocabulary)


def op_by_op(model: Qwen35, ids: Sequence[int], patch: pytest.MonkeyPatch, kv: KVType | None = None) -> SequenceState:
    """A state of `ids`, read a token at a time without programs."""
    state = model.new_state(kv)
    with patch.context() as scope:
        scope.setattr(model, "stepper", None)
        for id in ids:
            model.forward([id], state)
            state.commit()
    return state


def read(model: Qwen35, ids: Sequence[int], kv: KVType | None = None) -> SequenceState:
    state = model.new_state(kv)
    model.forward(ids, state)
    state.commit()
    return state


def test_many_rows_need_not_share_memory_with_slabs_that_nobody_holds(model: Qwen35, stepper: Stepper) -> None:
    held, left = read(model, IDS[:20]), read(model, IDS[:20])
    for state in (held, left):
        model.forward([IDS[20]], state)
        state.commit()
    assert len(stepper._slabs) > 1
    assert len(stepper._states) > 1
    assert isinstance(held.recurrent, Carried)
    slab = held.recurrent.slab
    del state, left
    read(model, IDS[:20])
    assert slab
    assert stepper._slabs == [slab]
    assert stepper._states == [slab.states]
    model.forward(IDS[21:40], held)
    held.commit()
    assert_same_state(held, read(model, IDS[:40]))


@pytest.mark.parametrize("seed", range(3))
def test_any_part_of_each_step_may_be_kept(
    model: Qwen35, stepper: Stepper, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, state = random.Random(seed), read(model, IDS[:20])
    while state.length < 60:
        rows, before = rng.randint(1, ROWS), state.length
        kept = rng.randint(rows == 1, rows)  # a row without drafts is always kept
        wrong = [rng.randrange(300) for _ in range(rows - kept)]
        new, *given = [*IDS[before : before + kept], *wrong]
        stepper.step([new], state, greedy(model), given=given)
        state.commit(kept)
        assert state.ids == IDS[: before + kept]
        if rng.random() < 0.2:
            assert len(list(state.recurrent)) == model.config.recurrent.count(True)  # which makes states of them
    assert_same_state(state, op_by_op(model, state.ids, monkeypatch), 1e-5)


@pytest.mark.slow
def test_keys_and_values_in_8_bits(model: Qwen35, stepper: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two blocks of the cache, after steps in float32; a row may be rounded to the other side of a half."""
    stepper.step(IDS[:1], read(model, IDS[:20]), greedy(model), given=[1, 2])
    ids = [*IDS, *IDS, *IDS, *IDS]
    state = read(model, ids[:250], "q8")
    while state.length < 262:
        at = state.length
        stepper.step(ids[at : at + 1], state, greedy(model), given=[*ids[at + 1 : at + 2], 5])
        state.commit(2)
    assert_same_state(state, op_by_op(model, ids[:262], monkeypatch, "q8"), 1e-2)


@pytest.mark.parametrize("made", range(ROWS))
def test_a_step_chooses_what_ops_one_by_one_choose(
    model: Qwen35, stepper: Stepper, monkeypatch: pytest.MonkeyPatch, made: int
) -> None:
    """The drafts too: those of the MTP block over its own results."""
    params = SamplingParams(
        temperature=0.8, top_k=10, top_p=0.9, repetition_penalty=1.3, presence_penalty=1.0, seed=made
    )
    found = step(model, read(model, IDS[:30]), IDS[30:31], made, Sampler(params, IDS[:30], model.vocabulary))
    tokens = [found.choose(i) for i in range(made + 1)]
    monkeypatch.setattr(model, "stepper", None)
    sampler = Sampler(params, IDS[:30], model.vocabulary)
    plain = step(model, read(model, IDS[:30]), IDS[30:31], made, sampler)
    assert found.drafts == plain.drafts
    for i, token in enumerate(tokens):
        assert plain.choose(i) == token
        for draft in plain.drafts[i : i + 1]:
            sampler.accept(draft)


def test_a_fork_keeps_what_it_has_while_the_other_goes_on(
    model: Qwen35, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of steps is used again, but not while anybody holds it."""
    states = [read(model, IDS[:20])]
    for at in range(20, 40):
        stepper.step(IDS[at : at + 1], states[0], greedy(model), given=[1, 2])
        states[0].commit(1)
        if at % 6 == 0:
            states.append(states[0].fork(states[0].length))
    for state in states:
        assert_same_state(state, op_by_op(model, state.ids, monkeypatch), 1e-5)


def test_memory_of_steps_is_used_again(model: Qwen35, stepper: Stepper) -> None:
    state, places = read(model, IDS[:20]), set()
    for at in range(20, 50):
        stepper.step(IDS[at : at + 1], state, greedy(model))
        state.commit()
        assert isinstance(state.recurrent, Carried)
        assert state.recurrent.slab
        places.add(state.recurrent.slab.addresses[0])
    assert len(places) <= 3


def test_large_states_are_there_once(model: Qwen35, stepper: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps there are, kept or given up; and a step that is given up changes nothing."""
    monkeypatch.setattr(stepper, "_large", True)
    stepper._slabs.clear()
    stepper._states.clear()
    state, rng = read(model, IDS[:20]), random.Random(1)
    for at in range(20, 50):
        while rng.random() < 0.5:
            stepper.step([rng.randrange(300)], state, greedy(model), made=rng.randrange(3))
        stepper.step(IDS[at : at + 1], state, greedy(model))
        state.commit()
    assert len(stepper._states) == 1
    assert_same_state(state, op_by_op(model, state.ids, monkeypatch), 1e-5)


def test_rows_whose_states_have_gone_on_do_not_find_those(model: Qwen35, stepper: Stepper) -> None:
    state = read(model, IDS[:20])
    for at in (20, 21, 22):
        stepper.step(IDS[at : at + 1], state, greedy(model), given=[1])
        state.commit(1)
        if at == 20:
            old = state.recurrent
    assert isinstance(old, Carried)
    assert old.slab
    with pytest.raises(RuntimeError, match="gone on"):
        list(old)


def test_a_state_that_rests_holds_no_memory_of_steps(model: Qwen35, stepper: Stepper) -> None:
    pool = StatePool(model.new_state, 1 << 30)
    request = Request(tuple(IDS[:30]), SamplingParams(temperature=0), frozenset({-1}), max_tokens=8, drafts=2)
    list(Engine(model, 2048, pool).generate("a", request, lambda: False))
    slabs = list(map(weakref.ref, stepper._slabs))
    stepper._slabs.clear()
    assert len(pool) == 1
    assert slabs
    assert not any(slab() for slab in slabs)


@pytest.fixture
def last_norm(model: Qwen35) -> Iterator[torch.Tensor]:
    """The weight before the head, to be changed in place, since programs know its place."""
    before = model.trunk.output_norm.clone()
    yield model.trunk.output_norm
    model.trunk.output_norm.copy_(before)


def test_equal_logits_are_decided_by_the_reference(model: Qwen35, last_norm: torch.Tensor) -> None:
    """More candidates than the native choice keeps: the rows' logits are there for the other one."""
    params = SamplingParams(temperature=1.0, top_k=2, seed=4)
    last_norm.zero_()
    sampler = Sampler(params, (), model.vocabulary)
    assert model.stepper
    state = read(model, IDS[:30])
    assert model.stepper.step(IDS[30:31], state, sampler).tokens == [UNDECIDED]
    token = verify(model, state, IDS[30:31], [], sampler).choose(0)
    assert token == sampler.sample(torch.zeros(model.vocabulary))


def test_numbers_that_are_not_finite_are_said(model: Qwen35, last_norm: torch.Tensor) -> None:
    state = read(model, IDS[:30])
    last_norm.fill_(torch.nan)
    found = step(model, state, IDS[30:31], 3, greedy(model))
    with pytest.raises(NumbersError):
        found.choose(0)


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [2])
def test_a_reply_over_several_blocks_of_the_cache(model: Qwen35, monkeypatch: pytest.MonkeyPatch, drafts: int) -> None:
    """Keys and values come to lie in new blocks, and an edit brings back a state from before."""

    def replies() -> Iterator[list[int]]:
        engine = Engine(model, 2048, StatePool(model.new_state, 1 << 30))
        for prompt in (IDS[:60], IDS[:70], [*IDS[:60], 7, 7]):
            request = Request(
                tuple(prompt), SamplingParams(temperature=0), frozenset({-1}), 220, drafts=drafts, boundaries=(50,)
            )
            yield [found.id for found in engine.generate("a", request, lambda: False) if isinstance(found, NewToken)]

    found = list(replies())
    monkeypatch.setattr(model, "stepper", None)
    assert found == list(replies())
