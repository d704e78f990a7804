"""What fills the blanks of statements: kinds of values, listed in `fillings.toml` or made up here."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from runtime.builtin.corpus import values
from runtime.builtin.corpus.grammar import article, listed
from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.tables import load

Draw = Callable[[Random, World], str]

LISTS: dict[str, tuple[str, ...]] = {
    kind: tuple(item.strip() for item in text.replace("\n", " ").split(","))
    for kind, text in load("fillings.toml").items()
} | {
    "colour": values.COLOURS,
    "food": values.FOODS,
    "drink": values.DRINKS,
    "animal": values.ANIMALS,
    "hobby": values.HOBBIES,
}
WITH_MADE_UP = (
    "pet",
    "spare",
    "gadget",
    "event",
    "item",
    "gift",
    "plant",
    "dish",
    "food",
    "drink",
    "hobby",
    "furniture",
)
PREPOSITIONS = ("in", "in", "in", "under", "behind", "on top of", "next to", "inside", "beside", "below", "near")


def place(r: Random, world: World) -> str:
    """Where a thing is kept: behind the old clock in the hall."""
    x = r.random()
    if x < 0.15:
        return f"in the {r.choice(LISTS['room'])}"
    thing = r.choice(LISTS["furniture"]) if x < 0.8 else values.word(r, world)
    if r.random() < 0.35:
        thing = f"{r.choice(LISTS['which'])} {thing}"
    room = f" in the {r.choice(LISTS['room'])}" if r.random() < 0.2 else ""
    return f"{r.choice(PREPOSITIONS)} the {thing}{room}"


def thing(r: Random, world: World) -> str:
    noun = r.choice(values.THINGS) if r.random() < 0.75 else values.word(r, world)
    return f"{r.choice(LISTS['which'])} {noun}" if r.random() < 0.15 else noun


def day(r: Random, world: World) -> str:
    """When, in words that follow a verb: on Friday, next Tuesday, on 4 May."""
    x, weekday = r.random(), r.choice(values.WEEKDAYS)
    if x < 0.55:
        return f"{r.choice(('on', 'on', 'next', 'this'))} {weekday}"
    if x < 0.65:
        return f"on {weekday} {r.choice(LISTS['part'])}"
    return f"on {values.date(r, world)}"


def when(r: Random, world: World) -> str:
    """Day, hour, or both."""
    x = r.random()
    if x < 0.35:
        return f"at {values.clock(r, world)}"
    if x < 0.7:
        return day(r, world)
    return f"{day(r, world)} at {values.clock(r, world)}"


def price(r: Random, world: World) -> str:
    amount = r.choice((r.randint(1, 99), r.randint(100, 9999), r.randint(1, 50) * 100))
    return r.choice(
        (f"{amount} euros", f"{amount} dollars", f"{amount} pounds", f"${amount}", f"£{amount}", f"€{amount}")
        if r.random() < 0.8
        else (f"{amount}.{r.randint(10, 99)} euros", f"${amount}.{r.randint(10, 99)}")
    )


def duration(r: Random, world: World) -> str:
    return f"{r.randint(2, 90)} {r.choice(('minutes', 'hours', 'days', 'weeks', 'months', 'years'))}"


def serial(r: Random, world: World) -> str:
    """A mixed code: X4-99K, 7731 20, Q8ZP."""
    upper = values.LETTERS.upper()
    groups = [values.characters(r, r.randint(1, 4), r.choice((values.DIGITS, upper, upper + values.DIGITS)))]
    while r.random() < 0.5 and len(groups) < 4:
        groups.append(values.characters(r, r.randint(1, 5), r.choice((values.DIGITS, upper + values.DIGITS))))
    return r.choice(("-", "-", " ", "", "/")).join(groups)


def code(r: Random, world: World) -> str:
    return values.code(r, world) if r.random() < 0.6 else serial(r, world)


def seat(r: Random, world: World) -> str:
    return f"{r.randint(1, 60)}{r.choice('ABCDEF')}" if r.random() < 0.7 else str(r.randint(1, 400))


def gate(r: Random, world: World) -> str:
    return f"{r.choice('ABCDEFG')}{r.randint(1, 79)}" if r.random() < 0.7 else str(r.randint(1, 99))


def street(r: Random, world: World) -> str:
    kind = r.choice(("Street", "Road", "Lane", "Avenue", "Square", "Close", "Way"))
    return f"{r.randint(1, 299)} {values.word(r, world).capitalize()} {kind}"


def title(r: Random, world: World) -> str:
    """Of a book, a film or a song."""
    parts = [values.word(r, world).capitalize() for _ in range(r.choice((1, 1, 2, 2, 3)))]
    return " ".join(["The", *parts] if r.random() < 0.45 else parts)


def company(r: Random, world: World) -> str:
    stem = values.word(r, world).capitalize() if r.random() < 0.5 else values.syllables(r).capitalize()
    return f"{stem} {r.choice(('Ltd', 'Inc', 'Group', 'Foods', 'Labs'))}" if r.random() < 0.2 else stem


def email(r: Random, world: World) -> str:
    who = r.choice((".", "_", "")).join(values.syllables(r, 1, 2) for _ in range(2))
    return f"{who}@{values.syllables(r, 1, 2)}.{r.choice(('com', 'org', 'net', 'de'))}"


def phone(r: Random, world: World) -> str:
    parts = [values.characters(r, r.randint(2, 4), values.DIGITS) for _ in range(r.randint(2, 3))]
    return r.choice((" ", "-", "")).join(parts)


def items(r: Random, world: World) -> str:
    """A list of two to four things: milk, eggs and soap."""
    return listed(list(dict.fromkeys(draw("item", r, world) for _ in range(r.randint(2, 4)))))


def person(r: Random, world: World) -> str:
    """Somebody: a name, or my sister."""
    return values.name(r, world) if r.random() < 0.6 else f"my {r.choice(LISTS['kin'])}"


MADE: dict[str, Draw] = {
    "name": values.name,
    "person": person,
    "town": values.town,
    "word": values.word,
    "password": values.password,
    "code": code,
    "serial": serial,
    "plate": serial,
    "clock": values.clock,
    "date": values.date,
    "day": day,
    "when": when,
    "num": lambda r, w: str(r.randint(2, 99)) if r.random() < 0.75 else values.number(r, w),
    "small": lambda r, w: str(r.randint(2, 20)),
    "age": lambda r, w: str(r.randint(1, 99)),
    "year": lambda r, w: str(r.randint(1900, 2030)),
    "price": price,
    "duration": duration,
    "weight": lambda r, w: f"{r.randint(2, 250)} {r.choice(('kilos', 'kg', 'pounds', 'grams', 'tons', 'ounces'))}",
    "number": values.number,
    "seat": seat,
    "gate": gate,
    "street": street,
    "title": title,
    "company": company,
    "email": email,
    "phone": phone,
    "items": items,
    "place": place,
    "thing": thing,
    "job": lambda r, w: r.choice(values.JOBS),
    "ajob": lambda r, w: article(r.choice(values.JOBS)),
}
WITH_ARTICLE = frozenset(
    ("pet", "gadget", "event", "gift", "plant", "vehicle", "animal", "job", "thing", "transport", "shop")
)


SMALL = 0.4  # share of the values in small letters, as many people type them
EXACT = frozenset(("code", "password", "plate", "serial"))  # where a capital tells


def draw(kind: str, r: Random, world: World) -> str:
    """A value of a kind; a digit behind the kind's name tells blanks of one statement apart. Raises KeyError."""
    kind = kind.rstrip("0123456789")
    value = _value(kind, r, world)
    return value.lower() if kind not in EXACT and r.random() < SMALL else value


def _value(kind: str, r: Random, world: World) -> str:
    if kind in MADE:
        return MADE[kind](r, world)
    if kind in WITH_MADE_UP and r.random() < 0.12:
        return values.word(r, world)
    return r.choice(LISTS[kind])


SORTS = {  # what a short question can ask for
    "where": ("town", "place", "street", "room", "shop", "nation"),
    "when": ("day", "when", "clock", "date", "year", "weekday", "month"),
    "who": ("name", "person", "kin"),
    "price": ("price",),
    "number": ("num", "small", "age"),
    "code": ("code", "serial", "password"),
    "colour": ("colour",),
}
SORT_OF = {kind: sort for sort, kinds in SORTS.items() for kind in kinds}


def sort(blank: str) -> str:
    """The sort of a blank's kind; empty where there is none."""
    return SORT_OF.get(blank.rstrip("0123456789"), "")


def phrase(kind: str, value: str) -> str:
    """The value as it stands alone in a sentence: a tortoise, my sister."""
    kind = kind.rstrip("0123456789")
    return f"my {value}" if kind == "kin" else article(value) if kind in WITH_ARTICLE else value
