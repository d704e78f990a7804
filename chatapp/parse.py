"""Markdown text → its blocks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore, linkify
from markdown_it.token import Token

from chatapp.line_rule import blocks
from chatapp.math_rules import add_math

INLINE_LIMIT = 4_000
"""A paragraph with more characters is shown as it is: parsing its marks takes time that can grow with the square."""


DEEPEST = 30
"""Levels of what lies inside one another, two for a list and its items. Deeper, a line has no room to be read in."""


class Node:
    """A block or a part of a text: its token, of two the opening one, and what is inside it."""

    __slots__ = ("_children", "token", "type")

    def __init__(self, token: Token) -> None:
        self.type = token.type.removesuffix("_open")
        self.token = token
        self._children: list[Node] | None = [] if token.nesting else None

    @property
    def children(self) -> list[Node]:
        if self._children is None:  # few ask for the parts of a text
            self._children = _tree(self.token.children or ())
        return self._children

    @property
    def content(self) -> str:
        return self.token.content

    def walk(self) -> Iterator[Node]:
        """It and all that is inside it, in their order."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse(source: str) -> list[Node]:
    """CommonMark with tables, strikethrough, mathematics and bare addresses; HTML and references stay text.

    What is nested deeper than `DEEPEST` is a paragraph, as it is written.
    """
    tokens = _parser().parse(source)
    deepest = max((each.level for token in tokens for each in (token, *(token.children or ()))), default=0)
    return _tree(tokens if deepest <= DEEPEST else _as_written(source))


def _tree(tokens: Iterable[Token]) -> list[Node]:
    top: list[Node] = []
    levels = [top]
    for token in tokens:
        if token.nesting < 0:
            levels.pop()
            continue
        node = Node(token)
        levels[-1].append(node)
        if token.nesting > 0:
            levels.append(node.children)
    return top


@functools.cache
def _parser() -> MarkdownIt:
    # Below its own limit the parser drops the text.
    options = {"html": False, "linkify": True, "maxNesting": DEEPEST + 10}
    parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough", "linkify"])
    parser.disable("reference")  # the links it is for may stand in other blocks, which are parsed by themselves
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    add_math(parser)
    parser.core.ruler.at("block", blocks)
    parser.core.ruler.at("inline", _inline)
    parser.core.ruler.at("linkify", _linkify)
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
        token.children += _lines(token.content)


def _linkify(state: StateCore) -> None:
    """The parser's own rule, for what can hold an address at all."""
    if ":" in state.src or "//" in state.src or "&" in state.src:  # which may stand for either
        linkify(state)


def _as_written(source: str) -> list[Token]:
    inline = Token("inline", "", 0, content=source, children=_lines(source), level=1)
    return [Token("paragraph_open", "p", 1), inline, Token("paragraph_close", "p", -1)]


def _lines(text: str) -> list[Token]:
    tokens = []
    for number, line in enumerate(text.split("\n")):
        if number:
            tokens.append(Token("softbreak", "br", 0))
        tokens.append(Token("text", "", 0, content=line))
    return tokens
