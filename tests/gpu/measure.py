"""What `run.sh` does. Each part runs in a process of its own with a time limit of its own, and writes its results as
soon as they are there: one that hangs, or leaves the card in a state in which nothing works, costs the others nothing.

Speed is measured on weights that are random and made on the card: what they say is noise, what they cost is not.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.op import OpTable
from kernels.quants import QuantTensor
from kernels.table import FUSED, OPS
from kernels.triton.ahead import TARGETS, Kernel, compile_for, kernels_of
from kernels.triton.card import Card
from kernels.triton.layouts import LAYOUTS, Packed
from runtime.models.config import MoEConfig
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.placement import Placement
from runtime.probe import probe
from runtime.sampling import Sampler, SamplingParams
from runtime.shapes import SHAPES, VOCABULARY, Shaped, ShapedWeights, decode_bytes, q4_k_m
from runtime.speculative import step
from runtime.trust import HALF, distance, moved

GOLDENS = Path(__file__).parents[1] / "goldens"
MODELS = ("4b", "35b-a3b")
LIMITS = {"compile": 110, "ops": 60, "goldens": 80, "bytes_per_s": 20, "4b": 90, "35b-a3b": 110}  # seconds

Note = Callable[[str, Any], None]  # keeps a result, over one of the same name


def compiled(note: Note, card: Card, dry: bool) -> None:
    """What the other parts will need, by all cores at once, into Triton's cache."""
    if card.target not in TARGETS:
        note("left out", f"for {card.target} each part compiles for itself")
        return
    kernels = needed(card.target)
    shares = 1 if dry else os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(shares) as pool:
        work = [(card.target, share, 40 if dry else shares) for share in range(shares)]
        failed = [name for some in pool.starmap(_compile_share, work) for name in some]
    note("kernels", len(kernels))
    note("failed", failed)


def needed(target: str) -> list[Kernel]:
    """The programs of every case of every op, and of the models."""
    card = Card.notes(target)
    table = OpTable("triton", card=card)
    for op in (*OPS, *FUSED):
        for case in op.cases():
            table[op](*moved(case.args, card.device))
    launches = list(card.launches)
    for name in MODELS:
        shaped = Shaped.of(SHAPES[name], target=target)
        for drafts in (0, 1, 3):
            launches += shaped.step(drafts)
        for rows, context in ((3, 0), (512, 0), (512, 512)):
            launches += shaped.prefill(rows, context)
    return kernels_of(launches)


def _compile_share(target: str, share: int, shares: int) -> list[str]:
    failed = []
    for kernel in needed(target)[share::shares]:
        try:
            compile_for(kernel, target, alone=True)
        except Exception as error:  # the others are wanted all the same
            failed.append(f"{kernel.name}: {error}"[:200])
    return failed


def check_ops(note: Note, card: Card, few: bool, known: dict[str, Any]) -> None:
    """The largest distance of each op's cases from its reference, of what its tolerance allows; 1 and more is wrong.

    Ends the process where the card does not work any more; started again, it goes on after what is `known`.
    """
    table = OpTable("triton", card=card)
    for op in (*OPS, *FUSED):
        if op.name in known:
            continue
        note(op.name, "did not end")
        cases = zip(list(op.cases())[: 1 if few else None], op.cases(), strict=False)
        try:
            note(op.name, max(distance(table, op, case, again) for case, again in cases))
        except Exception as error:
            note(op.name, f"{type(error).__name__}: {error}"[:300])
            if card.way == "compiled":
                torch.cuda.synchronize()  # raises where nothing works any more


def check_goldens(note: Note, few: bool) -> None:
    """Distances of logits from those of independent programs, and greedy tokens by steps with drafts."""
    if few:
        results = [_golden("tiny-dense", few)]
    else:
        names = "tiny-dense", "tiny-moe", "tiny-quants", "tiny-yarn"
        with multiprocessing.get_context("spawn").Pool(len(names)) as pool:
            results = pool.map(_golden, names)
    for found in results:
        for name, result in found.items():
            note(name, result)
    if few or torch.cuda.device_count() > 1:
        note("tiny-dense over two cards", _over_cards(3 if few else 65))


