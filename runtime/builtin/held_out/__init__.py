"""The held-out dialogues: written by hand, apart from the grammar of the corpus, with other words and other values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from runtime.builtin.corpus.grammar import normal
from runtime.builtin.corpus.tour import Tour
from runtime.builtin.expectations import known_to

HERE = files(__package__)
DEVELOPMENT = files("runtime.builtin") / "development"  # of the same form; who writes the grammar may read it
SUBJECTS = ("recall", "sums", "app", "facts", "talk", "words", "markup", "outside")
BOTH = ("sums",)  # asked with thought and without; all others in turn


@dataclass(frozen=True, slots=True)
class Case:
    """A held-out dialogue; the expectation is of the last reply."""

    subject: str
    section: str
    users: tuple[str, ...]
    expectation: str
    thinking: bool


def cases(tour: Tour, subjects: Sequence[str] = SUBJECTS, folder: Traversable = HERE) -> list[Case]:
    """The dialogues of `subjects` in a folder, without those on entries that the tour lacks."""
    result = []
    for subject in subjects:
        file = folder / f"{subject}.txt"
        for i, (section, users, expectation) in enumerate(_lines(subject, file) if file.is_file() else ()):
            if known_to(expectation, tour):
                modes = (True, False) if subject in BOTH else (i % 2 == 1,)
                result += [Case(subject, section, users, expectation, thinking) for thinking in modes]
    return result


def reserved(tour: Tour) -> frozenset[str]:
    """The messages that are asked about, for training to keep away from.

    Short ones aside: there are few ways to say hello, or 6 + 7.
    """
    return frozenset(normal(c.users[-1]) for c in cases(tour) if len(c.users[-1].split()) > 3)


def _lines(subject: str, file: Traversable) -> Iterator[tuple[str, tuple[str, ...], str]]:
    section = subject
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line and not line.startswith("# "):
            dialogue, _, expectation = line.partition(" == ")
            yield section, tuple(u.strip() for u in dialogue.split(" >> ")), expectation.strip() or "~honest"
