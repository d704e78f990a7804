"""Trains the built-in model: `python -m runtime.builtin.train --out DIR`. Run again with the same DIR, it goes on.

Two parts. First the whole model, with the MTP block's first draft along; then the MTP block alone, on a trunk that
no longer moves, for drafts of three in a row. There it learns from the trunk's own distribution, at a third of the
cost, and on its own outputs, as in decoding.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from runtime.builtin.batches import EMPTY, Batch, batches
from runtime.builtin.corpus.mix import Stage
from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.tour import DEFAULT_TOUR, TourError, read_tour
from runtime.builtin.evaluate import figures
from runtime.builtin.evaluate import run as hold
from runtime.builtin.export import import_weights
from runtime.builtin.generate import Generator
from runtime.builtin.held_out import cases, reserved
from runtime.builtin.model import LanguageModel
from runtime.builtin.muon import Muon
from runtime.builtin.schedule import GROUP, Plan, TrainConfig, plan
from runtime.builtin.vocabulary import load_vocabulary, pieces, train_vocabulary

LONG = 2048


class TrainError(Exception):
    """The training cannot go on; the message is a sentence for the user."""


class Data:
    """The batch of a plan; groups are packed when first asked for, one of each stage is kept."""

    def __init__(self, config: TrainConfig, world: World, tokenizer: Any) -> None:
        self.config, self.world, self.tokenizer = config, world, tokenizer
        self.kept: dict[Stage, tuple[int, list[Batch]]] = {}

    def batch(self, p: Plan) -> Batch:
        c = self.config
        if p.stage not in self.kept or self.kept[p.stage][0] != p.group:
            length = LONG if p.stage == "long" else c.length
            rows = max(1, c.rows * c.length // length)
            made = batches(self.tokenizer, self.world, p.stage, c.seed, p.group, GROUP, rows, length)
            self.kept[p.stage] = p.group, list(made)
        return self.kept[p.stage][1][p.index]


@dataclass(frozen=True, slots=True)
class Losses:
    total: Tensor
    trunk: float
    drafts: tuple[float, ...]


def losses(model: LanguageModel, batch: Batch, p: Plan, config: TrainConfig) -> Losses:
    """Mean cross-entropy in nats, weighted: of the next token, and of each draft."""
    ids = torch.from_numpy(batch.ids)
    weight = torch.from_numpy(batch.weight)
    document = torch.from_numpy(batch.document)
    T = document.shape[1]
    packed = model.packed(document, torch.from_numpy(batch.position))
    with torch.set_grad_enabled(p.trunk):
        hidden = model.hidden(ids[:, :T], packed)
    trunk, total = 0.0, torch.zeros(())
    if p.trunk:
        w = weight[:, 1 : T + 1] * _same(document, 1)
        loss = _cross_entropy(model, hidden, ids[:, 1 : T + 1], w)
        trunk, total = loss.item(), loss
    results = []
    for j, state in enumerate(model.drafts(hidden, ids, packed, p.drafts)):
        w = weight[:, 2 + j : T + 2 + j] * _same(document, 2 + j)
        if p.trunk:
            loss = _cross_entropy(model, state, ids[:, 2 + j : T + 2 + j], w)
            total = total + config.draft_weight * loss
        else:
            loss = _distil(model, state, hidden, j, w)
            total = total + loss / p.drafts
        results.append(loss.item())
    return Losses(total, trunk, tuple(results))


def _same(document: Tensor, distance: int) -> Tensor:
    """Whether the token `distance` further belongs to the same document [B, T]."""
    later = functional.pad(document[:, distance:], (0, distance), value=EMPTY)
    return ((later == document) & (document != EMPTY)).long()


def _cross_entropy(model: LanguageModel, hidden: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    take, kept = _learnt(weight)
    w = weight.flatten()[take].float() * kept
    logits = model.logits(hidden.flatten(0, 1)[take]).float()
    each = functional.cross_entropy(logits, target.flatten()[take], reduction="none")
    return (each * w).sum() / w.sum()


def _learnt(weight: Tensor, step: int = 512) -> tuple[Tensor, Tensor]:
    """Flat places of the learnt tokens, up to a multiple of `step`, and 1 for each or 0 where it only fills up.

    Few lengths, since the matrix library makes and keeps code for each shape that it meets: with lengths as they come
    a run grew by 14 MB a step.
    """
    places = (weight > 0).flatten().nonzero().squeeze(1)
    filled = functional.pad(places, (0, -len(places) % step))
    kept = functional.pad(torch.ones(len(places)), (0, len(filled) - len(places)))
    return filled, kept


def _distil(model: LanguageModel, state: Tensor, hidden: Tensor, j: int, weight: Tensor) -> Tensor:
    """Cross-entropy of draft j against the trunk's own distribution of the same token."""
    T = weight.shape[1] - j - 1
    take, kept = _learnt(weight[:, :T])
    with torch.no_grad():
        target = model.logits(hidden[:, j + 1 :].flatten(0, 1)[take]).float().softmax(-1)
    logits = model.logits(state[:, :T].flatten(0, 1)[take]).float()
    each = functional.cross_entropy(logits, target, reduction="none")
    return (each * kept).sum() / kept.sum()


