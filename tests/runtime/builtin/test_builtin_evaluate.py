"""The evaluation: what expectations hold, and that it runs on anything that answers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from tokenizers import Tokenizer

from runtime.builtin.corpus.tour import Tour
from runtime.builtin.evaluate import Single, figures, run, transcript
from runtime.builtin.expectations import ExpectationError, holds, known_to
from runtime.builtin.export import export
from runtime.builtin.generate import Generator, Request
from runtime.builtin.held_out import DEVELOPMENT, HERE, SUBJECTS, Case, cases
from runtime.builtin.model import LanguageModel, ModelConfig
from runtime.builtin.runtime_answers import RuntimeAnswers
from runtime.builtin.vocabulary import SPECIAL


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


@pytest.mark.parametrize(("folder", "least"), [(HERE, 1000), (DEVELOPMENT, 500)])
def test_every_expectation_is_of_the_language_and_of_the_tour(tour: Tour, folder: Traversable, least: int) -> None:
    assert len(cases(tour, folder=folder)) >= least
    for case in cases(tour, folder=folder):
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


def test_a_file_answers_as_the_training_model_does(tour: Tour, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Greedy text of the exported file through the runtime, token for token."""
    torch.manual_seed(0)
    config = ModelConfig(vocabulary=1024, hidden=64, ff=96, layers=4, heads=2, head_dim=32, rope_dim=8)
    model = LanguageModel(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3).copy_(p.half().float())
        # Random weights choose control tokens too, which the runtime does not show: a logit of 0 is never the largest.
        model.token_embd.weight[: len(SPECIAL)] = 0
    export(model, tokenizer, tmp_path / "model.gguf", Type.F16)
    chosen = cases(tour, ["talk"])[:4]
    trained = Generator(model, tokenizer, max_tokens=24).answer([request(c) for c in chosen])
    through_runtime = RuntimeAnswers(tmp_path / "model.gguf", threads=1).answer([request(c) for c in chosen])
    for a, b in zip(trained, through_runtime, strict=True):
        expected = (a.thought + a.reply).rstrip("\ufffd")  # the last token may be a part of a character
        assert len(a.ids) == 24 and len(expected) > 40
        assert (b.thought + b.reply).startswith(expected)


def request(case: Case) -> Request:
    return Request(({"role": "user", "content": case.users[0]},), case.thinking)
