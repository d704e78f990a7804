"""A list to choose from, narrowed by typing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from chatapp.field import Line
from chatapp.figures import count
from chatapp.key_names import moves
from chatapp.sanitize import clean_line, shortened

SHORT = 10
"""Choices fewer than these need no box of full height."""
SHOWN = 200
"""Choices that are laid out; of more, typing finds the others."""
LABEL = 120
"""Columns of a label at most."""
COLUMN = 34
"""Columns within which details are aligned; a longer label pushes its own aside."""
_NARROWEST, _WIDEST = 76, 116
_FRAME = 8
"""Columns of the box that are not text: its border, the space inside it, and the scrollbar."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`key` is what is chosen; the other two are shown."""

    key: str
    label: str
    detail: str = ""


class Picker(ModalScreen[str]):
    """Ends with the key of the choice, or None. Of several with one key the first is shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *moves("picker"),
        Binding("escape,ctrl+c", "leave", "Close", id="picker.close", priority=True, show=False),
    ]

    def __init__(
        self,
        title: str,
        choices: Sequence[Choice],
        empty: str = "Nothing matches.",
        preview: Callable[[str], None] | None = None,
        chosen: str | None = None,
    ) -> None:
        """`chosen`: where the list begins. `preview` hears of each choice that the cursor is on, and at the end, when

        nothing is taken, of `chosen`.
        """
        super().__init__()
        self._preview = preview
        self._chosen_first = chosen
        self._title = title
        unique: dict[str, Choice] = {}
        for choice in choices:
            unique.setdefault(choice.key, choice)
        self._choices = list(unique.values())
        self._room = LABEL  # columns for a choice
        self._empty = empty

    def compose(self) -> ComposeResult:
        with Vertical(id="picker", classes="-short" if len(self._choices) < SHORT else ""):
            yield Label(self._title, id="picker-title", markup=False)
            yield Line(placeholder="Type to narrow the list", id="picker-filter")
            yield OptionList(id="picker-list", markup=False)

    def on_mount(self) -> None:
        measured = self._choices[:SHOWN]
        column = _column(measured)
        longest = max((_prompt(choice, column, LABEL).cell_length for choice in measured), default=0)
        width = min(max(longest + _FRAME, _NARROWEST), _WIDEST)
        self.query_one("#picker").styles.width = width
        self._room = min(width, self.size.width * 92 // 100) - _FRAME
        self._show(self._choices)

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        words = event.value.casefold().split()
        self._show([c for c in self._choices if all(word in f"{c.label} {c.detail}".casefold() for word in words)])

    @on(Input.Submitted)
    def _take(self) -> None:
        for options in self.query(OptionList):
            options.action_select()

    @on(OptionList.OptionHighlighted)
    def _looked_at(self, event: OptionList.OptionHighlighted) -> None:
        if self._preview is not None and event.option.id is not None:
            self._preview(event.option.id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that come before the list is there, or after it, move nothing."""
        return action != "move" or bool(self.query(OptionList))

    def action_leave(self) -> None:
        if self._preview is not None and self._chosen_first is not None:
            self._preview(self._chosen_first)
        self.dismiss(None)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def _show(self, choices: Sequence[Choice]) -> None:
        if not self.query(OptionList):
            return
        options = self.query_one(OptionList)
        options.clear_options()
        choices, more = choices[:SHOWN], len(choices[SHOWN:])
        beside = f" · the first {count(SHOWN)}, {count(more)} more: type on" if more else ""
        self.query_one("#picker-title", Label).update(f"{self._title}{beside}")
        column = _column(choices)
        options.add_options([Option(_prompt(choice, column, self._room), id=choice.key) for choice in choices])
        if choices:
            keys = [choice.key for choice in choices]
            options.highlighted = keys.index(self._chosen_first) if self._chosen_first in keys else 0
        else:
            options.add_option(Option(Content(self._empty), disabled=True))


def _column(choices: Sequence[Choice]) -> int:
    """Where the details begin."""
    widths = [cell_len(clean_line(choice.label, LABEL)) for choice in choices if choice.detail]
    return max((width for width in widths if width <= COLUMN), default=0)


def _prompt(choice: Choice, column: int, room: int) -> Content:
    label = Content(shortened(choice.label, min(room, LABEL)) or "(empty)")
    label = label.pad_right(max(column - label.cell_length, 0)) if choice.detail else label
    detail = Content.styled(f"  {clean_line(choice.detail, 120)}", "$foreground 60%") if choice.detail else Content("")
    return Content("").join([label, detail])
