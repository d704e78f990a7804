"""How replies are made: what holds for every conversation, and what this one has of its own over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from chatapp import settings
from chatapp.options import ChatOptions, drafts
from chatapp.settings import SettingsError, Value
from runtime.protocol import ModelInfo, Sampling
from runtime.quick_dataclass import dataclass

SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))
NAMES = (*SAMPLING, "thinking", "thinking_budget", "preserve_thinking", "draft")
"""The settings that a conversation may have of its own."""
OFF = "off"
"""No budget for thoughts in this conversation, whatever holds in all."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What one reply is made with; None: the model decides."""

    sampling: Sampling
    thinking: bool | None
    thinking_budget: int | None
    preserve_thinking: bool | None
    drafts: int | None


class Choices:
    """`everywhere` and `here` hold only what was chosen; what neither holds is the model's own."""

    def __init__(self, options: ChatOptions) -> None:
        chosen = dataclasses.asdict(options.sampling)
        chosen |= {name: getattr(options, name) for name in ("thinking", "thinking_budget", "preserve_thinking")}
        chosen |= {"draft": {None: None, 0: "off"}.get(options.drafts, str(options.drafts))}
        self.everywhere: dict[str, Value] = {name: value for name, value in chosen.items() if value is not None}
        self.here: dict[str, Value] = {}

    def get(self, name: str) -> Value:
        """None: the model decides."""
        return self.here.get(name, self.everywhere.get(name))

    def set(self, name: str, value: Value, *, everywhere: bool = False) -> None:
        """None takes the choice away. Raises SettingsError for a value that the setting does not take."""
        if name not in NAMES:
            raise SettingsError(f"{name} is not a setting of replies. Those are {', '.join(NAMES)}.")
        level = self.everywhere if everywhere else self.here
        if value is None:
            level.pop(name, None)
        else:
            level[name] = value if (name, value) == ("thinking_budget", OFF) else settings.check(name, value)
        if everywhere:
            self.here.pop(name, None)

    def prefer(self, name: str, value: Value) -> None:
        """For every conversation that has no choice of its own."""
        if value is None:
            self.everywhere.pop(name, None)
        else:
            self.everywhere[name] = settings.check(name, value)

    def take(self, stored: Mapping[str, Any]) -> None:
        """What a saved conversation has of its own; what no setting takes any more is left out."""
        self.here = {}
        for name, value in stored.items():
            try:
                self.set(name, value)
            except SettingsError:
                continue

    @property
    def now(self) -> Chosen:
        return Chosen(self.sampling, self.thinking, self.thinking_budget, self.preserve_thinking, self.drafts)

    @property
    def sampling(self) -> Sampling:
        values: dict[str, Any] = {name: self.get(name) for name in SAMPLING}
        return Sampling(**values)

    @property
    def thinking(self) -> bool | None:
        value = self.get("thinking")
        return value if isinstance(value, bool) else None

    @property
    def thinking_budget(self) -> int | None:
        value = self.get("thinking_budget")
        return int(value) if isinstance(value, int) else None

    @property
    def preserve_thinking(self) -> bool | None:
        value = self.get("preserve_thinking")
        return value if isinstance(value, bool) else None

    @property
    def drafts(self) -> int | None:
        value = self.get("draft")
        return drafts(value) if value in ("off", "1", "2", "3", "4") else None  # type: ignore[arg-type]

    def of_model(self, name: str, model: ModelInfo | None) -> Value:
        """What the model itself does where nothing is chosen; None if it does not tell."""
        if model is None:
            return None
        if name == "thinking":
            return model.thinking_default
        thinks = self.thinking if self.thinking is not None else model.thinking_default
        preset = model.presets.get("thinking" if thinks else "non-thinking")
        value: Value = getattr(preset, name, None)
        return value
