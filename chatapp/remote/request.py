"""A request of the chat as the body that servers take, and what a server did not take of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from chatapp.remote import family
from chatapp.remote.dialects import Body, Dialect
from runtime.protocol import Generate, Message, Sampling

REQUIRED = ("model", "messages", "stream")
_OPENAI = ("temperature", "top_p", "presence_penalty", "seed", "max_tokens", "stream_options", "reasoning_effort")
THINKING = ("chat_template_kwargs", "reasoning_effort")


def body(command: Generate, model: str, dialect: Dialect) -> Body:
    """All that the request asks, in the server's own fields."""
    made: Body = {"model": model, "messages": [message(each, command) for each in command.messages], "stream": True}
    thinking = command.thinking
    if goes_on(command):
        thinking = False  # that is behind it; some servers would take what follows for a thought, others refuse both
        made |= {"continue_final_message": True, "add_generation_prompt": False}
        made["messages"][-1]["reasoning_content"] = command.messages[-1].thought
    made |= dialect.usage
    for name, value in _sampling(command, model).items():
        made[dialect.renamed.get(name, name)] = value
    if thinking is not None:
        _merge(made, dialect.thinking(thinking))
    if thinking is not False and command.thinking_budget is not None and dialect.budget is not None:
        _merge(made, dialect.budget(command.thinking_budget))
    if command.preserve_thinking is not None and dialect.preserves:
        _merge(made, {"chat_template_kwargs": {"preserve_thinking": command.preserve_thinking}})
    return made


def goes_on(command: Generate) -> bool:
    """Whether it is a reply that is to be gone on with, and not a message that is to be answered."""
    return bool(command.messages) and command.messages[-1].role == "assistant"


def message(each: Message, command: Generate) -> Body:
    """A thought goes along where it may be kept; and an empty one where the answer writes about the tags.

    Without it, templates of the family look for the thought in the text.
    """
    made: Body = {"role": each.role, "content": each.content}
    if each.role == "assistant" and ((command.preserve_thinking and each.thought) or "</think>" in each.content):
        made["reasoning_content"] = each.thought
    return made


def _sampling(command: Generate, model: str) -> dict[str, Any]:
    """The user's choices, over what the makers of the model recommend for the mode, if they are known."""
    thinks = family.thinks_by_default(model) if command.thinking is None else command.thinking
    preset = family.presets(model).get("thinking" if thinks else "non-thinking", Sampling())
    found = {}
    for field in fields(Sampling):
        chosen = getattr(command.sampling, field.name)
        value = chosen if chosen is not None else getattr(preset, field.name)
        if value is not None:
            found[field.name] = value
    return found


def _merge(made: Body, more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        made[name] = {**made[name], **value} if name in made and isinstance(value, dict) else value


class Refusals:
    """The fields that a server did not take, with their values: they are not sent again."""

    def __init__(self) -> None:
        self._refused: set[tuple[str, str]] = set()

    def without(self, made: Body) -> Body:
        return {name: value for name, value in made.items() if (name, _text(value)) not in self._refused}

    def blame(self, made: Body, words: str) -> tuple[str, ...]:
        """Which fields an error is about: those it names, or what inside them; else all beyond OpenAI's own."""
        optional = [name for name in made if name not in REQUIRED]
        named = [name for name in optional if any(_named(each, words) for each in (name, *_inside(made[name])))]
        return tuple(named or [name for name in optional if name not in _OPENAI])

    def add(self, made: Body, names: tuple[str, ...]) -> None:
        self._refused |= {(name, _text(made[name])) for name in names}


def told(names: tuple[str, ...], words: str) -> str:
    """The sentence for the user about fields that are left out."""
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    thinking = " Thinking is as the server has it." if any(name in THINKING for name in names) else ""
    reason = f" It says: {words}" if words else ""
    return f"The server does not take {listed}: left out from now on.{thinking}{reason}"


def _inside(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, dict) else ()


def _named(name: str, words: str) -> bool:
    return re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", words) is not None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
