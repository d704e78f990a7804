"""What an unfinished word in the composer may become, and the list above the composer that shows it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatapp import commands, files
from chatapp.chips import mention
from chatapp.sanitize import clean_line
from runtime import quick_dataclass

SHOWN = 8
FRESH_SECONDS = 10.0
"""How old the list of files may be when another name is begun."""
_CANDIDATES = 100
_MENTION = re.compile(r'(?<![\w@/.])@("?)([^\s"@]*|(?<=")[^"\n@]*)$')
_WORD = re.compile(r"/([A-Za-z]+) +(\S*)$")


@quick_dataclass.dataclass(frozen=True, slots=True)
class Completion:
    """`text` takes the place of the unfinished word; `whole`: nothing is missing then."""

    text: str
    label: str
    detail: str = ""
    whole: bool = True


class FileIndex:
    """The files below a folder, looked up beside the drawing; `ready` is called, in that thread, when there is news."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: list[str] = []
        self._since = float("-inf")
        self._running = False
        self.ready: Callable[[], object] = lambda: None

    @property
    def looking(self) -> bool:
        """Whether nothing is known yet."""
        return self._running and not self._paths

    def matches(self, query: str) -> list[str]:
        """The files that `query` may mean, as far as they are known."""
        if query.startswith(("/", "~", "./", "../")):
            return files.inside(query)[:_CANDIDATES]
        if not self._running and time.monotonic() - self._since > FRESH_SECONDS:
            self._running = True
            threading.Thread(target=self._look, daemon=True).start()
        return files.ranked(query, self._paths, _CANDIDATES)

    def _look(self) -> None:
        try:
            self._paths = files.below(self._folder)
        finally:
            self._since = time.monotonic()
            self._running = False
            self.ready()


def complete(text: str, index: FileIndex) -> tuple[int, list[Completion]]:
    """Where the unfinished word at the end of `text` begins, and what it may become."""
    if found := commands.matches(text):
        return 0, [
            Completion(f"/{known.name}{' ' * bool(known.takes)}", known.usage, known.about, known.alone)
            for known in found
        ]
    if (match := _WORD.match(text)) and (known := commands.COMMANDS.get(match[1].lower())) is not None:
        return match.start(2), _arguments(known, match[2])
    if match := _MENTION.search(text):
        names = index.matches(match[2])
        return match.start(), [
            Completion(
                mention(name) + " " * (not name.endswith("/")),
                clean_line(name, 90),
                "",
                not name.endswith("/"),
            )
            for name in names
        ]
    return len(text), []


def _arguments(command: commands.Command, start: str) -> list[Completion]:
    """What a command takes, where its usage says so: one of a few words, or a path."""
    if command.takes.strip("[]") == "PATH":
        return [Completion(path, clean_line(path, 90), "", not path.endswith("/")) for path in files.inside(start)]
    words = [
        word for word in command.takes.strip("[]").split("|") if word.isalnum() and (word.islower() or word.isdigit())
    ]
    return [Completion(word, word) for word in words if word.startswith(start.lower()) and word != start]


class Completions(Static):
    """The list: closed, or open with one entry marked."""

    ALLOW_SELECT = False

    @dataclass
    class Chosen(Message):
        number: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.display = False
        self.choices: list[Completion] = []
        self.marked = 0

    @property
    def selected(self) -> Completion | None:
        return self.choices[self.marked] if self.choices else None

    def offer(self, choices: list[Completion]) -> None:
        """Show these, with the first one marked; none: close."""
        if choices != self.choices:
            self.choices, self.marked = choices, 0
            self.display = bool(choices)
            self.refresh(layout=True)

    def move(self, step: int) -> None:
        self.marked = (self.marked + step) % len(self.choices)
        self.refresh()

    def render(self) -> Content:
        width = max(self.size.width, 10)
        first = self._first()
        shown = self.choices[first : first + SHOWN]
        column = min(max((len(choice.label) for choice in shown), default=0) + 2, width // 2)
        lines = []
        for number, choice in enumerate(shown, start=first):
            here = number == self.marked
            label = choice.label.ljust(column) if choice.detail else choice.label
            line = Content.assemble(
                ("▸ " if here else "  ", "$primary"), (label, "bold" if here or choice.detail else ""), choice.detail
            )
            line = line.truncate(width, ellipsis=True)
            lines.append(
                line.pad_right(width - line.cell_length).stylize("$foreground on $primary 20%") if here else line
            )
        if len(self.choices) > SHOWN:
            lines.append(Content.styled(f"  {self.marked + 1} of {len(self.choices)} · ↑ ↓ Tab", "$text-disabled"))
        return Content("\n").join(lines)

    def _first(self) -> int:
        """The first entry that is shown, so that the marked one is in sight."""
        return max(min(self.marked - SHOWN // 2, len(self.choices) - SHOWN), 0)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        number = self._first() + event.y
        if number < len(self.choices) and event.y < SHOWN:
            self.post_message(self.Chosen(number))
