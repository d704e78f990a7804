"""From a `Load` command to a model that chats."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernels.cpu.memory import trim
from kernels.cpu.pages import Ahead
from kernels.op import Column, OpTable, op_table
from kernels.table import OPS
from runtime import machine, presets
from runtime.cache import SequenceState
from runtime.chat_template import ChatTemplate
from runtime.cores import default_threads
from runtime.engine import Engine
from runtime.errors import UserError
from runtime.fingerprint import fingerprint
from runtime.kv_cache import kv_type
from runtime.models.config import ModelConfig, ModelError
from runtime.models.loading import LoadedModel, check_model, load_model
from runtime.models.spread import Spread
from runtime.pool import StatePool
from runtime.protocol import Load, ModelInfo, Sampling
from runtime.sampling import SamplingParams
from runtime.snapshots import SnapshotStore
from runtime.tokenizer import Tokenizer
from runtime.trust import wrong_ops
from runtime.turn import ChatModel

DEFAULT_CONTEXT = 32_768  # tokens; more is the user's choice, since it costs memory
_STATES_SHARE = 4  # conversations' states may take a fourth of the memory, or half of what is free if that is less
_LEAST_STATES = 256 << 20  # bytes; a conversation goes on whatever it takes, so less would save little
_SNAPSHOT_BUDGET = 16_000_000_000  # bytes


def check(command: Load) -> None:
    """Raises what `open_chat_model` would raise for a command or a file that is none, without reading weights."""
    _check_context(command)
    check_model(command.path)


def open_chat_model(
    command: Load,
    progress: Callable[[int, int], None],
    notify: Callable[[str], None] = lambda sentence: None,
    ahead: Ahead | None = None,
) -> tuple[ChatModel, ModelInfo, list[str]]:
    """The model, what the chat shows of it, and notices; later ones go to `notify`. Raises UserError.

    `ahead`: memory for packed weights, where it is there already.
    """
    _check_context(command)
    torch.set_num_threads(command.threads or default_threads())
    loaded, instead = _load(command, progress, notify, ahead)
    metadata, config = loaded.metadata, loaded.model.config
    tokenizer = Tokenizer.from_metadata(metadata)
    if tokenizer.vocab_size > loaded.model.vocabulary:
        raise ModelError(
            f"{loaded.gguf.path.name} names {tokenizer.vocab_size} tokens but has embeddings for "
            f"{loaded.model.vocabulary}: the file is damaged."
        )
    by_mode = presets.presets(metadata)
    thinking_default = presets.thinking_by_default(metadata)
    context_length = min(command.context_length or DEFAULT_CONTEXT, config.trained_context)
    new_state = partial(loaded.model.new_state, kv_type(command.kv_type, loaded.model.ops.column))
    memory_budget = command.memory_budget
    if memory_budget is None:
        memory_budget = states_budget(loaded.model.spread, config.layers)
    pool = StatePool(new_state, memory_budget, _snapshots(command, loaded, new_state, notify))
    chat = ChatModel(
        Engine(loaded.model, context_length, pool),
        tokenizer,
        ChatTemplate.from_metadata(metadata, tokenizer),
        by_mode,
        thinking_default=thinking_default,
    )
    info = ModelInfo(
        path=str(loaded.gguf.path),
        name=_name(loaded, metadata),
        architecture=config.architecture,
        parameters=sum(math.prod(tensor.shape) for tensor in loaded.gguf.tensors.values()),
        file_bytes=loaded.gguf.file_bytes,
        context_length=context_length,
        trained_context=config.trained_context,
        thinking_default=thinking_default,
        has_mtp=loaded.model.mtp is not None,
        ops=loaded.model.ops.column,
        presets={mode: _shown(params) for mode, params in by_mode.items()},
    )
    loaded.gguf.let_go_headers()  # which the tokenizer has read
    trim()
    return chat, info, [*instead, *loaded.notices, *_shorter(command, config), *_slower(command.ops, loaded.model.ops)]


def _load(
    command: Load, progress: Callable[[int, int], None], notify: Callable[[str], None], ahead: Ahead | None
) -> tuple[LoadedModel, list[str]]:
    """On the GPU if there is one, unless something else is asked for; where that fails, without it, and told."""
    rest = progress, command.threads, command.draft_vocabulary
    auto = command.ops == "auto"
    column: Column = "triton" if auto and machine.gpu_kernels() and torch.cuda.is_available() else "cpu"
    if command.ops != "auto":
        column = command.ops
    try:
        if column == "triton":
            table = op_table("triton")
            _compile(command, table, notify)
            if auto and (wrong := wrong_ops(table)):
                raise RuntimeError(f"it gets {', '.join(wrong)} wrong")
        kv = kv_type(command.kv_type, column)
        wrong_on = wrong_ops if auto else None
        loaded = load_model(
            command.path, column, *rest, wrong=wrong_on, ahead=ahead, context=command.context_length, kv=kv
        )
        return loaded, []
    except Exception as error:  # of the card: its memory, its driver, or a kernel that does not compile for it
        if isinstance(error, UserError) or column != "triton" or not torch.cuda.is_available():
            raise
        reason = "its memory is too small" if isinstance(error, torch.OutOfMemoryError) else str(error).split("\n")[0]
    torch.cuda.empty_cache()
    loaded = load_model(command.path, "cpu", *rest)
    return loaded, [f"The GPU could not take the model ({reason}); it runs on the processor."]


def _compile(command: Load, table: OpTable, notify: Callable[[str], None]) -> None:
    if table.card:
        from runtime.compiling import compile_needed  # which takes Triton's compiler in

        compile_needed(command.path, table.card, kv_type(command.kv_type, table.column), notify)


def _check_context(command: Load) -> None:
    if command.context_length is not None and command.context_length < 1:
        raise ModelError(f"A context has at least 1 token, not {command.context_length:,}.")


def _shorter(command: Load, config: ModelConfig) -> list[str]:
    """A sentence if the context is not what was asked for: that may have been for another model."""
    wanted, trained = command.context_length, config.trained_context
    if wanted is None or wanted <= trained:
        return []
    return [f"The context is {trained:,} tokens, for which this model was trained, in place of {wanted:,}."]


def _slower(asked: str, ops: OpTable) -> list[str]:
    """A sentence if operations run otherwise than was asked for."""
    if asked != "triton":
        return []
    if ops.card is None:
        return ["Triton is missing here: the references run in its place, slowly. --ops auto is faster."]
    if ops.card.way == "interpreted":
        return ["No GPU was found: Triton's interpreter runs in its place, very slowly. --ops auto is faster."]
    missing = [op.name for op in OPS if op.triton is None]
    return [f"On the GPU the references run in place of {', '.join(missing)}."] if missing else []


def _snapshots(
    command: Load, loaded: LoadedModel, new: Callable[[], SequenceState], notify: Callable[[str], None]
) -> SnapshotStore | None:
    """The states on disk of this file, as this column of the op table, this type of KV and this MTP block make them."""
    if command.snapshots is None:
        return None
    try:
        model = loaded.model
        column = model.ops.column + model.spread.pattern
        kind = kv_type(command.kv_type, model.ops.column)
        key = fingerprint(loaded.gguf.paths, column, kind, "mtp" if model.mtp else "")
    except OSError:
        return None  # a file that can be mapped but no longer read: it has other things to worry about
    budget = _SNAPSHOT_BUDGET if command.snapshot_budget is None else command.snapshot_budget
    return SnapshotStore(Path(command.snapshots), key, new, loaded.model.config.hidden, budget, notify)


def states_budget(spread: Spread, layers: int) -> int:
    """Bytes that the states may take, so that there is room for work where they lie: asked once the model is there."""
    places = [id(spread.layer(index)) for index in range(layers)]
    tables = {id(table): table for table in map(spread.layer, range(layers))}
    rooms = [_room(table) * layers // places.count(place) for place, table in tables.items()]
    return max(min(rooms), _LEAST_STATES)


def _room(table: OpTable) -> int:
    free = table.card.free() if table.card else None
    if free is not None:
        return free // 2
    total, available = machine.memory()
    return min(total // _STATES_SHARE, available // 2)


def _name(loaded: LoadedModel, metadata: dict[str, Any]) -> str:
    name = metadata.get("general.name")
    return name if isinstance(name, str) and name.strip() else loaded.gguf.path.stem


def _shown(params: SamplingParams) -> Sampling:
    return Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        repetition_penalty=params.repetition_penalty,
    )
