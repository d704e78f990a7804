"""Small talk, and questions about the model and the program in general: the tables of `talk.toml`."""

from __future__ import annotations

from functools import partial
from random import Random

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases
from runtime.builtin.corpus.registry import Intent, World
from runtime.builtin.corpus.tables import load

TABLES = load("talk.toml")
ABOUT_THE_APP = tuple(name for name, table in TABLES.items() if table.get("app"))
PHRASES = {name: Phrases(table["users"]) for name, table in TABLES.items()}


def _turn(name: str, r: Random, world: World) -> Turn:
    table = TABLES[name]
    reply = r.choice(table["replies"]).replace("{real_model}", world.tour.real_model)
    user = PHRASES[name].typed(r, question=_asks(name))
    return Turn(user, reply, table["thought"])


def _asks(name: str) -> bool:
    return name not in (
        "greeting",
        "thanks",
        "goodbye",
        "tired",
        "happy",
        "sad",
        "praise",
        "insult",
        "agree",
        "apology",
    )


INTENTS = tuple(
    Intent(name, partial(_turn, name), table["weight"], table.get("filler", 0.0)) for name, table in TABLES.items()
)
