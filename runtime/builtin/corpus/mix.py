"""Dialogues from intents: which subjects, how many turns, with or without thought."""

from __future__ import annotations

from random import Random
from typing import Literal

from runtime.builtin.corpus import (
    app,
    code,
    facts,
    markup,
    outside,
    recall,
    relations,
    spelling,
    stories,
    sums,
    talk,
    units,
)
from runtime.builtin.corpus.dialogue import Dialogue, Turn
from runtime.builtin.corpus.registry import Intent, World

Stage = Literal["copying", "all", "long"]

MODULES = (app, code, facts, markup, outside, spelling, stories, sums, talk, units)
INTENTS: tuple[Intent, ...] = tuple(i for module in MODULES for i in module.INTENTS)
BY_NAME = {i.name: i for i in INTENTS}
WEIGHTS = [i.weight for i in INTENTS]
FILLERS = [i.filler for i in INTENTS]
JOINS = [i.weight * i.joins for i in INTENTS]
SYSTEMS = (
    "You are a helpful assistant.",
    "You are Qwen, a small assistant.",
    "You are a friendly chat partner.",
    "Answer briefly.",
    "Be kind.",
    "You help with qwenchat.",
    "You are an expert.",
    "Be concise and honest.",
    "You are a tiny model. Say so when you do not know something.",
)
# What a dialogue is made of, per stage. Copying first: recall grows out of it.
SHARES: dict[Stage, dict[str, float]] = {
    "copying": {"repeat": 25, "recall": 35, "related": 15, "turns": 25},
    "all": {"recall": 18, "related": 12, "untold": 6, "turns": 58, "sums": 3, "joined": 3},
    "long": {"recall": 40, "related": 20, "turns": 40},
}


def dialogue(r: Random, world: World, stage: Stage = "all") -> Dialogue:
    """One dialogue; the same for the same generator state, world and stage."""
    shares = SHARES[stage]
    kind = r.choices(tuple(shares), tuple(shares.values()))[0]
    system = ""
    if kind == "recall":
        turns, system = _recall(r, world, stage)
    elif kind == "related":
        turns = _related(r, world, stage)
    elif kind == "untold":
        turns = [_filler(r, world) for _ in range(r.randint(0, 2))]
        turns.append(_untold(r, world))
    elif kind == "repeat":
        turns = [spelling.repeat.make(r, world)]
    elif kind == "sums":
        turns = sums.continued(r, world)
    elif kind == "joined":
        turns = [_joined(r, world)]
    else:
        counts, odds = ((1, 2), (4, 1)) if stage == "copying" else ((1, 2, 3, 4), (45, 25, 18, 12))
        n = r.randint(8, 24) if stage == "long" else r.choices(counts, odds)[0]
        turns = [_single(r, world) for _ in range(n)]
    if not system and r.random() < 0.15:
        system = r.choice(SYSTEMS)
    x = r.random()
    if x < 0.42:
        thinking = [False] * len(turns)
    elif x < 0.80:
        thinking = [True] * len(turns)
    else:
        thinking = [r.random() < 0.5 for _ in turns]
    return Dialogue(tuple(turns), tuple(thinking), system, preserve=r.random() < 0.25, subject=kind)


def _single(r: Random, world: World) -> Turn:
    return r.choices(INTENTS, WEIGHTS)[0].make(r, world)


def _filler(r: Random, world: World) -> Turn:
    return r.choices(INTENTS, FILLERS)[0].make(r, world)


def _untold(r: Random, world: World) -> Turn:
    """A question for something never told."""
    x = r.random()
    if x < 0.12:
        return recall.everything(r, [])
    if x < 0.4:
        return relations.ask_untold(r, relations.draw(r, world))
    return recall.ask_untold(r, recall.draw(r, world))


