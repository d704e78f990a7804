"""What the tests of the generator share: dialogues, and questions without what is put around them."""

from __future__ import annotations

import re
from functools import cache
from random import Random

from runtime.builtin.corpus import (
    app,
    statements,
)
from runtime.builtin.corpus.dialogue import Dialogue
from runtime.builtin.corpus.grammar import normal
from runtime.builtin.corpus.mix import SHARES, dialogue
from runtime.builtin.corpus.registry import World

STAGES = tuple(SHARES)
KINDS = "|".join(sorted({word for words in app.KIND_WORDS.values() for word in words}))


def many(world: World, n: int = 400, stage: str = "all", seed: int = 7) -> list[Dialogue]:
    r = Random(seed)
    return [dialogue(r, world, stage) for _ in range(n)]  # type: ignore[arg-type]


@cache
def wrapper_patterns() -> tuple[re.Pattern[str], ...]:
    texts = {p for wrappers in statements.WRAPPERS.values() for p in wrappers.patterns({"q": "(.+)"})}
    return tuple(map(re.compile, texts))


def unwrapped(question: str) -> set[str]:
    """What the question may be about: its middle, for every way of asking that it could be."""
    return {m[1] for p in wrapper_patterns() if (m := p.fullmatch(normal(question)))}
