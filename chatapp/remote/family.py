"""What is known of the family's models by their names, for servers tell little of a model.

The values are those that the makers recommend, as in `runtime.presets`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from runtime.protocol import Sampling

_GENERATION = re.compile(r"qwen[\s_-]*3[._](5|6|8)(?!\d)", re.IGNORECASE)
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?b)(?![a-z0-9])", re.IGNORECASE)
_SMALL = ("0.8b", "2b")

_THINKING = Sampling(temperature=1.0, top_p=0.95, top_k=20, min_p=0.0, presence_penalty=1.5, repetition_penalty=1.0)
_FREELY = replace(_THINKING, presence_penalty=0.0)
_DIRECT = replace(_THINKING, temperature=0.7, top_p=0.8)
_SMALL_DIRECT = replace(_THINKING, top_p=1.0, presence_penalty=2.0)


def presets(model: str) -> dict[str, Sampling]:
    """Values for "thinking" and "non-thinking"; none for a model of another family."""
    generation, size = _GENERATION.search(model), _size(model)
    if generation is None:
        return {}
    freely = generation[1] == "8" or (generation[1] == "6" and size == "27b")
    small = size in _SMALL and generation[1] != "8"
    return {"thinking": _FREELY if freely else _THINKING, "non-thinking": _SMALL_DIRECT if small else _DIRECT}


def thinks_by_default(model: str) -> bool | None:
    """As its template does; None for a model of another family."""
    return _size(model) not in _SMALL if _GENERATION.search(model) else None


def _size(model: str) -> str:
    found = _SIZE.search(model)
    return found[1].lower() if found else ""
