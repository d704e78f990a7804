"""A model's thought, folded to one line apart from the answer."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from chatapp.figures import duration, plural
from chatapp.markdown import plain
from chatapp.markdown_view import MarkdownView
from chatapp.plain_container import PlainContainer
from chatapp.rows import Row, Rows
from chatapp.rows_view import RowsView
from chatapp.sanitize import clean

TAIL_ROWS = 3
_TAIL_CHARACTERS = 900


class ThoughtView(Vertical, PlainContainer):
    """One line while folded; a running thought also shows its last few rows."""

    def __init__(self, text: str = "") -> None:
        """With a text: a thought of the past."""
        super().__init__()
        self._parts = [text] if text else []
        self._live = not text
        self._tail = ""
        self._seconds: float | None = None
        self._tokens: int | None = None
        self._unfinished = False
        self.unfolded = False
        self.body: MarkdownView | None = None

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def compose(self) -> ComposeResult:
        yield ThoughtHead(self._label())
        if self._live:
            yield ThoughtTail()

    def append(self, text: str) -> None:
        """More of a running thought."""
        self._parts.append(text)
        if self.body is not None:
            self.body.append(text)
        self._tail = (self._tail + text)[-_TAIL_CHARACTERS:]

    def measure(self, seconds: float | None, tokens: int | None) -> None:
        """How long the thought took or has taken so far, and its tokens; None for what is not known."""
        self._seconds, self._tokens = seconds, tokens
        self._refresh_head()
        if self._live and not self.unfolded:
            for tail in self.query(ThoughtTail):
                tail.show(self._tail)

    def finish(self, *, unfinished: bool) -> None:
        """The thought has ended. `unfinished`: the reply ended inside it."""
        if not self._live and unfinished == self._unfinished:
            return
        self._live, self._unfinished = False, unfinished
        self.query(ThoughtTail).remove()
        if self.body is not None:
            self.body.close()
        self._refresh_head()

    async def toggle(self) -> None:
        """Unfold or fold."""
        self.unfolded = not self.unfolded
        if self.body is None:
            self.body = MarkdownView(self.text if not self._live else "", classes="thought--body")
            if self._live:
                self.body.append(self.text)
            await self.mount(self.body)
        self.body.display = self.unfolded
        for tail in self.query(ThoughtTail):
            tail.display = not self.unfolded
        self._refresh_head()

    def _refresh_head(self) -> None:
        for head in self.query(ThoughtHead):
            head.show(self._label())

    def _label(self) -> str:
        facts = []
        if self._seconds is not None:
            facts.append(duration(self._seconds))
        if self._tokens:
            facts.append(plural(self._tokens, "token"))
        name = "thinking…" if self._live else "stopped while thinking," if self._unfinished else "thought"
        if not facts and not self._live:
            name = name.rstrip(",")
        return f"{'▾' if self.unfolded else '▸'} {name} {' · '.join(facts)}".rstrip()


class ThoughtTail(RowsView):
    """The last few rows of a running thought."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._end = ""
        self._rows: list[Row] = []

    def show(self, text: str) -> None:
        before = len(self._rows)
        self._end = clean(text).rstrip()
        self.rows_changed(0, before)

    def lay_out(self, width: int) -> Rows:
        words = " ".join(self._end.split())
        self._rows = plain(words, width)[-TAIL_ROWS:] if words else []
        return self._rows


class ThoughtHead(Static):
    """The line to click, or to press Enter on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "screen.thought(-1)", "Go to the thought before", id="thought.before", show=False),
        Binding("shift+tab", "screen.thought(1)", "Go to the thought after", id="thought.after", show=False),
        Binding("enter,space", "fold", "Fold or unfold the thought", id="thought.toggle", show=False),
    ]
    ALLOW_SELECT = False

    def __init__(self, label: str) -> None:
        super().__init__(label, markup=False)
        self.can_focus = True
        self._label = label

    def show(self, label: str) -> None:
        if label != self._label:
            self._label = label
            self.update(label)

    async def action_fold(self) -> None:
        view = self.parent
        if isinstance(view, ThoughtView):
            await view.toggle()

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        await self.action_fold()
