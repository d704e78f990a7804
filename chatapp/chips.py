"""What stands for something larger in the composer: `[paste 1: 10,000 lines]`, and `@file`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from chatapp import files
from chatapp.attachments import Attached, attach, detach, tokens
from chatapp.figures import count, lines, plural, size
from chatapp.files import FileError
from chatapp.paths import absolute, expanded
from chatapp.sanitize import clean
from runtime.quick_dataclass import dataclass

PASTE_LINES = 20
PASTE_CHARACTERS = 2_000
"""A paste with more lines or characters becomes a chip."""
PUT_LINES = 200
PUT_CHARACTERS = 20_000
"""Text that comes back into the composer becomes one when it is longer than this."""
EDITABLE = 1_000_000
EDITABLE_LINE = 20_000
"""Characters, in all and of a line, that the composer itself can hold without becoming slow."""

_PASTE = re.compile(r"\[paste \d+: [\d,]+ [a-z]+\]")
_MENTION = re.compile(r'(?<![\w@/.])@(?:"([^"\n]+)"|([^\s"@]+))')
_FILE_NAME = re.compile(r"[^()\[\]{}<>=*:;,'`|]*\w\.[A-Za-z]\w{0,4}")
_AFTER = ".,;:!?)]}'»"
"""Punctuation that may follow the name of a file."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A part of the text, from `start` to `end`, and what is known of what it stands for."""

    start: int
    end: int
    name: str
    detail: str
    tokens: int = 0
    problem: str = ""
    paste: bool = False


