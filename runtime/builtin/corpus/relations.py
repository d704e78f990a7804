"""Facts in free form, told one way and asked another: the tables of `relations.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from runtime.builtin.corpus import values
from runtime.builtin.corpus.dialogue import RECALL_WEIGHT, Turn
from runtime.builtin.corpus.grammar import Phrases, words
from runtime.builtin.corpus.recall import DRAWS
from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.talk import load

FRAMES = Phrases(
    """
    {q}
    {q}
    {q}
    {q}
    {q}
    {q} again
    do you remember {q}
    can you tell me {q}
    tell me {q}
    i forgot {q}
    i told you {q}
    say {q}
    and {q}
    so {q}
    do you still know {q}
    """
)
TOLD = Phrases("{s}\n{s}\n{s}\n{s}\n{s}\nremember: {s}\nnote that {s}\ni want you to know that {s}\n{s}, remember that")


@dataclass(frozen=True, slots=True)
class Relation:
    kind: str
    tell: str
    asks: Phrases


@dataclass(frozen=True, slots=True)
class Related:
    """One relation with its values drawn."""

    relation: Relation
    fields: tuple[tuple[str, str], ...]

    @property
    def value(self) -> str:
        return dict(self.fields)["v"]


RELATIONS = tuple(
    Relation(kind, parts[0].strip(), Phrases(parts[1:]))
    for kind, table in load("relations.toml").items()
    for parts in (row.split("|") for row in table.splitlines() if row.strip())
)
PHRASES = {relation.tell: relation.asks for relation in RELATIONS}
ADDED = words("new old big small red blue other second little first")


def draw(r: Random, world: World) -> Related:
    relation = r.choice(RELATIONS)
    thing = r.choice(values.THINGS) if r.random() < 0.7 else values.word(r, world)
    if r.random() < 0.2:
        thing = f"{r.choice(ADDED)} {thing}"
    fields = {"v": DRAWS[relation.kind](r, world), "t": thing, "n": values.name(r, world)}
    return Related(relation, tuple(fields.items()))


def tell(r: Random, fact: Related) -> Turn:
    said = Phrases([fact.relation.tell]).plain(r, dict(fact.fields))
    user = TOLD.typed(r, {"s": said}, question=False)
    if not said.startswith(fact.value):
        user = user[:1].upper() + user[1:] if r.random() < 0.5 else user
    return Turn(user, "Noted, I will remember that.", f"The user tells me: {said}. I confirm it.", weight=2)


def ask(r: Random, fact: Related) -> Turn:
    user = FRAMES.typed(r, {"q": fact.relation.asks.plain(r, dict(fact.fields))})
    said = fact.relation.tell.format(**dict(fact.fields))
    return Turn(user, f"You told me: {fact.value}.", f"The user told me: {said}.", weight=RECALL_WEIGHT)


def ask_untold(r: Random, fact: Related) -> Turn:
    user = FRAMES.typed(r, {"q": fact.relation.asks.plain(r, dict(fact.fields))})
    return Turn(user, "You have not told me that yet.", "The user has not told me that.", weight=RECALL_WEIGHT)