def optimisers(model: LanguageModel, config: TrainConfig, bf16: bool) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices, AdamW for the embedding, the decay inputs, the convolutions, norms and biases."""
    matrices, decayed, plain = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            plain.append(parameter)
        elif any(part in name for part in ("token_embd", "ssm_alpha", "ssm_beta", "ssm_conv1d")):
            decayed.append(parameter)
        else:
            matrices.append(parameter)
    muon = Muon(matrices, config.muon_rate, 0.95, config.weight_decay, torch.bfloat16 if bf16 else torch.float32)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return muon, torch.optim.AdamW(groups, lr=config.adam_rate, betas=(0.9, 0.98), fused=True)


class Run:
    """A training run in a folder: vocabulary, tour, checkpoint and log."""

    def __init__(
        self, out: Path, config: TrainConfig, tour: Path | None, bf16: bool, begin_from: Path | None = None
    ) -> None:
        self.out, self.config, self.bf16 = out, config, bf16
        out.mkdir(parents=True, exist_ok=True)
        if tour is not None or not (out / "tour.json").exists():
            read_tour(tour or DEFAULT_TOUR)
            (out / "tour.json").write_bytes((tour or DEFAULT_TOUR).read_bytes())
        base = World(read_tour(out / "tour.json"))
        torch.manual_seed(config.seed)
        self.model = LanguageModel(config.model)
        if begin_from is not None and not self.checkpoint.exists():
            self._begin_from(begin_from)
        if not (out / "vocabulary.json").exists():
            train_vocabulary(base, config.model.vocabulary, config.seed).save(str(out / "vocabulary.json"))
        self.tokenizer = load_vocabulary(out / "vocabulary.json")
        self.world = World(base.tour, pieces(self.tokenizer), reserved(base.tour))
        self.data = Data(config, self.world, self.tokenizer)
        self.muon, self.adam = optimisers(self.model, config, bf16)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.step = 0
        self.seconds = 0.0
        if self.checkpoint.exists():
            self._resume()

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint.pt"

    def _begin_from(self, path: Path) -> None:
        try:
            import_weights(self.model, path).save(str(self.out / "vocabulary.json"))
        except (OSError, ValueError) as error:
            raise TrainError(str(error)) from error

    def _resume(self) -> None:
        saved = torch.load(self.checkpoint, weights_only=True)
        if dataclasses.replace(TrainConfig.from_dict(saved["config"]), tokens=self.config.tokens) != self.config:
            raise TrainError(f"The run in {self.out} was begun with another configuration; give it a new folder.")
        self.model.load_state_dict(saved["model"])
        self.muon.load_state_dict(saved["muon"])
        self.adam.load_state_dict(saved["adam"])
        self.average = saved["average"]
        self.step, self.seconds = saved["step"], saved["seconds"]

    def save(self) -> None:
        body = {
            "config": dataclasses.asdict(self.config),
            "model": self.model.state_dict(),
            "average": self.average,
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(body, part)
        part.replace(self.checkpoint)

    def advance(self) -> Losses:
        """One step."""
        p = plan(self.config, self.step)
        if not p.trunk and self.average:
            self._settle()
        for optimiser, rate in ((self.muon, self.config.muon_rate), (self.adam, self.config.adam_rate)):
            for group in optimiser.param_groups:
                group["lr"] = rate * p.rate
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(p.trunk or name.startswith(f"blk.{self.config.model.layers}."))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            result = losses(self.model, self.data.batch(p), p, self.config)
        if not torch.isfinite(result.total):
            raise TrainError(f"The loss is no longer finite at step {self.step}; the last checkpoint is kept.")
        result.total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.muon.step()
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        if self.average:
            share = max(1 / self.config.average, 10 / (self.step + 10))  # a young run's: over its last tenth
            with torch.no_grad():
                torch._foreach_lerp_(list(self.average.values()), list(self.model.parameters()), share)
        self.step += 1
        return result

    def _settle(self) -> None:
        """The averages become the weights, and are no longer kept: the MTP block is to follow what is exported."""
        self.model.load_state_dict(self.average)
        self.average = {}

    def compile(self) -> None:
        """Fuse the element-wise work of each block; costs a minute or two at the start."""
        torch._dynamo.config.cache_size_limit = 64
        for block in self.model.trunk:
            block.compile(dynamic=False)

    def log(self, entry: dict[str, Any]) -> None:
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        print(json.dumps(entry), flush=True)


def train(
    run: Run,
    stop_at: int | None = None,
    save_minutes: float = 5.0,
    log_every: int = 20,
    evaluate_every: int | None = None,
) -> None:
    """Train to the end, to step `stop_at`, or until asked to stop (SIGINT, SIGTERM); saves in each case."""
    asked: list[int] = []
    handlers = {s: signal.signal(s, lambda number, _: asked.append(number)) for s in (signal.SIGINT, signal.SIGTERM)}
    end = run.config.steps if stop_at is None else min(stop_at, run.config.steps)
    begun, before = time.monotonic(), run.seconds
    saved, seen = begun, run.step
    recent: list[Losses] = []
    try:
        while run.step < end and not asked:
            recent.append(run.advance())
            now = time.monotonic()
            run.seconds = before + now - begun
            if run.step % log_every == 0 or run.step == end:
                run.log(_figures(run, recent, seen, now - begun))
                recent.clear()
            if evaluate_every and run.step % evaluate_every == 0:
                run.log({"step": run.step} | quick_evaluation(run))
            if now - saved > 60 * save_minutes:
                run.save()
                saved = now
        run.save()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _figures(run: Run, recent: list[Losses], since: int, seconds: float) -> dict[str, Any]:
    tokens = run.config.rows * run.config.length
    depth = max(len(x.drafts) for x in recent)
    return {
        "step": run.step,
        "of": run.config.steps,
        "tokens": run.step * tokens,
        "loss": round(sum(x.trunk for x in recent) / len(recent), 4),
        "drafts": [round(_mean(x.drafts[j] for x in recent if len(x.drafts) > j), 4) for j in range(depth)],
        "tokens_per_second": round((run.step - since) * tokens / max(seconds, 1e-9)),
        "minutes": round(run.seconds / 60, 2),
    }


def quick_evaluation(run: Run, every: int = 7) -> dict[str, Any]:
    """Figures on every seventh held-out dialogue (an odd step meets both modes), and the drafts' acceptance on them."""
    tour = run.world.tour
    generator = Generator(run.model, run.tokenizer)
    outcomes = hold(generator, cases(tour)[::every], tour)
    accepted = generator.acceptance([o.replies[-1] for o in outcomes])
    return figures(outcomes) | {"acceptance": dataclasses.asdict(accepted)}


