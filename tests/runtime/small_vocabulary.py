"""A byte-level vocabulary that is small enough to work with by hand: 256 bytes, then merges, then specials."""

from __future__ import annotations

from typing import Any

# GPT-2's stand-ins, written out from its rule: visible Latin-1 stands for itself, the rest follows from U+0100.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _VISIBLE]
BYTES = [chr(byte) if byte in _VISIBLE else chr(256 + _HIDDEN.index(byte)) for byte in range(256)]

MERGES = ["l l", "h e", "he ll", "hell o", "Ġ w", "Ì ģ", "x Ìģ", "a b", "b c", "Ċ Ċ"]
HELLO, SPACE_W, ACUTE, X_ACUTE, AB, BC = 259, 260, 261, 262, 263, 264
SPECIALS = {
    "<|endoftext|>": 3,
    "<|im_start|>": 3,
    "<|im_end|>": 3,
    "<think>": 4,
    "</think>": 4,
    "<tool_response>": 4,
    "</tool_response>": 4,
    "<|im_end|><|im_start|>": 3,
}
ENDOFTEXT, IM_START, IM_END, THINK, END_THINK, TOOL, END_TOOL, LONGEST = range(266, 274)
PADDING = 274


def metadata(**changes: Any) -> dict[str, Any]:
    """What a file with this vocabulary says; `changes` replace values of `tokenizer.ggml.*`, None removes one."""
    tokens = [*BYTES, *(merge.replace(" ", "") for merge in MERGES), *SPECIALS, "[PAD]"]
    values = {
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": tokens,
        "token_type": [1] * (256 + len(MERGES)) + [*SPECIALS.values(), 5],
        "merges": MERGES,
        "eos_token_id": IM_END,
        "padding_token_id": ENDOFTEXT,
    } | changes
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}
