"""What lies outside the model's world: the frames of `outside.toml` and `near.toml`, filled with anything."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random

from runtime.builtin.corpus import app, values
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, led
from runtime.builtin.corpus.registry import Intent, World
from runtime.builtin.corpus.tables import load

TABLES = load("outside.toml")
LISTS: dict[str, tuple[str, ...]] = {
    name: tuple(item.strip() for item in text.replace("\n", " ").split(","))
    for name, text in load("things.toml").items()
}
NEAR = load("near.toml")
# Only questions about these that the model cannot answer are asked: the names themselves it knows.
KNOWN = {name: tuple(text.split(", ")) for name, text in NEAR.pop("known").items()}
DATED = (1492, 1789, 1912, 1914, 1918, 1939, 1945, 1969, 1989)  # years of which the model can tell
ANIMALS = tuple(a for a in values.ANIMALS if a not in ("rabbit", "penguin"))  # what these eat, or where they live
BEYOND = {name: Phrases(text) for name, text in load("beyond.toml").items()}
WHOLE = 0.55  # share of the questions that stand in no frame
PHRASES = {name: Phrases(table["frames"]) for name, table in (TABLES | NEAR).items() if "frames" in table}


def alternatives_of(text: str) -> tuple[str, ...]:
    """Alternatives over several lines."""
    return tuple(item.strip() for item in text.strip().replace("\n", "|").split("|") if item.strip())


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
        kind = r.randrange(6)
        if kind == 0:
            thing = r.choice(LISTS[r.choice(("places", "works"))])
        elif kind == 1:
            thing = r.choice(LISTS["topics"])
        elif kind == 2:
            thing = values.word(r, world)
        elif kind == 3:
            thing = f"{r.choice(('the', 'my', 'a', 'this', 'our'))} {values.word(r, world)}"
        else:
            thing = values.syllables(r, 2, 3).capitalize()
        if thing.lower() not in known:
            return thing


def _reply(name: str, world: World) -> tuple[str, str]:
    """The answer of a table, its own or another's, and the thought before it."""
    table = TABLES[name] if name in TABLES else TABLES.get(NEAR[name]["reply"], NEAR[name])
    return table["reply"].format(real_model=world.tour.real_model), table["thought"]


def _turn(name: str, r: Random, world: World) -> Turn:
    if name in BEYOND and r.random() < WHOLE:
        user = led(r, BEYOND[name].typed(r, question=name != "actions"))
        return Turn(user, *_reply(name, world))
    n, m = r.randint(2, 999), r.randint(2, 99)
    while (year := r.randint(1000, 2030)) in DATED:
        pass
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
        "country": r.choice(KNOWN["countries"]),
        "element": r.choice(KNOWN["elements"]),
        "animal": r.choice(ANIMALS),
        "job": r.choice(values.JOBS),
        "food": r.choice(values.FOODS),
        "year": year,
        "date": values.date(r, world),
        "clock": values.clock(r, world),
        "words": values.phrase(r, world),
        "n": n,
        "m": m,
        "d": r.randint(2, 9),
        "e": r.randint(2, 9),
    }
    user = led(r, PHRASES[name].typed(r, fields, question=name != "actions"))
    return Turn(user, *_reply(name, world))


WISHES = {name: app.forms(table) for name, table in NEAR.items() if "do" in table}


def _wish(name: str, r: Random, world: World) -> Turn:
    """A wish that only sounds like one of the app's, asked for in the same frames."""
    form = r.choices(tuple(app.FORMS), tuple(app.FORMS.values()))[0]
    kind = r.choice(("way", "trick", "app", "command", "key") if name == "elsewhere" else app.KIND_WORDS["command"])
    user = app.ask_how(r, form, WISHES[name][form].plain(r), kind)
    return Turn(user, *_reply(name, world))


WILD = Phrases(
    """
    {h} {a} {b} {p}
    {h} {a} {p}
    {h} {a} {b}
    {h} {a}
    {h} {a} and {b}
    {a} {p}: {h} {b}
    i have {a}, {h} {b}
    my {x} is {j}, {h} it
    when my {x} {v}s, {h} {b}
    if {a} {v}s {p}, {h} {b}
    {h} {v} {a} {p}
    {h} {v} {b}
    {h} my {x} {v}
    why {d} {a} {v}
    why {d} {a} {v} {p}
    how {d} {a} {v} {p}
    when {d} {a} {v}
    what makes {a} {v}
    what {d} {a} {v} {p}
    how many {x}s {v} {p}
    how {j} is {a} {p}
    which {x} {p} is the most {j}
    {a} or {b}, which one is more {j}
    is {a} more {j} than {b}
    """
)
HEADS = alternatives_of(
    """
    how do i find | how can i get | how should i use | what is the best | what is the price of | what is the name of
    what happens to | where can one buy | who invented | who takes care of | why is there | is there really | give me
    tell me about | explain | show me | make me | find me | write about | help me with | i want to know about | compare
    what about the history of | what is behind | how long is | how old is | how far away is | how dangerous is
    can you describe | can you make | could you find | please explain | please find | should i keep | should i sell
    what do you think of | when was | which kind of people like | what do they say about
    what is known about | do you know the story of | what would you do with | how much is
    how does one repair | how do i get rid of
    """
)
PLACES = alternatives_of(
    """
    in {w} | in the {w} | on the {w} | near {w} | at night | in winter | in the morning | at home | at work
    under water | in my {w} | for a {w} | without a {w} | after the {w} | before the {w} | in {y} | next year
    last week | these days | for my {w} | with a {w} | from {w} | in the middle of the {w} | for children | in the world
    """
)


def _wild_noun(r: Random, world: World) -> str:
    x = r.random()
    if x < 0.3:
        return f"the {_topic(r, world)}"
    if x < 0.5:
        return f"{r.choice(('a', 'the', 'my', 'this'))} {r.choice(LISTS['adjectives'])} {values.word(r, world)}"
    if x < 0.7:
        return f"the {values.word(r, world)} of the {values.word(r, world)}"
    if x < 0.8:
        return _name(r, world, r.choice(("people", "places", "works")))
    return f"{values.word(r, world)}s"


def _wild(r: Random, world: World) -> Turn:
    """Any question at all, so that what looks like nothing known is answered honestly."""
    place = r.choice(PLACES).format(w=values.word(r, world), y=r.randint(1200, 2030))
    fields = {
        "h": r.choice(HEADS),
        "a": _wild_noun(r, world),
        "b": _wild_noun(r, world),
        "p": place,
        "x": r.choice(values.THINGS),
        "j": r.choice(LISTS["adjectives"]),
        "v": r.choice(LISTS["verbs"]),
        "d": r.choice(("does", "do", "did", "can", "will", "would")),
    }
    return Turn(led(r, WILD.typed(r, fields)), *_reply("knowledge", world))


FILLER = 0.03  # share of an intent's weight that it has between a fact told and asked


def _intent(name: str, make: Callable[[str, Random, World], Turn]) -> Intent:
    weight = (TABLES | NEAR)[name]["weight"]
    return Intent(name, partial(make, name), weight, FILLER * weight)


INTENTS = (
    *(_intent(name, _turn) for name in PHRASES),
    *(_intent(name, _wish) for name in WISHES),
    Intent("wild", _wild, 16, FILLER * 16),
)
