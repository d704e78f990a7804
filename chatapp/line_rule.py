"""Markdown of one line, as most items of a list are, past all that makes out the blocks of longer texts."""

from __future__ import annotations

import re

from markdown_it.rules_core import StateCore, block
from markdown_it.token import Token

# A letter begins no block of its own, nor do letters in bold, and a box before them is none to the parser.
_LINE = re.compile(r"(?:([-+*]|(\d{1,9})[.)]) )?((?:\[[ xX]\] )?(?:\*\*)?[^\W\d_](?:[^\n]*\S)?)")


def blocks(state: StateCore) -> None:
    """The parser's own rule, or what it would make of a paragraph or an item of one line."""
    line = _LINE.fullmatch(state.src)
    if line is None:
        block(state)
        return
    marker, number, text = line.groups()
    tokens = [
        Token("paragraph_open", "p", 1, hidden=bool(marker)),
        Token("inline", "", 0, content=text, children=[], level=1),
        Token("paragraph_close", "p", -1, hidden=bool(marker)),
    ]
    if marker:
        name, tag, markup = ("ordered_list", "ol", marker[-1]) if number else ("bullet_list", "ul", marker)
        for token in tokens:
            token.level += 2
        tokens = [
            Token(f"{name}_open", tag, 1, attrs={"start": int(number)} if number and int(number) != 1 else {}),
            Token("list_item_open", "li", 1, info=number or "", level=1),
            *tokens,
            Token("list_item_close", "li", -1, level=1),
            Token(f"{name}_close", tag, -1),
        ]
        for token in (*tokens[:2], *tokens[-2:]):
            token.markup = markup
    for token in tokens:
        token.block = True
        token.map = [0, 1] if token.nesting >= 0 else None
    state.tokens += tokens