def _related(r: Random, world: World, stage: Stage) -> list[Turn]:
    """Facts in free form, told and asked."""
    facts = [relations.draw(r, world) for _ in range(r.choices((1, 2, 3), (60, 30, 10))[0])]
    facts = list({f.relation: f for f in facts}.values())
    longest = {"copying": 1, "all": 7, "long": 20}[stage]
    turns = [relations.tell(r, f) for f in facts]
    turns += [_filler(r, world) for _ in range(min(longest, int(r.expovariate(1 / (1 + longest / 3)))))]
    asked = [relations.ask(r, f) for f in facts]
    if r.random() < 0.15:
        asked.append(_untold_relation(r, world, facts))
    r.shuffle(asked)
    return turns + asked


def _untold_relation(r: Random, world: World, known: list[relations.Related]) -> Turn:
    while (fact := relations.draw(r, world)).relation.kind in {f.relation.kind for f in known}:
        pass
    return relations.ask_untold(r, fact)


def _joined(r: Random, world: World) -> Turn:
    """Two questions in one message, answered in turn; or a greeting before a question."""
    second = r.choices(INTENTS, JOINS)[0].make(r, world)
    tail = second.user[:1].lower() + second.user[1:] if second.user[1:2].islower() else second.user
    first = r.choices(INTENTS, JOINS)[0].make(r, world)
    if r.random() < 0.35:
        first = BY_NAME[r.choice(("how_are_you", "who_are_you", "thanks", "praise"))].make(r, world)
    user = f"{first.user.rstrip('.?! ')}{r.choice((' and ', ', and ', '? ', '. ', '? And ', ' and also '))}{tail}"
    return Turn(user, f"{first.reply} {second.reply}", f"{first.thought} {second.thought}", weight=2)


def _recall(r: Random, world: World, stage: Stage) -> tuple[list[Turn], str]:
    """Facts told, other turns between, facts asked; the system prompt that goes with them."""
    if stage == "copying":
        told, between = r.choices((1, 2), (4, 1))[0], r.choice((0, 0, 1))
    else:
        told, between = (
            r.choices((1, 2, 3, 4), (50, 28, 15, 7))[0],
            r.choices(range(8), (24, 20, 16, 12, 9, 7, 7, 5))[0],
        )
    if stage == "long":
        between = r.randint(8, 20)
    turns: list[Turn] = []
    system = ""
    x = r.random()
    if stage != "copying" and x < 0.12:
        turn, known = recall.introduction(r, world)
        turns.append(turn)
    elif told > 1 and x < 0.4:
        known = recall.several(r, world, told)
        turns.append(recall.tell_together(r, known))
    elif stage != "copying" and x > 0.95:
        known = recall.several(r, world, 1)
        fact = known[0]
        user = f"the user's {fact.label}" if fact.owner == "my" else fact.subject
        system = f"You are a helpful assistant. {user[0].upper()}{user[1:]} is {fact.value}."
    else:
        known = []
        for i, fact in enumerate(recall.several(r, world, told)):
            if i and between and r.random() < 0.3:
                turns.append(_filler(r, world))
            turns.append(recall.tell(r, fact))
            known.append(fact)
    while known and turns and r.random() < 0.13:
        i = r.randrange(len(known))
        turn, known[i] = recall.correct(r, known[i], world)
        turns.append(turn)
    turns += [_filler(r, world) for _ in range(between)]
    asked = [recall.ask(r, fact) for fact in known]
    if r.random() < 0.22:
        asked.append(recall.ask_untold(r, _other(r, world, known)))
    r.shuffle(asked)
    if len(asked) > 1 and r.random() < 0.3:
        asked.insert(1, _filler(r, world))
    turns += asked
    if r.random() < 0.06:
        turns.append(recall.everything(r, known))
    return turns, system


def _other(r: Random, world: World, known: list[recall.Fact]) -> recall.Fact:
    """A fact that none of the known ones answers."""
    while True:
        fact = recall.draw(r, world)
        if not any(recall.close(fact, other) for other in known):
            return fact
