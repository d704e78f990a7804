"""What `run.sh` does. Each part's results are written as soon as they are there, so that a time limit loses none.

Speed is measured on weights that are random and made on the card: what they say is noise, what they cost is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.op import OpTable
from kernels.quants import QuantTensor
from kernels.table import FUSED, OPS
from kernels.triton.card import Card
from kernels.triton.layouts import LAYOUTS, Packed
from runtime.models.config import MoEConfig
from runtime.models.qwen35 import Qwen35
from runtime.probe import probe
from runtime.sampling import Sampler, SamplingParams
from runtime.shapes import SHAPES, VOCABULARY, Shaped, ShapedWeights, decode_bytes, q4_k_m
from runtime.speculative import step
from runtime.trust import BF16, distance

GOLDENS = Path(__file__).parents[1] / "goldens"


def check_ops(card: Card, few: bool) -> dict[str, float]:
    """The largest distance of each op's cases from its reference, of what its tolerance allows; 1 and more is wrong."""
    table, worst = OpTable("triton", card=card), {}
    for op in (*OPS, *FUSED):
        cases = zip(list(op.cases())[: 1 if few else None], op.cases(), strict=False)
        worst[op.name] = max(distance(table, op, case, again) for case, again in cases)
    return worst


def check_goldens(few: bool) -> dict[str, float]:
    """Distances of logits from those of independent programs."""
    found = {}
    for name in ("tiny-dense",) if few else ("tiny-dense", "tiny-moe", "tiny-quants", "tiny-yarn"):
        with np.load(GOLDENS / f"{name}.npz") as known:
            length = 3 if few else 65
            ids, wanted = [int(i) for i in known[f"ids_{length}"]], known[f"logits_{length}"]
            logits = probe(GOLDENS / f"{name}.gguf", ids, ops="triton")["logits"][-len(wanted) :]
            found[name] = float(np.linalg.norm(logits - wanted) / np.linalg.norm(wanted))
    return found


