"""What is known of a served model by its name, for servers tell little of a model."""

from __future__ import annotations

from runtime import recommended
from runtime.protocol import Sampling


def presets(model: str) -> dict[str, Sampling]:
    """Values for each mode; none for a model of another family."""
    generation = recommended.generation(model)
    return dict(recommended.presets(generation, recommended.size(model))) if generation else {}


def thinks_by_default(model: str) -> bool | None:
    """As its template does; None for a model of another family."""
    return recommended.thinks_by_default(recommended.size(model)) if recommended.generation(model) else None
