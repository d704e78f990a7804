"""The evaluation: what expectations hold, and that it runs on anything that answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.builtin.corpus.tour import Tour
from runtime.builtin.evaluate import SUBJECTS, Single, cases, figures, run, transcript
from runtime.builtin.expectations import ExpectationError, holds, known_to


@pytest.mark.parametrize(
    ("expectation", "reply", "right"),
    [
        ("Paris", "It is paris.", True),
        ("Paris", "It is Parisian.", False),
        ("H", "The chemical symbol is He.", False),
        ("a | b", "Well, b.", True),
        ("#82", "37 + 45 = 82", True),
        ("#82", "37 + 45 = 820", False),
        ("#82", "82 + 1 = 83", False),
        ("#-13", "28 - 41 = -13", True),
        ("#13", "28 - 41 = -13", False),
        ("~honest", "That is beyond me.", True),
        ("~honest", "It is 42.", False),
        ("~untold", "You have not told me your age yet.", True),
        ("~fence", "Here:\n\n```python\nx = 1\n```", True),
        ("~fence", "Here:\n\n```python\nx = 1", False),
        ("~rows 1", "| a | b |\n| --- | --- |\n| c | d |", True),
        ("~rows 2", "| a | b |\n| --- | --- |\n| c | d |", False),
        ("~items 2", "- a\n- b", True),
        ("~items 2", "1. a\n2. b\n3. c", False),
        ("/new | Ctrl+N", "Press `Ctrl+N`.", True),
        ("/new", "Type `/newer`.", False),
        ("@/new", "It is there to begin a new conversation.", True),
        ("@/new", "`/new` is nice.", False),
    ],
)
def test_an_expectation_holds(tour: Tour, expectation: str, reply: str, right: bool) -> None:
    assert holds(expectation, reply, tour) is right


def test_an_unknown_shape_is_an_error(tour: Tour) -> None:
    with pytest.raises(ExpectationError):
        holds("~sonnet", "x", tour)


def test_entries_that_the_tour_lacks_are_not_asked_for(tour: Tour) -> None:
    assert known_to("/new | Ctrl+N", tour) and known_to("Paris", tour) and known_to("@top_k", tour)
    assert not known_to("@/frobnicate", tour) and not known_to("/frobnicate", tour)


def test_every_expectation_is_of_the_language_and_of_the_tour(tour: Tour) -> None:
    for case in cases(tour):
        holds(case.expectation, "x", tour)
        for part in case.expectation.split(" | "):
            if part.startswith("@"):
                assert known_to(part, tour), case


def test_it_runs_on_any_callable_and_keeps_the_models_own_replies(tour: Tour) -> None:
    heard: list[list[str]] = []

    def echo(messages: Sequence[dict[str, str]], thinking: bool) -> tuple[str, str]:
        heard.append([m["content"] for m in messages])
        return ("a thought" if thinking else ""), f"You said {messages[-1]['content']}"

    chosen = [c for c in cases(tour, ["recall"]) if len(c.users) == 3][:2]
    outcomes = run(Single(echo), chosen, tour)
    first = chosen[0].users
    assert heard[-2] == [first[0], f"You said {first[0]}", first[1], f"You said {first[1]}", first[2]]
    assert all(len(o.replies) == 3 for o in outcomes)
    assert chosen[0].users[2] in transcript(outcomes[0])


def test_figures_are_shares(tour: Tour) -> None:
    def knows(messages: Sequence[dict[str, str]], thinking: bool) -> tuple[str, str]:
        return "", "That is beyond me."

    result = figures(run(Single(knows), cases(tour, ["outside", "facts"]), tour))
    assert result["right"]["outside"] == 100.0
    assert result["right"]["facts"] == 0.0
    assert result["ended"] == result["closed"] == 100.0


def test_sums_are_asked_in_both_modes_and_the_rest_in_turn(tour: Tour) -> None:
    assert {(c.users, c.thinking) for c in cases(tour, ["sums"])} == {
        (c.users, t) for c in cases(tour, ["sums"]) for t in (True, False)
    }
    for subject in SUBJECTS:
        assert {c.thinking for c in cases(tour, [subject])} == {True, False}
