"""What the command line and the settings together ask of one run of the chat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from runtime.protocol import KvType as KvType
from runtime.protocol import Load, Sampling
from runtime.quick_dataclass import dataclass

Ops = Literal["auto", "reference", "cpu", "triton"]
Draft = Literal["auto", "off", "1", "2", "3", "4"]
"""How many tokens the model drafts at each step; auto: as many as pay."""

Notify = Literal["off", "bell", "desktop"]
NotifyWhen = Literal["away", "always"]

GIGABYTE = 10**9


def drafts(choice: Draft) -> int | None:
    """The choice as the protocol says it."""
    return None if choice == "auto" else 0 if choice == "off" else int(choice)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """None leaves a choice to the model's own presets."""

    model: str | None = None  # absolute path, or the address of a served model
    local_model: str | None = None  # the path of the one to come back to from a server
    servers: Mapping[str, str] = field(default_factory=dict)  # those of the settings: names and URLs
    model_named: bool = False  # on the command line
    conversation_id: str | None = None  # the one to go on with; None: a new one
    prompt: str = ""  # sent as soon as the model is there
    system: str = ""  # of new conversations
    system_override: str | None = None  # given on the command line: also for a conversation that goes on
    sampling: Sampling = field(default_factory=Sampling)
    thinking: bool | None = None
    thinking_budget: int | None = None
    preserve_thinking: bool | None = None
    drafts: int | None = None  # at each step; None: as many as pay
    given: tuple[str, ...] = ()  # settings that the command line names
    context_length: int | None = None
    ops: Ops = "auto"
    threads: int | None = None
    kv_type: KvType = "auto"
    draft_vocabulary: int | None = None
    model_folders: tuple[str, ...] = ()  # to look for models in, besides those of other tools
    snapshots: str | None = None  # the folder of states on disk; None: they end with the engine
    snapshot_budget: float | None = None  # GB; 0: nothing is kept on disk
    memory_budget: float | None = None  # GB
    theme: str | None = None
    auto_titles: bool = True  # by the model, while it is idle
    notices: tuple[str, ...] = ()  # sentences to show at the start

    def load(self, path: str) -> Load:
        """The command that opens the model at `path` as these options ask."""
        return Load(
            path,
            self.context_length,
            self.ops,
            self.threads,
            snapshots=self.snapshots if self.snapshot_budget != 0 else None,
            snapshot_budget=_bytes(self.snapshot_budget),
            memory_budget=_bytes(self.memory_budget),
            kv_type=self.kv_type,
            draft_vocabulary=self.draft_vocabulary,
        )


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * GIGABYTE)