def _golden(name: str, few: bool = False) -> dict[str, Any]:
    try:
        with np.load(GOLDENS / f"{name}.npz") as known:
            length = 3 if few else 65
            ids, wanted = [int(i) for i in known[f"ids_{length}"]], known[f"logits_{length}"]
            prompt, tokens = ([int(i) for i in known[f"greedy_{part}"]] for part in ("prompt", "tokens"))
        logits = probe(GOLDENS / f"{name}.gguf", ids, ops="triton")["logits"][-len(wanted) :]
        found: dict[str, Any] = {name: float(np.linalg.norm(logits - wanted) / np.linalg.norm(wanted))}
        tokens = tokens[: 2 if few else None]
        made = drafted(load_model(GOLDENS / f"{name}.gguf", "triton").model, prompt[: 4 if few else None], len(tokens))
        same = sum(a == b for a, b in zip(made, tokens, strict=True))
        return found | ({} if few else {f"{name}, tokens by drafts": f"{same} of {len(tokens)}"})
    except Exception as error:
        return {name: f"{type(error).__name__}: {error}"[:300]}


def _over_cards(length: int) -> float | str:
    """The distance of the logits, with embeddings and head on the second card."""
    try:
        with np.load(GOLDENS / "tiny-dense.npz") as known:
            ids, wanted = [int(i) for i in known[f"ids_{length}"]], torch.from_numpy(known[f"logits_{length}"])
        where = (0, 0, 1, 1, 1)
        model = load_model(GOLDENS / "tiny-dense.gguf", "triton", room=Placement(where, where, 1)).model
        logits = model.logits(model.forward(ids, model.new_state()))[-len(wanted) :].cpu()
        return float((logits - wanted).norm() / wanted.norm())
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]


