"""Training: it learns, a resumed run equals an unbroken one, the second part leaves the trunk alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from tokenizers import Tokenizer
from torch.nn import functional

from runtime.builtin.batches import AHEAD, BRIEF, EMPTY, KEPT, batches, encode
from runtime.builtin.corpus.mix import dialogue
from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.tour import DEFAULT_TOUR
from runtime.builtin.export import export, load_run
from runtime.builtin.model import ModelConfig
from runtime.builtin.schedule import TrainConfig, plan
from runtime.builtin.train import Run, TrainError, _cross_entropy, _learnt, main, train

SMALL = ModelConfig(vocabulary=1024, hidden=64, ff=96, layers=4, heads=2, head_dim=32, rope_dim=8, state_dim=16)
CONFIG = TrainConfig(model=SMALL, rows=2, length=256, tokens=16 * 2 * 256, warmup=4, long=1.0)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    tokenizer.save(str(tmp_path / "vocabulary.json"))
    return tmp_path


def run_in(folder: Path, config: TrainConfig = CONFIG) -> Run:
    return Run(folder, config, DEFAULT_TOUR, bf16=False)


def test_a_batch_is_a_function_of_seed_and_group(tokenizer: Tokenizer, world: World) -> None:
    first, again = (list(batches(tokenizer, world, "all", 1, 5, 4, 3, 256)) for _ in range(2))
    other = list(batches(tokenizer, world, "all", 1, 6, 4, 3, 256))
    assert all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.position, b.position)
        for a, b in zip(first, again, strict=True)
    )
    assert not np.array_equal(first[0].ids, other[0].ids)


def test_rows_hold_documents_from_their_beginning_and_little_else(tokenizer: Tokenizer, world: World) -> None:
    start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
    whole = cut = 0
    made = list(batches(tokenizer, world, "all", 1, 0, 32, 4, 512))
    assert np.mean([b.fill for b in made]) > 0.93
    for b in made:
        assert b.ids.shape == (4, 512 + AHEAD)
        for ids, w, document in zip(b.ids, b.weight, b.document, strict=True):
            for number in set(document.tolist()) - {EMPTY}:
                tokens = ids[:512][document == number]
                assert tokens[0] == start
                if end in tokens[-2:]:
                    whole += 1
                else:  # within the last reply, of which no more than this is left
                    cut += 1
                    weight = w[:512][document == number]
                    assert weight[-BRIEF[0] :].all() and not weight[-KEPT[1] - 1 :].all()
    assert 0.5 < cut / (whole + cut) < 0.85


def test_drills_are_half_of_the_text_and_short(tokenizer: Tokenizer, world: World) -> None:
    r = Random(3)
    dialogues = [dialogue(r, world) for _ in range(1500)]
    documents = encode(tokenizer, dialogues, r)
    drills = [(d, doc) for d, doc in zip(dialogues, documents, strict=True) if d.subject == "drill"]
    tokens = sum(len(doc.ids) for _, doc in drills)
    assert 0.35 < tokens / sum(len(doc.ids) for doc in documents) < 0.6
    assert tokens / len(drills) < 50
    for written, document in drills:
        first = 1 + max(i for i, weight in enumerate(document.weight) if weight == 0)
        assert not written.brief or len(document.ids) - first <= BRIEF[1]


def test_positions_rise_by_one_but_for_the_jumps(tokenizer: Tokenizer, world: World) -> None:
    steps = []
    for b in batches(tokenizer, world, "all", 1, 0, 8, 4, 512):
        same = b.document[:, 1:] == b.document[:, :-1]
        steps.append((b.position[:, 1:] - b.position[:, :-1])[same & (b.document[:, 1:] != EMPTY)])
    step = np.concatenate(steps)
    assert step.min() == 1
    assert 0 < (step > 1).mean() < 0.02


@pytest.mark.slow
def test_the_loss_falls(folder: Path) -> None:
    run = run_in(folder, replace(CONFIG, tokens=60 * 2 * 256))
    seen = [run.advance().trunk for _ in range(45)]
    assert seen[0] == pytest.approx(np.log(1024), rel=0.05)
    assert np.mean(seen[-5:]) < seen[0] - 1.5


@pytest.mark.slow
def test_a_resumed_run_equals_an_unbroken_one(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("unbroken")
    (other / "vocabulary.json").write_bytes((folder / "vocabulary.json").read_bytes())
    train(run_in(folder), stop_at=7)
    resumed = run_in(folder)
    assert resumed.step == 7
    train(resumed)
    unbroken = run_in(other)
    train(unbroken)
    for (name, a), b in zip(resumed.model.named_parameters(), unbroken.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_the_second_part_moves_the_mtp_block_alone(folder: Path) -> None:
    run = run_in(folder, replace(CONFIG, finish=0.5))
    train(run, stop_at=9)
    before = {n: p.clone() for n, p in run.model.named_parameters()}
    result = run.advance()
    assert len(result.drafts) == 3
    moved = {n.split(".")[1] for n, p in run.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {str(SMALL.layers)}


def test_a_run_keeps_the_average_of_its_weights_until_the_trunk_stands_still(folder: Path) -> None:
    run = run_in(folder, replace(CONFIG, finish=0.25, average=2))  # 16 steps, the trunk moves in the first four
    mean: dict[str, torch.Tensor] = {}
    for step in range(4):
        run.advance()
        share = (1, 10 / 11, 10 / 12, 10 / 13)[step]
        for name, p in run.model.named_parameters():
            mean[name] = share * p.detach() + (1 - share) * mean.get(name, 0)
    for name, average in run.average.items():
        torch.testing.assert_close(average, mean[name])
    run.save()
    exported = dict(load_run(folder)[0].named_parameters())
    assert all(torch.equal(exported[name], average) for name, average in run.average.items())
    trunk = {name: average for name, average in run.average.items() if f"blk.{SMALL.layers}." not in name}
    run.advance()
    weights = dict(run.model.named_parameters())
    assert all(torch.equal(weights[name], average) for name, average in trunk.items())
    assert not torch.equal(weights["blk.4.ffn_up.weight"], exported["blk.4.ffn_up.weight"]) and not run.average


def test_an_average_reaches_back_so_many_steps(folder: Path) -> None:
    run = run_in(folder, replace(CONFIG, average=2))
    run.advance()
    run.step = 12  # the newest weights' share would be 10 / 22, were the average longer
    before = {name: average.clone() for name, average in run.average.items()}
    run.advance()
    for name, p in run.model.named_parameters():
        torch.testing.assert_close(run.average[name], (before[name] + p.detach()) / 2)


def test_the_plan_warms_up_falls_and_changes_stages() -> None:
    config = TrainConfig()
    plans = [plan(config, s) for s in range(config.steps)]
    assert plans[0].rate < 0.05 and max(p.rate for p in plans) == 1.0
    assert plans[int((config.finish - 0.01) * config.steps)].rate < 0.1
    assert {p.stage for p in plans[: config.steps // 11]} == {"copying"}
    assert {p.stage for p in plans[config.steps // 2 : int(0.65 * config.steps)]} == {"all"}
    assert {p.stage for p in plans[int(0.8 * config.steps) :]} == {"all", "long"}
    assert [p.trunk for p in plans] == sorted((p.trunk for p in plans), reverse=True)
    assert len({(p.stage, p.group, p.index) for p in plans}) == len(plans)
    trunk = [p.drafts for p in plans if p.trunk]
    assert trunk[:: config.draft_every] == [1] * len(trunk[:: config.draft_every])
    assert sum(trunk) == len(trunk[:: config.draft_every])
    assert {p.drafts for p in plans if not p.trunk} == {config.depth}


def test_training_goes_on_from_an_exported_model(folder: Path, tmp_path: Path) -> None:
    run = run_in(folder)
    train(run, stop_at=3)
    export(run.model, run.tokenizer, tmp_path / "begin.gguf", GGMLQuantizationType.F16)
    begun = Run(tmp_path / "next", CONFIG, DEFAULT_TOUR, bf16=False, begin_from=tmp_path / "begin.gguf")
    for (name, a), b in zip(begun.model.named_parameters(), run.model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4), name
    text = "<|im_start|>user\nZoë's 12 `/models`, ok?<|im_end|>"
    assert begun.tokenizer.encode(text).ids == run.tokenizer.encode(text).ids
    assert begun.world.pieces == run.world.pieces
    train(begun, stop_at=1)
    again = Run(tmp_path / "next", CONFIG, DEFAULT_TOUR, bf16=False, begin_from=tmp_path / "begin.gguf")
    assert again.step == 1  # its own checkpoint counts from then on


def test_a_model_of_another_shape_is_no_beginning(folder: Path, tmp_path: Path) -> None:
    run = run_in(folder)
    export(run.model, run.tokenizer, tmp_path / "begin.gguf")
    other = replace(CONFIG, model=replace(SMALL, ff=128))
    with pytest.raises(TrainError, match="not a model of this shape"):
        Run(tmp_path / "next", other, DEFAULT_TOUR, bf16=False, begin_from=tmp_path / "begin.gguf")


def test_another_configuration_does_not_go_on_with_a_run(folder: Path) -> None:
    train(run_in(folder), stop_at=1)
    with pytest.raises(TrainError, match="another configuration"):
        run_in(folder, replace(CONFIG, seed=1))


def test_an_unreadable_tour_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tour.json").write_text('{"entries": [{"kind": "spell"}]}')
    assert main(["--out", str(tmp_path / "run"), "--tour", str(tmp_path / "tour.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_a_run_goes_on_with_another_length_and_another_tour(folder: Path, tmp_path: Path) -> None:
    train(run_in(folder), stop_at=3)
    longer = replace(CONFIG, tokens=2 * CONFIG.tokens)
    tour = tmp_path / "tour.json"
    tour.write_text(DEFAULT_TOUR.read_text().replace("Begin a new conversation", "Start from an empty page"))
    run = Run(folder, longer, tour, bf16=False)
    assert run.step == 3 and run.config.steps == 2 * CONFIG.steps
    assert "Start from an empty page" in {e.about for e in run.world.tour.entries}
    assert Run(folder, longer, None, bf16=False).world.tour == run.world.tour


def test_few_lengths_of_learnt_tokens_and_the_same_loss(folder: Path) -> None:
    run = run_in(folder)
    weight = torch.zeros(2, 300, dtype=torch.long)
    weight[0, 5:20], weight[1, 3] = 1, 4
    hidden = torch.randn(2, 300, SMALL.hidden)
    target = torch.randint(0, 1024, (2, 300))
    taken, kept = _learnt(weight)
    assert len(taken) == 512 and kept.sum() == 16
    each = functional.cross_entropy(run.model.logits(hidden).transpose(1, 2).float(), target, reduction="none")
    expected = (each * weight).sum() / weight.sum()
    torch.testing.assert_close(_cross_entropy(run.model, hidden, target, weight), expected)
