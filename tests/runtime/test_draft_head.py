"""Drafts from a part of the vocabulary: never another reply, and what came up lately can be drafted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rewrite import GOLDENS

from kernels.op import Column, OpTable
from kernels.quants import QuantTensor
from runtime.engine import Done, Engine, NewToken, Request
from runtime.models import draft_head
from runtime.models.draft_head import DraftHead
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.pool import StatePool
from runtime.sampling import SamplingParams

HEAD = QuantTensor.from_dense(torch.randn(60, 32, generator=torch.Generator().manual_seed(1)))
HIDDEN = torch.randn(2, 32, generator=torch.Generator().manual_seed(2))
WHOLE = HIDDEN @ HEAD.dequantize().T


def possible(head: DraftHead) -> set[int]:
    """The tokens that can be drafted, whose logits must be those of the whole head."""
    logits = head.logits(HIDDEN)
    found = set((logits[0] > -1e29).nonzero()[:, 0].tolist())
    at = sorted(found)
    torch.testing.assert_close(logits[:, at], WHOLE[:, at], rtol=1e-2, atol=1e-2)
    return found


def test_holds_the_first_tokens_and_those_noted() -> None:
    head = DraftHead(HEAD, 20, OpTable("reference"))
    assert possible(head) == set(range(20))
    head.note([3, 41, 59, 41])
    assert possible(head) == {*range(20), 41, 59}


def test_forgets_what_was_noted_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_head, "_RECENT", 3)
    head = DraftHead(HEAD, 20, OpTable("reference"))
    head.note([30, 31, 32, 30, 33])
    assert possible(head) == {*range(20), 30, 32, 33}


def test_reads_no_row_twice_and_none_that_is_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation is noted anew in every turn."""
    monkeypatch.setattr(draft_head, "_RECENT", 8)
    head = DraftHead(HEAD, 20, OpTable("reference"))
    read: list[int] = []
    rows = QuantTensor.rows
    monkeypatch.setattr(QuantTensor, "rows", lambda self, *at: read.append(at[0]) or rows(self, *at))

    def noted(ids: list[int]) -> list[int]:
        del read[:]
        head.note(ids)
        return sorted(read)

    prompt = [*range(60), *range(40, 60), 30, 3, 30]
    assert noted(prompt) == [30, *range(53, 60)]
    assert noted(prompt) == []
    assert noted([41, 42]) == [41, 42]  # in a reply, in place of 53 and 54
    assert noted([*prompt, 41, 42]) == []
    assert noted([53, *prompt, 41, 42, 43]) == [43]
    assert noted([31, 56, 57]) == [31]
    assert possible(head) == {*range(20), 31, 56, 57, 59, 30, 41, 42, 43}


def test_more_than_there_are_is_all() -> None:
    head = DraftHead(HEAD, 99, OpTable("reference"))
    head.note(range(60))
    assert possible(head) == set(range(60))


def reply(model: Qwen35, drafts: int) -> tuple[list[int], Done]:
    request = Request(
        tuple(range(260, 300)), SamplingParams(temperature=0), frozenset({-1}), max_tokens=200, drafts=drafts
    )
    engine = Engine(model, 2048, StatePool(model.new_state, 1 << 30))
    *steps, done = engine.generate("a", request, lambda: False)
    assert isinstance(done, Done)
    return [step.id for step in steps if isinstance(step, NewToken)], done


@pytest.mark.parametrize("column", ["reference", "cpu"])
def test_a_reply_stays_the_same(column: Column) -> None:
    path = GOLDENS / "tiny-dense.gguf"
    narrow = load_model(path, column, threads=1, draft_vocabulary=7).model
    assert reply(narrow, 3)[0] == reply(load_model(path, column, threads=1).model, 0)[0]


def test_a_model_that_repeats_itself_loses_little(fixtures: Path) -> None:
    """A fifth of a text's tokens and more are not among the first, and yet are drafted once they have come up."""
    path = fixtures / "learnt-f16.gguf"
    ids, whole = reply(load_model(path, "cpu", threads=1).model, 1)
    found, narrow = reply(load_model(path, "cpu", threads=1, draft_vocabulary=64).model, 1)
    assert found == ids
    assert sum(id >= 64 for id in ids) > len(ids) // 5
    assert narrow.accepted > 0.7 * whole.accepted
