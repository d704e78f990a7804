"""What can be taken out of Markdown by itself: its code and its links."""

from __future__ import annotations

from dataclasses import dataclass

from chatapp.figures import lines
from chatapp.stream import Piece


@dataclass(frozen=True, slots=True)
class Code:
    """A block of code as it was written."""

    language: str
    text: str

    @property
    def lines(self) -> int:
        return lines(self.text)


@dataclass(frozen=True, slots=True)
class Link:
    text: str
    address: str


def codes_of(piece: Piece) -> list[Code]:
    """The code of a finished block: of a fence itself, else of those inside it."""
    if piece.opening is not None:
        return [Code(_language(piece.opening.language), piece.source)]
    if (
        "```" not in piece.source
        and "~~~" not in piece.source
        and "    " not in piece.source
        and "\t" not in piece.source
    ):
        return []
    from chatapp.parse import parse  # the first paint needs no parser

    return [
        Code(_language(node.token.info), node.content.removesuffix("\n"))
        for block in parse(piece.source)
        for node in block.walk()
        if node.type in ("fence", "code_block")
    ]


def links_of(piece: Piece) -> list[Link]:
    """The links of a finished block."""
    if piece.opening is not None or (
        "](" not in piece.source and "://" not in piece.source and "<" not in piece.source
    ):
        return []
    from chatapp.parse import parse

    return [
        Link(
            "".join(inner.content for inner in node.walk() if inner.type in ("text", "code_inline")),
            str(node.token.attrs["href"]),
        )
        for block in parse(piece.source)
        for node in block.walk()
        if node.type == "link"
    ]


def _language(info: str) -> str:
    return info.split(maxsplit=1)[0] if info.strip() else ""