def drafted(model: Qwen35, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by steps with two drafts each, where the model makes drafts."""
    state = model.new_state()
    hidden = model.forward(prompt, state)
    state.commit()
    sampler = Sampler(SamplingParams(temperature=0), prompt, model.vocabulary)
    tokens = [int(model.logits(hidden[-1:]).argmax())]
    while len(tokens) < count:
        read = step(model, state, tokens[-1:], 2 if model.mtp else 0, sampler)
        right = 0
        while (token := read.choose(right)) == [*read.drafts, None][right]:
            tokens.append(token)
            right += 1
        tokens.append(token)
        state.commit(1 + right)
    return tokens[:count]


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


def measure(note: Note, name: str, card: Card, dry: bool) -> None:
    config = tiny(name) if dry else SHAPES[name]
    weights = RandomWeights(config, config.hidden <= 2560 and not config.moe, 512 if dry else VOCABULARY, card)
    model = Qwen35(weights, weights, config, OpTable("triton", card=card))
    draw = np.random.default_rng(1)
    state = model.new_state()
    model.forward([int(i) for i in draw.integers(0, 500, 3)], state)
    state.commit()
    sampler = Sampler(SamplingParams(temperature=0), [], model.vocabulary)
    decode: dict[str, float] = {}
    for drafts in (1,) if dry else (0, 1, 3):

        def one(drafts: int = drafts) -> None:
            step(model, state, [5], drafts, sampler)
            state.commit(1)

        one()
        decode[f"{drafts} drafts, none right"] = 1 / seconds(one, card, 1 if dry else 64)
        note("decode_tok_per_s", decode)
    note("graphs", model.stepper is not None and getattr(model.stepper, "captures", False))
    shaped = Shaped.of(config)
    note("launches", len(shaped.step(context=state.length)))
    note("least_bytes", decode_bytes(shaped, state.length))
    if not dry:
        note("profile", profile(lambda: step(model, state, [5], 0, sampler)))
    prefill: dict[int, Any] = {}
    taken = 0.0
    for length in (17,) if dry else (512, 4096, 32768):
        if taken * 16 > 45:
            prefill[length] = "left out: it would take too long"
        else:
            state = model.new_state()
            if not prefill and not dry:  # what it takes to load programs is no part of it
                model.forward([int(i) for i in draw.integers(0, 500, 512)], model.new_state())
            started = time.perf_counter()
            for first in range(0, length, 512):
                model.forward([int(i) for i in draw.integers(0, 500, min(512, length - first))], state)
                state.commit()
            if card.way == "compiled":
                torch.cuda.synchronize()
            taken = time.perf_counter() - started
            prefill[length] = length / taken
        note("prefill_tok_per_s", prefill)


def profile(work: Callable[[], Any]) -> list[list[Any]]:
    """The kernels of it that take longest: name, how many, and microseconds of all."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        work()
        torch.cuda.synchronize()
    rows = [[e.key, e.count, getattr(e, "self_device_time_total", 0)] for e in profiled.key_averages()]
    return sorted(rows, key=lambda row: -row[2])[:25]


def tiny(name: str) -> Any:
    """A model of the family that the interpreter gets through."""
    config = SHAPES[name]
    moe = MoEConfig(4, 2, 256, 256) if config.moe else None
    return replace(
        config, hidden=256, ff=0 if moe else 256, layers=2, recurrent=(True, False), heads=2, kv_heads=1, head_dim=128,
        moe=moe, delta=replace(config.delta, key_heads=1, value_heads=2, head_dim=128),
    )  # fmt: skip


def part(name: str, out: Path, dry: bool) -> None:
    """Run one, in this process."""
    if name == "compile":
        card = Card.notes("sm_90" if dry else Card.here().target)
    else:
        card = Card.interpreter() if dry else Card.here()
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    known = dict(found)

    def note(name: str, result: Any) -> None:
        found[name] = result
        out.write_text(json.dumps(found))

    if name == "compile":
        compiled(note, card, dry)
    elif name == "ops":
        check_ops(note, card, dry, known)
    elif name == "goldens":
        check_goldens(note, dry)
    elif name == "bytes_per_s":
        note("copy", roof(card))
    else:
        measure(note, name, card, dry)


def run(name: str, folder: str, dry: bool) -> dict[str, Any]:
    """A part in a process of its own, and again if it broke off with something new to tell."""
    out, started = Path(folder, f"{name}.json"), time.perf_counter()
    environment = {**os.environ, "TRITON_INTERPRET": "0" if name == "compile" or not dry else "1"}
    command = [sys.executable, __file__, str(out), "--part", name, *(["--dry-run"] if dry else [])]
    limit = 900.0 if dry else float(LIMITS[name])
    while True:
        before = out.read_text() if out.exists() else ""
        with subprocess.Popen(command, env=environment, start_new_session=True) as process:
            try:
                code: object = process.wait(max(limit - (time.perf_counter() - started), 1))
            except subprocess.TimeoutExpired:
                code = f"more than {limit:.0f} s"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        text = out.read_text() if out.exists() else ""
        if name != "ops" or code == 0 or text == before or time.perf_counter() - started > limit:
            break
    found: dict[str, Any] = json.loads(text or "{}")
    if code != 0:
        found["error"] = f"ended with {code}"
    return found


def wrong(results: dict[str, Any]) -> Iterator[str]:
    for name in LIMITS:
        if "error" in results[name]:
            yield name
    yield from (f"program {name}" for name in results["compile"].get("failed", []))
    for op in (*OPS, *FUSED):
        off = results["ops"].get(op.name)
        if not (isinstance(off, float) and off < 1):
            yield op.name
    for name, off in results["goldens"].items():
        if not ((isinstance(off, float) and off < HALF) or "tokens" in name):
            yield name


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", type=Path, default=Path("gpu-results.json"))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--part", choices=LIMITS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    dry = options.dry_run
    if options.part:
        part(options.part, options.out, dry)
        return 0
    if not dry and not torch.cuda.is_available():
        print("No GPU was found; --dry-run runs without one.", file=sys.stderr)
        return 2
    import triton

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # so that a part that still runs is ended too
    results: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "card": "interpreter"}
    if not dry:
        results["card"], results["target"] = torch.cuda.get_device_name(), Card.here().target
    with tempfile.TemporaryDirectory() as folder:
        for name in LIMITS:
            started = time.perf_counter()
            results[name] = run(name, folder, dry)
            if name in MODELS:
                plain = results[name].get("decode_tok_per_s", {}).get("0 drafts, none right", math.nan)
                least, copy = results[name].get("least_bytes", math.nan), results["bytes_per_s"].get("copy", math.nan)
                results[name]["share_of_roof"] = least * plain / copy
            results.setdefault("seconds", {})[name] = round(time.perf_counter() - started, 1)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{name}: {json.dumps(results[name])[:300]}", flush=True)
    found = list(wrong(results))
    print("Wrong: " + ", ".join(found) if found else "All is right.")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
