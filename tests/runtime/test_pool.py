"""Which states stay in memory, and what a prompt goes on from when they do not."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
from pathlib import Path

import pytest
import torch
from rewrite import GOLDENS
from states import MANY, after, ask, assert_same_state, never, new_engine, new_store, prefilled, request

from runtime.cache import memory
from runtime.engine import NewToken
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.snapshots import SnapshotStore
from runtime.thinning import least_useful, most_useful

SYSTEM = [5 + i * 7 % 200 for i in range(20)]


@pytest.fixture(scope="module")
def model() -> Qwen35:
    return load_model(GOLDENS / "tiny-dense.gguf").model


def prompt(number: int, length: int = 40) -> list[int]:
    return [*SYSTEM, *(1 + (number * 31 + i * 11) % 250 for i in range(length))]


def one_checkpoint(model: Qwen35) -> int:
    """Bytes of a recurrent state."""
    return sum(layer.nbytes for layer in prefilled(model, [1]).recurrent)


def allocated() -> int:
    """Bytes of all tensors of this process."""
    gc.collect()
    storages = [found.untyped_storage() for found in gc.get_objects() if type(found) is torch.Tensor]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class TestBudget:
    @pytest.mark.slow
    def test_fifty_conversations_stay_within_it(self, model: Qwen35) -> None:
        """Each of several turns, every one of which leaves checkpoints."""
        budget = 12 * one_checkpoint(model) + 4 * memory([prefilled(model, prompt(0))])
        engine = new_engine(model, memory=budget)
        for number in range(50):
            for length in (10, 20, 30):
                ids = prompt(number, length)
                wanted = request(ids, range(20, len(ids), 5), 2, shared=len(SYSTEM))
                _, cached = ask(engine, f"{number}", wanted)
                assert cached >= (0 if number == 0 and length == 10 else len(SYSTEM))
                assert engine.pool.nbytes <= budget
        assert len(engine.pool) > 2
        _, cached = ask(engine, "49", request(prompt(49, 30)))
        assert cached >= 45

    @pytest.mark.slow
    def test_fifty_conversations_take_no_more_of_the_machine_s_memory(
        self, model: Qwen35, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What tensors there are really hold, and not what the pool says of them; drafts stage more than is kept."""
        monkeypatch.setattr("runtime.kv_cache.BLOCK", 16)
        monkeypatch.setattr("runtime.snapshots.BLOCK", 16)
        before = allocated()
        budget = 8 * one_checkpoint(model) + 4 * memory([prefilled(model, prompt(0))])
        engine = new_engine(model, memory=budget, store=new_store(model, tmp_path))
        most = 0
        for number in range(50):
            ids = prompt(number, 30)
            wanted = dataclasses.replace(request(ids, range(20, len(ids), 5), shared=len(SYSTEM)), drafts=4)
            steps = engine.generate(f"{number}", wanted, never)
            next(step for step in steps if isinstance(step, NewToken))
            next(steps)
            steps.close()  # whoever asked went away
            if number % 8 == 0:
                engine.pool.save(never)
                most = max(most, allocated() - before)
        assert budget // 2 < most <= budget + one_checkpoint(model)  # the store has an empty state for itself

    def test_it_holds_while_one_long_history_is_read(self, model: Qwen35, monkeypatch: pytest.MonkeyPatch) -> None:
        """A checkpoint at each of 100 messages would be more than memory has, long before the prompt is read."""
        monkeypatch.setattr("runtime.kv_cache.BLOCK", 16)
        ids = prompt(0, 400)
        budget = memory([prefilled(model, ids)]) + 10 * one_checkpoint(model)
        engine = new_engine(model, memory=budget)
        ask(engine, "old", request(prompt(1, 100)))
        steps = engine.generate("a", request(ids, range(0, 400, 4)[1:]), never)
        for _ in steps:
            assert engine.pool.nbytes <= budget

    def test_it_holds_while_a_long_reply_grows(self, model: Qwen35, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("runtime.kv_cache.BLOCK", 16)
        engine = new_engine(model)
        ask(engine, "old", request(prompt(1, 100)))
        ask(engine, "a", request(prompt(0), max_tokens=1))
        engine.pool.budget = engine.pool.nbytes + one_checkpoint(model)
        for _ in engine.generate("a", request(prompt(0), max_tokens=40), never):
            assert engine.pool.nbytes <= engine.pool.budget

    def test_the_last_boundaries_are_kept(self, model: Qwen35) -> None:
        ids = prompt(0, 100)
        budget = memory([prefilled(model, ids)]) + 6 * one_checkpoint(model)
        engine = new_engine(model, memory=budget)
        ask(engine, "a", request(ids, (20, 40, 60, 80, 90, 100, 110), 1))
        engine.pool.budget = MANY
        for place in (100, 110):
            assert ask(engine, "b", request([*ids[: place + 3], 9]))[1] == place

    def test_the_conversation_in_use_is_never_let_go(self, model: Qwen35) -> None:
        engine = new_engine(model, memory=0)
        ids = prompt(0)
        ask(engine, "a", request(ids))
        assert ask(engine, "a", request(ids))[1] == len(ids)
        ask(engine, "b", request(ids[::-1]))
        assert ask(engine, "a", request(ids))[1] == 0

    def test_what_forks_share_is_counted_once(self, model: Qwen35) -> None:
        state = prefilled(model, prompt(0))
        assert memory([state, state.fork(state.length)]) == memory([state])

    def test_states_that_are_let_go_are_found_on_disk(self, model: Qwen35, tmp_path: Path) -> None:
        engine = new_engine(model, memory=0, store=new_store(model, tmp_path))
        for number in range(5):
            ask(engine, f"{number}", request(prompt(number)))
        assert len(engine.pool) == 1
        for number in range(5):
            assert ask(engine, f"{number}", request(prompt(number)))[1] == 60


class TestSystemPrompt:
    def test_is_shared_when_all_that_held_it_are_gone(self, model: Qwen35) -> None:
        engine = new_engine(model)
        ask(engine, "a", request(prompt(1), shared=len(SYSTEM)))
        other = [250] * 60
        engine.pool.budget = memory([prefilled(model, other), prefilled(model, SYSTEM)]) + one_checkpoint(model)
        ask(engine, "other", request(other))
        assert [h.conversation for h in engine.pool.holdings() if not h.conversation.startswith("system")] == ["other"]
        assert ask(engine, "b", request(prompt(2), shared=len(SYSTEM)))[1] == len(SYSTEM)

    def test_is_shared_after_a_restart_though_its_conversation_is_gone(self, model: Qwen35, tmp_path: Path) -> None:
        engine = new_engine(model, store=new_store(model, tmp_path))
        ask(engine, "a", request(prompt(1), shared=len(SYSTEM)))
        engine.pool.save(never)
        engine.pool.drop("a")
        engine = new_engine(model, store=new_store(model, tmp_path))
        assert ask(engine, "b", request(prompt(2), shared=len(SYSTEM)))[1] == len(SYSTEM)

    def test_its_state_is_that_of_a_fresh_prefill(self, model: Qwen35) -> None:
        engine = new_engine(model)
        ask(engine, "a", request(prompt(1), shared=len(SYSTEM)))
        [shared] = [state for name, state in engine.pool._states.items() if name.startswith("system")]
        assert_same_state(shared, prefilled(model, SYSTEM))

    def test_a_few_are_kept(self, model: Qwen35) -> None:
        engine = new_engine(model)
        for number in range(9):
            ask(engine, f"{number}", request([number, *prompt(1)], shared=21))
        assert sum(h.conversation.startswith("system") for h in engine.pool.holdings()) == 4


class TestHoldings:
    def test_tell_what_is_kept_where(self, model: Qwen35, tmp_path: Path) -> None:
        engine = new_engine(model, store=new_store(model, tmp_path))
        ask(engine, "a", request(prompt(1), (20, 40), 1))
        engine.pool.save(never)
        engine.pool.clear()
        ask(engine, "b", request(prompt(2), (30,), 1))
        b, a = engine.pool.holdings()
        assert (a.conversation, a.tokens, a.checkpoints, a.memory_bytes) == ("a", 60, 3, 0)
        assert a.disk_bytes == sum(path.stat().st_size for path in tmp_path.glob("*/*/*"))
        assert (b.conversation, b.tokens, b.checkpoints, b.disk_bytes) == ("b", 60, 3, 0)
        assert b.memory_bytes == memory([engine.pool._states["b"]])

    def test_dropping_one_and_all(self, model: Qwen35, tmp_path: Path) -> None:
        engine = new_engine(model, store=new_store(model, tmp_path))
        for name in "abc":
            ask(engine, name, request([ord(name), *prompt(1)]))
        engine.pool.save(never)
        engine.pool.drop("b")
        assert {h.conversation for h in engine.pool.holdings()} == {"a", "c"}
        engine.pool.drop_all()
        assert engine.pool.holdings() == []
        assert engine.pool.nbytes == 0


def test_an_aside_goes_on_from_what_is_on_disk_and_keeps_nothing(model: Qwen35, tmp_path: Path) -> None:
    """Of a conversation that is resumed, a summary may be the first that is asked for."""
    before = new_engine(model, store=new_store(model, tmp_path))
    ask(before, "a", request(prompt(1), (), 1))
    assert before.pool.save(never)
    engine = new_engine(model, store=new_store(model, tmp_path))
    aside = dataclasses.replace(request([*prompt(1), 7, 8]), aside=True)
    tokens, cached = ask(engine, "a", aside)
    assert cached == len(prompt(1))
    assert tokens == ask(new_engine(model), "a", aside)[0]
    assert len(engine.pool) == 0


def test_what_comes_from_disk_keeps_the_places_that_are_in_memory(model: Qwen35, tmp_path: Path) -> None:
    """A snapshot may reach a little further than the state in memory, and has fewer places to come back to."""
    engine = new_engine(model, store=new_store(model, tmp_path))
    ids = prompt(1, 120)
    starts = tuple(range(10, 130, 10))
    ask(engine, "a", request(ids, boundaries=starts))
    engine.pool.save(never)
    ask(engine, "a", request([*ids[:132], 7, 8, 9], boundaries=starts))
    _, cached = ask(engine, "a", request(ids, boundaries=starts))
    assert cached > 130  # on disk the end of the prompt is known, in memory only its last boundary
    _, cached = ask(engine, "a", request([*ids[:35], 7, 8, 9], boundaries=starts))
    assert cached == 30


class TestPreload:
    @pytest.fixture
    def folder(self, model: Qwen35, tmp_path: Path) -> Path:
        """Five conversations, the last one used last."""
        store = new_store(model, tmp_path)
        for number in range(5):
            store.save(f"{number}", prefilled(model, prompt(number)), never)
            os.utime(store._folder_of(f"{number}") / "lock", (0, 1_000_000 + number))
        return tmp_path

    def test_the_conversations_used_last_are_in_memory_before_they_are_asked_for(
        self, model: Qwen35, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = new_engine(model, store=new_store(model, folder))
        expected: list[list[int]] = []
        engine.pool.preload(never, lambda ids: expected.append(list(ids)))
        assert [h.conversation for h in engine.pool.holdings() if h.memory_bytes] == ["4", "3", "2"]
        assert expected == [prompt(4), prompt(3), prompt(2)]
        monkeypatch.setattr(SnapshotStore, "load", lambda *args, **kwargs: pytest.fail("read"))
        assert ask(engine, "4", request(prompt(4)))[1] == 60
        assert [h.conversation for h in engine.pool.holdings() if h.memory_bytes] == ["4", "3", "2"]

    def test_no_more_than_half_of_the_memory_is_taken(self, model: Qwen35, folder: Path) -> None:
        engine = new_engine(model, store=new_store(model, folder))
        one = memory([prefilled(model, prompt(0))])
        engine.pool.budget = 4 * one + one // 2
        engine.pool.preload(never)
        assert one <= engine.pool.nbytes <= engine.pool.budget // 2

    def test_it_gives_way(self, model: Qwen35, folder: Path) -> None:
        engine = new_engine(model, store=new_store(model, folder))
        assert not engine.pool.preload(after(1))
        assert len(engine.pool) == 1
        assert engine.pool.preload(never)
        assert len(engine.pool) == 3

    def test_what_is_in_memory_stays_as_it_is(self, model: Qwen35, folder: Path) -> None:
        engine = new_engine(model, store=new_store(model, folder))
        ask(engine, "4", request([*prompt(4), 7]))
        engine.pool.preload(never)
        assert ask(engine, "4", request([*prompt(4), 7, 8]))[1] >= 61


class TestThinning:
    def test_a_place_just_before_another_goes_first(self) -> None:
        assert least_useful([0, 500, 503, 1000, 1500, 1600, 1700], 1800) in (1, 2)
        assert most_useful([0, 500, 503, 1000, 1500, 1600, 1700], 1800, 6) in (
            [0, 500, 1000, 1500, 1600, 1700],
            [0, 503, 1000, 1500, 1600, 1700],
        )

    def test_far_back_fewer_are_kept(self) -> None:
        kept = most_useful(range(0, 10_000, 100), 10_000, 20)
        gaps = [after - before for before, after in itertools.pairwise(kept)]
        assert kept[-3:] == [9700, 9800, 9900]
        assert gaps[0] > 4 * gaps[-1]
        assert all(before >= after / 2 for before, after in itertools.pairwise(gaps))

    def test_the_beginning_and_the_last_three_stay(self) -> None:
        assert most_useful([0, 10, 20, 30, 40], 50, 1) == [0, 20, 30, 40]
        assert least_useful([0, 20, 30, 40], 50) is None
        assert least_useful([0], 0) is None


class TestVersions:
    """What an edit leaves behind can be come back to."""

    def turn(self, number: int) -> list[int]:
        return [1 + (number * 37 + i * 13) % 250 for i in range(12)]

    def test_an_older_version_of_the_first_message_is_not_read_again(self, model: Qwen35) -> None:
        engine = new_engine(model)
        first, other = [*self.turn(1), *self.turn(2)], self.turn(3)
        ask(engine, "a", request(first, (12,)))
        ask(engine, "a", request([*first, *self.turn(4)], (12, 24)))
        _, cached = ask(engine, "a", request([*other, *self.turn(5)], (12,)))
        assert cached == 0
        _, cached = ask(engine, "a", request([*first, *self.turn(4), *self.turn(6)], (12, 24, 36)))
        assert cached >= 36
        found, cached = ask(engine, "a", request([*other, *self.turn(5), *self.turn(7)], (12, 24)))
        assert cached >= 24
        assert found == ask(new_engine(model), "b", request([*other, *self.turn(5), *self.turn(7)], (12, 24)))[0]

    def test_few_versions_are_kept_and_they_are_the_conversation_s(self, model: Qwen35) -> None:
        engine = new_engine(model)
        for number in range(9):
            ask(engine, "a", request([*self.turn(number), *self.turn(50), *self.turn(51)], (12, 24)))
        assert len(engine.pool) == 5
        [held] = engine.pool.holdings()
        assert held.conversation == "a"
        assert held.memory_bytes == engine.pool.nbytes
        engine.pool.drop("a")
        assert len(engine.pool) == 0

    def test_a_version_that_went_on_takes_the_place_of_what_it_was(self, model: Qwen35) -> None:
        engine = new_engine(model)
        first, other = [*self.turn(1), *self.turn(2)], [*self.turn(3), *self.turn(4)]
        for _ in range(3):
            for ids in (first, other):
                ids += self.turn(len(ids))
                ask(engine, "a", request(ids, range(12, len(ids), 12)))
        assert len(engine.pool) == 2

    def test_they_go_first_when_memory_is_short(self, model: Qwen35) -> None:
        engine = new_engine(model)
        ask(engine, "b", request(self.turn(8)))
        ask(engine, "a", request([*self.turn(1), *self.turn(2)], (12,)))
        ask(engine, "a", request(self.turn(3)))
        assert len(engine.pool) == 3
        engine.pool.budget = engine.pool.nbytes - 1
        for state in engine.pool._states.values():
            state.checkpoints = state.checkpoints[:1]  # which would be thinned out before
        engine.pool.budget = engine.pool.nbytes - 1
        engine.pool._make_room()
        assert [holding.conversation for holding in engine.pool.holdings()] == ["a", "b"]
        assert len(engine.pool) == 2