def _mean(numbers: Iterator[float]) -> float:
    values = list(numbers)
    return sum(values) / len(values)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.builtin.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the run; an existing run goes on")
    parser.add_argument("--tour", type=Path, help="what the app exported of itself; in a run that goes on, a new one")
    parser.add_argument(
        "--tokens",
        type=float,
        default=TrainConfig().tokens,
        help="training tokens in all; may change from one start to the next",
    )
    parser.add_argument(
        "--begin-from",
        type=Path,
        metavar="FILE.gguf",
        help="train a model that was exported further, with its vocabulary; only a new run asks for it",
    )
    parser.add_argument("--rate", type=float, default=1.0, help="factor of all learning rates of a new run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--no-compile", action="store_true", help="run without torch.compile")
    parser.add_argument("--evaluate-every", type=int, metavar="STEPS", help="log figures on held-out dialogues")
    parser.add_argument("--stop-at", type=int, help="stop after this step, to go on later")
    options = parser.parse_args(arguments)
    fast_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    bf16 = options.precision == "bf16" or (options.precision == "auto" and fast_bf16)
    try:
        config = TrainConfig(tokens=int(options.tokens), seed=options.seed).scaled(options.rate)
        if options.begin_from is not None:
            config = dataclasses.replace(config, copying=0.0)  # it copies already
        run = Run(options.out, config, options.tour, bf16, options.begin_from)
        torch.set_num_threads(options.threads)
        torch.set_flush_denormal(True)
        if not options.no_compile:
            run.compile()
        train(run, options.stop_at, evaluate_every=options.evaluate_every)
    except (TrainError, TourError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
