"""Questions about the app's commands, keys and settings, from the tour."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import get_args

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, Piece, dress, expand, gerund, led, listed, third_person, words
from runtime.builtin.corpus.registry import World, intent
from runtime.builtin.corpus.tables import load
from runtime.builtin.corpus.tour import Entry, Kind, Tour
from runtime.builtin.corpus.values import syllables

TABLES = load("app.toml")
FRAMES = {name: Phrases(text) for name, text in TABLES.items() if isinstance(text, str)}
LIST = {kind: Phrases(text) for kind, text in TABLES["list"].items()}
WISHES_TABLES = load("wishes.toml")
ASKED = {name: Phrases(text) for name, text in load("asked.toml").items()}
SYNONYMS: dict[str, str] = WISHES_TABLES.pop("words")
MAIN = WISHES_TABLES.pop("main")
# Names that mean more than one thing: without a mark or their kind they are questions of another sort.
ORDINARY = (*words("think thinking draft drafts model models context system theme help"), "context length")
# How often a wish comes as an infinitive, "deleting a chat", "deletes a chat", a noun, or a sentence of its own.
FORMS = {"do": 12, "doing": 3, "does": 3, "thing": 6, "plight": 4}
WHOLE = 0.5  # share of the questions that stand in no frame
PLAIN = 0.4  # share of the others that are asked in as few words as can be
FRAME_OF = {
    "do": ("how", "i"),
    "doing": ("doing", "g"),
    "does": ("does", "s"),
    "thing": ("thing", "t"),
    "plight": ("plight", "p"),
}
WORD = re.compile(r"[a-z']+")
KIND_WORDS = {
    "command": ("command", "command", "slash command", "key", "shortcut"),
    "key": ("key", "key", "shortcut", "hotkey", "command"),
    "setting": ("setting", "setting", "option", "parameter", "command"),
}


def forms(table: dict[str, str]) -> dict[str, Phrases]:
    """The forms of a wish, with synonyms filled in."""
    filled = {
        form: Phrases(re.sub(r"<(\w+)>", lambda m: SYNONYMS[m[1]], table[form])) for form in FORMS if form in table
    }
    if "do" in filled:
        filled["doing"] = Phrases(inflected(t, gerund) for t in filled["do"].templates)
        filled["does"] = Phrases(inflected(t, third_person) for t in filled["do"].templates)
    return filled


def inflected(template: str, inflect: Callable[[str], str]) -> str:
    """The template of an infinitive, or of several to choose from, with another form of the verb."""
    match = re.match(r"\[([^\[\]]*)\]|[\w-]+", template)
    assert match, template
    verbs = "|".join(re.sub(r"^[\w-]+", lambda m: inflect(m[0]), verb) for verb in (match[1] or match[0]).split("|"))
    return f"[{verbs}]{template[match.end() :]}"


WISHES = {name: forms(table) for name, table in WISHES_TABLES.items()}
FIRST = {name: table["first"] for name, table in WISHES_TABLES.items() if "first" in table}


def describe(entry: Entry) -> str:
    """What the model says when asked for an entry by name."""
    return f"`{entry.name}` is a {entry.kind}: {entry.action}."


def advise(tour: Tour, entry: Entry) -> str:
    """What the model says when asked how to do what an entry does: all that does it, in one sentence."""
    name = f"`{entry.usage or entry.name}`"
    if entry.kind == "setting":
        return f"Change the setting {name} in `/settings`: {entry.action}."
    if entry.kind == "command":
        return f"Type {name}{f' or press `{entry.key}`' if entry.key else ''}: {entry.action}."
    names = " or ".join(f"`{e.name}`" for e in tour.of_kind("key") if e.about == entry.about)
    press = f"{FIRST[entry.name]}, then press" if entry.name in FIRST else "Press"
    return f"{press} {names}: {entry.action}."


@intent(14, filler=1.5, joins=True)
def what_is_it(r: Random, world: World) -> Turn:
    entry = r.choice(world.tour.entries)
    shown = r.choice((entry.name, entry.name, entry.name, f"`{entry.name}`", _loosely(r, entry)))
    if shown.lower() in ORDINARY or (entry.kind == "key" and len(entry.name) == 1):
        shown = r.choice((f"`{entry.name}`", f"the {entry.kind} {entry.name}", f"the {entry.name} {entry.kind}"))
    frames = FRAMES["what"]
    if entry.kind != "command" and r.random() < 0.35:
        frames = FRAMES["press" if entry.kind == "key" else "setting"]
        shown = entry.name
    user = led(r, frames.typed(r, {"c": shown, "k": entry.kind}))
    return Turn(user, describe(entry), f"The user asks about the {entry.kind} {entry.name}.")


def _loosely(r: Random, entry: Entry) -> str:
    """The name as a hurried user types it."""
    if entry.kind == "key":
        return r.choice((entry.name.lower(), entry.name.replace("+", "-"), entry.name.replace("+", " ").lower()))
    if entry.kind == "setting":
        return entry.name.replace("_", r.choice((" ", " ", "-")))
    return r.choice((entry.name.removeprefix("/"), entry.name.upper(), entry.name.capitalize()))


@intent(40, filler=5, joins=True)
def how_to(r: Random, world: World) -> Turn:
    wished = _wished(world.tour)
    entry = r.choices(wished, [_breadth(e) for e in wished])[0]
    if entry.name in ASKED and r.random() < WHOLE:
        user = led(r, ASKED[entry.name].typed(r))
    elif entry.name in WISHES and "do" in WISHES[entry.name] and r.random() < PLAIN:
        user = FRAMES["plain"].typed(r, {"i": WISHES[entry.name]["do"].plain(r)}, slips=("i",))
    else:
        user = ask_how(r, *_wish(r, entry), r.choice(KIND_WORDS[entry.kind]))
    return Turn(user, advise(world.tour, entry), f"The {entry.kind} {entry.name} is for this.")


def _breadth(entry: Entry) -> float:
    """What is wished for in many words is asked for more often."""
    wordings = [*WISHES.get(entry.name, {}).values(), *filter(None, [ASKED.get(entry.name)])]
    return sum(len(p.templates) for p in wordings) ** 0.5 or 1


def ask_how(r: Random, form: str, wish: str, kind: str) -> str:
    """A wish in one of the frames of its form."""
    frame, field = FRAME_OF[form]
    pieces = expand(r, r.choice(FRAMES[frame].templates), {field: wish, "k": kind}, (field,))
    if r.random() < 0.1:
        pieces = _half_heard(r, pieces, wish)
    return led(r, dress(r, pieces))


def _half_heard(r: Random, pieces: list[Piece], wish: str) -> list[Piece]:
    """Without one word of the frame: what is wished for is what counts."""
    gaps = [
        (i, m.start(), m.end())
        for i, p in enumerate(pieces)
        if not p.value and p.text != wish
        for m in WORD.finditer(p.text)
    ]
    if not gaps:
        return pieces
    i, start, end = r.choice(gaps)
    left = (pieces[i].text[:start] + pieces[i].text[end:]).replace("  ", " ")
    left = left if i else left.lstrip()
    left = left if i < len(pieces) - 1 else left.rstrip()
    return [*pieces[:i], Piece(left, False), *pieces[i + 1 :]]


def _wished(tour: Tour) -> list[Entry]:
    """All but keys that stand for a command or another key, and settings that only bear the name of a command."""
    commands = [e for e in tour.entries if e.kind == "command"]
    taken = {e.key for e in commands}
    names = {e.name.removeprefix("/") for e in commands}
    keys = tour.of_kind("key")
    twins = {e.name for e in keys if any(o.about == e.about and o.name in WISHES and o != e for o in keys)}
    return [
        e
        for e in tour.entries
        if e.name in WISHES
        or not ((e.kind == "key" and e.name in taken | twins) or (e.kind == "setting" and e.name in names))
    ]


def _wish(r: Random, entry: Entry) -> tuple[str, str]:
    """The form of a wish, and its words."""
    if entry.name not in WISHES:
        verb = f"{r.choice(('set', 'change'))} {entry.name.replace('_', ' ')}"
        return "do", verb if entry.kind == "setting" else entry.action
    wishes = WISHES[entry.name]
    form = r.choices(tuple(wishes), [FORMS[f] for f in wishes])[0]
    return form, wishes[form].plain(r)


@intent(2, filler=0.3, joins=True)
def usage(r: Random, world: World) -> Turn:
    entry = r.choice(world.tour.of_kind("command"))
    user = FRAMES["usage"].typed(r, {"c": entry.name})
    takes = "" if entry.usage != entry.name else ", with nothing after it"
    return Turn(user, f"Type `{entry.usage}`{takes}: {entry.action}.", f"How {entry.name} is written.")


@intent(2, filler=0.3, joins=True)
def key_of(r: Random, world: World) -> Turn:
    """Which key a command is on."""
    keyed = [e for e in world.tour.of_kind("command") if e.key]
    entry = r.choice(keyed if keyed and r.random() < 0.6 else world.tour.of_kind("command"))
    user = FRAMES["key_of"].typed(r, {"c": entry.name})
    if entry.key:
        return Turn(user, f"Press `{entry.key}`: {entry.action}.", f"The key of {entry.name} is {entry.key}.")
    return Turn(user, f"`{entry.name}` has no key of its own. Type it: {entry.action}.", f"{entry.name} has no key.")


@intent(1.5, filler=0.3)
def which_are_there(r: Random, world: World) -> Turn:
    """The main ones only: a list of all would be the longest reply by far."""
    kind = r.choice(get_args(Kind))
    known = {e.name for e in world.tour.of_kind(kind)}
    names = [f"`{name}`" for name in MAIN[kind].split() if name in known]
    more = MAIN["all"][kind]
    user = LIST[kind].typed(r)
    return Turn(user, f"The main {kind}s are {listed(names)}. `{more}` shows all.", f"I list the main {kind}s.")


@intent(6)
def no_such_entry(r: Random, world: World) -> Turn:
    """A command, key or setting that does not exist is not explained."""
    known = {e.name.lower() for e in world.tour.entries}
    kind = r.choices(get_args(Kind), (5, 3, 2))[0]
    while (name := _invented(r, kind)).lower() in known:
        pass
    frames = FRAMES["press" if kind == "key" else "no_such"]
    user = frames.typed(r, {"c": name, "k": kind})
    return Turn(user, f"I do not know `{name}`. Type `/help` to see the commands.", f"{name} is not in my list.")


def _invented(r: Random, kind: Kind) -> str:
    if kind == "command":
        return f"/{syllables(r)}"
    if kind == "setting":
        return f"{syllables(r)}_{syllables(r)}"
    letter = r.choice("ABCDEFGHIKLMNOPQRSTUVWXYZ0123456789")  # Ctrl+J has its place in what Shift+Enter does
    return r.choice((f"F{r.randint(1, 12)}", f"Ctrl+{letter}", f"Alt+{letter}", f"Ctrl+Shift+{letter}", "Insert"))


INTENTS = (what_is_it, how_to, usage, key_of, which_are_there, no_such_entry)
