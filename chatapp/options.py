"""What the command line and the settings together ask of one run of the chat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from runtime.protocol import Load, Sampling

Ops = Literal["auto", "reference", "cpu", "triton"]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """None leaves a choice to the model's own presets."""

    model: str | None = None  # absolute path
    conversation_id: str | None = None  # the one to go on with; None: a new one
    prompt: str = ""  # sent as soon as the model is there
    system: str = ""  # of new conversations
    system_override: str | None = None  # given on the command line: also for a conversation that goes on
    sampling: Sampling = field(default_factory=Sampling)
    thinking: bool | None = None
    thinking_budget: int | None = None
    preserve_thinking: bool | None = None
    context_length: int | None = None
    ops: Ops = "auto"
    threads: int | None = None
    theme: str | None = None
    notices: tuple[str, ...] = ()  # sentences to show at the start

    def load(self, path: str) -> Load:
        """The command that opens the model at `path` as these options ask."""
        return Load(path, self.context_length, self.ops, self.threads)
