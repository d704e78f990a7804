"""Where the user writes: several lines, a history, completion, and chips for what is too large to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets.text_area import EditResult, Location, Selection

from chatapp import commands
from chatapp.chips import Chip, Chips, editable
from chatapp.commands import CommandError
from chatapp.completion import Completion, Completions, FileIndex, complete
from chatapp.files import FileError
from chatapp.in_order import Area
from chatapp.key_names import key_of

HISTORY = 200
NEWLINE_KEYS = ("shift+enter", "alt+enter", "ctrl+j")


class Composer(Area):
    """Enter sends, Shift+Enter or Ctrl+J begins a new line; Up and Down at the edges go through what was sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "up", "Go back to earlier messages", id="composer.earlier", show=False),
        Binding("down", "down", "Go on to later messages", id="composer.later", show=False),
        Binding(
            "tab",
            "complete",
            "Complete a command or a file, unfold a paste, or go to a thought",
            id="composer.complete",
            show=False,
        ),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"composer--chip"}

    @dataclass
    class Sent(Message):
        """`command`: the text is one."""

        text: str
        command: bool

    @dataclass
    class Refused(Message):
        """Something cannot be done with what is written; `text` says why."""

        text: str

    class Recalled(Message):
        """Up in an empty composer: whoever holds queued messages may hand the last one back."""

    class Nothing(Message):
        """Enter with nothing written: whoever holds messages back may let them go."""

    class Editing(Message):
        """Ctrl+X Ctrl+E, as in a shell: the user's editor is wanted."""

    class Left(Message):
        """Tab, where there is nothing to complete."""

    def __init__(self, completions: Completions, *, id: str | None = None) -> None:
        super().__init__(
            id=id, soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, placeholder=Content("Message…")
        )
        self.chips = Chips()
        self._completions = completions
        self._index = FileIndex(self.chips.folder)
        self._start = 0  # of the word that is being completed, in the text before the cursor
        self._offered: str | None = None  # the text that the completions are for
        self._refused: str | None = None  # the text whose completions the user has closed
        self._chord = False  # Ctrl+X was pressed
        self._history: list[str] = []
        self._place = 0  # in the history; its length: the text being written
        self._draft = ""  # what was written when the arrows first brought an earlier message
        self._recalled = ""  # the text that they brought last

    def on_mount(self) -> None:
        def again() -> None:
            self._offered = None
            self.offer()

        self._index.ready = lambda: self.app.call_from_thread(again) if self.is_running else None

    @property
    def message(self) -> str:
        """What is written, with its pastes in full."""
        return self.chips.unfolded(self.text)

    @property
    def unsent(self) -> tuple[str, ...]:
        """What is written and not sent: not an earlier message as it was, but what that has taken the place of."""
        if self._place == len(self._history):
            return (self.kept,)
        return (self._draft,) if self.text == self._recalled else (self.kept, self._draft)

    @property
    def kept(self) -> str:
        """What to `put` here again: the text, its pastes in full, and the files of an earlier message as they were."""
        return self.chips.kept(self.text)

    @property
    def found(self) -> list[Chip]:
        """The chips in what is written."""
        return self.chips.found(self.text)

    def remember(self, text: str) -> None:
        """Put a message at the end of the history."""
        if text and self._history[-1:] != [text]:
            self._history = [*self._history, text][-HISTORY:]
        self._place = len(self._history)

    def remember_beside(self, text: str) -> None:
        """The same for one that was not sent from here: an earlier message that is shown stays."""
        place, before = self._place, self._history
        self.remember(text)
        if place < len(before):
            dropped = len(before) + 1 - len(self._history) if self._history is not before else 0
            self._place = max(place - dropped, 0)

    def remember_earlier(self, texts: Sequence[str]) -> None:
        """Put messages before the history, oldest first."""
        before = [text for text, _ in groupby(texts)]
        self._history = [*before, *self._history]
        self._place += len(before)

    def put(self, message: str) -> None:
        """Replace the text, undoably, with the cursor at its end; what is large becomes a chip."""
        self._place = len(self._history)
        self._write(self.chips.folded(message))

    def _write(self, text: str) -> None:
        self.replace(text, (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def insert_typed(self, text: str) -> None:
        """Text typed or pasted elsewhere on the screen."""
        self.focus()
        self.insert_pasted(text)

    async def _on_key(self, event: events.Key) -> None:
        # Here, since what each does depends on what is written when it comes; and so in order, see `InOrder`.
        chord, self._chord = self._chord, False
        if event.key == "enter":
            self.enter()
        elif event.key in NEWLINE_KEYS:
            self._replace_via_keyboard("\n", *self.selection)
        elif event.key == "tab" and self._completion() is not None:
            self.accept()
        elif event.key == "ctrl+x" and self.selection.is_empty:
            self._chord = True
        elif event.key == "ctrl+e" and chord:
            self.post_message(self.Editing())
        elif event.key == "escape" and self._completion() is not None:
            self._refused = self._before_cursor()
            self.offer()
        else:
            return
        event.stop()
        event.prevent_default()

    def enter(self) -> None:
        """Take the completion that is marked, or send."""
        chosen = self._completion()
        if chosen is not None and chosen.text.strip() != self._before_cursor()[self._start :]:
            self.accept()
            if not (self.text.startswith("/") and chosen.whole):
                return
        self.send()

    def send(self) -> None:
        """Hand over what is written, unless it is blank."""
        if not self.text.strip():
            self.post_message(self.Nothing())
            return
        text = self.message
        command = _is_command(text)
        try:
            message = text if command else self.chips.attached(self.text)
        except FileError as error:
            self.post_message(self.Refused(f"{error} Without its @ the name alone is sent."))
            return
        self.remember(message)
        self._draft = ""
        self._write("")
        self.chips.forget_sent()
        self.post_message(self.Sent(message, command))

    def offer(self) -> None:
        """Bring the list of completions up to date with the text and the cursor."""
        text = self._before_cursor()
        if text == self._offered and text != self._refused:
            return
        self._offered = text
        at_end = self.selection.is_empty and self.cursor_location == self.document.end
        wanted = at_end or "@" in text
        self._start, choices = complete(text, self._index) if wanted and text != self._refused else (0, [])
        self._completions.offer(choices)

    def accept(self, number: int | None = None) -> None:
        """Write the completion that is marked, or that of a number."""
        if number is not None:
            self._completions.marked = number
        chosen = self._completion()
        if chosen is not None:
            row, column = self.cursor_location
            self._replace_via_keyboard(
                chosen.text, (row, column - len(self._before_cursor()) + self._start), (row, column)
            )
            self.offer()

    def _completion(self) -> Completion | None:
        """The completion that is marked, of the text as it is now."""
        self.offer()
        return self._completions.selected

    def _before_cursor(self) -> str:
        """The line up to the cursor: a command is on the first one."""
        row, column = self.cursor_location
        line = self.document.get_line(row)[:column]
        return line if row == 0 or not line.startswith("/") else f" {line}"

    def action_up(self) -> None:
        if self._completion() is not None:
            self._completions.move(-1)
        elif not self.cursor_at_first_line or not self.selection.is_empty:
            self.action_cursor_up()
        elif not self.text:
            self.post_message(self.Recalled())
        else:
            self.earlier()

    def action_down(self) -> None:
        if self._completion() is not None:
            self._completions.move(1)
        elif not self.cursor_at_last_line or not self.selection.is_empty:
            self.action_cursor_down()
        elif self._place < len(self._history):
            self._place += 1
            self._recall(self._history[self._place] if self._place < len(self._history) else self._draft)

    def earlier(self) -> None:
        """Show the message before the one shown."""
        if self._place == 0:
            return
        if self._place == len(self._history):
            self._draft = self.kept
        self._place -= 1
        self._recall(self._history[self._place])

    def _recall(self, text: str) -> None:
        self._write(self.chips.folded(text))
        self._recalled = self.text
        self._refused = self._before_cursor()  # the arrows go on through the history

    def action_complete(self) -> None:
        if self._completion() is not None:
            self.accept()
        elif (chip := self._nearest_paste()) is not None:
            self.unfold(chip)
        else:
            self.post_message(self.Left())

    def unfold(self, chip: Chip) -> None:
        """Put a paste in full where it stands."""
        text = self.chips.pasted(self.text[chip.start : chip.end])
        if not editable(text):
            self.post_message(
                self.Refused(
                    f"That is too long for this line: {key_of(self, 'chat.editor', 'Ctrl+G')} opens it in your editor."
                )
            )
            return
        self.replace(text, self._location(chip.start), self._location(chip.end), maintain_selection_offset=False)

    def _delete_via_keyboard(self, start: Location, end: Location) -> EditResult | None:
        """A paste goes as a whole, or stays where a word beside it is deleted."""
        if pastes := self._pastes():
            text = self.text
            first, last = sorted(map(self._index_of, (start, end)))
            for chip in pastes:
                if chip.start < first < chip.end:
                    first = chip.end if text[chip.end : last].strip() else chip.start
                if chip.start < last < chip.end:
                    last = chip.start if text[first : chip.start].strip() else chip.end
            start, end = self._location(first), self._location(last)
        return super()._delete_via_keyboard(start, end)

    def watch_selection(self, previous: Selection, selection: Selection) -> None:
        """The cursor jumps over a paste: what is inside its chip is no text."""
        if not self.is_mounted:
            return
        place, before = self._cursor_index(), self._index_of(previous.end)
        for chip in self._pastes():
            if chip.start < place < chip.end:
                target = chip.end if before <= chip.start or (before < chip.end and place > before) else chip.start
                self.selection = Selection(
                    selection.start if not selection.is_empty else self._location(target), self._location(target)
                )
                return
        self.offer()

    def _pastes(self) -> list[Chip]:
        return [chip for chip in self.found if chip.paste] if "[paste " in self.text else []

    def _nearest_paste(self) -> Chip | None:
        """The paste that the cursor touches, else the last one before it, else the first."""
        place, pastes = self._cursor_index(), self._pastes()
        before = [chip for chip in pastes if chip.start <= place]
        return before[-1] if before else pastes[0] if pastes else None

    def _cursor_index(self) -> int:
        return self._index_of(self.cursor_location)

    def _index_of(self, location: tuple[int, int]) -> int:
        """The place in the text of a row and column."""
        row, column = location
        rows = min(row, self.document.line_count)  # a cursor may be left over from a longer text
        return sum(len(self.document.get_line(number)) + 1 for number in range(rows)) + column

    def _location(self, index: int) -> tuple[int, int]:
        """The row and column of a place in the text."""
        before = self.text[:index]
        return before.count("\n"), len(before) - (before.rfind("\n") + 1)

    def get_line(self, line_index: int) -> Text:
        """A line of the text, its chips in a colour of their own."""
        line = super().get_line(line_index)
        if "@" in line.plain or "[paste " in line.plain:
            style = self.get_component_rich_style("composer--chip")
            for chip in self.chips.found(line.plain):
                line.stylize(style, chip.start, chip.end)
        return line

    def insert_pasted(self, text: str) -> None:
        super().insert_pasted(self.chips.paste(text))


def _is_command(text: str) -> bool:
    try:
        return not isinstance(commands.parse(text), str)
    except CommandError:
        return True
