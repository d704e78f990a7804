"""What the transcript draws by itself, past Textual's cache of styles: it looks the same, and a frame costs little."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend, Gate, say
from harness import Chat, here, running
from textual._styles_cache import StylesCache
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from chatapp.blocks import ReplyBlock
from chatapp.markdown_view import MarkdownView
from chatapp.rows_view import RowsView

PAGE = (
    "# Head\n\n**bold** `code` [a link](https://a.example) 漢字\n\n```python\nx = 1\n```\n\n- [x] done\n\n> quoted\n\n"
)


def looks(strips: list[Strip]) -> list[list[tuple[object, ...]]]:
    """The characters and all that is seen of their styles."""
    return [
        [
            (character, style.color, style.bgcolor, style._attributes, style.link)
            for text, style, _ in strip
            if style is not None
            for character in text
        ]
        for strip in strips
    ]


def shows(chat: Chat, text: str) -> bool:
    return text in chat.text()


@here("it asks for no reply")
@pytest.mark.parametrize("theme", ["ink", "textual-light"])
async def test_it_looks_as_textual_draws_it(tmp_path: Path, theme: str) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        chat.app.theme = theme
        transcript = chat.screen.transcript
        reply = ReplyBlock(PAGE * 5, ending="stop")
        await transcript.add(reply)
        await chat.until(lambda: transcript.max_scroll_y > 0)
        view, bar = reply.answer_view, transcript.vertical_scrollbar
        for y in (0, 7.125, transcript.max_scroll_y):
            transcript.scroll_to(y=y, animate=False, immediate=True)
            await chat.pilot.pause()
            for widget in (view, bar):
                width, height = widget.outer_size
                for crop in (Region(0, 0, width, height), Region(width // 3, 2, width - width // 3, height - 3)):
                    assert looks(widget.render_lines(crop)) == looks(Widget.render_lines(widget, crop))


@here("it asks for no reply")
async def test_the_mouse_finds_the_character_it_points_at(tmp_path: Path) -> None:
    """In a row that stands where it is, and in code that was moved to the left."""
    code = "".join(chr(0x100 + number) for number in range(200))
    async with running(FakeBackend(), tmp_path) as chat:
        reply = ReplyBlock(f"plain **bold** text\n\n```\n{code}\n```\n", ending="stop")
        await chat.screen.transcript.add(reply)
        await chat.until(lambda: code[:20] in chat.text())
        view = reply.answer_view
        view.wrap(False)
        view.shift(40)
        await chat.until(lambda: code[:20] not in chat.text() and code[60:80] in chat.text())
        for y in range(4):
            row = view.lay_out(view.size.width)[y]
            line = chat.lines()[view.content_region.y + y]
            for x in range(0, view.size.width, 9):
                place = view.content_region.x + x
                if line[place : place + 1].strip(" ›"):
                    found, offset = chat.app.screen.get_widget_and_offset_at(place, view.content_region.y + y)
                    assert found is view
                    assert offset is not None
                    assert row.text[offset.x] == line[place]


@pytest.mark.slow
@here("it counts what a reply in known pieces draws")
async def test_a_frame_of_a_reply_draws_its_new_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: Counter[str] = Counter()
    styled: Counter[type[Widget]] = Counter()
    draw, style = RowsView._draw, StylesCache.render_widget

    def counted(view: RowsView, y: int, width: int) -> Strip:
        drawn[view.lay_out(width)[y].text] += 1
        return draw(view, y, width)

    def counted_too(cache: StylesCache, widget: Widget, *rest: Any) -> list[Strip]:
        styled[type(widget)] += 1
        return style(cache, widget, *rest)

    monkeypatch.setattr(RowsView, "_draw", counted)
    monkeypatch.setattr(StylesCache, "render_widget", counted_too)
    items = [f"item {number} of the list" for number in range(40)]
    gates = [Gate() for _ in items]
    steps = [step for item, gate in zip(items, gates, strict=True) for step in (say(f"- {item}\n"), gate)]
    async with running(FakeBackend([*steps]), tmp_path) as chat:
        await chat.send("q")
        for item, gate in zip(items, gates, strict=True):
            await chat.until(partial(shows, chat, item))
            gate.open()
        await chat.idle()
    shown = [drawn[f"• {item}"] for item in items]
    assert max(shown) <= 2  # once as the open item, once as a finished one
    assert not styled[MarkdownView]
    assert not styled[type(chat.screen.transcript.vertical_scrollbar)]
