"""Sampling presets per model and mode, as the makers of the family recommend them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final

from runtime import recommended
from runtime.protocol import Sampling
from runtime.sampling import SamplingError, SamplingParams

Presets = Mapping[str, SamplingParams]  # "thinking", "thinking-coding", "non-thinking"

_SIZES: Final[Mapping[str, str]] = {  # by architecture and embedding_length
    "qwen35 1024": "0.8B",
    "qwen35 2048": "2B",
    "qwen35 2560": "4B",
    "qwen35 4096": "9B",
    "qwen35 5120": "27B",
    "qwen35moe 2048": "35B",
}
_FILE_KEYS: Final[Mapping[str, str]] = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Which model of the family a file is, or comes from.

    `generation`: "3.5", "3.6", "3.8" or None; `size`: "4B", "35B" or whatever the file says. `official`: its own name
    says so; else it is a fine-tune, known by what it was made from, if at all.
    """

    generation: str | None
    size: str
    official: bool


def identify(metadata: Mapping[str, Any]) -> Identity:
    """By its names. Where none tells the size, the model's width does; converters' own size labels are estimates."""
    own = _texts(metadata, "general.name", "general.basename")
    base = _texts(metadata, "general.base_model.0.name", "general.base_model.0.repo_url")
    generation = recommended.generation(own)
    size = recommended.size(own) or recommended.size(base)
    architecture = metadata.get("general.architecture")
    width = metadata.get(f"{architecture}.embedding_length")
    label = _texts(metadata, "general.size_label")
    return Identity(
        generation=generation or recommended.generation(base),
        size=size or _SIZES.get(f"{architecture} {width}", label),
        official=generation is not None,
    )


def presets(metadata: Mapping[str, Any]) -> Presets:
    """Complete values for each mode: the makers' where the file is a model of theirs.

    For a fine-tune: the file's own values (`general.sampling.*`), what it leaves out from the model it was made from,
    and if that is unknown from Qwen3.5.
    """
    identity = identify(metadata)
    recommendations = recommended.presets(identity.generation, identity.size)
    rows = MappingProxyType({mode: resolve(row, SamplingParams()) for mode, row in recommendations.items()})
    if identity.official:
        return rows
    own = _file_values(metadata)
    if own and identity.generation is None:
        own = {"presence_penalty": 0.0, **own}  # no key of the file could have asked for one
    return MappingProxyType({mode: _with(params, own) for mode, params in rows.items()})


def thinking_by_default(metadata: Mapping[str, Any]) -> bool:
    return recommended.thinks_by_default(identify(metadata).size)


def resolve(user: Sampling, preset: SamplingParams) -> SamplingParams:
    """The user's own choices over `preset`. Raises SamplingError for one out of its range."""
    names = {field.name for field in fields(SamplingParams)}
    chosen = {name: getattr(user, name) for name in names if getattr(user, name) is not None}
    return replace(preset, **chosen)


def _file_values(metadata: Mapping[str, Any]) -> dict[str, float]:
    values = {name: metadata.get(f"general.sampling.{key}") for name, key in _FILE_KEYS.items()}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int) or (isinstance(value, float) and name != "top_k")
    }


def _with(params: SamplingParams, own: Mapping[str, Any]) -> SamplingParams:
    try:
        return replace(params, **own)
    except SamplingError:
        return params  # a file with values that no sampler takes knows no better than the preset


def _texts(metadata: Mapping[str, Any], *keys: str) -> str:
    return " ".join(value for key in keys if isinstance(value := metadata.get(key), str))