class Chips:
    """The pastes and files of one composer. Names of files are looked up from `folder`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or absolute(Path())
        self._pastes: dict[str, str] = {}
        self._tokens: dict[str, int] = {}  # of the pastes
        # Those that are no pastes but the user's own words, and where these may name files. What was pasted names
        # none: nobody has read all of it.
        self._own: dict[str, list[re.Match[str]]] = {}
        self._sent: dict[str, Attached] = {}  # files of a message that is written again, as they were
        self._known: dict[Path, tuple[tuple[int, int], str, int, str]] = {}

    def paste(self, text: str) -> str:
        """What to insert for a pasted text: the text itself, or what stands for it."""
        return text if lines(text) <= PASTE_LINES and len(text) <= PASTE_CHARACTERS else self._chip(text)

    def pasted(self, token: str) -> str:
        """The text that stands behind a chip."""
        return self._pastes[token]

    def found(self, text: str) -> list[Chip]:
        """The chips of a text, in their order."""
        chips = []
        for match in _PASTE.finditer(text):
            if match[0] in self._pastes:
                name, _, extent = match[0][1:-1].partition(": ")
                chips.append(Chip(*match.span(), name, extent, self._tokens[match[0]], paste=True))
        chips += [self._file(start, end, name) for start, end, name in self._named(text)]
        return sorted(chips, key=lambda chip: chip.start)

    def unfolded(self, text: str) -> str:
        """The text with its pastes in place of what stands for them."""
        return _PASTE.sub(lambda match: self._pastes.get(match[0], match[0]), text)

    def attached(self, text: str) -> str:
        """The message to send: the text, its pastes in full, and the files of `found`. Raises FileError."""
        named: dict[str, Attached] = {}
        for _, _, name in self._named(text):
            named.setdefault(name, self._sent.get(name) or Attached(name, files.read(self.path(name))))
        return attach(self.unfolded(text), list(named.values()))

    def kept(self, text: str) -> str:
        """The text with its pastes, and with those files that it names as they were sent: what `folded` takes apart."""
        named = {name: self._sent[name] for _, _, name in self._named(text) if name in self._sent}
        return attach(self.unfolded(text), list(named.values()))

    def folded(self, message: str) -> str:
        """The text to write on with: the files of a message are attached again as they were, its pastes are chips."""
        text, attached = detach(message)
        text = self._with_chips(clean(text), self._pastes)
        self._sent = {file.path: file for file in attached}
        for file in attached:
            if not any(name == file.path for _, _, name in self._named(text)):
                text += f" {mention(file.path)}"
        if text.count("\n") < PUT_LINES and len(text) <= PUT_CHARACTERS:
            return text
        first, newline, rest = text.partition("\n")
        if len(first) > PASTE_CHARACTERS or not rest:
            return self._own_chip(text)
        return first + newline + self._own_chip(rest)

    def forget_sent(self) -> None:
        """Files named from now on are read anew."""
        self._sent = {}

    def _chip(self, text: str) -> str:
        for token, whole in self._pastes.items():
            if whole == text:
                return token
        token = f"[paste {len(self._pastes) + 1}: {_extent(text)}]"
        self._pastes[token], self._tokens[token] = text, tokens(text)
        return token

    def _own_chip(self, text: str) -> str:
        token = self._chip(self.unfolded(text))
        self._own[token] = list({match[0]: match for match in _MENTION.finditer(text)}.values())
        return token

    def _with_chips(self, text: str, pastes: Iterable[str]) -> str:
        """The text with these chips in place of what they stand for; one may stand for text that holds another's."""
        for token in sorted(pastes, key=lambda token: len(self._pastes[token]), reverse=True):
            text = text.replace(self._pastes[token], token)
        return text

    def _named(self, text: str) -> list[tuple[int, int, str]]:
        """Where files are named, in the text itself and in the chips that are the user's own words, and the names."""
        named = list(self._mentions(_MENTION.finditer(text)))
        for match in _PASTE.finditer(text):
            own = self._mentions(self._own.get(match[0], ()))
            named += [(*match.span(), name) for name in dict.fromkeys(name for _, _, name in own)]
        return sorted(named, key=lambda place: place[0])

    def _mentions(self, matches: Iterable[re.Match[str]]) -> Iterator[tuple[int, int, str]]:
        """Where files are named, and the names: of what is a file, or was one in a message that is written again."""
        for match in matches:
            if match[1] is not None:
                if self._names(match[1]):
                    yield match.start(), match.end(), match[1]
                continue
            name, end = match[2], match.end()
            while name and not self._names(name):
                name, end = (name[:-1], end - 1) if name[-1] in _AFTER else ("", end)
            if name:
                yield match.start(), end, name

    def missing(self, text: str) -> list[str]:
        """What is written like the name of a file, and is none; pastes of this composer do not count."""
        text = self._with_chips(text, self._pastes.keys() - self._own.keys())
        names = (match[1] or match[2].rstrip(_AFTER) for match in _MENTION.finditer(text))
        return [name for name in names if _FILE_NAME.fullmatch(name) and not self._names(name)]

    def _names(self, name: str) -> bool:
        if name in self._sent:
            return True
        try:
            return self.path(name).is_file()
        except (OSError, ValueError):
            return False

    def path(self, name: str) -> Path:
        """The file that a name means."""
        return self.folder / expanded(name)

    def _file(self, start: int, end: int, name: str) -> Chip:
        if (sent := self._sent.get(name)) is not None:
            detail = f"{plural(sent.lines, 'line')}, as it was sent"
            return Chip(start, end, name, detail, tokens(sent.text))
        detail, cost, problem = self._probe(self.path(name))
        return Chip(start, end, name, detail, cost, problem)

    def _probe(self, path: Path) -> tuple[str, int, str]:
        """Size, tokens and what speaks against sending a file: looked up once for each of its versions."""
        try:
            status = path.stat()
        except OSError as error:
            return "", 0, f"{path.name} cannot be read: {error.strerror}."
        version = (status.st_mtime_ns, status.st_size)
        known = self._known.get(path)
        if known is None or known[0] != version:
            try:
                known = (version, size(status.st_size), tokens(files.read(path)), "")
            except FileError as error:
                known = (version, size(status.st_size), 0, str(error))
            self._known[path] = known
        return known[1:]


def mention(path: str) -> str:
    """How a file is named in the composer."""
    return f'@"{path}"' if re.search(r"[\s@]", path) else f"@{path}"


def editable(text: str) -> bool:
    """Whether the composer can hold it as it is."""
    return len(text) <= EDITABLE and max(map(len, text.split("\n"))) <= EDITABLE_LINE


def _extent(text: str) -> str:
    return plural(number, "line") if (number := lines(text)) > 1 else f"{count(len(text))} characters"
