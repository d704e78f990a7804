"""A byte-level vocabulary small enough to read, and a ChatML template in the manner of the family's own."""

from __future__ import annotations

from dataclasses import dataclass

from gguf import TokenType

MERGES = """
Ġ t;h e;Ġt he;i n;e r;a n;r e;o n;Ġ a;Ġ s;Ġ w;Ġa n;Ġan d;o u;i t;e n;o r;i s;Ġ i;Ġ o;Ġo f;e d;in g;Ġ y;Ġy ou;l l;
Ġ h;Ġ b;Ġt o;a t;Ġ Ġ;ĠĠ ĠĠ;Ċ Ċ;u s;us er;a s;as s;ass is;assis t;assist an;assistan t
"""

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "</think>")

CHAT_TEMPLATE = r"""
{%- if not messages or messages|selectattr('role', 'equalto', 'user')|list|length == 0 %}
    {{- raise_exception('There is no user message.') }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set last.user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('The system message must come first.') }}
    {%- elif message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('Unknown role: ' ~ message.role) }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\n' }}
    {%- if message.role == 'assistant' and (loop.index0 > last.user or preserve_thinking) %}
        {{- '<think>\n' ~ (message.reasoning_content or '')|trim ~ '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content|trim ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""".strip()


@dataclass(frozen=True)
class Vocabulary:
    tokens: list[str]
    types: list[int]
    merges: list[str]


def byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes: visible Latin-1 as it is, then the others from U+0100 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in visible] + [chr(256 + n) for n in range(256 - len(visible))]


def vocabulary(size: int) -> Vocabulary:
    """Bytes, merges, special tokens, then unused padding up to `size`."""
    merges = MERGES.replace("\n", "").strip().split(";")
    tokens = byte_symbols()
    for merge in merges:
        left, right = merge.split(" ")
        if left not in tokens or right not in tokens:
            raise ValueError(f"merge {merge!r} joins a token that does not exist yet")
        tokens.append(left + right)
    types = [TokenType.NORMAL] * len(tokens)
    tokens += [*CONTROL, *USER_DEFINED]
    types += [TokenType.CONTROL] * len(CONTROL) + [TokenType.USER_DEFINED] * len(USER_DEFINED)
    types += [TokenType.UNUSED] * (size - len(tokens))
    tokens += [f"[PAD{n}]" for n in range(len(tokens), size)]
    return Vocabulary(tokens, [int(kind) for kind in types], merges)
