"""What lies outside the model's world: the frames of `outside.toml`, filled with anything."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from random import Random

from runtime.builtin.corpus import values
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases
from runtime.builtin.corpus.registry import Intent, World
from runtime.builtin.corpus.talk import load

TABLES = load("outside.toml")
LISTS: dict[str, tuple[str, ...]] = {
    name: tuple(item.strip() for item in text.replace("\n", " ").split(",")) for name, text in TABLES["lists"].items()
}
PHRASES = {name: Phrases(table["frames"]) for name, table in TABLES.items() if "frames" in table}


def _topic(r: Random, world: World) -> str:
    """Mostly a listed topic; else a made-up word or several, so that what is unlisted does not look known."""
    x = r.random()
    if x < 0.55:
        return r.choice(LISTS["topics"])
    if x < 0.7:
        return values.syllables(r, 2, 4)
    if x < 0.85:
        return f"{r.choice(LISTS['adjectives'])} {values.word(r, world)}"
    return f"{values.word(r, world)} {values.word(r, world)}"


def _name(r: Random, world: World, listed: str) -> str:
    if r.random() < 0.55:
        return r.choice(LISTS[listed])
    return " ".join(values.syllables(r, 1, 3).capitalize() for _ in range(r.choice((1, 1, 2))))


def unknown_thing(r: Random, world: World, known: Collection[str]) -> str:
    """A name that is not among `known` (lower case)."""
    while True:
        kind = r.randrange(5)
        if kind == 0:
            thing = r.choice(LISTS["places"])
        elif kind == 1:
            thing = r.choice(LISTS["topics"])
        elif kind == 2:
            thing = values.word(r, world)
        else:
            thing = values.syllables(r, 2, 3).capitalize()
        if thing.lower() not in known:
            return thing


def _turn(name: str, r: Random, world: World) -> Turn:
    table = TABLES[name]
    n, m = r.randint(2, 999), r.randint(2, 99)
    fields = {
        "topic": _topic(r, world),
        "topic2": _topic(r, world),
        "adjective": r.choice(LISTS["adjectives"]),
        "verb": r.choice(LISTS["verbs"]),
        "person": _name(r, world, "people"),
        "person2": _name(r, world, "people"),
        "place": _name(r, world, "places"),
        "place2": _name(r, world, "places"),
        "work": _name(r, world, "works"),
        "language": r.choice(LISTS["languages"]),
        "job": r.choice(values.JOBS),
        "food": r.choice(values.FOODS),
        "year": r.randint(1000, 2030),
        "date": values.date(r, world),
        "clock": values.clock(r, world),
        "words": values.phrase(r, world),
        "n": n,
        "m": m,
        "d": r.randint(2, 9),
        "e": r.randint(2, 9),
    }
    user = PHRASES[name].typed(r, fields, question=name != "actions")
    return Turn(user, table["reply"].format(real_model=world.tour.real_model), table["thought"])


INTENTS = tuple(Intent(name, partial(_turn, name), TABLES[name]["weight"]) for name in PHRASES)
