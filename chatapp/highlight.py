"""Source code → spans of styles, line by line."""

from __future__ import annotations

import functools
from typing import Any

from pygments.lexers import get_lexer_by_name
from pygments.token import Token
from pygments.util import ClassNotFound

from chatapp.rows import Span

_STYLES: dict[Any, str] = {
    Token.Comment: "comment",
    Token.Generic.Deleted: "deleted",
    Token.Generic.Inserted: "inserted",
    Token.Generic.Heading: "keyword",
    Token.Generic.Subheading: "keyword",
    Token.Keyword: "keyword",
    Token.Keyword.Constant: "number",
    Token.Keyword.Type: "type",
    Token.Literal.Number: "number",
    Token.Literal.String: "string",
    Token.Name.Attribute: "type",
    Token.Name.Builtin: "function",
    Token.Name.Class: "type",
    Token.Name.Decorator: "function",
    Token.Name.Exception: "type",
    Token.Name.Function: "function",
    Token.Name.Tag: "keyword",
    Token.Operator.Word: "keyword",
}


def highlight(code: str, language: str) -> list[tuple[Span, ...]] | None:
    """The spans of each line of `code`; None where the language is unknown or the lexer fails on it."""
    lexer = _lexer(language.strip().lower())
    if lexer is None:
        return None
    lines: list[list[Span]] = [[]]
    try:
        for token, text in lexer.get_tokens(code):
            style = _style(token)
            first, *others = text.split("\n")
            if first:
                lines[-1].append((first, style))
            lines += [[(part, style)] if part else [] for part in others]
    except Exception:
        # A lexer is a large state machine over text that nobody has seen before: code without colours is fine.
        return None
    if not lines[-1]:
        del lines[-1]  # lexers end every text with a newline
    plain = ["".join(text for text, _ in line) for line in lines]
    return [tuple(line) for line in lines] if plain == code.removesuffix("\n").split("\n") else None


@functools.cache
def _lexer(language: str) -> Any | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=True) if language else None
    except ClassNotFound:
        return None


@functools.cache
def _style(token: Any) -> str:
    while token is not None:
        if token in _STYLES:
            return _STYLES[token]
        token = token.parent
    return ""
