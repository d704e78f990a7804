"""Markdown → rows. One call renders one piece of text; `stream` decides what the pieces are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.cells import cell_len

from chatapp.rows import BLANK, Row, Span, break_rows, indent
from chatapp.table import Align, table
from chatapp.wrap import fold

if TYPE_CHECKING:
    from markdown_it.token import Token

    from chatapp.parse import Node

TAB_SIZE = 4
_BULLETS = ("•", "◦", "▪")
_BOX = re.compile(r"\[([ xX])\](?: |$)")
_HOST = re.compile(r"(?:https?://)?((?:[\w-]+\.)+[a-zA-Z]{2,})(?:[:/?#].*)?$")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a block stands. `wrap`: long lines of code are folded; else they are rows wider than the view."""

    depth: int = 0
    wrap: bool = True


def render(source: str, width: int, *, wrap: bool = True) -> list[Row]:
    """The rows of a piece of Markdown, none wider than `width` cells, but for code that does not wrap.

    HTML is shown as text.
    """
    from chatapp.parse import parse  # the first paint needs no parser

    return _blocks(parse(source.expandtabs(TAB_SIZE)), max(width, 1), _Place(wrap=wrap))


def plain(text: str | Sequence[Span], width: int) -> list[Row]:
    """The rows of text as it stands, all in one style or in pieces that have each their own."""
    lines: list[list[Span]] = [[]]
    for part, style in [(text, "")] if isinstance(text, str) else text:
        first, *more = part.split("\n")
        lines[-1].append((first, style))
        lines += [[(line, style)] for line in more]
    return [row for line in lines for row in break_rows(_expanded(line), width)]


def code_rows(spans: Sequence[Span], width: int, *, wrap: bool = True) -> list[Row]:
    """One line of code on the ground of its fence, folded where it is too long."""
    inner = max(width - 2, 1)
    styled = [(text, f"fence {style}".rstrip()) for text, style in _expanded(spans)]
    rows = break_rows(styled, inner, fold, "fence") if wrap else [Row(tuple(styled), fill="fence")]
    return indent(rows, (" ", "fence"), (" ", "fence"), ornament=True)


COPY = "copy"
"""The word above code that copies it."""


def fence_top(language: str, width: int) -> Row:
    """The row above the code: its language and, at the right, what copies it."""
    label = language.split(maxsplit=1)[0] if language.strip() else ""
    room = width - 2 - len(COPY)
    if cell_len(label) >= room:
        label = ""
    if room < 0:
        return Row(skip=None, fill="fence")
    space = " " * (room - cell_len(label))
    return Row(
        ((" ", "fence"), (label, "fence label"), (space, "fence"), (COPY, "fence label copy")), None, fill="fence"
    )


def is_fence_top(row: Row) -> bool:
    """Whether code begins below a row."""
    if row.skip is not None or not row.spans:
        return False
    text, style = row.spans[-1]
    return text == COPY and "copy" in style.split()  # beside what the blocks around it have added


FENCE_BOTTOM = Row(skip=None, fill="fence")


def _blocks(nodes: Sequence[Node], width: int, place: _Place, tight: bool = False) -> list[Row]:
    """The rows of blocks that follow one another."""
    rows: list[Row] = []
    for node in nodes:
        if rows and not tight:
            rows.append(BLANK)
        rows += _BLOCKS.get(node.type, _unknown)(node, width, place)
    return rows


def _paragraph(node: Node, width: int, place: _Place) -> list[Row]:
    return [row for line in _lines(node) for row in break_rows(line, width)]


def _heading(node: Node, width: int, place: _Place) -> list[Row]:
    style = node.token.tag if node.token.tag in ("h1", "h2") else "h3"
    return [row for line in _lines(node, style) for row in break_rows(line, width)]


def _rule(node: Node, width: int, place: _Place) -> list[Row]:
    return [Row((("─" * width, "rule"),), None)]


def _fence(node: Node, width: int, place: _Place) -> list[Row]:
    lines = node.content.removesuffix("\n").split("\n")
    rows = [row for line in lines for row in code_rows([(line, "")], width, wrap=place.wrap)]
    return [fence_top(node.token.info, width), *rows, FENCE_BOTTOM]


def _quote(node: Node, width: int, place: _Place) -> list[Row]:
    rows = _blocks(node.children, max(width - 2, 1), place)
    styled = [
        Row(tuple((text, f"quote {style}".rstrip()) for text, style in row.spans), row.skip, row.glue, row.fill)
        for row in rows
    ]
    return indent(styled, ("▎ ", "bar"), ("▎ ", "bar"), ornament=True)


def _list(node: Node, width: int, place: _Place) -> list[Row]:
    ordered = node.type == "ordered_list"
    first = int(node.token.attrs.get("start", 1))
    tight = _tight(node)
    last = f"{first + len(node.children) - 1}."
    deeper = _Place(place.depth + 1, place.wrap)
    rows: list[Row] = []
    for number, item in enumerate(node.children, start=first):
        task = None if ordered else _task(item)
        marker = f"{number}.".rjust(len(last)) if ordered else task or _BULLETS[place.depth % len(_BULLETS)]
        marker = f"{marker} "
        inner = _blocks(item.children, max(width - len(marker), 1), deeper, tight) or [BLANK]
        if rows and not tight:
            rows.append(BLANK)
        rows += indent(inner, (marker, "marker"), (" " * len(marker), ""), ornament=False)
    return rows


