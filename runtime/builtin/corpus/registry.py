"""The intents: what a single turn can be about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.tour import Tour


@dataclass(frozen=True, slots=True)
class World:
    """What the generator draws from besides chance: the tour of the app, and the pieces of the vocabulary.

    `pieces` are the tokens that are words or parts of them: copy tasks draw from them uniformly, so that none stays
    unseen. They are empty while the vocabulary itself is being trained. `reserved` are the messages of the held-out
    dialogues, as `grammar.normal` makes them: among millions some would come up by chance.
    """

    tour: Tour
    pieces: tuple[str, ...] = ()
    reserved: frozenset[str] = frozenset()


Make = Callable[[Random, World], Turn]


@dataclass(frozen=True, slots=True)
class Intent:
    """`weight` in single turns, `filler` between a fact told and asked; `joins`: two of them fit into one message."""

    name: str
    make: Make
    weight: float
    filler: float = 0.0
    joins: bool = False


def intent(weight: float, filler: float = 0.0, joins: bool = False) -> Callable[[Make], Intent]:
    """Makes an intent of a function, named by it."""

    def decorate(make: Make) -> Intent:
        return Intent(make.__name__, make, weight, filler, joins)

    return decorate
