"""Models that have shapes but no weights: what their forwards would launch on a GPU, and how much they would read.

python -m runtime.shapes                      launches and bytes of a token
python -m runtime.shapes --compile [NAME …]   every kernel, compiled for the cards named, or for all known ones
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kernels.fused import norm_projections, norm_swiglu
from kernels.op import OpTable
from kernels.quant_matmul import embedding
from kernels.quants import QUANTS, QuantTensor
from kernels.table import FUSED, OPS
from kernels.triton.ahead import TARGETS, Kernel, compile_for, kernels_of, table
from kernels.triton.card import Card, Launch
from kernels.triton.kept import Compiled, Kept
from kernels.triton.layouts import LAYOUTS
from kernels.triton.tiles import Tiles, tiles_of
from runtime.graphs import step
from runtime.kv_cache import KVType
from runtime.models.config import DeltaNetConfig, ModelConfig, MoEConfig, RopeConfig
from runtime.models.qwen35 import Qwen35
from runtime.models.slabs import ROWS, Layout, Past
from runtime.models.stepping import Plan
from runtime.sampling import Sampler
from runtime.trust import moved
from runtime.weights import Weights

VOCABULARY = 248_320
_META = torch.device("meta")


def _dense(hidden: int, ff: int, layers: int, heads: int, kv: int, value_heads: int) -> ModelConfig:
    return ModelConfig(
        architecture="qwen35", hidden=hidden, layers=layers, recurrent=tuple((i + 1) % 4 != 0 for i in range(layers)),
        ff=ff, heads=heads, kv_heads=kv, head_dim=256, eps=1e-6, trained_context=262_144,
        rope=RopeConfig(1e7, 64, (11, 11, 10)), delta=DeltaNetConfig(16, value_heads, 128, 4), moe=None, mtp_layers=1,
    )  # fmt: skip


def _sparse(hidden: int, layers: int, heads: int, kv: int, value_heads: int, moe: MoEConfig) -> ModelConfig:
    return replace(_dense(hidden, 0, layers, heads, kv, value_heads), architecture="qwen35moe", moe=moe)


SHAPES: dict[str, ModelConfig] = {
    "0.8b": _dense(1024, 3584, 24, 8, 2, 16),
    "2b": _dense(2048, 6144, 24, 8, 2, 16),
    "4b": _dense(2560, 9216, 32, 16, 4, 32),
    "9b": _dense(4096, 12288, 32, 16, 4, 32),
    "27b": _dense(5120, 17408, 64, 24, 4, 48),
    "35b-a3b": _sparse(2048, 40, 16, 2, 32, MoEConfig(256, 8, 512, 512)),
}

Mix = Callable[[str], str]


def q4_k_m(name: str) -> str:
    """As files of that name mix their types, in the main."""
    if name in ("output.weight", "token_embd.weight"):
        return "Q6_K"
    if name.endswith("ffn_gate_inp.weight"):
        return "F32"
    if "attn_v" in name or "ffn_down" in name or "attn_qkv" in name:
        layer = int(name.split(".")[1])
        return "Q6_K" if layer % 2 else "Q4_K"
    return "Q4_K"


def uniform(type_: str) -> Mix:
    return lambda name: "F32" if name.endswith("ffn_gate_inp.weight") else type_


class ShapedWeights(Weights):
    """Every tensor that a model asks for, without numbers; `used` are the bytes that a token reads of them."""

    def __init__(self, config: ModelConfig, mix: Mix, tied: bool, vocabulary: int = VOCABULARY) -> None:
        self._mix, self._tied, self._config, self._vocabulary = mix, tied, config, vocabulary
        self.used: dict[str, float] = {}

    def has(self, name: str) -> bool:
        return name == "output.weight" and not self._tied

    def rows(self, name: str) -> int:
        return self._vocabulary

    def take(self, name: str, *shape: int) -> QuantTensor:
        quant = QUANTS[self._mix(name)]
        data = torch.empty(*shape[:-1], quant.row_bytes(shape[-1]), dtype=torch.uint8, device=_META)
        moe = self._config.moe
        self.used[name] = data.numel() * (moe.used / moe.experts if moe and len(shape) == 3 else 1)
        if name == "token_embd.weight" and not self._tied:
            self.used[name] = quant.row_bytes(shape[-1])
        return QuantTensor(data, quant, tuple(shape))

    def dense(self, name: str, *shape: int) -> Tensor:
        self.used[name] = 4 * math.prod(shape)
        return torch.empty(*shape, device=_META)

    def norm(self, name: str, size: int) -> Tensor:
        return self.dense(name, size)


@dataclass(frozen=True)
class Noted:
    """A model on a card that only notes."""

    model: Qwen35
    card: Card

    def prefill(self, rows: int, context: int = 0, kv: KVType = "f16") -> list[Launch]:
        """What a forward of `rows` tokens after `context` others launches."""
        del self.card.launches[:]
        state = self.model.new_state(kv)
        state.ids = [0] * context
        state.hidden = torch.empty(self.model.config.hidden, device=_META) if context else None
        state.kv.reserve(0, context)
        self.model.forward([0] * rows, state)
        return list(self.card.launches)

    def step(self, drafts: int = 0, context: int = 1024, kv: KVType = "f16") -> list[Launch]:
        """What a step of decoding launches: `drafts` made, all rows verified, a token chosen after each."""
        del self.card.launches[:]
        model, config = self.model, self.model.config
        state = model.new_state(kv)
        state.kv.reserve(0, context + ROWS)
        if state.mtp_kv:
            state.mtp_kv.reserve(0, context + ROWS)
        layout = Layout(config)
        slabs = ([torch.empty(n, device=_META) for n in (layout.size, layout.states_size)] for _ in range(2))
        (_, layers), (_, after) = (layout.views(*parts) for parts in slabs)
        angle = torch.empty(ROWS + 1, config.rope.dim // 2, device=_META)
        one = torch.empty(1, dtype=torch.long, device=_META)
        step(
            model, state, [Past(left, one, one) for left in layers], Plan(1, drafts, chosen=True, each=drafts > 0),
            ids=torch.empty(ROWS, dtype=torch.long, device=_META), last=torch.empty(config.hidden, device=_META),
            tokens=torch.empty(ROWS, dtype=torch.long, device=_META),
            sampler=[part.to(_META) for part in Sampler.places(model.vocabulary)], angles=(angle, angle),
            start=context, starts=torch.empty(ROWS + 2, dtype=torch.long, device=_META), into=after,
        )  # fmt: skip
        return list(self.card.launches)


@dataclass(frozen=True)
class Shaped(Noted):
    """A model without weights."""

    weights: ShapedWeights

    @classmethod
    def of(cls, config: ModelConfig, mix: Mix = q4_k_m, target: str = "sm_90") -> Shaped:
        card = Card.notes(target)
        weights = ShapedWeights(config, mix, tied=config.hidden <= 2560 and not config.moe)
        return cls(Qwen35(weights, weights, config, OpTable("triton", card=card)), card, weights)


def decode_bytes(shaped: Shaped, context: int, kv: KVType = "f16") -> float:
    """What a token must read and write at least: the weights that it uses, its keys and values, and its states."""
    config = shaped.model.config
    weights = sum(size for name, size in shaped.weights.used.items() if not name.startswith(f"blk.{config.layers}."))
    row = 2 * config.kv_heads * (config.head_dim + 4 if kv == "q8" else {"f16": 2, "f32": 4}[kv] * config.head_dim)
    delta = config.delta
    states = 2 * 4 * delta.value_heads * delta.head_dim**2 * config.recurrent.count(True)
    return weights + config.attention_layers * row * (context + 1) + states


def every_launch(target: str = "sm_90", names: Sequence[str] = ("4b", "35b-a3b")) -> Iterator[Launch]:
    """On a card, of the models in Q4_K_M: steps without and with drafts, few rows and many, both types of cache;
    products of one row, a few and many with every type of weights; and the kernels of ops that these do without."""
    shaped = [Shaped.of(SHAPES[name], target=target) for name in names]
    for model in shaped:
        yield from model.step(0)
        yield from model.step(3)
        yield from model.prefill(512, 512)
    yield from shaped[0].prefill(512, 512, kv="q8")
    yield from shaped[0].step(3, kv="q8")
    card = Card.notes(target)
    table = OpTable("triton", card=card)
    norm = torch.empty(2560, device=_META)
    for type_ in LAYOUTS:
        data = torch.empty(9216, QUANTS[type_].row_bytes(2560), dtype=torch.uint8, device=_META)
        weight = QuantTensor(data, QUANTS[type_], (9216, 2560))
        for rows in (1, 4, 512):
            x = torch.empty(rows, 2560, device=_META)
            table[norm_projections](x, norm, 1e-6, (weight,))
            table[norm_swiglu](x, norm, 1e-6, weight, weight)
        table[embedding](torch.empty(1, dtype=torch.long, device=_META), weight)
    for op in (*OPS, *FUSED):
        table[op](*moved(next(op.cases()).args, _META))
    yield from card.launches


def report() -> Iterator[str]:
    """Launches and bytes of a token after 1,024 others."""
    yield f"{'model':10} {'drafts':>6} {'launches':>8} {'GB':>7} {'of the least':>12}"
    for name, config in SHAPES.items():
        shaped = Shaped.of(config)
        for drafts in (0, 3):
            launches = shaped.step(drafts)
            nbytes = sum(launch.nbytes for launch in launches)
            part = f"{nbytes / decode_bytes(shaped, 1024):12.3f}" if not drafts else ""
            yield f"{name:10} {drafts:6} {len(launches):8} {nbytes / 1e9:7.3f} {part}"


def every_kernel(targets: Sequence[str]) -> Iterator[tuple[str, Kernel]]:
    """Of `every_launch`, for each of the targets."""
    by_tiles: dict[Tiles, list[Kernel]] = {}
    for target in targets:
        tiles = tiles_of(target)
        if tiles not in by_tiles:
            by_tiles[tiles] = kernels_of(every_launch(target))
        yield from ((target, kernel) for kernel in by_tiles[tiles])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.shapes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--compile", nargs="*", metavar="CARD", help=", ".join(TARGETS))
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="kernels in whose name or constants it is"
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results are kept here, and a later run goes on")
    options = parser.parse_args()
    if options.compile is None:
        print(*report(), sep="\n")
        return 0
    if unknown := set(options.compile) - set(TARGETS):
        parser.error(f"no such card: {', '.join(unknown)}; known are {', '.join(TARGETS)}")
    from triton import __version__ as triton

    bad, found, kept = 0, list[tuple[str, Kernel, Compiled]](), Kept(options.keep, triton)
    print(f"{'card':8} {'registers':>9} {'spilled':>7} {'shared':>6}  kernel")
    for target, kernel in every_kernel(options.compile or list(TARGETS)):
        if options.only and not any(part in kernel.name for part in options.only):
            continue
        one = kept.compile_for(target, kernel.key, partial(compile_for, kernel, target))
        found.append((target, kernel, one))
        wrong = one.spills > 0 or one.shared > TARGETS[target][3]
        bad += wrong
        mark = " !" if wrong else ""
        print(f"{target:8} {one.registers:9} {one.spills:7} {one.shared:6}  {kernel.name}{mark}", flush=True)
    if not options.compile and not options.only:
        kept.keep_only((target, kernel.key) for target, kernel, _ in found)
    print(*table(found), sep="\n")
    print(f"{bad} of them spill, or want more memory than there is." if bad else "None spills.")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
