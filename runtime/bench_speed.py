"""How fast a model loads, reads and writes on this machine.

`load_s` is the time to the first token, packing and recording included. A decode step is what the engine does for a
token of a reply without drafts: through the trunk and the head, and the choice of the next; `python_ms` is the part of
it that is not spent in native functions. All but the first block of a long context is random keys and values, since to
read it would take minutes and none of its numbers matters.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.op import Column
from runtime.cache import SequenceState
from runtime.gguf import GGUFFile
from runtime.kv_cache import BLOCK
from runtime.models.config import ModelConfig
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.sampling import Sampler, SamplingParams
from runtime.speculative import step

_TOKEN = 9  # any: speed depends on none


@dataclass(frozen=True)
class Decode:
    """Medians over single tokens after `context` others."""

    context: int
    tok_per_s: float
    cpu_ms: float  # of all threads, per token: not what other programs took
    python_ms: float
    gb_per_s: float  # of weights and cache


@dataclass(frozen=True)
class Report:
    model: str
    threads: int
    ops: str
    load_s: float
    prefill_tokens: int
    prefill_tok_per_s: float
    prefill_cpu_ms: float  # of all threads, per token
    decode: tuple[Decode, ...]
    peak_mb: float
    good: bool = True  # there is nothing to hold it to

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        lines = [
            f"{self.model}, {self.ops}, {self.threads} threads, {self.peak_mb:.0f} MB at most",
            f"first token after {self.load_s:.2f} s",
        ]
        if self.prefill_tokens:
            lines.append(
                f"prefill of {self.prefill_tokens}: {self.prefill_tok_per_s:.0f} tok/s, "
                f"{self.prefill_cpu_ms:.1f} ms of processor time each"
            )
        lines += [
            f"decode after {decode.context}: {decode.tok_per_s:.1f} tok/s, {decode.gb_per_s:.1f} GB/s, "
            f"{decode.cpu_ms:.1f} ms of processor time, {decode.python_ms:.2f} ms in Python"
            for decode in self.decode
        ]
        return "\n".join(lines)


def measure(
    path: Path, contexts: list[int], prefill: int, tokens: int, threads: int, ops: Column, repeats: int
) -> Report:
    """Raises UserError for files that cannot be run."""
    torch.set_num_threads(threads)
    started = time.perf_counter()
    loaded = load_model(path, ops, threads=threads)
    model = loaded.model
    state = model.new_state()
    hidden = model.forward([_TOKEN], state)
    model.logits(hidden)
    load = time.perf_counter() - started
    del state, hidden
    weights = read_by_a_token(loaded.gguf, model.config)
    rate, used = _prefill(model, prefill, repeats) if prefill else (0.0, 0.0)
    return Report(
        model=path.name,
        threads=threads,
        ops=model.ops.column,
        load_s=load,
        prefill_tokens=prefill,
        prefill_tok_per_s=rate,
        prefill_cpu_ms=used,
        decode=tuple(_decode(model, context, tokens, weights) for context in contexts),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (10 if sys.platform == "linux" else 20)),
    )


def read_by_a_token(gguf: GGUFFile, config: ModelConfig) -> int:
    """Bytes of the weights that a token without drafts reads: of experts those that it chooses, of embeddings the head
    alone, of the MTP block nothing.
    """
    total, spare = 0.0, "token_embd.weight" if "output.weight" in gguf.tensors else None
    for name, info in gguf.tensors.items():
        if "_exps." in name and config.moe:
            total += info.nbytes * config.moe.used / config.moe.experts
        elif not name.startswith(f"blk.{config.layers}.") and name != spare:
            total += info.nbytes
    return round(total)


def _prefill(model: Qwen35, tokens: int, repeats: int) -> tuple[float, float]:
    """Tokens per second and milliseconds of processor time per token."""
    rates, used = [], []
    for _ in range(repeats):
        state = model.new_state()
        started, cpu = time.perf_counter(), time.process_time()
        while state.length < tokens:
            hidden = model.forward([_TOKEN] * min(model.config.prefill_chunk, tokens - state.length), state)
            state.commit()
        model.logits(hidden[-1:])
        rates.append(tokens / (time.perf_counter() - started))
        used.append(1e3 * (time.process_time() - cpu) / tokens)
        del state, hidden  # one at a time: the most memory is that of one conversation
    return statistics.median(rates), statistics.median(used)


def _with_context(model: Qwen35, tokens: int) -> SequenceState:
    state = model.new_state()
    model.forward([_TOKEN] * min(BLOCK, tokens), state)
    state.commit()
    if tokens > state.length:
        caches = (state.kv, 0), *([(state.mtp_kv, 1)] if state.mtp_kv else [])
        for cache, behind in caches:
            first = len(cache.blocks)
            cache.reserve(state.length, tokens - behind - state.length)
            for block in cache.blocks[first:]:
                for tensor in block.tensors.values():
                    tensor.normal_()
        state.ids.extend([_TOKEN] * (tokens - state.length))
    return state


def _decode(model: Qwen35, context: int, tokens: int, weights: int) -> Decode:
    state, sampler = _with_context(model, context), Sampler(SamplingParams(temperature=0), (), model.vocabulary)
    walls, cpus, outside = [], [], []
    for _ in range(tokens + 2):  # the first ones may record
        native = model.ops.machine.native_seconds if model.ops.machine else 0.0
        wall, cpu = time.perf_counter(), time.process_time()
        chosen = step(model, state, [_TOKEN], 0, sampler)
        state.commit()
        chosen.choose(0)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        outside.append(walls[-1] - (model.ops.machine.native_seconds - native if model.ops.machine else 0.0))
    typical = statistics.median(walls[2:])
    cache = sum(block.nbytes for block in state.kv.blocks)
    return Decode(
        context,
        1 / typical,
        1e3 * statistics.median(cpus[2:]),
        1e3 * statistics.median(outside[2:]),
        (weights + cache) / typical / 1e9,
    )
