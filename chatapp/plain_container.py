"""What the widgets around the transcript have in common, so that a reply that grows costs one layout and one paint."""

from __future__ import annotations

from textual.color import Color
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget


class LaidOutOnce(Widget):
    """A widget whose new size asks for no second layout: its children had their say in the first."""

    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False, repaint=False)


class PlainContainer(LaidOutOnce):
    """A container that draws nothing but its ground: no border, no title."""

    def render_lines(self, crop: Region) -> list[Strip]:
        strip = Strip.blank(crop.width, self.visual_style.rich_style)
        for line_filter in self.get_line_filters():
            strip = strip.apply_filter(line_filter, self.visual_style.background or Color.parse("black"))
        return [strip] * crop.height
