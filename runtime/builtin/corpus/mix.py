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
# Questions about the app have the most wordings; what only sounds like them is learnt with them.
APP = {
    **{i: i.weight for i in app.INTENTS},
    BY_NAME["how_to"]: 60,
    BY_NAME["what_is_it"]: 7,
    BY_NAME["absent"]: 10,
    BY_NAME["elsewhere"]: 5,
    **{BY_NAME[name]: 0.5 for name in talk.ABOUT_THE_APP},
}
OUTSIDE = {i: i.weight for i in outside.INTENTS}
SUMS = {**{i: i.weight for i in sums.INTENTS}, **{i: 0.2 * i.weight for i in spelling.INTENTS}}
# Drills: one message, and the first tokens of its reply. What a reply is about is decided there, and of three thousand
# tokens a dialogue of ten turns has ten such decisions, drills have seventy. None for the parts of a whole talk.
DRILLS: dict[str, tuple[float, dict[Intent, float] | None]] = {
    "app": (42, APP),
    "facts": (34, {i: i.weight for i in facts.INTENTS}),
    "outside": (16, OUTSIDE),
    "talk": (10, {i: i.weight for i in talk.INTENTS}),
    "told": (14, None),
}
DRILL_SUBJECTS = [weight for weight, _ in DRILLS.values()]
# What a dialogue is made of, per stage. Copying first: recall grows out of it.
SHARES: dict[Stage, dict[str, float]] = {
    "copying": {"repeat": 25, "recall": 50, "turns": 25},
    "all": {"drill": 95, "recall": 10, "untold": 2, "app": 2, "turns": 7, "sums": 9, "series": 1, "joined": 1.5},
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
    if kind == "drill":
        return _drill(r, world)
    if kind == "recall":
        turns, system = memory.dialogue(r, world, stage, partial(_filler, r, world))
    elif kind == "untold":
        turns = [_filler(r, world) for _ in range(r.randint(0, 2))]
        turns.append(memory.ask_untold(r, world, []))
    elif kind == "repeat":
        turns = [spelling.repeat.make(r, world)]
    elif kind == "series":
        turns = sums.continued(r, world)
    elif kind == "sums":
        turns = [_one_of(r, world, SUMS) for _ in range(r.choice((1, 1, 2)))]
    elif kind == "app":
        turns = [_one_of(r, world, APP) for _ in range(r.choice((1, 1, 1, 2)))]
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


def _drill(r: Random, world: World) -> Dialogue:
    """A message and the beginning of its reply; of what is told, the telling or the asking."""
    subject = r.choices(tuple(DRILLS), DRILL_SUBJECTS)[0]
    intents = DRILLS[subject][1]
    system = r.choice(SYSTEMS) if r.random() < 0.03 else ""
    if intents is not None:
        turns = [_one_of(r, world, intents)]
    elif r.random() < 0.2:
        turns = [memory.ask_untold(r, world, [])]
    else:
        turns, holding = memory.dialogue(r, world, "drill", partial(_filler, r, world))
        system = holding or system
        if turns[0].weight and r.random() < 0.4:
            del turns[1:]
    thinking = r.random() < 0.5
    return Dialogue(tuple(turns), (thinking,) * len(turns), system, subject="drill", brief=r.random() < 0.9)


def _one_of(r: Random, world: World, intents: dict[Intent, float]) -> Turn:
    return r.choices(tuple(intents), tuple(intents.values()))[0].make(r, world)


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
    return Turn(user, f"{first.reply} {second.reply}", f"{first.thought} {second.thought}")
