"""What the chat and the worker process say to each other: one JSON object per line.

The chat sends commands, the worker answers with events. Each `Load` ends in exactly one `Ready` or `Failed`,
each `Generate` in exactly one `Finished` or `Failed`. Standard library only: the chat imports this module
before its first paint.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from runtime.quick_dataclass import dataclass

Role = Literal["system", "user", "assistant"]
Channel = Literal["thinking", "answer"]
FinishReason = Literal["stop", "length", "cancelled", "budget"]
Failure = Literal["load", "prompt", "context", "numbers", "memory", "worker", "server", "internal"]

BUILT_IN_MODEL = Path(__file__).parent / "builtin" / "qwenchat-tour.gguf"
"""The small model that comes with the package: what opens when nobody has chosen one."""


class ProtocolError(ValueError):
    """A line that is not a message of this protocol."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `thought` is the assistant's reasoning, without its tags."""

    role: Role
    content: str
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The user's own choices; None leaves a value to the preset of the model and mode, then to the file."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CachedState:
    """What is kept of one conversation, or of a system prompt that several begin with.

    Bytes that it shares with others are counted in each.
    """

    conversation_id: str
    tokens: int
    checkpoints: int
    bytes: int  # in memory
    on_disk_bytes: int
    in_memory: bool


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the chat shows of the model that answers. Of a served one: 0 and None where the server does not tell."""

    path: str  # or the address
    name: str
    architecture: str
    parameters: int
    file_bytes: int
    context_length: int  # tokens, as opened
    trained_context: int  # tokens, as the file says
    thinking_default: bool | None
    has_mtp: bool
    ops: str  # "reference" | "cpu" | "triton"; of a served model the kind of server
    presets: dict[str, Sampling]  # "thinking" | "non-thinking" → complete values
    siblings: tuple[str, ...] = ()  # of a served model: all that its server serves, itself included


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one turn; `ttft_ms` counts from the arrival of the request to the first token of the reply.

    `unknown`: the names of figures that are 0 only because a server does not tell them.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    ttft_ms: float | None = None
    prefill_ms: float | None = None  # of the model's work on the prompt, a part of ttft_ms
    decode_tok_per_s: float | None = None
    thinking_tokens: int = 0
    thinking_ms: float | None = None
    context_used: int = 0  # tokens held after the turn
    context_length: int = 0
    unknown: tuple[str, ...] = ()

    def told(self) -> dict[str, Any]:
        """Each figure by its name, None if it is not known."""
        figures = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del figures["unknown"]
        return figures | dict.fromkeys(self.unknown)


KvType = Literal["auto", "q8", "f16", "f32"]
"""Of keys and values: 8, 16 or 32 bits; auto: 16, and 32 in the references."""

# Commands: chat → worker


@dataclass(frozen=True, slots=True)
class Load:
    """Open a model. `context_length` None: what the file allows, at most the runtime's default.

    `snapshots`: the folder in which conversations' states outlive the worker; None: they do not. The budgets are
    bytes, for states on disk and in memory; None: the runtime's default.
    `draft_vocabulary`: drafts come from so many tokens, the first of the vocabulary, and those seen last; None: all.
    """

    path: str
    context_length: int | None = None
    ops: Literal["auto", "reference", "cpu", "triton"] = "auto"
    threads: int | None = None
    snapshots: str | None = None
    snapshot_budget: int | None = None
    memory_budget: int | None = None
    kv_type: KvType = "auto"
    draft_vocabulary: int | None = None


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer the last user message, or go on with the reply that is the last message and ended before its end.

    The whole conversation is sent; the engine finds what it already has. Of a reply that goes on, the Deltas bring
    what is new.

    `thinking` None: the model's default. `thinking_budget`: tokens after which the thought is closed.
    `preserve_thinking` None: the template's default. `drafts`: tokens drafted at each step, 0 to 4; None: as many as
    pay. `aside`: a question of the program itself, of which nothing is kept. `awaited` False: nobody waits for the
    answer, and it gives way at once to what somebody does.
    """

    request_id: str
    conversation_id: str
    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    thinking: bool | None = None
    thinking_budget: int | None = None
    preserve_thinking: bool | None = None
    drafts: int | None = None
    aside: bool = False
    awaited: bool = True


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class AnswerNow:
    """Close the thought of a request that waits or runs, so that its answer follows; without a thought: nothing."""

    request_id: str


