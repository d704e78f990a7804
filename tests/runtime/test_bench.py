"""The benchmark of resuming, on a model so small that its figures mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rewrite import GOLDENS

from runtime import bench, bench_resume, bench_speed
from runtime.bench_resume import Report, Row
from runtime.protocol import BUILT_IN_MODEL, Load

ROW = Row("thinking on, dropped", "same", "next turn", 8010, 10, 10, 30.0, 12.5)


def test_a_row_is_good_if_nothing_is_read_again_and_nothing_waited_for() -> None:
    assert ROW.good
    assert not Row("m", "same", "next turn", 8010, 11, 10, 30.0, 12.5).good
    assert not Row("m", "same", "next turn", 8010, 10, 10, 90.0, 50.1).good


def test_the_report_shows_every_row() -> None:
    report = Report("Tiny", 8000, (ROW, Row("m", "killed", "edit of last", 8010, 99, 10, 30.0, 12.5)), 10_000_000, 80.0)
    text = report.as_text().splitlines()
    assert text[0] == "Tiny, 8,000 tokens of history"
    assert text[2].split() == ["thinking", "on,", "dropped", "same", "next", "turn", "10", "10", "30.0", "12.5"]
    assert text[3].endswith("!")
    assert text[4] == "state on disk: 10.0 MB, read in 80 ms per GB"
    assert not report.good
    assert report.as_dict()["rows"][0]["prefilled_tokens"] == 10


def test_a_state_that_is_read_slowly_is_not_good() -> None:
    assert Report("Tiny", 8000, (ROW,), 200_000_000, 300.0).good
    slow = Report("Tiny", 8000, (ROW,), 200_000_000, 300.1)
    assert not slow.good
    assert slow.as_text().endswith("!")
    assert Report("Tiny", 8000, (ROW,), 1_000_000, 300.1).good  # too small to say how fast


def test_a_model_that_cannot_be_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["resume", "/no/such/file.gguf"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("qwenchat: ") and "no file" in err


def test_a_benchmark_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(["sped"])
    assert capsys.readouterr().err == (
        "qwenchat: There is no benchmark and no file 'sped'; benchmarks are resume, draft, memory, speed. "
        "See qwenchat bench --help.\n"
    )


def test_the_built_in_model_needs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def measure(load: Load, *rest: object, **choices: object) -> Report:
        opened.append(load.path)
        return Report("Tiny", 8000, (ROW,), 0, 0.0)

    monkeypatch.setattr(bench_resume, "measure", measure)
    assert bench.main(["resume", "built-in"]) == 0
    assert opened == [str(BUILT_IN_MODEL)]


@pytest.mark.slow
def test_no_operation_reads_the_history_again(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tokens", "600", "--thinking", "off", "--preserve-thinking", "off", "--json"]
    bench.main(["resume", str(GOLDENS / "tiny-dense.gguf"), *options])
    report = json.loads(capsys.readouterr().out)
    assert {row["session"] for row in report["rows"]} == {"same", "restarted", "killed"}
    assert len(report["rows"]) == 3 * (4 + 4)
    for row in report["rows"]:
        assert row["prefilled_tokens"] <= row["new_tokens"], row


def test_speed_is_measured_in_all_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(GOLDENS / "tiny-dense.gguf")
    arguments = [model, "--prefill", "9", "--at", "3", "20", "--tokens", "2", "--threads", "1", "--json"]
    assert bench.main(["speed", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [decode["context"] for decode in found["decode"]] == [3, 20]
    figures = [found["load_s"], found["prefill_tok_per_s"], found["prefill_cpu_ms"], found["peak_mb"]]
    assert min(*figures, *(decode["tok_per_s"] for decode in found["decode"])) > 0


def test_speed_goes_without_its_name_and_without_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").touch()
    asked: list[tuple[Path, int]] = []

    def measure(path: Path, contexts: list[int], prefill: int, *rest: object) -> Report:
        asked.append((path, prefill))
        return Report("Tiny", 8000, (ROW,), 0, 0.0)

    monkeypatch.setattr(bench_speed, "measure", measure)
    for words in ([], ["model.gguf"], ["--json"], ["model.gguf", "--prefill", "9"], ["speed", "--prefill", "9"]):
        assert bench.main(words) == 0
    assert asked == [
        (BUILT_IN_MODEL, 512),
        (Path("model.gguf"), 512),
        (BUILT_IN_MODEL, 512),
        (Path("model.gguf"), 9),
        (BUILT_IN_MODEL, 9),
    ]


def test_a_token_reads_some_experts_and_one_of_two_tables() -> None:
    sizes = {"token_embd.weight": 1000, "blk.0.ffn_up_exps.weight": 80, "blk.0.attn_norm.weight": 7, "blk.1.x": 500}
    config = SimpleNamespace(layers=1, moe=SimpleNamespace(used=3, experts=8))

    def read(**more: int) -> int:
        tensors = {name: SimpleNamespace(nbytes=size) for name, size in (sizes | more).items()}
        return bench_speed.read_by_a_token(SimpleNamespace(tensors=tensors), config)  # type: ignore[arg-type]

    assert read() == 1000 + 30 + 7
    assert read(**{"output.weight": 2000}) == 2000 + 30 + 7


@pytest.mark.parametrize("name", ["speed", "memory"])
def test_what_is_no_model_is_said(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert bench.main([name, "no-such.gguf"]) == 2
    assert capsys.readouterr().err == "qwenchat: There is no file no-such.gguf.\n"
    (tmp_path / "text.gguf").write_text("These are words, and no model.")
    assert bench.main([name, str(tmp_path / "text.gguf")]) == 2
    assert capsys.readouterr().err == "qwenchat: text.gguf is not a GGUF file.\n"
