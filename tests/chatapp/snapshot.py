"""What a screen looks like, as text that a diff can show: its rows, the style of each cell, and what the styles are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from harness import Chat
from rich.style import Style
from textual.strip import Strip

FOLDER = Path(__file__).parent / "snapshots"
WRITE = "QWENCHAT_SNAPSHOTS"  # in the environment, "write" makes the files anew
THEMES = ("ink", "paper")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" + "".join(map(chr, range(0xC0, 0x180)))


async def take(chat: Chat) -> str:
    """The screen as it is, in both themes."""
    looks: list[list[Strip]] = []
    for theme in THEMES:
        assert theme in chat.app.themes
        chat.app.theme = theme
        await chat.pilot.pause()
        looks.append(chat.app.screen._compositor.render_strips())
    texts = [[strip.text.rstrip() for strip in strips] for strips in looks]
    assert texts[0] == texts[1], "a theme must not change the text"
    cells = [[_cells(strip) for strip in strips] for strips in looks]
    letters: dict[tuple[str, ...], str] = {}
    rows = []
    for row in zip(*cells, strict=True):
        pairs = list(zip(*row, strict=True))
        line = "".join(letters.setdefault(pair, _LETTERS[len(letters)]) for pair in pairs)
        rows.append(line[: len(line.rstrip(line[-1])) + 1])  # the last style goes on to the edge
    legend = [f"{letter}  {'  |  '.join(pair)}" for pair, letter in letters.items()]
    return "\n".join(chain(texts[0], ["", "-- styles"], rows, ["", f"-- {'  |  '.join(THEMES)}"], legend)) + "\n"


def check(name: str, found: str) -> None:
    """Fails if it is not what the file says."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get(WRITE) == "write":
        FOLDER.mkdir(exist_ok=True)
        path.write_text(found, "utf-8")
    wanted = path.read_text("utf-8") if path.is_file() else "(there is no such file)"
    assert found == wanted, f"{path.name} is otherwise; if that is right: {WRITE}=write pytest {Path(__file__).parent}"


def _cells(strip: Strip) -> list[str]:
    """The style of each cell."""
    cells: list[str] = []
    for segment in strip:
        cells += [_told(segment.style)] * segment.cell_length
    return cells


def _told(style: Style | None) -> str:
    if style is None:
        return "-"
    colours: Sequence[str] = [
        colour.get_truecolor().hex if colour is not None and not colour.is_default else "-"
        for colour in (style.color, style.bgcolor)
    ]
    attributes = [name for name in ("bold", "dim", "italic", "underline", "strike", "reverse") if getattr(style, name)]
    return " ".join([*colours, *attributes])
