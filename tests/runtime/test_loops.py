"""When a thought counts as turning in circles."""

from __future__ import annotations

import random

import pytest

from runtime.loops import ends_in_loop


@pytest.mark.parametrize("period", [1, 2, 7, 48, 64, 128])
def test_a_run_repeated_long_enough_is_a_loop(period: int) -> None:
    run = random.Random(period).sample(range(1000), period)
    ids = [*range(2000, 2064), *run * (1024 // period)]
    ids = ids[: len(ids) - len(ids) % 32]
    assert ends_in_loop(ids)


@pytest.mark.parametrize("period", [1, 7, 64])
def test_a_few_turns_are_no_loop(period: int) -> None:
    run = random.Random(period).sample(range(1000), period)
    ids = [*range(5000, 5512), *(run * 3)[:160]]
    assert not any(ends_in_loop(ids[:n]) for n in range(len(ids) + 1))


def test_text_that_changes_a_little_each_time_is_no_loop() -> None:
    ids = [token for line in range(200) for token in (1, 2, 3, line, 4)]
    assert not any(ends_in_loop(ids[:n]) for n in range(len(ids) + 1))
