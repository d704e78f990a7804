"""The chat template of the built-in model, rendered, and replies taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox

TEMPLATE = Path(__file__).with_name("template.jinja")


def template() -> str:
    return TEMPLATE.read_text(encoding="utf-8")


@cache
def _compiled() -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    return environment.from_string(template())


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def render(messages: Sequence[dict[str, Any]], thinking: bool | None = None, preserve: bool = False) -> str:
    """The text of `messages`; with `thinking` given, the head of a reply follows. Raises jinja2.TemplateError."""
    return _compiled().render(
        messages=messages,
        add_generation_prompt=thinking is not None,
        enable_thinking=thinking is not False,
        preserve_thinking=preserve,
    )


def take_apart(text: str, thinking: bool) -> tuple[str, str, bool]:
    """Thought, reply, and whether the thought was closed, of generated text without its end mark."""
    if not thinking:
        return "", text.strip(), True
    thought, mark, reply = text.partition("</think>")
    return thought.strip(), reply.strip(), bool(mark)
