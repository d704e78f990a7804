"""Facts: the families and the single facts of `facts.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, sentence
from runtime.builtin.corpus.outside import unknown_thing
from runtime.builtin.corpus.registry import Intent, World
from runtime.builtin.corpus.talk import load

UNLISTED_SHARE = 0.12


@dataclass(frozen=True, slots=True)
class Ask:
    phrases: Phrases
    reply: str
    reverse: bool  # asks for the key


@dataclass(frozen=True, slots=True)
class Family:
    pairs: tuple[tuple[str, str], ...]
    asks: tuple[Ask, ...]
    thought: str
    unlisted: str

    @property
    def known(self) -> frozenset[str]:
        return frozenset(text.lower() for pair in self.pairs for text in pair)


def _family(table: dict[str, Any]) -> Family:
    rows = table["pairs"].replace("\n", ";").split(";")
    pairs = tuple((k.strip(), v.strip()) for k, v in (row.split(":", 1) for row in rows if row.strip()))
    asks = []
    for ask in table["ask"]:
        phrases = Phrases(ask["users"])
        asks.append(Ask(phrases, ask["reply"], all("{k}" not in t for t in phrases.templates)))
    return Family(pairs, tuple(asks), table["thought"], table.get("unlisted", ""))


TABLES = load("facts.toml")
FAMILIES = {name: _family(table) for name, table in TABLES.items() if "pairs" in table}
SINGLES = tuple(
    (parts[0].strip(), Phrases(parts[1:]))
    for parts in (row.split("|") for row in TABLES["singles"]["facts"].splitlines() if row.strip())
)
PHRASES = {
    **{f"{name}{i}": ask.phrases for name, family in FAMILIES.items() for i, ask in enumerate(family.asks)},
    **dict(SINGLES),
}
FRAMES = Phrases(
    """
    {q}
    {q}
    {q}
    {q}
    do you know {q}
    tell me {q}
    can you tell me {q}
    i want to know {q}
    i wonder {q}
    question: {q}
    my child asks: {q}
    i forgot: {q}
    please tell me {q}
    {q}, do you know
    any idea {q}
    do you have an idea {q}
    quiz: {q}
    i am asking myself {q}
    for my homework: {q}
    let me ask: {q}
    explain to me {q}
    you surely know {q}
    {q}, if you know
    my friend wants to know {q}
    """
)


def _pair(name: str, r: Random, world: World) -> Turn:
    family = FAMILIES[name]
    if family.unlisted and r.random() < UNLISTED_SHARE:
        return _unlisted(family, r, world)
    k, v = r.choice(family.pairs)
    ask = family.asks[0] if r.random() < 0.65 else r.choice(family.asks)
    if ask.reverse:  # a value may have several keys: the first one listed answers
        k = next(key for key, value in family.pairs if value == v)
    return Turn(
        ask.phrases.typed(r, {"k": _lower(r, k), "v": _lower(r, v)}),
        sentence(ask.reply.format(k=k, v=v)),
        sentence(family.thought.format(k=k, v=v)),
    )


def _lower(r: Random, name: str) -> str:
    return name.lower() if r.random() < 0.12 else name


def _unlisted(family: Family, r: Random, world: World) -> Turn:
    thing = unknown_thing(r, world, family.known)
    reply = family.unlisted.format(k=thing)
    return Turn(family.asks[0].phrases.typed(r, {"k": thing}), reply, "I do not know this one. I say so.")


def _single(r: Random, world: World) -> Turn:
    reply, phrases = r.choice(SINGLES)
    user = FRAMES.typed(r, {"q": phrases.typed(r).rstrip("?.! ") if r.random() < 0.3 else phrases.plain(r)})
    return Turn(user, reply, TABLES["singles"]["thought"])


INTENTS = (
    *(
        Intent(name, partial(_pair, name), TABLES[name]["weight"], TABLES[name].get("filler", 0.0), True)
        for name in FAMILIES
    ),
    Intent("singles", _single, TABLES["singles"]["weight"], TABLES["singles"]["filler"], True),
)
