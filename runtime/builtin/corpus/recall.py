"""Recall over turns: what a recurrent state is for.

Values are random and mostly made up, so that nothing but the conversation can give them; labels are many, and the
reply repeats label and value, so that the model learns to copy both. Distances, several facts at once, corrections,
questions for what was never told: each stands in its own share, since a model that only ever saw told facts
invents the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from runtime.builtin.corpus import values
from runtime.builtin.corpus.dialogue import RECALL_WEIGHT, Turn
from runtime.builtin.corpus.grammar import Phrases, article, listed, sentence
from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.talk import load

Draw = Callable[[Random, World], str]
DRAWS: dict[str, Draw] = {
    "name": values.name,
    "password": values.password,
    "number": values.number,
    "code": values.code,
    "colour": values.colour,
    "town": values.town,
    "date": values.date,
    "clock": values.clock,
    "word": values.word,
    "age": lambda r, w: str(r.randint(1, 99)),
    "food": lambda r, w: r.choice(values.FOODS),
    "drink": lambda r, w: r.choice(values.DRINKS),
    "job": lambda r, w: r.choice(values.JOBS),
    "hobby": lambda r, w: r.choice(values.HOBBIES),
    "animal": lambda r, w: r.choice(values.ANIMALS),
    "subject": lambda r, w: r.choice(values.SUBJECTS),
    "season": lambda r, w: r.choice(values.SEASONS),
}


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    weight: float
    draw: Draw
    labels: tuple[str, ...]
    tell: Phrases
    ask: Phrases


@dataclass(frozen=True, slots=True)
class Fact:
    """Something the user told. `owner` is "my" or "the": the reply says "your" or "the"."""

    slot: str
    label: str
    value: str
    owner: str = "my"

    @property
    def subject(self) -> str:
        """As the model names it: your name, the colour of the boat."""
        return f"{'your' if self.owner == 'my' else self.owner} {self.label}"


SLOTS = {
    name: Slot(
        name,
        table["weight"],
        DRAWS[table["value"]],
        tuple(label.strip() for label in table["labels"].split(",")),
        Phrases(table["tell"]),
        Phrases(table["ask"]),
    )
    for name, table in load("slots.toml").items()
}
TELL = Phrases(
    """
    {o} {l} is {v}
    {o} {l} is {v}
    {o} {l} is {v}
    remember that {o} {l} is {v}
    please remember [that|:] {o} {l} is {v}
    note: {o} {l} is {v}
    {o} {l}: {v}
    {o} {l} = {v}
    keep in mind that {o} {l} is {v}
    i tell you {o} {l}: {v}
    please note that {o} {l} is {v}
    {o} {l} is {v}, remember it
    {o} {l} is {v}, please remember [that|it|]
    {v} is {o} {l}
    you should know that {o} {l} is {v}
    i want you to know that {o} {l} is {v}
    can you remember that {o} {l} is {v}
    did you know that {o} {l} is {v}
    let me tell you {o} {l}: {v}
    write down that {o} {l} is {v}
    {o} {l} will be {v}
    {o} {l} was {v}
    as you may know, {o} {l} is {v}
    so {o} {l} is {v}
    today {o} {l} is {v}
    store this: {o} {l} is {v}
    {l}: {v}
    {o} {l}, by the way, is {v}
    they gave me {v} as {l}
    i chose {v} as {o} {l}
    i use {v} as {o} {l}
    for {o} {l} take {v}
    set {o} {l} to {v}
    {v} is what i have as {l}
    put {v} down as {o} {l}
    the {l} i have is {v}
    fyi {o} {l} is {v}
    please save {o} {l}: {v}
    {o} {l} happens to be {v}
    {o} {l} is called {v}
    {v}, that is {o} {l}
    memorise {o} {l}: {v}
    """
)
ASK = Phrases(
    """
    what is {o} {l}
    what's {o} {l}
    whats {o} {l} [again|]
    [and|so|now|ok, |hey, |] what is {o} {l} [again|now|]
    what was {o} {l} [again|]
    do you [still|] [remember|know|recall] {o} {l}
    [can|could|will|would] you [please|] [tell me|say|repeat|give me|name|write|recall|remember|show me] {o} {l}
    are you able to recall {o} {l}
    [please|] tell me {o} {l}
    [say|give me|repeat|name|write|recall|show me] {o} {l} [please|]
    i forgot {o} {l}
    i forgot {o} {l}, what is it
    i cannot remember {o} {l}
    i need {o} {l} [now|again|]
    i have forgotten {o} {l}
    i lost {o} {l}
    let me hear {o} {l}
    help, i forgot {o} {l}
    answer this: what is {o} {l}
    {o} {l}
    and {o} {l}
    what about {o} {l}
    {o} {l} again
    quick, {o} {l}
    which {l} did i [tell you|mention|write|name|give you]
    what {l} did i [tell you|mention|write|name|give you]
    what was the {l} i [told you|mentioned|gave you]
    the {l} i [told you|mentioned|gave you]
    you know {o} {l}, right
    how was {o} {l} [again|]
    what did i tell you about {o} {l}
    i want to know {o} {l}
    if i asked you for {o} {l}, what would you say
    which one is {o} {l}
    {o} {l} was what
    {o} {l} is
    complete this: {o} {l} is
    any idea what {o} {l} is
    look up {o} {l}
    check {o} {l}
    what would be {o} {l}
    i told you {o} {l}, say it
    {l}
    {l} please
    what {l} do i have
    which {l} do i have
    give back {o} {l}
    read out {o} {l}
    tell me again what {o} {l} is
    do you happen to know {o} {l}
    what did i call {o} {l}
    state {o} {l}
    which was {o} {l}
    what would you write for {o} {l}
    how did i describe {o} {l}
    {o} {l}, you remember
    {o} {l}, do you know it
    who or what is {o} {l}
    the {l} of mine
    you know what {o} {l} is
    what have i told you of {o} {l}
    """
)
CORRECT = Phrases(
    """
    sorry, {o} {l} is {v}
    no, {o} {l} is [now|] {v}
    i changed it: {o} {l} is {v}
    actually, {o} {l} is {v}
    wait, {o} {l} is {v}
    i was wrong, {o} {l} is {v}
    correction: {o} {l} is {v}
    {o} {l} is not that any more, it is {v}
    i have a new {l}: {v}
    forget what i said, {o} {l} is {v}
    {o} {l} changed to {v}
    from now on {o} {l} is {v}
    """
)
SHARED = {  # the things' own facts, told with "the … of the …"
    "colour": values.colour,
    "name": values.name,
    "number": values.number,
    "price": lambda r, w: f"{r.randint(1, 999)} euros",
    "owner": values.name,
    "code": values.code,
    "size": values.number,
    "date": values.date,
    "password": values.password,
}


def draw(r: Random, world: World, slot: Slot | None = None) -> Fact:
    """A fact: mostly of a slot, sometimes of any thing there is."""
    if slot is None and r.random() < 0.22:
        kind = r.choice(tuple(SHARED))
        return Fact("thing", f"{kind} of the {r.choice(values.THINGS)}", SHARED[kind](r, world), "the")
    if slot is None:
        slot = r.choices(tuple(SLOTS.values()), [s.weight for s in SLOTS.values()])[0]
    return Fact(slot.name, r.choice(slot.labels), slot.draw(r, world))


def tell(r: Random, fact: Fact) -> Turn:
    slot = SLOTS.get(fact.slot)
    own = slot is not None and slot.tell.templates and fact.label == slot.labels[0] and r.random() < 0.5
    phrases = slot.tell if slot is not None and own else TELL
    user = phrases.typed(r, {"o": fact.owner, "l": fact.label, "v": fact.value}, question=False)
    return Turn(user, _noted(r, fact), f"The user tells me: {fact.subject} is {fact.value}. I confirm it.", weight=2)


def _noted(r: Random, fact: Fact) -> str:
    if fact.slot == "name" and r.random() < 0.6:
        return f"Nice to meet you, {fact.value}!"
    return f"Noted: {fact.subject} is {fact.value}."


def ask(r: Random, fact: Fact) -> Turn:
    user = _question(r, fact)
    answer = f"{sentence(fact.subject)} is {fact.value}."
    return Turn(user, answer, f"The user told me: {fact.subject} is {fact.value}.", weight=RECALL_WEIGHT)


def ask_untold(r: Random, fact: Fact) -> Turn:
    user = _question(r, fact)
    answer = f"You have not told me {fact.subject} yet."
    return Turn(user, answer, f"The user has not told me {fact.subject}.", weight=RECALL_WEIGHT)


def _question(r: Random, fact: Fact) -> str:
    slot = SLOTS.get(fact.slot)
    own = slot is not None and slot.ask.templates and fact.label == slot.labels[0] and r.random() < 0.4
    phrases = slot.ask if slot is not None and own else ASK
    return phrases.typed(r, {"o": fact.owner, "l": fact.label})


def correct(r: Random, fact: Fact, world: World) -> tuple[Turn, Fact]:
    """The same fact with another value."""
    slot = SLOTS.get(fact.slot)
    value = slot.draw(r, world) if slot is not None else SHARED[fact.label.split()[0]](r, world)
    new = Fact(fact.slot, fact.label, value, fact.owner)
    user = CORRECT.typed(r, {"o": fact.owner, "l": fact.label, "v": value}, question=False)
    turn = Turn(user, f"Noted: {new.subject} is now {value}.", f"{sentence(new.subject)} is now {value}.", weight=2)
    return turn, new


def several(r: Random, world: World, n: int) -> list[Fact]:
    """Facts with different labels, so that each question has one answer."""
    facts: dict[str, Fact] = {}
    while len(facts) < n:
        fact = draw(r, world)
        if not any(close(fact, other) for other in facts.values()):
            facts[fact.subject] = fact
    return list(facts.values())


def close(a: Fact, b: Fact) -> bool:
    """Whether a question for one could mean the other."""
    if a.slot == b.slot and a.slot not in ("word", "number", "code", "person", "thing", "time"):
        return True
    return a.label == b.label or {a.slot, b.slot} in ({"food", "colour"}, {"number", "age"}, {"pet", "name"})


def tell_together(r: Random, facts: list[Fact]) -> Turn:
    """All of them in one message."""
    parts = [
        r.choice(("{o} {l} is {v}", "{o} {l} is {v}", "{o} {l}: {v}")).format(o=f.owner, l=f.label, v=f.value)
        for f in facts
    ]
    user = r.choice((f"{', '.join(parts[:-1])} and {parts[-1]}", ", ".join(parts), ". ".join(map(sentence, parts))))
    user = Phrases(["{t}", "{t}", "remember: {t}", "note this: {t}", "about me: {t}"]).typed(r, {"t": user}, False)
    summary = listed([f"{f.subject} is {f.value}" for f in facts])
    return Turn(sentence(user), f"Noted: {summary}.", f"The user tells me: {summary}.", weight=2)


def introduction(r: Random, world: World) -> tuple[Turn, list[Fact]]:
    """A name and more in one sentence, as people introduce themselves."""
    name, town = draw(r, world, SLOTS["name"]), draw(r, world, SLOTS["town"])
    job, number = draw(r, world, SLOTS["job"]), Fact("age", "age", str(r.randint(5, 99)))
    town, job = Fact("town", "city", town.value), Fact("job", "job", job.value)
    kind = r.randrange(4)
    if kind == 0:
        facts, text = [name, town], "[my name is|i am|i'm] {n} and i [live in|am from|come from] {t}"
    elif kind == 1:
        facts, text = [name, job], "[my name is|i am|i'm] {n} and i [work as|am] {j}"
    elif kind == 2:
        facts, text = [name, number], "[my name is|i am|i'm] {n}, {a} years old"
    else:
        facts, text = [name, town, job], "[i'm|i am|my name is] {n}, {j} from {t}"
    fields = {"n": name.value, "t": town.value, "j": article(job.value), "a": number.value}
    summary = listed([f"{f.subject} is {f.value}" for f in facts])
    user = Phrases([text]).typed(r, fields, question=False)
    return Turn(user, f"Nice to meet you! Noted: {summary}.", f"The user tells me: {summary}.", weight=2), facts


def everything(r: Random, facts: list[Fact]) -> Turn:
    """What do you know of me?"""
    user = EVERYTHING.typed(r)
    if not facts:
        return Turn(
            user, "You have not told me anything yet.", "The user has told me nothing so far.", weight=RECALL_WEIGHT
        )
    summary = listed([f"{f.subject} is {f.value}" for f in facts])
    return Turn(user, f"You told me that {summary}.", f"The user told me: {summary}.", weight=RECALL_WEIGHT)


EVERYTHING = Phrases(
    """
    what do you know about me
    what did i tell you [so far|]
    what have i told you [so far|]
    tell me what you know about me
    what do you remember [about me|]
    which things did i tell you
    list what i told you
    sum up what i told you
    repeat everything i told you
    what are the things i told you
    """
)
PHRASES = {"tell": TELL, "ask": ASK, "correct": CORRECT, "everything": EVERYTHING} | {
    f"{slot.name}-{kind}": getattr(slot, kind) for slot in SLOTS.values() for kind in ("tell", "ask")
}
