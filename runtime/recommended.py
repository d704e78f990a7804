"""What the makers of the family recommend for its models, known by their names.

The worker knows a model by its file, the chat a served one by its name alone; both take the values from here.
Standard library only, as `runtime.protocol`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from runtime.protocol import Sampling

_GENERATION: Final = re.compile(r"qwen[\s_-]*3[._](5|6|8)(?!\d)", re.IGNORECASE)
_SIZE: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?B)(?![a-z0-9])", re.IGNORECASE)
_SMALL: Final = ("0.8B", "2B")

_THINKING: Final = Sampling(
    temperature=1.0, top_k=20, top_p=0.95, min_p=0.0, presence_penalty=1.5, repetition_penalty=1.0
)
_THINKING_FREELY: Final = replace(_THINKING, presence_penalty=0.0)
_CODING: Final = replace(_THINKING_FREELY, temperature=0.6)
_NON_THINKING: Final = replace(_THINKING, temperature=0.7, top_p=0.8)
_SMALL_NON_THINKING: Final = replace(_THINKING, top_p=1.0, presence_penalty=2.0)

Presets = Mapping[str, Sampling]  # "thinking", "thinking-coding", "non-thinking": all values but the seed


def _rows(thinking: Sampling, coding: Sampling, non_thinking: Sampling) -> Presets:
    return MappingProxyType({"thinking": thinking, "thinking-coding": coding, "non-thinking": non_thinking})


_GENERAL: Final = _rows(_THINKING, _CODING, _NON_THINKING)  # 3.5 from 4B, 3.6-35B-A3B
_SMALLEST: Final = _rows(_THINKING, _CODING, _SMALL_NON_THINKING)  # 3.5-0.8B, 3.5-2B
_QWEN36_27B: Final = _rows(_THINKING_FREELY, _CODING, _NON_THINKING)
_QWEN38: Final = _rows(_THINKING_FREELY, _THINKING_FREELY, _NON_THINKING)  # none of its own for coding


def generation(name: str) -> str | None:
    """ "3.5", "3.6" or "3.8", if a name says so."""
    found = _GENERATION.search(name)
    return f"3.{found[1]}" if found else None


def size(name: str) -> str:
    """The first size in a name, as "4B" or "35B"; "" if there is none."""
    found = _SIZE.search(name)
    return found[1].upper() if found else ""


def presets(generation: str | None, size: str) -> Presets:
    """For each mode, with Qwen3.5's values where the generation is not known."""
    if generation == "3.8":
        return _QWEN38
    if generation == "3.6" and size == "27B":
        return _QWEN36_27B
    return _SMALLEST if size in _SMALL else _GENERAL


def thinks_by_default(size: str) -> bool:
    """As the model's template has it: the smallest do better without, they lose themselves in thought."""
    return size not in _SMALL
