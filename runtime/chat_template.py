"""The file's own chat template: a conversation → prompt ids, in which no message can forge a control token."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Template, TemplateSyntaxError

from runtime.errors import UserError
from runtime.gguf_header import printable
from runtime.protocol import Message
from runtime.template_sandbox import RefusalError, TemplateEnvironment, WorkLimitError
from runtime.tokenizer import Tokenizer, joined, valid_text

MAX_SOURCE: Final = 1_000_000  # characters
THINK, END_THINK = "<think>", "</think>"
_DIGITS: Final = {ord(digit): 0xE000 + int(digit) for digit in "0123456789"}
_NUMERALS: Final = {private: digit for digit, private in _DIGITS.items()}
_PRIVATE: Final = re.compile("[\ue000-\uf8ff]")

# For a file without a template.
CHATML: Final = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content|trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' + ('' if enable_thinking else '\\n</think>\\n\\n') }}
{%- endif %}
"""


class TemplateError(UserError):
    """A conversation or a template that gives no prompt; one sentence for the user."""

    kind = "prompt"


@dataclass(frozen=True)
class Prompt:
    """`ids` are what the model reads, `text` the same as text. `opens_thought`: the reply begins inside its thought."""

    ids: tuple[int, ...]
    text: str
    opens_thought: bool


@dataclass(frozen=True)
class _Rendering:
    pieces: list[int | str]  # special tokens as ids, plain text between them
    text: str
    opens_thought: bool


