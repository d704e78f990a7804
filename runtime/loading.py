"""From a `Load` command to a model that chats."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch

from kernels.op import Column
from runtime import presets
from runtime.chat_template import ChatTemplate
from runtime.cores import physical_cores
from runtime.engine import Engine
from runtime.models.config import ModelError
from runtime.models.loading import LoadedModel, load_model
from runtime.pool import StatePool
from runtime.protocol import Load, ModelInfo, Sampling
from runtime.sampling import SamplingParams
from runtime.tokenizer import Tokenizer
from runtime.turn import ChatModel

DEFAULT_CONTEXT = 32_768  # tokens; more is the user's choice, since it costs memory
_STATES_SHARE = 4  # conversations' states may take a fourth of the memory


def open_chat_model(command: Load, progress: Callable[[int, int], None]) -> tuple[ChatModel, ModelInfo, list[str]]:
    """The model, what the chat shows of it, and notices. Raises UserError."""
    torch.set_num_threads(command.threads or physical_cores())
    column: Column = "cpu" if command.ops == "auto" else command.ops
    loaded = load_model(command.path, column, progress, command.threads)
    metadata, config = loaded.metadata, loaded.model.config
    tokenizer = Tokenizer.from_metadata(metadata)
    if tokenizer.vocab_size > loaded.model.vocabulary:
        raise ModelError(
            f"{loaded.gguf.path.name} names {tokenizer.vocab_size} tokens but has embeddings for "
            f"{loaded.model.vocabulary}: the file is damaged."
        )
    by_mode = presets.presets(metadata)
    thinking_default = presets.thinking_by_default(metadata)
    context_length = _context_length(command.context_length, config.trained_context)
    pool = StatePool(loaded.model.new_state, _physical_memory() // _STATES_SHARE)
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
    return chat, info, loaded.notices


def _context_length(wanted: int | None, trained: int) -> int:
    if wanted is None:
        return min(trained, DEFAULT_CONTEXT)
    if not 1 <= wanted <= trained:
        raise ModelError(f"The context can be 1 to {trained:,} tokens for this model, not {wanted:,}.")
    return wanted


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


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