def _tight(node: Node) -> bool:
    """Whether the items of a list follow one another without empty lines."""
    return all(child.token.hidden for item in node.children for child in item.children if child.type == "paragraph")


def _task(item: Node) -> str | None:
    """The box of an item of a task list, whose text loses its brackets; None for any other item."""
    inline = next((child for child in item.walk() if child.type == "inline"), None)
    tokens = (inline.token.children or []) if inline is not None else []
    if not tokens or tokens[0].type != "text" or (match := _BOX.match(tokens[0].content)) is None:
        return None
    tokens[0].content = tokens[0].content[match.end() :]
    return "☐" if match[1] == " " else "☑"


def _math(node: Node, width: int, place: _Place) -> list[Row]:
    """A formula as it was written, set apart."""
    rows = [row for line in node.content.split("\n") for row in break_rows([(line, "math")], max(width - 2, 1))]
    return indent(rows, ("  ", ""), ("  ", ""), ornament=True)


def _table(node: Node, width: int, place: _Place) -> list[Row]:
    lines = [row for part in node.children for row in part.children]
    cells = [[_joined(_lines(cell)) for cell in line.children] for line in lines]
    head = lines[0].children if lines else []
    return table(cells, [_align(cell) for cell in head], width)


def _align(cell: Node) -> Align:
    style = str(cell.token.attrs.get("style", ""))
    return "right" if "right" in style else "center" if "center" in style else "left"


def _unknown(node: Node, width: int, place: _Place) -> list[Row]:
    return plain(node.content, width) if not node.token.nesting else []


_BLOCKS: dict[str, Callable[[Node, int, _Place], list[Row]]] = {
    "paragraph": _paragraph,
    "heading": _heading,
    "hr": _rule,
    "fence": _fence,
    "code_block": _fence,
    "blockquote": _quote,
    "bullet_list": _list,
    "ordered_list": _list,
    "table": _table,
    "math_block": _math,
}

_MARKS = {"strong": "strong", "em": "em", "s": "strike", "link": "link"}


def _lines(node: Node, style: str = "") -> list[list[Span]]:
    """The spans of inline text, line by line: a newline that the model wrote stays one."""
    lines: list[list[Span]] = [[]]
    stack = [style] if style else []
    inline = next((child for child in node.children if child.type == "inline"), None)
    tokens: Sequence[Token] = (inline.token.children or []) if inline is not None else []
    for token in tokens:
        kind = token.type
        if kind.endswith("_open"):
            stack.append(_mark(token))
        elif kind.endswith("_close"):
            mark = stack.pop()
            if mark.startswith("link @") and (host := _other_host(lines, mark)):
                lines[-1].append((f" ({host})", "muted"))
        elif kind in ("softbreak", "hardbreak"):
            lines.append([])
        elif kind == "math_inline":
            first, *more = token.content.split("\n")
            lines[-1].append((first, " ".join([*stack, "math"])))
            lines += [[(line, " ".join([*stack, "math"]))] for line in more]
        elif kind == "code_inline":
            lines[-1].append((token.content, " ".join([*stack, "code"])))
        elif kind == "image":
            lines[-1].append((token.content or "image", " ".join([*stack, "em"])))
        elif token.content:
            lines[-1].append((token.content, " ".join(stack)))
    return lines


def _mark(token: Token) -> str:
    """The style of an opening mark; a link carries its address, which holds no spaces."""
    name = _MARKS[token.type.removesuffix("_open")]
    return f"link @{token.attrs['href']}" if name == "link" else name


def _other_host(lines: list[list[Span]], mark: str) -> str:
    """The host that a link leads to, where its text names another one."""
    text = ""
    for part, style in reversed(lines[-1]):
        if mark not in style:
            break
        text = part + text
    named = _HOST.match(text.strip())
    try:
        host = urlsplit(mark.removeprefix("link @")).hostname or ""
    except ValueError:  # brackets round what is no IPv6 address
        host = ""
    return host if named is not None and host and named[1].casefold() != host else ""


def _joined(lines: list[list[Span]]) -> list[Span]:
    """The lines of a table cell as one."""
    parts = [lines[0]] if lines else []
    for _, line in pairwise(lines):
        parts += [[(" ", "")], line]
    return [span for part in parts for span in part]


def _expanded(spans: Sequence[Span]) -> Sequence[Span]:
    """The spans of one line with its tabs as spaces up to the next stop."""
    if not any("\t" in text for text, _ in spans):
        return spans
    column = 0
    expanded = []
    for text, style in spans:
        wide = (" " * (column % TAB_SIZE) + text).expandtabs(TAB_SIZE)[column % TAB_SIZE :]
        column += len(wide)
        expanded.append((wide, style))
    return expanded