class _Placeholders:
    """What a template gets in place of the texts of one conversation.

    They are made of private-use characters only, so that any part of one can be told from a template's own words, and
    begin with a random run of them, which nothing but this rendering can hold.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._nonce = "".join(chr(0xE010 + secrets.randbelow(0xF900 - 0xE010)) for _ in range(8))

    def put(self, text: str) -> str:
        """A placeholder between the outer white space of `text`; blank text as it is."""
        text = valid_text(text)
        core = text.strip()
        if not core:
            return text
        before, _, after = text.partition(core)
        self._texts.append(core)
        return f"{before}{self._nonce}{f'{len(self._texts) - 1:08}'.translate(_DIGITS)}{after}"

    def split(self, rendered: str) -> tuple[list[str], list[str]]:
        """What the template wrote, n + 1 stretches, and the n texts between them. Raises TemplateError."""
        parts = re.split(f"{self._nonce}([\ue000-\ue009]{{8}})", rendered)
        own, numbers = parts[::2], [int(number.translate(_NUMERALS)) for number in parts[1::2]]
        if any(map(_PRIVATE.search, own)) or max(numbers, default=-1) >= len(self._texts):
            raise TemplateError("The model's chat template cuts messages apart, which is not supported.")
        return own, [self._texts[number] for number in numbers]


class ChatTemplate:
    """Renders conversations with a template that came with the model.

    The template never sees a message: it gets a placeholder between the message's own outer white space, so that
    trimming acts as on the text itself. Special tokens are looked for only in what the template wrote; then the texts
    take the places of their placeholders, as plain text. A template that looks into a message (`<tool_response>`,
    `</think>`) finds nothing there to be misled by.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises TemplateError for a template that cannot be compiled. A blank one: ChatML as this family speaks it."""
        self._tokenizer = tokenizer
        self._environment = TemplateEnvironment()
        self._lock = threading.Lock()  # the environment's budget is that of one rendering
        self._template = self._compile(source if source.strip() else CHATML)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
        """The template under `tokenizer.chat_template`. Raises TemplateError."""
        source = metadata.get("tokenizer.chat_template", "")
        if not isinstance(source, str):
            raise TemplateError("The file's chat template is not a text.")
        return cls(source, tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool,
        preserve_thinking: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> Prompt:
        """The prompt for the next reply. Raises TemplateError, and TextTooLongError.

        The conversation is put in order first, see `ordered`. `preserve_thinking` None: the template's default.
        """
        rendering = self._render(messages, thinking, preserve_thinking, add_generation_prompt)
        ids = tuple(self._tokenizer.encode_prompt(rendering.pieces))
        return Prompt(ids, rendering.text, rendering.opens_thought)

    def stable_prefix(
        self, messages: Sequence[Message], *, thinking: bool, preserve_thinking: bool | None = None
    ) -> tuple[int, ...]:
        """The ids with which the next prompt begins, whatever the user says next.

        It is what two prompts with different next messages share. One begins with a letter, the other with a line
        break: both kinds of text that can merge with what stands before them.
        """
        one, other = (
            self._render((*messages, Message("user", text)), thinking, preserve_thinking, True).pieces
            for text in ("a", "\nb")
        )
        same = _common(one, other)
        ids = self._tokenizer.encode_prompt(one[:same])
        ends = [piece for pieces in (one, other) for piece in pieces[same : same + 1] if isinstance(piece, str)]
        if len(ends) == 2:
            first, second = map(self._tokenizer.encode, ends)
            ids += first[: _common(first, second)]
        return tuple(ids)

    def _compile(self, source: str) -> Template:
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"The model's chat template is {len(source):,} characters long, which cannot be right.")
        try:
            return self._environment.from_string(source)
        except TemplateSyntaxError as error:
            reason = f"line {error.lineno}: {error.message}"
        except Exception as error:
            reason = str(error) or type(error).__name__
        raise TemplateError(f"The model's chat template cannot be read ({printable(reason)}).")

    def _render(
        self, messages: Sequence[Message], thinking: bool, preserve_thinking: bool | None, add_generation_prompt: bool
    ) -> _Rendering:
        placeholders = _Placeholders()
        arguments: dict[str, Any] = {
            "messages": [
                {"role": message.role, "content": placeholders.put(message.content)}
                | ({"reasoning_content": placeholders.put(message.thought)} if message.role == "assistant" else {})
                for message in ordered(messages)
            ],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "enable_thinking": thinking,
            **self._tokenizer.named_tokens,
        }
        if preserve_thinking is not None:
            arguments["preserve_thinking"] = preserve_thinking
        own, texts = placeholders.split(self._run(arguments))
        pieces: list[int | str] = self._tokenizer.split(own[0])
        for text, after in zip(texts, own[1:], strict=True):
            pieces += [text, *self._tokenizer.split(after)]
        whole = "".join(part for pair in zip(own, [*texts, ""], strict=True) for part in pair)
        return _Rendering(joined(pieces), whole, own[-1].rfind(THINK) > own[-1].rfind(END_THINK))

    def _run(self, arguments: Mapping[str, Any]) -> str:
        with self._lock:
            self._environment.start()
            try:
                return self._template.render(arguments)
            except RefusalError as error:
                reason = f"refuses this conversation: {error}"
            except (WorkLimitError, OverflowError, RecursionError, MemoryError):
                reason = "wants more work than any conversation needs, and was stopped"
            except Exception as error:
                reason = f"fails: {error or type(error).__name__}"
        raise TemplateError(f"The model's chat template {printable(' '.join(reason.split()), 300).rstrip('.')}.")


def ordered(messages: Sequence[Message]) -> list[Message]:
    """The conversation as every template takes it. Raises TemplateError where there is nothing to answer.

    All system messages (and those of the role `developer`) become one, at the start; neighbours of the same role
    become one. Their texts are joined by a blank line, blank ones left out. A blank system message is dropped.
    """
    system: list[Message] = []
    turns: list[list[Message]] = []
    for message in messages:
        role = str(message.role)
        if role in ("system", "developer"):
            system.append(message)
        elif role not in ("user", "assistant"):
            raise TemplateError(
                f"A message has the role {printable(role)}, which is none of system, user and assistant."
            )
        elif turns and turns[-1][0].role == role:
            turns[-1].append(message)
        else:
            turns.append([message])
    if not any(turn[0].role == "user" for turn in turns):
        raise TemplateError("There is no message from the user to answer.")
    merged = [_merged(turn) for turn in turns]
    prologue = _joined_text([message.content for message in system])
    return [Message("system", prologue), *merged] if prologue.strip() else merged


def _merged(turn: Sequence[Message]) -> Message:
    content, thought = ([getattr(message, field) for message in turn] for field in ("content", "thought"))
    return Message(turn[0].role, _joined_text(content), _joined_text(thought))


def _joined_text(texts: Sequence[str]) -> str:
    filled = [text for text in texts if text.strip()]
    return "\n\n".join(text.strip() for text in filled) if len(filled) > 1 else "".join(filled or texts[:1])


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the common prefix."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
