"""A widget that shows rows of styled text, of which only those in sight are ever drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip

from chatapp.plain_container import LaidOutOnce
from chatapp.row_styles import Looks, look, looks_of
from chatapp.rows import Rows, copied

# What a terminal may be told to open: nothing but printable ASCII can end up in its escape sequence.
_LINK = re.compile(r"(https?://|mailto:)[!-~]+")

Marks = Mapping[int, Sequence[tuple[int, int, bool]]]
"""By row: the characters from one to another that are found, and whether it is the one looked at."""


class RowsView(LaidOutOnce):
    """As tall as its rows. A subclass lays them out in `lay_out`."""

    ALLOW_SELECT = True

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._drawn: dict[str, Style] = {}
        self._looks: Looks | None = None  # those it was drawn with
        self._strips: dict[int, Strip] = {}
        self._marks: Marks = {}
        self._shift = 0

    @property
    def is_whole(self) -> bool:
        """Whether its rows show all of its text."""
        return True

    def mark(self, marks: Marks) -> None:
        """Show what was found."""
        if marks != self._marks:
            self._marks = marks
            self.refresh()

    def shift(self, cells: int) -> None:
        """Move code that is wider than the view, by so many cells to the left."""
        width = self.size.width
        rows = self.lay_out(width) if width else []
        most = max((rows[y].cells - width + 1 for y in range(len(rows)) if rows[y].fill), default=0)
        shift = max(min(self._shift + cells, most), 0)
        if shift != self._shift:
            self._shift = shift
            self._strips.clear()
            self.refresh()

    def lay_out(self, width: int) -> Rows:
        """The rows at this width; called whenever they are needed, so it keeps what it has made."""
        raise NotImplementedError

    def get_content_width(self, container: Size, viewport: Size) -> int:
        rows = self.lay_out(container.width)
        return max((rows[y].cells for y in range(len(rows))), default=0)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lay_out(width)) if width else 0

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn.clear()
        self._strips.clear()
        if self._looks is not None and self._looks is not looks_of(self):
            self.refresh()

    def rows_changed(self, first: int, before: int) -> None:
        """Redraw from row `first` on; `before` is the number of rows there were."""
        for number in [number for number in self._strips if number >= first]:
            del self._strips[number]
        self._marks = {number: found for number, found in self._marks.items() if number < first}
        width = self.size.width
        rows = len(self.lay_out(width)) if width else 0
        if not width or rows != before:
            self.refresh(layout=True)
        elif first < rows:
            self.refresh(Region(0, first, width, rows - first))

    def render_lines(self, crop: Region) -> list[Strip]:
        if self.styles.gutter or self.hover_style.link_id:
            return super().render_lines(crop)  # which draws what is around the rows, and the link under the mouse
        width, selection, ground = self.outer_size.width, self._selection, self.background_colors[1]
        strips = [self._line(y, width, selection) for y in crop.line_range]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, ground) for strip in strips]
        return strips if crop.column_span == (0, width) else [strip.crop(*crop.column_span) for strip in strips]

    def render_line(self, y: int) -> Strip:
        # Where each text stands in its row: asked for with the mouse only, so `render_lines` goes without.
        return self._line(y, self.size.width, self._selection).apply_offsets(self._shift_of(y), y)

    @property
    def _selection(self) -> Selection | None:
        return self.text_selection if self.is_attached else None  # what is removed may be drawn once more

    def _line(self, y: int, width: int, selection: Selection | None) -> Strip:
        strip = self._strips.get(y)
        if strip is None or strip.cell_length != width:
            strip = self._strips[y] = self._draw(y, width)
        for start, end, current in self._marks.get(y, ()):
            style = self.component("current" if current else "match")
            strip = self._painted(strip, start - self._shift_of(y), end - self._shift_of(y), style)
        if selection is not None and (span := selection.get_span(y)) is not None:
            rows = self.lay_out(width)
            skip = rows[y].skip if y < len(rows) else None
            if skip is not None:
                start, end = span
                end = len(rows[y].text) if end == -1 else end
                strip = self._selected(strip, max(start, skip) - self._shift_of(y), end - self._shift_of(y))
        return strip

    def _draw(self, y: int, width: int) -> Strip:
        base = self.visual_style.rich_style
        rows = self.lay_out(width)
        if y >= len(rows):
            return Strip.blank(width, base)
        row = rows[y]
        fill = base + self._style(row.fill)
        segments = [Segment(text, fill + self._style(names)) for text, names in row.spans]
        strip = Strip(segments)
        if row.fill and strip.cell_length > width:  # code that does not wrap
            shift = self._shift_of(y)
            more = strip.cell_length > shift + width
            strip = strip.crop(shift, shift + width - more)
            return Strip([*strip, Segment("›", fill + self._style("muted"))]) if more else strip
        return strip.adjust_cell_length(width, fill)

    def _shift_of(self, y: int) -> int:
        """How far a row is moved: as far as the others, but not beyond its end."""
        if not self._shift:
            return 0
        rows = self.lay_out(self.size.width)
        return min(self._shift, max(rows[y].cells - self.size.width, 0)) if y < len(rows) and rows[y].fill else 0

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = self.lay_out(self.size.width)
        start = (selection.start.y, selection.start.x) if selection.start is not None else None
        end = (selection.end.y, selection.end.x) if selection.end is not None else None
        return copied(rows, start, end), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def _selected(self, strip: Strip, start: int, end: int) -> Strip:
        """`strip` with the characters from `start` to `end` marked."""
        mark = self.screen.get_component_rich_style("screen--selection")
        if mark.color == mark.bgcolor:  # most themes give the selection a ground only: the text keeps its colour
            mark = Style(bgcolor=mark.bgcolor)
        return self._painted(strip, start, end, mark)

    def _painted(self, strip: Strip, start: int, end: int, mark: Style) -> Strip:
        """`strip` with the characters from `start` to `end` in another style."""
        segments: list[Segment] = []
        position = 0
        for text, style, _ in strip:
            edges = sorted({0, len(text), *(min(max(edge - position, 0), len(text)) for edge in (start, end))})
            for left, right in pairwise(edges):
                inside = start <= position + left < end
                segments.append(Segment(text[left:right], (style or Style.null()) + mark if inside else style))
            position += len(text)
        return Strip(segments, strip.cell_length)

    def _style(self, names: str) -> Style:
        """What the names of a span look like in this theme; a name that begins with @ is an address."""
        style = self._drawn.get(names)
        if style is None:
            style = Style.null()
            for name in names.split():
                if name.startswith("@"):
                    style += Style(meta={"@click": ("app.open_link", (name[1:],))})
                    if _LINK.fullmatch(name[1:]):
                        style += Style(link=name[1:])
                else:
                    style += self.component(name)
                    if name == "copy":
                        style += Style(meta={"copy": True})
            self._drawn[names] = style
        return style

    def component(self, name: str) -> Style:
        """What a name of a span looks like, its see-through colour blended with what is behind."""
        self._looks = looks_of(self)
        found = look(self, name)
        if found.veil is None:
            return found.style
        _, ground = self.background_colors
        return found.style + Style(color=(ground + found.veil).rich_color)
