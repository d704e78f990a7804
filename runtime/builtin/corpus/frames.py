"""The frames of statements: a sentence with blanks, and ways of asking for it.

Those of `statements.toml` stand by topic; those of `corrections.toml` have corrections of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from runtime.builtin.corpus.grammar import words
from runtime.builtin.corpus.tables import load

SIBLINGS = {
    word: tuple(other for other in row if other != word)
    for row in ([w.strip() for w in line.split(",")] for line in load("siblings.toml")["words"].splitlines() if line)
    for word in row
}
# Words that tell nothing of what a question is about.
FREE = frozenset(
    words(
        """
        a an and any are at be been by can could did do does else for from get give go had has have how i if in is it
        its me more my new not now of on one or other our out should some that the their them there they thing things
        this to up us use was we were what when where which who whom whose why will with would you your
        """
    )
)
INTRODUCING = "introduction"  # a topic of its own: the name beside the statement is parsed
MARKS = {"~": "indirect", "=": "noun"}
BLANK = re.compile(r"\{(\w+)\}")


def blanks(template: str) -> frozenset[str]:
    return frozenset(BLANK.findall(template))


@dataclass(frozen=True)
class Ask:
    """A way of asking. `kind` is that of the wrappers around it."""

    kind: str
    template: str

    @cached_property
    def blanks(self) -> frozenset[str]:
        return blanks(self.template)


@dataclass(frozen=True)
class Frame:
    """`corrections` give its blank another value. `stem` is the frame of which this one has a word replaced."""

    topic: str
    tell: str
    asks: tuple[Ask, ...]
    corrections: tuple[str, ...] = ()
    stem: Frame | None = None
    word: str = ""

    @cached_property
    def named(self) -> tuple[str, ...]:
        """Words of the statement that have siblings, and that some question repeats."""
        known = (w for w in re.findall(r"[a-z]+", BLANK.sub("", self.tell).lower()) if w in SIBLINGS)
        return tuple(w for w in dict.fromkeys(known) if any(holds(ask.template, w) for ask in self.asks))

    def narrowed(self, word: str, other: str) -> Frame:
        """With `other` in the place of the word, and with those questions alone that name it."""
        asks = tuple(Ask(a.kind, _replaced(a.template, word, other)) for a in self.asks if holds(a.template, word))
        return Frame(self.topic, _replaced(self.tell, word, other), asks, stem=self.stem or self, word=other)

    @cached_property
    def blanks(self) -> tuple[str, ...]:
        """Those of the statement, in a fixed order."""
        return tuple(sorted(blanks(self.tell)))

    @cached_property
    def corrections_apart(self) -> tuple[str, ...]:
        """Those that tell what they are about when something else was said last."""
        known = self._content(" ".join((self.tell, *(ask.template for ask in self.asks))))
        return tuple(c for c in self.corrections if self._content(c) & known)

    @staticmethod
    def _content(template: str) -> frozenset[str]:
        return frozenset(re.findall(r"[a-z]+", BLANK.sub("", template).lower())) - FREE

    @cached_property
    def words(self) -> frozenset[str]:
        text = " ".join((self.tell, *(ask.template for ask in self.asks)))
        return frozenset(re.findall(r"[a-z]+", BLANK.sub("", text).lower()))

    @cached_property
    def sought(self) -> tuple[str, ...]:
        """Blanks that some question leaves open."""
        named = "name" if self.topic == INTRODUCING else ""
        return tuple(b for b in self.blanks if b != named and any(b not in ask.blanks for ask in self.asks))

    @cached_property
    def about(self) -> frozenset[frozenset[str]]:
        """Per question, the words and blanks that tell what it is about."""
        texts = (ask.template.replace("{", "_").lower() for ask in self.asks)
        return frozenset(frozenset(re.findall(r"_?[a-z]+", text)) - FREE for text in texts)

    def clashes(self, other: Frame) -> bool:
        """Whether a question for one could mean the other: the same one, or with a word of the same topic."""
        if self.about & other.about:
            return True
        return self.topic == other.topic and not self._words_of_questions.isdisjoint(other._words_of_questions)

    @cached_property
    def _words_of_questions(self) -> frozenset[str]:
        return frozenset(word for question in self.about for word in question if word[0] != "_")


def holds(template: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", BLANK.sub("", template).lower()) is not None


def _replaced(template: str, word: str, other: str) -> str:
    return re.sub(rf"(?<!\{{)\b{word}\b", other, template, flags=re.I)


def _frame(topic: str, row: str) -> Frame:
    tell, *asks = _cells(row)
    return Frame(topic, tell, tuple(Ask(MARKS.get(a[0], "direct"), a.lstrip("~=").strip()) for a in asks))


def _corrected(topic: str, row: str) -> Frame:
    tell, *cells = _cells(row)
    asks = tuple(Ask("direct", cell.lstrip("? ")) for cell in cells if cell[0] == "?")
    return Frame(topic, tell, asks, tuple(cell for cell in cells if cell[0] != "?"))


def _cells(row: str) -> list[str]:
    return [part.strip() for part in re.split(r"\|(?![^\[]*\])", row)]


TOPICS = {
    topic: tuple(_frame(topic, row) for row in table.splitlines() if row.strip())
    for topic, table in load("statements.toml").items()
}
INTRODUCTIONS = TOPICS.pop(INTRODUCING)
CORRECTED = tuple(
    _corrected(f"corrected {i}", row) for i, row in enumerate(load("corrections.toml")["rows"].strip().splitlines())
)
FRAMES = (*(frame for frames in TOPICS.values() for frame in frames), *CORRECTED)
