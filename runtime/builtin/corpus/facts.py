"""Facts: the families of `facts.toml` and the single facts of `sheets.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, expand, led, reworded, sentence
from runtime.builtin.corpus.outside import unknown_thing
from runtime.builtin.corpus.registry import Intent, World
from runtime.builtin.corpus.tables import load

UNLISTED_SHARE = 0.12


@dataclass(frozen=True, slots=True)
class Ask:
    """`formed` take the key in another form, such as an adjective or a plural; those keys that have one: `forms`."""

    phrases: Phrases
    reply: str
    reverse: bool  # asks for the key
    formed: Phrases
    forms: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Family:
    pairs: tuple[tuple[str, str], ...]
    asks: tuple[Ask, ...]
    thought: str
    unlisted: str

    @property
    def known(self) -> frozenset[str]:
        return frozenset(text.lower() for pair in self.pairs for text in pair)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    rows = text.replace("\n", ";").split(";")
    return tuple((k.strip(), v.strip()) for k, v in (row.split(":", 1) for row in rows if row.strip()))


def _family(table: dict[str, Any]) -> Family:
    pairs = _pairs(table["pairs"])
    asks = []
    for ask in table["ask"]:
        phrases = Phrases(ask["users"])
        reverse = all("{k}" not in t for t in phrases.templates)
        forms = FORMS[ask["form"]] if "form" in ask else {}
        asks.append(Ask(phrases, ask["reply"], reverse, Phrases(ask.get("formed", "")), forms))
    return Family(pairs, tuple(asks), table["thought"], table.get("unlisted", ""))


TABLES = load("facts.toml")
FORMS = {form: dict(_pairs(text)) for form, text in TABLES.pop("forms").items()}
FORMED = 0.12  # share of the questions that name the key in another form
FAMILIES = {name: _family(table) for name, table in TABLES.items()}
SHEETS = load("sheets.toml")
SINGLE = SHEETS.pop("singles")


def _rows(sheet: dict[str, str]) -> list[tuple[str, Phrases]]:
    """Each row's answer, and all ways of asking for it."""
    frames = sheet["frames"].splitlines()
    fields = [f for f in ("a", "b") if f"{{{f}}}" in sheet["frames"]]
    result = []
    for row in filter(None, map(str.strip, sheet["rows"].splitlines())):
        answer, *cells = (cell.strip() for cell in row.split(";"))
        asked = frames
        for field, cell in zip(fields, cells, strict=False):
            asked = [frame.replace(f"{{{field}}}", cell) for frame in asked]
        result.append((answer, Phrases([*asked, *cells[len(fields) :]])))
    return result


SINGLES = tuple(row for sheet in SHEETS.values() for row in _rows(sheet))
PHRASES = {
    **{f"{name}{i}": ask.phrases for name, family in FAMILIES.items() for i, ask in enumerate(family.asks)},
    **dict(SINGLES),
}
FRAMES = Phrases(
    """
    {q}, do you know
    {q}, if you know
    {q}, i forgot
    {q}, can you tell me
    {q}, any idea
    {q} - do you know that
    do you know {q}
    do you happen to know {q}
    tell me {q}
    can you tell me {q}
    could you tell me {q}
    would you tell me {q}
    i want to know {q}
    i'd like to know {q}
    i would like to know {q}
    i need to know {q}
    i wonder {q}
    i was wondering {q}
    question: {q}
    a question: {q}
    next question: {q}
    quick question, {q}
    trivia: {q}
    quiz: {q}
    quiz question: {q}
    geography question: {q}
    my child asks: {q}
    my son wants to know: {q}
    my friend wants to know {q}
    i forgot: {q}
    please tell me {q}
    please answer: {q}
    any idea {q}
    do you have an idea {q}
    i am asking myself {q}
    for my homework: {q}
    homework: {q}
    let me ask: {q}
    let me ask you {q}
    may i ask {q}
    explain to me {q}
    you surely know {q}
    you must know this: {q}
    here is one: {q}
    here is an easy one: {q}
    who knows {q}
    remind me {q}
    we had a bet: {q}
    in a crossword: {q}
    i should know this, {q}
    """
)
FRAMED = 0.35  # share of the questions that stand in one of these frames


def _framed(r: Random, phrases: Phrases, values: Mapping[str, object] = {}) -> str:
    """A question, often within another sentence."""
    if r.random() > FRAMED:
        return led(r, phrases.typed(r, values), 0.08)
    question = reworded(r, expand(r, r.choice(phrases.templates), values))
    return FRAMES.typed(r, {"q": "".join(p.text for p in question)})


def _pair(name: str, r: Random, world: World) -> Turn:
    family = FAMILIES[name]
    if family.unlisted and r.random() < UNLISTED_SHARE:
        return _unlisted(family, r, world)
    k, v = r.choice(family.pairs)
    ask = family.asks[0] if r.random() < 0.65 else r.choice(family.asks)
    if ask.reverse:  # a value may have several keys: the first one listed answers
        k = next(key for key, value in family.pairs if value == v)
    phrases = ask.phrases
    fields = {"k": _lower(r, k), "v": _lower(r, v)}
    if (bare := k.removeprefix("a ").removeprefix("an ")) in ask.forms and r.random() < FORMED:
        phrases, fields = ask.formed, {"f": _lower(r, ask.forms[bare])}
    return Turn(
        _framed(r, phrases, fields),
        sentence(ask.reply.format(k=k, v=v)),
        sentence(family.thought.format(k=k, v=v)),
    )


def _lower(r: Random, name: str) -> str:
    return name.lower() if r.random() < 0.12 else name


def _unlisted(family: Family, r: Random, world: World) -> Turn:
    thing = unknown_thing(r, world, family.known)
    reply = family.unlisted.format(k=thing)
    return Turn(_framed(r, family.asks[0].phrases, {"k": thing}), reply, "I do not know this one. I say so.")


def _single(r: Random, world: World) -> Turn:
    reply, phrases = r.choice(SINGLES)
    return Turn(_framed(r, phrases), reply, SINGLE["thought"])


INTENTS = (
    *(
        Intent(name, partial(_pair, name), TABLES[name]["weight"], TABLES[name].get("filler", 0.0), True)
        for name in FAMILIES
    ),
    Intent("singles", _single, SINGLE["weight"], SINGLE["filler"], True),
)
