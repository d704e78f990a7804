"""Lists and tables in Markdown, of things the model knows and of things the user names."""

from __future__ import annotations

from random import Random

from runtime.builtin.corpus import values
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.facts import FAMILIES
from runtime.builtin.corpus.grammar import Phrases, listed, sentence, words
from runtime.builtin.corpus.registry import World, intent

CATEGORIES = {
    "fruits": words("apple pear banana cherry grape lemon mango peach plum orange"),
    "vegetables": words("carrot potato tomato cabbage onion spinach pea bean pumpkin lettuce"),
    "animals": words("cat dog horse cow sheep fox bear wolf rabbit lion"),
    "birds": words("eagle owl swan duck crow robin sparrow parrot penguin raven"),
    "colours": words("red blue green yellow purple orange pink black white brown"),
    "planets": words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"),
    "weekdays": words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "months": values.MONTHS,
    "countries": words("France Germany Italy Spain Japan China India Brazil Canada Egypt"),
    "cities": words("Paris Berlin Rome Madrid Tokyo Beijing London Cairo Vienna Lima"),
    "sports": words("football tennis swimming running cycling basketball hockey golf rowing boxing"),
    "instruments": words("piano guitar violin flute drum trumpet cello harp clarinet organ"),
    "languages": words("English French German Spanish Italian Chinese Japanese Arabic Russian Hindi"),
    "numbers": words("1 2 3 4 5 6 7 8 9 10"),
    "letters": words("a b c d e f g h i j"),
    "trees": words("oak pine birch maple willow beech ash elm fir cedar"),
    "flowers": words("rose tulip daisy lily poppy violet orchid iris sunflower daffodil"),
    "drinks": words("water tea coffee milk juice cocoa lemonade beer wine cider"),
    "tools": words("hammer saw drill pliers file axe wrench screwdriver spade rake"),
    "programming languages": words("Python C Java Rust Go JavaScript Ruby Haskell Lisp Swift"),
}
COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
NAME_SOME = Phrases(
    """
    name {n} {c}
    list {n} {c}
    give me {n} {c}
    tell me {n} {c}
    {n} {c}
    which {c} do you know? name {n}
    can you name {n} {c}
    can you list {n} {c}
    i need {n} {c}
    write down {n} {c}
    make a list of {n} {c}
    a list of {n} {c}
    show me {n} {c}
    say {n} {c}
    {n} examples of {c}
    think of {n} {c}
    what are {n} {c}
    do you know {n} {c}
    """
)
MAKE_LIST = Phrases(
    """
    make a [bullet|] list of {x}
    put {x} in a [bullet|] list
    a [bullet|] list of {x}
    write {x} as a list
    turn {x} into a list
    list: {x}
    list these: {x}
    show {x} as [bullet points|a list]
    i want a list of {x}
    write a list with {x}
    bullet points for {x}
    my shopping list: {x}
    can you list {x}
    make [bullet points|bullets] of {x}
    """
)
NUMBER_LIST = Phrases(
    """
    make a numbered list of {x}
    number these: {x}
    put {x} in a numbered list
    a numbered list of {x}
    write {x} as a numbered list
    number {x}
    list {x} with numbers
    turn {x} into a numbered list
    """
)
TABLE = Phrases(
    """
    make a table of the {k} of {x}
    show the {k} of {x} as a table
    a table with the {k} of {x}
    table: {k} of {x}
    {k} of {x} in a table
    can you list the {k} of {x} in a table
    draw a table of the {k} of {x}
    give me a table with the {k} of {x}
    i want a table of the {k} of {x}
    put the {k} of {x} in a table
    compare the {k} of {x} in a table
    write a table with {x} and their {k}
    """
)
TIMES = Phrases(
    """
    [make|show|write|give me|draw] the [times table|multiplication table] of {d}
    the {d} times table
    {d} times table
    multiplication table [of|for] {d}
    show me the table of {d}
    what is the {d} times table
    i need the times table of {d}
    times table {d}
    """
)
CHECKLIST = Phrases(
    """
    make a [todo|to-do|task] list: {x}
    my [todo|to-do] list is {x}
    [todo|to-do|task] list with {x}
    i have to do this: {x}
    write a [todo|to-do|check] list of {x}
    checklist: {x}
    a checklist with {x}
    """
)
COLUMNS = {
    "capital": ("capitals", "Country", "Capital"),
    "continent": ("continents", "Country", "Continent"),
    "element": ("symbols", "Element", "Symbol"),
    "currency": ("currencies", "Country", "Money"),
    "language": ("languages", "Country", "Language"),
    "opposite": ("opposites", "Word", "Opposite"),
}


