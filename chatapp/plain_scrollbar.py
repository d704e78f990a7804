"""The scrollbar of the transcript, which changes with each frame of a reply that grows."""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip


class PlainScrollBar(ScrollBar):
    """Looks and acts as any other, but is drawn without a border, and from the few cells that there are."""

    def render_lines(self, crop: Region) -> list[Strip]:
        bar = self.render()
        assert isinstance(bar, ScrollBarRender)
        style = self.app.console.get_style(bar.style)
        assert style.color is not None
        assert style.bgcolor is not None
        width, height = self.outer_size
        segments = bar.render_bar(
            height, bar.virtual_size, bar.window_size, bar.position, width, True, style.bgcolor, style.color
        ).segments
        base = self.visual_style.rich_style
        strips = [_cell(segment, base, width) for segment in segments[crop.y : crop.bottom]]
        ground = self.background_colors[1]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, ground) for strip in strips]
        return strips if crop.column_span == (0, width) else [strip.crop(*crop.column_span) for strip in strips]


@lru_cache(128)
def _cell(segment: Segment, base: Style, width: int) -> Strip:
    return Strip(Segment.apply_style([segment], base), width)
