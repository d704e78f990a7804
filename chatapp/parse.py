"""Markdown text → its tree."""

from __future__ import annotations

import functools

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from chatapp.math_rules import add_math

INLINE_LIMIT = 4_000
"""A paragraph with more characters is shown as it is: parsing its marks takes time that can grow with the square."""


def parse(source: str) -> SyntaxTreeNode:
    """CommonMark with tables, strikethrough, mathematics and bare addresses; HTML stays text."""
    return SyntaxTreeNode(_parser().parse(source))


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": True}).enable(["table", "strikethrough", "linkify"])
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    add_math(parser)
    parser.core.ruler.at("inline", _inline)
    return parser


def _inline(state: StateCore) -> None:
    """The parser's own rule, but for paragraphs that are too long for it."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        token.children = []
        if len(token.content) <= INLINE_LIMIT:
            state.md.inline.parse(token.content, state.md, state.env, token.children)
            continue
        for number, line in enumerate(token.content.split("\n")):
            if number:
                token.children.append(Token("softbreak", "br", 0))
            token.children.append(Token("text", "", 0, content=line))