class RandomWeights(ShapedWeights):
    """Random weights of ordinary size, packed on the card."""

    def __init__(self, config: Any, tied: bool, vocabulary: int, card: Card) -> None:
        super().__init__(config, q4_k_m, tied, vocabulary)
        self._card, self._random = card, torch.Generator(card.device).manual_seed(1)

    def take(self, name: str, *shape: int) -> QuantTensor:
        weight = super().take(name, *shape)
        layout, device = LAYOUTS[weight.type.name], self._card.device
        blocks = -(-weight.data.numel() // weight.type.nbytes // 16) * 16
        data = torch.empty(blocks * layout.nbytes, dtype=torch.uint8, device=device)
        data.random_(0, 256, generator=self._random)
        size = shape[-1] ** -0.5
        if layout.block == 1:
            data.view(torch.float32).normal_(0, size, generator=self._random)
        else:
            scale = size / (31.5 * 4.6) if layout.kind == LAYOUTS["Q4_K"].kind else size / (74 * 18.5)
            last = data[blocks * (layout.nbytes - layout.last) :].view(torch.float16)
            last.fill_(scale)
            if layout.kind == LAYOUTS["Q4_K"].kind:
                last[1::2] = 7.5 * scale
        self._card.hold(weight, Packed(data, layout, weight.shape))
        return weight

    def dense(self, name: str, *shape: int) -> Tensor:
        self.used[name] = 4 * int(np.prod(shape))
        numbers = torch.randn(*shape, generator=self._random, device=self._card.device)
        if name.endswith("ssm_a"):
            return -numbers.abs() - 1
        return 1 + 0.1 * numbers if "norm" in name else 0.5 * numbers


def seconds(work: Callable[[], Any], card: Card, times: int) -> float:
    """Of one, the median."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        if card.way == "compiled":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2]


def roof(card: Card) -> float:
    """Bytes per second of a copy on the card, read and written."""
    if card.way != "compiled":
        return float("nan")
    source = torch.empty(1 << 30, dtype=torch.uint8, device=card.device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source), card, 10)


def measure(name: str, config: Any, card: Card, speed: float, *, tokens: int, prefills: tuple[int, ...]) -> Any:
    vocabulary = VOCABULARY if card.way == "compiled" else 512
    weights = RandomWeights(config, config.hidden <= 2560 and not config.moe, vocabulary, card)
    model = Qwen35(weights, weights, config, OpTable("triton", card=card))
    found: dict[str, Any] = {"prefill_tok_per_s": {}, "decode_tok_per_s": {}}
    draw = np.random.default_rng(1)
    for length in prefills:
        state, started = model.new_state(), time.perf_counter()
        for first in range(0, length, 512):
            model.forward([int(i) for i in draw.integers(0, 500, min(512, length - first))], state)
            state.commit()
        if card.way == "compiled":
            torch.cuda.synchronize()
        found["prefill_tok_per_s"][length] = length / (time.perf_counter() - started)
    state = model.new_state()
    model.forward([int(i) for i in draw.integers(0, 500, 3)], state)
    state.commit()
    sampler = Sampler(SamplingParams(temperature=0), [], model.vocabulary)
    for drafts in (0, 1, 3) if card.way == "compiled" else (1,):

        def one(drafts: int = drafts) -> None:
            step(model, state, [5], drafts, sampler)
            state.commit(1)

        one()
        found["decode_tok_per_s"][f"{drafts} drafts, none right"] = 1 / seconds(one, card, tokens)
    shaped = Shaped.of(config)
    found["launches"] = len(shaped.step(context=state.length))
    found["least_bytes"] = decode_bytes(shaped, state.length)
    if plain := found["decode_tok_per_s"].get("0 drafts, none right"):
        found["share_of_roof"] = found["least_bytes"] * plain / speed
    found["graphs"] = model.stepper is not None and getattr(model.stepper, "captures", False)
    if card.way == "compiled":
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
            step(model, state, [5], 0, sampler)
            torch.cuda.synchronize()
        found["profile"] = profiled.key_averages().table(sort_by="cuda_time_total", row_limit=20)
    return found


def tiny(name: str) -> Any:
    """A model of the family that the interpreter gets through."""
    config = SHAPES[name]
    moe = MoEConfig(4, 2, 256, 256) if config.moe else None
    return replace(
        config, hidden=256, ff=0 if moe else 256, layers=2, recurrent=(True, False), heads=2, kv_heads=1, head_dim=128,
        moe=moe, delta=replace(config.delta, key_heads=1, value_heads=2, head_dim=128),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", type=Path, default=Path("gpu-results.json"))
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    dry = options.dry_run
    card = Card.interpreter() if dry else Card.here()
    if card.way != "compiled" and not dry:
        print("No GPU was found; --dry-run runs without one.", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"torch": torch.__version__, "card": "interpreter"}
    if not dry:
        results["card"] = torch.cuda.get_device_name()

    def add(name: str, part: Callable[[], Any]) -> None:
        started = time.perf_counter()
        try:
            results[name] = part()
        except Exception as error:  # the other parts still tell something
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        results.setdefault("seconds", {})[name] = round(time.perf_counter() - started, 1)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: {json.dumps(results[name])[:300]}", flush=True)

    add("ops", lambda: check_ops(card, dry))
    add("goldens", lambda: check_goldens(dry))
    add("bytes_per_s", lambda: roof(card))
    speed = results["bytes_per_s"] if isinstance(results["bytes_per_s"], float) else float("nan")
    sizes = (17,) if dry else (512, 4096, 32768)
    for name in ("4b", "35b-a3b"):
        config = tiny(name) if dry else SHAPES[name]
        add(name, lambda: measure(name, config, card, speed, tokens=1 if dry else 64, prefills=sizes))  # noqa: B023
    wrong = [op for op, off in results["ops"].items() if not (isinstance(off, float) and off < 1)]
    wrong += [name for name, off in results["goldens"].items() if not (isinstance(off, float) and off < BF16)]
    wrong += [name for name in ("4b", "35b-a3b") if "error" in results[name]]
    print("Wrong: " + ", ".join(wrong) if wrong else "All is right.")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
