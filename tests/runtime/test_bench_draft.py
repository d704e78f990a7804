"""The benchmark of drafting: what it reports, and that it runs."""

from __future__ import annotations

import json

import pytest
from rewrite import GOLDENS

from runtime import bench
from runtime.bench_draft import CHOICES, Report, Row, held_out
from runtime.builtin.corpus.tour import DEFAULT_TOUR, read_tour
from runtime.builtin.held_out import cases


def report(ratio: float) -> Report:
    rows = (Row(0, 100.0, 1.0, 0, 0), Row(3, 150.0, 1.5, 300, 240), Row(None, 100.0 * ratio, ratio, 20, 1))
    return Report("Tiny", "cpu", 5, 900, rows)


def test_the_report_shows_every_choice() -> None:
    text = report(1.25).as_text().splitlines()
    assert text[0] == "Tiny, cpu, 900 tokens a round, median of 5"
    assert [line.split() for line in text[2:]] == [
        ["0", "100.0", "1.00"],
        ["3", "150.0", "1.50", "0.800"],
        ["auto", "125.0", "1.25", "0.050"],
    ]


@pytest.mark.parametrize(("ratio", "good"), [(1.5, True), (0.98, True), (0.97, False)])
def test_drafting_by_its_own_choice_must_not_lose(ratio: float, good: bool) -> None:
    assert report(ratio).good is good


def test_held_out_dialogues_are_those_of_the_evaluation() -> None:
    evaluated = cases(read_tour(DEFAULT_TOUR))
    every = [*held_out(1)]
    assert [(c.users, c.thinking) for c in evaluated] == every
    assert [*held_out(10)] == every[::10]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["draft", "--held-out", "0"], "--held-out takes a whole number of at least 1, not '0'."),
        (["draft", "--rounds", "-2"], "--rounds takes a whole number of at least 1, not '-2'."),
        (["draft", "--max-tokens", "many"], "--max-tokens takes a whole number of at least 1, not 'many'."),
        (
            ["draft", "--held-out", "9", "--thinking"],
            "--thinking is for the prompts; every second held-out dialogue has thoughts.",
        ),
        (["speed", "--prefill", "1.5"], "--prefill takes a whole number of at least 0, not '1.5'."),
        (["speed", "--at", "128", "x"], "--at takes a whole number of at least 0, not 'x'."),
        (["resume", "--tokens", "0"], "--tokens takes a whole number of at least 1, not '0'."),
        (["memory", "--ops", "gpu"], "--ops takes one of auto, reference, cpu, triton, not 'gpu'."),
    ],
)
def test_numbers_that_make_no_sense_are_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main([words[0], "built-in", *words[1:]])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"qwenchat: {sentence} See qwenchat bench {words[0]} --help.\n"


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--held-out", "300"]])
def test_it_runs(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["draft", str(GOLDENS / "tiny-dense.gguf"), "--rounds", "1", "--max-tokens", "3", "--json", *more])
    found = json.loads(capsys.readouterr().out)
    assert [row["drafts"] for row in found["rows"]] == list(CHOICES)
    assert found["rows"][0]["drafted"] == 0
    assert found["rows"][1]["drafted"] > 0
