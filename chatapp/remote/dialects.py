"""What differs between the servers that speak the OpenAI chat API: the fields of a request, where the context is told.

vLLM, SGLang, llama-server, Ollama, LM Studio and TensorRT-LLM each take thinking, its budget and samplers beyond
OpenAI's in fields of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]
Fetch = Callable[..., Awaitable[Any]]
"""Takes a path under the server's root and, for a POST, a body; returns the JSON of the answer, or None."""


def _template(on: bool) -> Body:
    return {"chat_template_kwargs": {"enable_thinking": on}}


def _effort(on: bool) -> Body:
    # A level such as "medium" is an error of models that know no levels; without the field, those that can think do.
    return {} if on else {"reasoning_effort": "none"}


def _both(on: bool) -> Body:
    return _template(on) | _effort(on)


def _template_budget(tokens: int) -> Body:
    return {"chat_template_kwargs": {"thinking_budget": tokens}}


async def _nowhere(fetch: Fetch, model: str) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Dialect:
    """`name`, as shown. `usage`: fields that ask for figures; `renamed`: fields of samplers that are called otherwise.

    `context`: asks the server how many tokens its context has.
    """

    name: str
    thinking: Callable[[bool], Body] = _template
    budget: Callable[[int], Body] | None = _template_budget
    preserves: bool = True  # takes preserve_thinking as a variable of the template
    usage: Mapping[str, Any] = field(default_factory=lambda: {"stream_options": {"include_usage": True}})
    renamed: Mapping[str, str] = field(default_factory=dict)
    context: Callable[[Fetch, str], Awaitable[int | None]] = _nowhere
    loads_late: bool = False  # the context is known once the model has answered


async def _props(fetch: Fetch, model: str) -> int | None:
    props = await fetch("/props")
    return _count(props, "default_generation_settings", "n_ctx") or _count(props, "n_ctx")


async def _ollama_context(fetch: Fetch, model: str) -> int | None:
    """The window the model runs with; before it runs, the one its file asks for. What it was trained for says little.

    See https://docs.ollama.com/api/ps.
    """
    for running in _list(await fetch("/api/ps"), "models"):
        if model in (running.get("name"), running.get("model")):
            return _count(running, "context_length")
    shown = await fetch("/api/show", {"model": model})
    parameters = shown.get("parameters") if isinstance(shown, dict) else None
    for line in parameters.splitlines() if isinstance(parameters, str) else []:
        match line.split():
            case ["num_ctx", number] if number.isdigit():
                return int(number)
    return None


async def _lm_studio_context(fetch: Fetch, model: str) -> int | None:
    for known in _list(await fetch("/api/v0/models"), "data"):
        if known.get("id") == model:
            return _count(known, "loaded_context_length")
    return None


_PER_CHUNK = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

UNKNOWN = Dialect("server", context=_props)
DIALECTS: Mapping[str, Dialect] = {  # by `owned_by` in the list of models
    "vllm": Dialect("vLLM", budget=lambda tokens: {"thinking_token_budget": tokens}, usage=_PER_CHUNK),
    "sglang": Dialect(
        "SGLang",
        budget=lambda tokens: {
            "custom_params": {"thinking_budget": tokens},
            "chat_template_kwargs": {"thinking_budget": tokens},
        },
        usage=_PER_CHUNK,
    ),
    "llamacpp": Dialect(
        "llama-server",
        budget=lambda tokens: {"thinking_budget_tokens": tokens},
        usage={"stream_options": {"include_usage": True}, "timings_per_token": True, "return_progress": True},
        renamed={"repetition_penalty": "repeat_penalty"},
        context=_props,
    ),
    "library": Dialect(
        "Ollama", thinking=_effort, budget=None, preserves=False, context=_ollama_context, loads_late=True
    ),
    "organization_owner": Dialect(
        "LM Studio",
        thinking=_both,
        budget=None,
        renamed={"repetition_penalty": "repeat_penalty"},
        context=_lm_studio_context,
        loads_late=True,
    ),
    "tensorrt_llm": Dialect("TensorRT-LLM", budget=None),
}


async def dialect_of(entry: Mapping[str, Any], fetch: Fetch) -> Dialect:
    """By an entry of the list of models; Ollama names people there, and is known by an endpoint of its own."""
    owner = entry.get("owned_by")
    if isinstance(owner, str) and owner in DIALECTS:
        return DIALECTS[owner]
    version = await fetch("/api/version")
    return DIALECTS["library"] if isinstance(version, dict) and "version" in version else UNKNOWN


def context_of(entry: Mapping[str, Any]) -> int | None:
    """What the list of models says itself, as vLLM and SGLang do (`max_model_len`), and gateways (`context_length`)."""
    meta = entry.get("meta")
    return (
        _count(entry, "max_model_len")
        or _count(entry, "context_length")
        or _count(meta if isinstance(meta, dict) else {}, "n_ctx")
    )


def is_loaded(entry: Mapping[str, Any]) -> bool:
    """Whether the server says that the model is in memory."""
    status = entry.get("status")
    value = status.get("value") if isinstance(status, dict) else status
    return value == "loaded" or entry.get("state") == "loaded"


def _count(found: Any, *keys: str) -> int | None:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def _list(found: Any, key: str) -> list[dict[str, Any]]:
    inside = found.get(key) if isinstance(found, dict) else None
    return [each for each in inside if isinstance(each, dict)] if isinstance(inside, list) else []