def _items(r: Random, world: World) -> list[str]:
    n = r.randint(2, 6)
    if r.random() < 0.4:
        return r.sample(r.choice(tuple(CATEGORIES.values())), n)
    if r.random() < 0.3:
        return [values.name(r, world) for _ in range(n)]
    return [values.word(r, world) for _ in range(n)]


def _joined(r: Random, items: list[str]) -> str:
    return listed(items) if r.random() < 0.7 else ", ".join(items)


@intent(4, filler=0.7)
def name_some(r: Random, world: World) -> Turn:
    category = r.choice(tuple(CATEGORIES))
    n = r.choice(tuple(COUNTS))
    user = NAME_SOME.typed(r, {"n": r.choice((n, COUNTS[n])), "c": category}, question=False)
    rows = "\n".join(f"{i}. {sentence(item)}" for i, item in enumerate(CATEGORIES[category][:n], 1))
    return Turn(user, rows, f"The user wants {n} {category}.")


@intent(3, filler=0.3)
def bullets(r: Random, world: World) -> Turn:
    items = _items(r, world)
    user = MAKE_LIST.typed(r, {"x": _joined(r, items)}, question=False)
    return Turn(user, "\n".join(f"- {item}" for item in items), f"A list of {len(items)} items.")


@intent(1.5)
def numbered(r: Random, world: World) -> Turn:
    items = _items(r, world)
    user = NUMBER_LIST.typed(r, {"x": _joined(r, items)}, question=False)
    return Turn(user, "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1)), f"{len(items)} items, numbered.")


@intent(1)
def checklist(r: Random, world: World) -> Turn:
    items = [
        f"{r.choice(('buy', 'call', 'clean', 'find', 'write', 'pay', 'read'))} {values.word(r, world)}"
        for _ in range(3)
    ]
    user = CHECKLIST.typed(r, {"x": _joined(r, items)}, question=False)
    return Turn(user, "\n".join(f"- [ ] {item}" for item in items), "A list of tasks with boxes.")


def table(header: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [f"| {a} | {b} |" for a, b in [header, ("---", "---"), *rows]]
    return "\n".join(lines)


@intent(4, filler=0.4)
def fact_table(r: Random, world: World) -> Turn:
    family = r.choice(tuple(COLUMNS))
    title, *header = COLUMNS[family]
    rows = r.sample(FAMILIES[family].pairs, r.randint(2, 4))
    user = TABLE.typed(r, {"k": title, "x": listed([k for k, _ in rows])}, question=False)
    shown = [(sentence(k), v) for k, v in rows]
    return Turn(user, table((header[0], header[1]), shown), f"A table of {title} with {len(rows)} rows.")


@intent(1.5)
def times_table(r: Random, world: World) -> Turn:
    d = r.randint(1, 10)
    rows = [(f"{i} × {d}", str(i * d)) for i in range(1, 11)]
    return Turn(TIMES.typed(r, {"d": d}), table(("Sum", "Result"), rows), f"The multiples of {d}, up to 10.")


@intent(2)
def command_table(r: Random, world: World) -> Turn:
    entries = r.sample(world.tour.entries, r.randint(2, 3))
    names = listed([e.name for e in entries])
    user = TABLE.typed(r, {"k": r.choice(("meaning", "use")), "x": names}, question=False)
    rows = [(f"`{e.name}`", sentence(e.action)) for e in entries]
    return Turn(user, table(("Name", "Meaning"), rows), f"A table of {names}.")


INTENTS = (name_some, bullets, numbered, checklist, fact_table, times_table, command_table)
