"""From a file to a model: the registry, and the refusals that need no weights."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernels.cpu.memory import trim
from kernels.cpu.pages import Ahead
from kernels.op import Column, OpTable, op_table
from kernels.quants import QuantTensor
from kernels.triton.card import Card
from kernels.triton.layouts import LAYOUTS
from runtime import fit
from runtime.cores import default_threads
from runtime.errors import UserError
from runtime.gguf import GGUFFile
from runtime.machine import memory, native_functions
from runtime.models.config import ModelConfig, ModelError
from runtime.models.qwen35 import Qwen35
from runtime.models.spread import Spread
from runtime.placement import Placement, Sizes, Where, place, sizes
from runtime.weights import SIDECAR_SKIPPED, Weights

Room = int | Sequence[int] | Placement | None

REGISTRY = {"qwen35": Qwen35, "qwen35moe": Qwen35}


@dataclass(frozen=True)
class LoadedModel:
    """A model, its file, and what the user should know of them."""

    model: Qwen35
    gguf: GGUFFile
    notices: list[str] = field(default_factory=list)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.gguf.metadata)


def load_model(
    path: Path | str,
    ops: Column | OpTable = "reference",
    progress: Callable[[int, int], None] = lambda done, total: None,
    threads: int | None = None,
    draft_vocabulary: int | None = None,
    room: Room = None,
    wrong: Callable[[OpTable], Sequence[str]] | None = None,
    ahead: Ahead | None = None,
    context: int | None = None,
    kv: str = "auto",
) -> LoadedModel:
    """Open and load a GGUF file of the family. Raises GGUFError or ModelError, each one sentence for the user.

    `ops`: a column of the op table, or a table that is there already.
    `draft_vocabulary`: so many tokens can be drafted, and those that came up last; None: all.
    `room`: bytes that are free on the card, or on each of several, or what lies where; None: all cards are asked, the
    interpreter's has enough. What does not fit on one is spread over several, and what does not fit there stays in
    memory and runs in the `cpu` column, as the notices say.
    `wrong`: the ops that a card gets wrong, asked of all but the first; one that gets any wrong is left out.
    `ahead`: memory for packed weights.
    `context`, `kv`: tokens of a conversation, and the type of its keys and values, for which a card keeps room.
    A file without an MTP block drafts with the one of a sidecar, `mtp-*.gguf`, that lies beside it and fits.
    """
    with contextlib.ExitStack() as files:
        gguf = files.enter_context(GGUFFile.open(Path(path)))
        config, notices = _describe(gguf)
        sidecar = None
        if not config.mtp_layers and (sidecar := find_sidecar(gguf, config)):
            files.enter_context(sidecar)
            config = dataclasses.replace(config, mtp_layers=1)
            notices = [*notices, f"Drafts come from {sidecar.path.name}, which lies beside the model."]
        make = partial(op_table, threads=threads or default_threads(), cache=native_functions())
        trim()  # before LLVM comes in
        spread, told = _spread(make, ops, [gguf, *([sidecar] if sidecar else [])], config, room, wrong, context, kv)
        table = spread.table
        if ahead and table.machine:
            table.machine.arena.begin_with(ahead)
        keep_packed = table.column != "reference" or not _fits_unpacked(gguf)
        take_in: Callable[[str, QuantTensor], bool] = lambda name, tensor: not keep_packed  # noqa: E731
        if table.machine or table.card:
            take_in = spread.take_in
        take = partial(Weights, keep_packed=keep_packed, take_in=take_in, device=spread.device)
        weights = mtp_weights = take(gguf, progress=progress)
        if sidecar:
            mtp_weights = take(sidecar, skipped=SIDECAR_SKIPPED)
        model = REGISTRY[config.architecture](weights, mtp_weights, config, spread)
        weights.finish()
        mtp_weights.finish()
        if draft_vocabulary:
            model.narrow_drafts(draft_vocabulary)
        if table.machine:
            table.machine.arena.end()
            model.warm_up()
        gguf.let_go_headers()
    trim()
    return LoadedModel(model, gguf, [*notices, *told, *weights.warnings])


def _spread(
    make: Callable[[Column], OpTable], ops: Column | OpTable, files: Sequence[GGUFFile], config: ModelConfig,
    room: Room, wrong: Callable[[OpTable], Sequence[str]] | None, context: int | None, kv: str,
) -> tuple[Spread, list[str]]:  # fmt: skip
    """Where the model runs, and sentences if that is not all in one place."""
    table = ops if isinstance(ops, OpTable) else make(ops)
    if table.card is None or (room is None and table.card.free() is None):
        return Spread(table), []
    count = 1 + max(room.cards, default=0) if isinstance(room, Placement) else 1
    if not isinstance(room, Placement | int):
        count = torch.cuda.device_count() if room is None else len(room)
    cards = [table, *(OpTable(table.column, card=Card.here(index)) for index in range(1, count))]
    told: list[str] = []
    if isinstance(room, Placement):
        found = room
    else:
        need = card_sizes(files, config, context, kv)
        free = _free(need, cards) if room is None else [room] if isinstance(room, int) else [*room]
        found, told = _placed(need, free, cards, wrong)
    if found.head == "memory":
        return Spread(make("cpu")), [*told, found.sentence()]
    if found.whole and len(found.cards) == 1:
        return Spread(cards[found.head]), told
    tables: dict[Where, OpTable] = dict(enumerate(cards))
    if not found.whole:
        tables["memory"] = make("cpu")
    return Spread.over(found, tables), [*told, found.sentence()]


def _free(need: Sizes, cards: Sequence[OpTable]) -> list[int]:
    """Bytes on each card. None is asked after one that holds all: asking takes some of its memory, and time."""
    free: list[int] = []
    for table in cards:
        free.append((table.card and table.card.free()) or 0)
        found = place(need, free)
        if found.whole and len(found.cards) == 1:
            break
    return free


def _placed(
    need: Sizes, free: list[int], cards: Sequence[OpTable], wrong: Callable[[OpTable], Sequence[str]] | None
) -> tuple[Placement, list[str]]:
    """What lies where, and a sentence for each card that is left out."""
    found, asked, told = place(need, free), {0}, list[str]()
    while wrong and (more := found.cards - asked):
        card = min(more)
        asked.add(card)
        if names := wrong(cards[card]):
            told.append(f"GPU {card + 1} of {len(cards)} is left out: it gets {', '.join(names)} wrong.")
            free[card] = 0
            found = place(need, free)
    return found, told


def card_sizes(files: Sequence[GGUFFile], config: ModelConfig, context: int | None = None, kv: str = "auto") -> Sizes:
    """On a card, where types without a layout of their own are in half precision."""
    tensors: dict[str, int] = {}
    for file in reversed(files):
        for name, info in file.tensors.items():
            tensors[name] = info.nbytes if info.type.name in LAYOUTS else 2 * math.prod(info.shape)
    context = min(context or fit.DEFAULT_CONTEXT, config.trained_context)
    work = fit.work(config) * min(config.prefill_chunk, context)
    return sizes(tensors, config, fit.layer_kv(config, context, kv), work)


def find_sidecar(gguf: GGUFFile, config: ModelConfig) -> GGUFFile | None:
    """The MTP block for this model that lies beside it in a file of its own, if there is just one."""
    found = []
    for path in sorted(gguf.path.parent.glob("mtp-*.gguf")):
        try:
            sidecar = GGUFFile.open(path)
        except UserError:
            continue
        if _fits(sidecar, gguf, config):
            found.append(sidecar)
        else:
            sidecar.close()
    if len(found) == 1:
        return found[0]
    for sidecar in found:
        sidecar.close()
    return None


def _fits(sidecar: GGUFFile, gguf: GGUFFile, config: ModelConfig) -> bool:
    """Whether a sidecar is of the same shape and, where both files say so, of the same model."""
    if f"blk.{config.layers}.nextn.eh_proj.weight" not in sidecar.tensors:
        return False
    try:
        other = ModelConfig.from_metadata(sidecar.metadata)
    except ModelError:
        return False
    same = dataclasses.replace(other, mtp_layers=0, trained_context=config.trained_context) == config
    bases = [file.metadata.get("general.basename") for file in (sidecar, gguf)]
    return same and (None in bases or bases[0] == bases[1])


def check_model(path: Path | str) -> None:
    """Raises what `load_model` would raise for a file that is no model of the family, without reading weights."""
    with GGUFFile.open(Path(path)) as gguf:
        _describe(gguf)


def _describe(gguf: GGUFFile) -> tuple[ModelConfig, list[str]]:
    """The shape of the model, and notices; raises ModelError for files that are no chat model of the family."""
    name, architecture = gguf.path.name, str(gguf.metadata.get("general.architecture", ""))
    if architecture == "clip" or gguf.metadata.get("general.type") == "mmproj" or name.startswith("mmproj"):
        raise ModelError(f"{name} holds only the image part of a model (mmproj); choose the text model beside it.")
    if "dflash" in architecture or name.startswith("dflash"):
        raise ModelError(f"{name} is a draft model for another engine (dflash), not a chat model.")
    if architecture not in REGISTRY:
        shown = f"of the architecture {architecture!r:.40}" if architecture else "of no named architecture"
        raise ModelError(f"{name} is {shown}; qwenchat runs {' and '.join(REGISTRY)} (Qwen3.5 and 3.6).")
    if not gguf.tensors:
        raise ModelError(f"{name} holds a vocabulary but no weights; it is not a model to chat with.")
    drafts = any(".nextn." in tensor for tensor in gguf.tensors)
    if drafts and "blk.0.attn_norm.weight" not in gguf.tensors:
        raise ModelError(
            f"{name} holds only the drafting (MTP) block of a model; choose the model itself, this goes beside it."
        )
    for tensor, info in gguf.tensors.items():
        if info.type.name == "NVFP4":
            raise ModelError(f"{name} packs {tensor} as NVFP4 with separate scales, which qwenchat cannot read yet.")
    return _without_missing_mtp(gguf, ModelConfig.from_metadata(gguf.metadata), drafts=drafts)


def _without_missing_mtp(gguf: GGUFFile, config: ModelConfig, *, drafts: bool) -> tuple[ModelConfig, list[str]]:
    """Some fine-tunes keep the count of MTP blocks and lose the block."""
    if not config.mtp_layers or drafts:
        return config, []
    trunk = config.layers
    if f"blk.{trunk}.attn_norm.weight" in gguf.tensors:
        # then block_count never counted the block, and the last trunk layer was taken for it
        counted = ModelConfig.from_metadata({**gguf.metadata, f"{config.architecture}.nextn_predict_layers": 0})
        return counted, [_NO_MTP]
    return dataclasses.replace(config, mtp_layers=0), [_NO_MTP]


_NO_MTP = "This file names a drafting (MTP) block but does not hold one; replies come without drafts."


def _fits_unpacked(gguf: GGUFFile) -> bool:
    """Whether the weights in fp32 leave half of the free memory to everything else."""
    weights = sum(4 * math.prod(info.shape) for info in gguf.tensors.values())
    return weights < memory()[1] // 2
