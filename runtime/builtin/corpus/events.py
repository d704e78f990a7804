"""Events: statements put together from the verbs of `events.toml`, and the questions that follow from their parts."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

from runtime.builtin.corpus.tables import load


class Verb(NamedTuple):
    base: str
    past: str
    object: str


class Part(NamedTuple):
    """What stands behind the verb, and how it is asked for; {s} the subject, {b} and {p} the verb, {o} its object."""

    text: str
    direct: tuple[str, ...]
    indirect: tuple[str, ...]


VERBS = tuple(
    Verb(*(part.strip() for part in row.split("|"))) for row in load("events.toml")["verbs"].splitlines() if row
)
SUBJECTS = ("I", "I", "we", "{name}", "{name}", "my {kin}")
WHERE = (
    ("where {d} {s} {b} {o}", "in which place {d} {s} {b} {o}"),
    ("where {s} {p} {o}", "the place where {s} {p} {o}"),
)
WHEN = (("when {d} {s} {b} {o}", "on which day {d} {s} {b} {o}"), ("when {s} {p} {o}", "the day {s} {p} {o}"))
WITH = (
    ("who {d} {s} {b} {o} with", "with whom {d} {s} {b} {o}"),
    ("who {s} {p} {o} with", "who was there when {s} {p} {o}"),
)
PARTS = (
    Part("in {town}", (*WHERE[0], "in which town {d} {s} {b} {o}"), WHERE[1]),
    Part("at the {shop}", *WHERE),
    Part("in the {room2}", (*WHERE[0], "in which room {d} {s} {b} {o}"), WHERE[1]),
    Part("{day}", *WHEN),
    Part("at {clock}", ("when {d} {s} {b} {o}", "at what time {d} {s} {b} {o}"), WHEN[1]),
    Part("in {year}", ("when {d} {s} {b} {o}", "in which year {d} {s} {b} {o}"), WHEN[1]),
    Part("with {name3}", *WITH),
    Part("with my {kin2}", *WITH),
    Part("for {name3}", ("who {d} {s} {b} {o} for", "for whom {d} {s} {b} {o}"), ("who {s} {p} {o} for",)),
    Part("because of {fear2}", ("why {d} {s} {b} {o}",), ("why {s} {p} {o}", "the reason {s} {p} {o}")),
)
WHOM = (("who {d} {s} {b}", "whom {d} {s} {b}"), ("who {s} {p}", "who it was that {s} {p}"))
WHAT = (("what {d} {s} {b}",), ("what {s} {p}", "what it was that {s} {p}"))
WHO = (("who {p} {o}", "who was it that {p} {o}"), ("who {p} {o}", "who it was that {p} {o}"))


QUESTIONS = tuple(
    {text for group in (*((p.direct, p.indirect) for p in PARTS), WHOM, WHAT, WHO) for text in sum(group, ())}
)


class Event(NamedTuple):
    """A statement with blanks, and what may be asked of it: directly, and behind other words."""

    verb: str
    tell: str
    direct: tuple[str, ...]
    indirect: tuple[str, ...]


def draw(r: Random) -> Event:
    verb = r.choice(VERBS)
    n = r.choices((0, 1, 2), (2, 5, 3))[0] if verb.object else r.choice((1, 1, 2))
    parts = tuple(sorted(r.sample(range(len(PARTS)), n)))
    return event(verb, r.choice(SUBJECTS), parts, r.random() < 0.2)


@cache
def event(verb: Verb, subject: str, parts: tuple[int, ...], future: bool) -> Event:
    """`parts` are numbers of PARTS."""
    said = f"will {verb.base}" if future else verb.past
    words = {"s": subject, "b": verb.base, "p": said, "o": verb.object, "d": "will" if future else "did"}
    groups = [(PARTS[i].direct, PARTS[i].indirect) for i in parts]
    if verb.object:
        groups.append(WHOM if verb.object == "{name2}" else WHAT)
    if subject not in ("I", "we"):
        groups.append(WHO)
    tell = " ".join((subject, said, verb.object, *(PARTS[i].text for i in parts)))
    direct, indirect = (tuple(_put(text, words) for group in groups for text in group[k]) for k in (0, 1))
    return Event(verb.base, _put(tell, {}), direct, indirect)


def _put(template: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        template = template.replace(f"{{{name}}}", word)
    return " ".join(template.split())
