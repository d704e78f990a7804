"""Dialogues from intents: which subjects, how many turns, with or without thought."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Literal

from runtime.builtin.corpus import (
    app,
    code,
    facts,
    markup,
    memory,
    outside,
    spelling,
    stories,
    sums,
    talk,
    units,
)
from runtime.builtin.corpus.dialogue import Dialogue, Turn
from runtime.builtin.corpus.grammar import normal
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
# What is learnt by doing it often, and has short replies: in a mix by turns alone it is a twentieth of the text.
DRILLS = {sums: 8, facts: 9, spelling: 1}
# Questions about the app have the most wordings; what only sounds like them is learnt with them.
APP = {
    **{i: i.weight for i in app.INTENTS},
    BY_NAME["how_to"]: 60,
    BY_NAME["what_is_it"]: 7,
    BY_NAME["absent"]: 10,
    BY_NAME["elsewhere"]: 5,
    **{BY_NAME[name]: 0.5 for name in talk.ABOUT_THE_APP},
}
OUTSIDE = [i.weight for i in outside.INTENTS]
# What a dialogue is made of, per stage. Copying first: recall grows out of it.
SHARES: dict[Stage, dict[str, float]] = {
    "copying": {"repeat": 25, "recall": 50, "turns": 25},
    "all": {"recall": 20, "untold": 4, "app": 27, "outside": 8, "turns": 23, "sums": 2, "drill": 14, "joined": 2},
    "long": {"recall": 60, "turns": 40},
}


def dialogue(r: Random, world: World, stage: Stage = "all") -> Dialogue:
    """One dialogue without a reserved message; the same for the same generator state, world and stage."""
    while True:
        drawn = _draw(r, world, stage)
        if world.reserved.isdisjoint(normal(turn.user) for turn in drawn.turns):
            return drawn


def _draw(r: Random, world: World, stage: Stage) -> Dialogue:
    shares = SHARES[stage]
    kind = r.choices(tuple(shares), tuple(shares.values()))[0]
    system = ""
    if kind == "recall":
        turns, system = memory.dialogue(r, world, stage, partial(_filler, r, world))
    elif kind == "untold":
        turns = [_filler(r, world) for _ in range(r.randint(0, 2))]
        turns.append(memory.ask_untold(r, world, []))
    elif kind == "repeat":
        turns = [spelling.repeat.make(r, world)]
    elif kind == "sums":
        turns = sums.continued(r, world)
    elif kind == "drill":
        intents = r.choices(tuple(DRILLS), tuple(DRILLS.values()))[0].INTENTS
        weights = [i.weight for i in intents]
        turns = [r.choices(intents, weights)[0].make(r, world) for _ in range(r.randint(1, 4))]
    elif kind == "app":
        turns = [r.choices(tuple(APP), tuple(APP.values()))[0].make(r, world) for _ in range(r.choice((1, 1, 1, 2)))]
    elif kind == "outside":
        turns = [r.choices(outside.INTENTS, OUTSIDE)[0].make(r, world) for _ in range(r.choice((1, 1, 2)))]
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


def _joined(r: Random, world: World) -> Turn:
    """Two questions in one message, answered in turn; or a greeting before a question."""
    second = r.choices(INTENTS, JOINS)[0].make(r, world)
    tail = second.user[:1].lower() + second.user[1:] if second.user[1:2].islower() else second.user
    first = r.choices(INTENTS, JOINS)[0].make(r, world)
    if r.random() < 0.35:
        first = BY_NAME[r.choice(("how_are_you", "who_are_you", "thanks", "praise"))].make(r, world)
    user = f"{first.user.rstrip('.?! ')}{r.choice((' and ', ', and ', '? ', '. ', '? And ', ' and also '))}{tail}"
    return Turn(user, f"{first.reply} {second.reply}", f"{first.thought} {second.thought}", weight=2)