@dataclass(frozen=True, slots=True)
class CacheList:
    """Tell what is kept of which conversation: one CacheReport."""


@dataclass(frozen=True, slots=True)
class CacheDrop:
    """Forget the states of one conversation, or with None all states, in memory and on disk: one CacheReport.

    `snapshots`: the folder from which those of every model go; it takes no model to be open.
    """

    conversation_id: str | None = None
    snapshots: str | None = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    pass


# Events: worker → chat


@dataclass(frozen=True, slots=True)
class LoadProgress:
    done: int  # bytes
    total: int
    step: str


@dataclass(frozen=True, slots=True)
class Ready:
    model: ModelInfo


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know that stops nothing."""

    message: str


@dataclass(frozen=True, slots=True)
class PromptProgress:
    request_id: str
    done: int  # tokens, `cached` included
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of one channel. `n_tokens` tokens were generated since the last Delta.

    `drafted`: the parts of `text`, from one index to another, that were drafted and accepted.
    """

    request_id: str
    channel: Channel
    text: str
    n_tokens: int
    drafted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class WasThought:
    """All that came so far as the answer was the thought: a server sent the tag at its end, but none before it."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a turn. `budget`: the thought was closed by its budget, and the answer then ended by itself.

    `thought_closed` False: the reply ended inside its thought.
    """

    request_id: str
    reason: FinishReason
    stats: Stats
    thought_closed: bool = True


@dataclass(frozen=True, slots=True)
class Failed:
    """`message` is one sentence for the user, `detail` the trace for the log; no request_id: a load failed.

    `model_kept`: the model that was open before the load still is.
    """

    message: str
    kind: Failure = "internal"
    detail: str = ""
    request_id: str | None = None
    model_kept: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The conversation's last turn is read as the next prompt will show it: `tokens` need not be read again."""

    conversation_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The states of this model, the last used first; the totals in bytes, on disk those of other models too."""

    states: tuple[CachedState, ...]
    memory_bytes: int
    memory_budget: int
    disk_bytes: int
    disk_budget: int  # 0: nothing is kept on disk


Event = LoadProgress | Ready | Notice | PromptProgress | Delta | WasThought | Finished | Failed | Settled | CacheReport
Command = Load | Generate | Cancel | AnswerNow | CacheList | CacheDrop | Shutdown

_COMMANDS: dict[str, type[Any]] = {c.__name__: c for c in typing.get_args(Command)}
_EVENTS: dict[str, type[Any]] = {c.__name__: c for c in typing.get_args(Event)}


def encode(message: Any) -> bytes:
    """A dataclass as one line of UTF-8, ending in a newline and holding no other."""
    body = {"type": type(message).__name__, **dataclasses.asdict(message)}
    # ASCII only: lone surrogates and U+2028 survive, and no reader can split a line inside a text.
    return json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n"


def decode_command(line: bytes | str) -> Command:
    """Raises ProtocolError."""
    return typing.cast(Command, decode(line, _COMMANDS))


def decode_event(line: bytes | str) -> Event:
    """Raises ProtocolError."""
    return typing.cast(Event, decode(line, _EVENTS))


def decode(line: bytes | str, known: Mapping[str, type[Any]]) -> Any:
    """The message of a line, one of the dataclasses in `known`, by name. Raises ProtocolError."""
    try:
        body = json.loads(line)
        return _build(known[body.pop("type")], body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"not a message of the protocol ({error!r}): {line[:200]!r}") from error


_HINTS: dict[type[Any], dict[str, Any]] = {}


def _hints(cls: type[Any]) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _build(cls: type[Any], body: dict[str, Any]) -> Any:
    """A dataclass from its JSON object: unknown and missing fields and values of the wrong type raise TypeError."""
    hints = _hints(cls)
    if unknown := body.keys() - hints.keys():
        raise TypeError(f"{cls.__name__} has no field {sorted(unknown)}")
    return cls(**{name: _value(hints[name], value) for name, value in body.items()})


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value)
    if origin is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in value)
    if origin is dict:
        return {key: _value(typing.get_args(hint)[1], item) for key, item in value.items()}
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise TypeError(f"{value!r} is none of {typing.get_args(hint)}")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        return _value(next(a for a in typing.get_args(hint) if a is not type(None)), value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise TypeError(f"{value!r} is not {hint.__name__}")
    return value
