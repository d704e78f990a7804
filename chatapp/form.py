"""A screen of settings: each with its value, where that comes from, and a sentence that explains it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from chatapp import settings
from chatapp.field import Line
from chatapp.key_names import key_of, moves
from chatapp.sanitize import clean_line
from chatapp.settings import SettingsError, Value
from chatapp.store import StoreError

NAME = 20
"""Columns of the names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`value` is what holds now, and `source` who says so; `more` follows the setting's own sentence."""

    name: str
    value: Value
    source: str
    group: str = ""
    more: str = ""


Change = Callable[[str, Value], Awaitable[None]]
"""Sets a value, with None takes the choice away. Raises SettingsError, StoreError."""


class Form(ModalScreen[None]):
    """Up and Down choose, Enter changes, Del takes a choice away; what is typed narrows the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *moves("form"),
        Binding("escape,ctrl+c", "back", "Leave the field, or close", id="form.close", priority=True, show=False),
        Binding("delete", "clear", "Take the choice away", id="form.clear", priority=True, show=False),
    ]

    def __init__(self, title: str, entries: Callable[[], Sequence[Entry]], change: Change, hint: str = "") -> None:
        """`entries` is asked again after each change."""
        super().__init__()
        self._title = title
        self._entries = entries
        self._change = change
        self._hint = hint
        self._editing: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="form"):
            yield Label(self._title, id="form-title", markup=False)
            yield Line(placeholder="Type to narrow the list", id="form-filter")
            yield OptionList(id="form-list", markup=False)
            yield Static("", id="form-about", markup=False)
            yield Line(id="form-value")
            yield Static("", id="form-help", markup=False)

    def on_mount(self) -> None:
        self.query_one("#form-value", Input).display = False
        self._show(None)
        self.query_one("#form-filter").focus()

    @property
    def chosen(self) -> str | None:
        """The name of the entry under the cursor."""
        option = self.query_one(OptionList).highlighted_option
        return option.id if option is not None else None

    @on(Input.Changed, "#form-filter")
    def _narrow(self) -> None:
        self._show(None)

    @on(OptionList.OptionHighlighted)
    def _explain(self) -> None:
        entry = next((entry for entry in self._entries() if entry.name == self.chosen), None)
        about = self.query_one("#form-about", Static)
        if entry is None:
            about.update("")
            return
        takes = settings.expected(entry.name)
        felt = {"load": " Felt when a model is opened.", "start": " Felt at the next start."}
        more = f" {entry.more}" if entry.more else ""
        sentence = f"{settings.FIELDS[entry.name].metadata['description']}{more}"
        about.update(
            Content.assemble(
                sentence,
                "\n",
                (f"Takes {takes}.{felt.get(settings.FIELDS[entry.name].metadata['when'], '')}", "$foreground 60%"),
            )
        )
        self._tell("")

    @on(OptionList.OptionSelected)
    async def _selected(self) -> None:
        await self._begin()

    @on(Input.Submitted, "#form-filter")
    async def _begin(self) -> None:
        """Change the entry under the cursor: one of a few values goes on to the next, others are written."""
        name = self.chosen
        if name is None:
            return
        python_type, words = settings.kind(name)
        value = next(entry.value for entry in self._entries() if entry.name == name)
        if python_type is bool:
            await self._set(name, not value)
        elif words:
            place = words.index(str(value)) if value in words else -1
            await self._set(name, words[(place + 1) % len(words)])
        else:
            self._editing = name
            field = self.query_one("#form-value", Input)
            field.value = "" if value is None else _shown(value)
            field.placeholder = settings.expected(name)
            field.display = True
            field.focus()
            self._tell("")

    @on(Input.Changed, "#form-value")
    def _judge(self, event: Input.Changed) -> None:
        """A word is judged while it is written."""
        if self._editing is None:
            return
        try:
            if event.value.strip():
                settings.read(self._editing, event.value)
        except SettingsError as error:
            self._tell(str(error), wrong=True)
        else:
            self._tell("")

    @on(Input.Submitted, "#form-value")
    async def _written(self, event: Input.Submitted) -> None:
        if self._editing is None:
            return
        try:
            value = settings.read(self._editing, event.value) if event.value.strip() else None
        except SettingsError as error:
            self._tell(str(error), wrong=True)
            return
        if await self._set(self._editing, value):
            self._leave_field()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that come before the list is there move nothing."""
        return bool(self.query(OptionList))

    async def action_clear(self) -> None:
        if self._editing is not None:
            self.query_one("#form-value", Input).action_delete_right()
        elif (name := self.chosen) is not None:
            await self._set(name, None)

    def action_move(self, step: int) -> None:
        if self._editing is not None:
            return
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_back(self) -> None:
        if self._editing is not None:
            self._leave_field()
        else:
            self.dismiss(None)

    async def _set(self, name: str, value: Value) -> bool:
        """Whether it could be."""
        try:
            await self._change(name, value)
        except SettingsError as error:
            self._tell(str(error), wrong=True)
            return False
        except StoreError as error:  # it holds, though it is not kept
            entry = next(entry for entry in self._entries() if entry.name == name)
            self.query_one(OptionList).replace_option_prompt(name, _row(entry))
            self._tell(str(error), wrong=True)
            return False
        self._show(name)
        return True

    def _leave_field(self) -> None:
        self._editing = None
        self.query_one("#form-value", Input).display = False
        self.query_one("#form-filter").focus()
        self._tell("")

    def _tell(self, text: str, *, wrong: bool = False) -> None:
        close, clear = key_of(self, "form.close", "Esc"), key_of(self, "form.clear", "Del")
        keys = (
            f"Enter keeps it · {close} leaves the field"
            if self._editing
            else f"Enter changes · {clear} takes away · {close} closes"
        )
        help_ = self.query_one("#form-help", Static)
        help_.set_class(wrong, "-wrong")
        help_.update(text or " · ".join(part for part in (keys, self._hint) if part))

    def _show(self, chosen: str | None) -> None:
        words = self.query_one("#form-filter", Input).value.casefold().split()
        options = self.query_one(OptionList)
        options.clear_options()
        group, place = "", 0
        for entry in self._entries():
            about = settings.FIELDS[entry.name].metadata["description"]
            if not all(word in f"{entry.name} {about} {entry.group}".casefold() for word in words):
                continue
            if entry.group != group:
                group = entry.group
                if options.option_count:
                    options.add_option(Option("", disabled=True))
                options.add_option(Option(Content.styled(group, "bold $primary"), disabled=True))
            if entry.name == chosen:
                place = options.option_count
            options.add_option(Option(_row(entry), id=entry.name))
        first = next((at for at, option in enumerate(options.options) if not option.disabled), None)
        if first is None:
            options.add_option(Option("Nothing matches.", disabled=True))
        options.highlighted = place or first
        if first is None:
            self.query_one("#form-about", Static).update("")

    def on_key(self, event: events.Key) -> None:
        """What is typed on the list goes to the filter."""
        for field in self.query("#form-filter").results(Input):
            if event.is_printable and event.character and not field.has_focus and self._editing is None:
                event.stop()
                field.focus()
                field.insert_text_at_cursor(event.character)


def _row(entry: Entry) -> Content:
    name = entry.name.ljust(NAME)
    value = settings.FIELDS[entry.name].metadata["unset"] if entry.value is None else _shown(entry.value)
    value = clean_line(value, 60) or "none"
    source = f"  {entry.source}" if entry.source else ""
    return Content.assemble(name, (value, "bold" if entry.source else "$foreground 60%"), (source, "$foreground 60%"))


def _shown(value: Value) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
