"""Markdown → rows. One call renders one piece of text; `stream` decides what the pieces are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len

from chatapp.rows import BLANK, Row, Span, break_rows, indent
from chatapp.table import Align, table
from chatapp.wrap import fold

if TYPE_CHECKING:
    from markdown_it.token import Token
    from markdown_it.tree import SyntaxTreeNode

TAB_SIZE = 4
_BULLETS = ("•", "◦", "▪")


def render(source: str, width: int) -> list[Row]:
    """The rows of a piece of Markdown, none wider than `width` cells. HTML is shown as text."""
    from chatapp.parse import parse  # the first paint needs no parser

    return _blocks(parse(source.expandtabs(TAB_SIZE)).children, max(width, 1), 0)


def plain(text: str | Sequence[Span], width: int) -> list[Row]:
    """The rows of text as it stands, all in one style or in pieces that have each their own."""
    lines: list[list[Span]] = [[]]
    for part, style in [(text, "")] if isinstance(text, str) else text:
        first, *more = part.split("\n")
        lines[-1].append((first, style))
        lines += [[(line, style)] for line in more]
    return [row for line in lines for row in break_rows(_expanded(line), width)]


def code_rows(spans: Sequence[Span], width: int) -> list[Row]:
    """One line of code on the ground of its fence, folded where it is too long."""
    inner = max(width - 2, 1)
    styled = [(text, f"fence {style}".rstrip()) for text, style in _expanded(spans)]
    return indent(break_rows(styled, inner, fold, "fence"), (" ", "fence"), (" ", "fence"), ornament=True)


def fence_top(language: str, width: int) -> Row:
    """The row above the code, with its language at the right."""
    label = language.split(maxsplit=1)[0] if language.strip() else ""
    if cell_len(label) > width - 2:
        label = ""
    return Row(((" " * (width - 1 - cell_len(label)), "fence"), (label, "fence label")), None, fill="fence")


FENCE_BOTTOM = Row(skip=None, fill="fence")


def _blocks(nodes: Sequence[SyntaxTreeNode], width: int, depth: int, tight: bool = False) -> list[Row]:
    """The rows of blocks that follow one another."""
    rows: list[Row] = []
    for node in nodes:
        if rows and not tight:
            rows.append(BLANK)
        rows += _BLOCKS.get(node.type, _unknown)(node, width, depth)
    return rows


def _paragraph(node: SyntaxTreeNode, width: int, depth: int) -> list[Row]:
    return [row for line in _lines(node) for row in break_rows(line, width)]


def _heading(node: SyntaxTreeNode, width: int, depth: int) -> list[Row]:
    style = node.tag if node.tag in ("h1", "h2") else "h3"
    return [row for line in _lines(node, style) for row in break_rows(line, width)]


def _rule(node: SyntaxTreeNode, width: int, depth: int) -> list[Row]:
    return [Row((("─" * width, "rule"),), None)]


def _fence(node: SyntaxTreeNode, width: int, depth: int) -> list[Row]:
    lines = node.content.removesuffix("\n").split("\n")
    rows = [row for line in lines for row in code_rows([(line, "")], width)]
    return [fence_top(node.info, width), *rows, FENCE_BOTTOM]


def _quote(node: SyntaxTreeNode, width: int, depth: int) -> list[Row]:
    rows = _blocks(node.children, max(width - 2, 1), depth)
    styled = [
        Row(tuple((text, f"quote {style}".rstrip()) for text, style in row.spans), row.skip, row.glue, row.fill)
        for row in rows
    ]
    return indent(styled, ("▎ ", "bar"), ("▎ ", "bar"), ornament=True)


def _list(node: SyntaxTreeNode, width: int, depth: int) -> list[Row]:
    ordered = node.type == "ordered_list"
    first = int(node.attrs.get("start", 1))
    tight = _tight(node)
    last = f"{first + len(node.children) - 1}."
    rows: list[Row] = []
    for number, item in enumerate(node.children, start=first):
        marker = f"{number}.".rjust(len(last)) if ordered else _BULLETS[depth % len(_BULLETS)]
        marker = f"{marker} "
        inner = _blocks(item.children, max(width - len(marker), 1), depth + 1, tight) or [BLANK]
        if rows and not tight:
            rows.append(BLANK)
        rows += indent(inner, (marker, "marker"), (" " * len(marker), ""), ornament=False)
    return rows


def _tight(node: SyntaxTreeNode) -> bool:
    """Whether the items of a list follow one another without empty lines."""
    return all(child.hidden for item in node.children for child in item.children if child.type == "paragraph")


def _table(node: SyntaxTreeNode, width: int, depth: int) -> list[Row]:
    lines = [row for part in node.children for row in part.children]
    cells = [[_joined(_lines(cell)) for cell in line.children] for line in lines]
    head = lines[0].children if lines else []
    return table(cells, [_align(cell) for cell in head], width)


def _align(cell: SyntaxTreeNode) -> Align:
    style = str(cell.attrs.get("style", ""))
    return "right" if "right" in style else "center" if "center" in style else "left"


def _unknown(node: SyntaxTreeNode, width: int, depth: int) -> list[Row]:
    return plain(node.content, width) if not node.is_root and node.token is not None else []


_BLOCKS: dict[str, Callable[[SyntaxTreeNode, int, int], list[Row]]] = {
    "paragraph": _paragraph,
    "heading": _heading,
    "hr": _rule,
    "fence": _fence,
    "code_block": _fence,
    "blockquote": _quote,
    "bullet_list": _list,
    "ordered_list": _list,
    "table": _table,
}

_MARKS = {"strong": "strong", "em": "em", "s": "strike", "link": "link"}


def _lines(node: SyntaxTreeNode, style: str = "") -> list[list[Span]]:
    """The spans of inline text, line by line: a newline that the model wrote stays one."""
    lines: list[list[Span]] = [[]]
    stack = [style] if style else []
    inline = next((child for child in node.children if child.type == "inline"), None)
    tokens: Sequence[Token] = (inline.token.children or []) if inline is not None and inline.token else []
    for token in tokens:
        kind = token.type
        if kind.endswith("_open"):
            stack.append(_mark(token))
        elif kind.endswith("_close"):
            stack.pop()
        elif kind in ("softbreak", "hardbreak"):
            lines.append([])
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
