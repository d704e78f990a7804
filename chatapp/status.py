"""The line at the bottom: what runs, how fast, and how much room is left. A figure that is not known is not shown."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from chatapp.figures import count, duration, percent, rate
from chatapp.sanitize import clean_line, shortened
from runtime.quick_dataclass import dataclass

METER = 10
"""Columns of the bar that shows how full the context is."""
NAME = 16, 40
"""Columns of the model's name, at least and at most."""


_BESIDE_METER = 3
"""Figures that are worth more than the bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """None: not known, not shown. Context and cache in tokens, `ttft_ms` from the sending to the first token.

    `acceptance`: the share of drafted tokens that were accepted.
    """

    model: str | None = None
    thinking: bool | None = None
    state: str = ""
    busy: bool = False
    tok_per_s: float | None = None
    ttft_ms: float | None = None
    context_used: int | None = None
    context_length: int | None = None
    cached: int | None = None
    acceptance: float | None = None


class StatusLine(Static):
    """Drops the least important figures when the terminal is narrow."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.status = Status()
        self._hint = ""
        self._hint_timer: Timer | None = None

    def show(self, status: Status) -> None:
        if status != self.status:
            self.status = status
            self.refresh()

    def hint(self, text: str, seconds: float = 2.0) -> None:
        """A word in the place of the state, for a moment."""
        self._hint = text
        self.refresh()
        if self._hint_timer is not None:
            self._hint_timer.stop()
        self._hint_timer = self.set_timer(seconds, self._end_hint)

    def _end_hint(self) -> None:
        self._hint = ""
        self.refresh()

    def render(self) -> Content:
        status, width = self.status, self.size.width
        left = [(f"thinking {'on' if status.thinking else 'off'}", "")] if status.thinking is not None else []
        told, colour = (self._hint, "$text-warning") if self._hint else (status.state, "$text-accent" * status.busy)
        state = [(clean_line(told), colour)] if told else []
        meter, figures = _meter(status), _figures(status)
        room = width - _width([*left, *state, ("", "")])
        if (beside := room - _width(figures[-1:])) >= NAME[0]:
            room = beside
        name = shortened(status.model, min(max(room, NAME[0]), NAME[1])) if status.model else "no model"
        left.insert(0, (name, "bold" if status.model else ""))
        taken = _width(left) + _width(state)
        if meter is not None:
            shown = figures[max(len(figures) - _BESIDE_METER, 0) :]
            if taken + _width(shown) + METER <= width:
                while taken + _width(figures) + METER > width:
                    figures.pop(0)
                return Content(" ").join([_line(left + state, figures, width - METER - 1), meter])
        while figures and taken + _width(figures) > width:
            figures.pop(0)
        return _line(left + state, figures, width)


def _figures(status: Status) -> list[tuple[str, str]]:
    """The figures, the one that can be missed first at the beginning."""
    figures = []
    if status.context_length and status.context_used is None:
        figures.append((f"context {count(status.context_length)}", ""))
    if status.ttft_ms is not None:
        figures.append((f"first token {duration(status.ttft_ms / 1000)}", ""))
    if status.acceptance is not None:
        figures.append((f"drafts {percent(status.acceptance)}", ""))
    if status.cached:
        figures.append((f"{count(status.cached)} cached", ""))
    if status.tok_per_s is not None:
        figures.append((rate(status.tok_per_s), ""))
    if status.context_length and status.context_used is not None:
        used = f"{count(status.context_used)} / {count(status.context_length)}"
        figures.append((used, "$text-warning" if _nearly_full(status) else ""))
    return figures


def _meter(status: Status) -> Content | None:
    """The context as a bar: what was kept of it, what was read or written since, what is free."""
    used, length = status.context_used, status.context_length
    if not used or not length:
        return None
    filled = min(max(round(METER * used / length), 1), METER)
    kept = min(METER * (status.cached or 0) // length, filled)
    new = "$text-warning" if _nearly_full(status) else "$primary 60%"
    return Content.assemble(
        ("━" * kept, "$primary"), ("━" * (filled - kept), new), ("─" * (METER - filled), "$foreground 25%")
    )


def _nearly_full(status: Status) -> bool:
    return bool(status.context_used and status.context_length and status.context_used > 0.9 * status.context_length)


def _width(parts: list[tuple[str, str]]) -> int:
    return sum(cell_len(text) + 3 for text, _ in parts)


def _line(left: list[tuple[str, str]], right: list[tuple[str, str]], width: int) -> Content:
    def joined(parts: list[tuple[str, str]]) -> Content:
        dot = Content.styled(" · ", "$text-disabled")
        return dot.join([Content.styled(text, style) if style else Content(text) for text, style in parts])

    start, end = joined(left).truncate(max(width, 1), ellipsis=True), joined(right)
    return Content("").join([start, Content(" " * max(width - start.cell_length - end.cell_length, 1)), end])
