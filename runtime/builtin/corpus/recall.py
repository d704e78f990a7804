"""What the model takes apart: names, and "my … is …".

Two shapes of a told fact are parsed, and answered in the model's own words: a name by which the user goes ("Nice to
meet you, Zoe!"), and one label with one value behind "is", a colon or an equals sign ("Noted: your PIN is 4711.").
Everything else is quoted (`statements.py`). Values are random and mostly made up, so that nothing but the conversation
can give them; labels are many, and the reply repeats label and value, so that the model learns to copy both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from runtime.builtin.corpus import fillings, frames, statements, values
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, listed, sentence
from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.statements import Statement
from runtime.builtin.corpus.tables import load


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    weight: float
    kinds: tuple[str, ...]
    labels: tuple[str, ...]
    tell: Phrases
    ask: Phrases


SLOTS = {
    name: Slot(
        name,
        table["weight"],
        tuple(table["value"].split()),
        tuple(label.strip() for label in table["labels"].replace("\n", " ").split(",")),
        Phrases(table.get("tell", "")),
        Phrases(table.get("ask", "")),
    )
    for name, table in load("slots.toml").items()
}
SYNONYMS = {label: tuple(n.strip() for n in names.split(",")) for label, names in load("label_synonyms.toml").items()}
SYNONYM = 0.25  # share of the questions that call a thing by another name than it was told under
TELL, CORRECT = Phrases(statements.ASKING["tell"]), Phrases(statements.ASKING["correct"])
ASK = Phrases(f"{statements.ASKING['label']}\n{statements.ASKING['noun'].replace('{q}', '{o} {l}')}")
SHARED = {  # the things' own facts, told with "the … of the …"
    "colour": "colour",
    "name": "name",
    "number": "number",
    "price": "price",
    "owner": "name",
    "code": "code",
    "size": "number",
    "date": "date",
    "password": "password",
    "weight": "weight",
    "serial number": "serial",
    "address": "street",
    "title": "title",
    "age": "age",
    "brand": "company",
}
OWNERS = ("my", "our", "the")
NEAR = ("pet", "person", "number", "favourite")  # slots whose labels have no synonyms
DISTINCT = (*NEAR, "word", "code", "thing")  # slots of which two may be told
COMMON = frozenset(("name", "number", "code", "favourite", "favorite"))
ALIKE = (
    {"food", "colour"},
    {"number", "age"},
    {"number", "size"},
    {"pet", "young"},
    {"pet", "name"},
    {"name", "surname"},
    {"favourite", "food"},
    {"favourite", "word"},
)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something the user told. `owner` is "my", "our" or "the": the reply says "your" or "the"."""

    slot: str
    label: str
    value: str
    owner: str = "my"
    quote: str = ""

    @property
    def subject(self) -> str:
        """As the model names it: your name, the colour of the boat."""
        return f"{'the' if self.owner == 'the' else 'your'} {self.label}"

    @property
    def kinds(self) -> tuple[str, ...]:
        slot = SLOTS.get(self.slot)
        return slot.kinds if slot else (SHARED[self.label.partition(" of the ")[0]],)

    def tell(self, r: Random, world: World) -> tuple[Turn, Fact]:
        slot = SLOTS.get(self.slot)
        own = slot is not None and slot.tell.templates and self.label == slot.labels[0] and r.random() < 0.75
        phrases = slot.tell if slot is not None and own else TELL
        user = _typed(r, phrases, self)
        reply = f"Nice to meet you, {self.value}!" if self.slot == "name" else f"Noted: {self.subject} is {self.value}."
        turn = Turn(user, reply, f"The user tells me: {self.subject} is {self.value}. I confirm it.")
        return turn, replace(self, quote=user.removesuffix("."))

    def ask(self, r: Random) -> Turn:
        answer = f"{sentence(self.subject)} is {self.value}."
        thought = f"The user told me: {self.subject} is {self.value}."
        return Turn(self._question(r), answer, thought)

    def tell_and_ask(self, r: Random, world: World) -> tuple[Turn, Fact]:
        """Both in one message."""
        turn, told = self.tell(r, world)
        asked = told.ask(r)
        return replace(asked, user=statements.joined(turn.user, asked.user)), told

    def ask_untold(self, r: Random) -> Turn:
        return statements.untold(self._question(r))

    def _question(self, r: Random) -> str:
        slot = SLOTS.get(self.slot)
        own = slot is not None and slot.ask.templates and self.label == slot.labels[0] and r.random() < 0.5
        phrases = slot.ask if slot is not None and own else ASK
        owner = r.choice(OWNERS) if self.slot != "thing" and r.random() < 0.12 else self.owner
        label = r.choice(SYNONYMS[self.label]) if self.label in SYNONYMS and r.random() < SYNONYM else self.label
        return phrases.typed(r, {"o": owner, "l": label})

    def correct(self, r: Random, world: World, just_told: bool) -> tuple[Turn, Fact]:
        """The same fact with another value; in a few words only if it was the last thing told."""
        value = self.value
        while value == self.value:
            value = fillings.draw(r.choice(self.kinds), r, world)
        new = replace(self, value=value)
        phrases = statements.ELLIPTIC if just_told and r.random() < 0.5 else CORRECT
        user = _typed(r, phrases, new)
        turn = Turn(user, f"Noted: {new.subject} is now {value}.", f"{sentence(new.subject)} is now {value}.")
        return turn, replace(new, quote=user.removesuffix("."))

    def clashes(self, other: object) -> bool:
        """Whether a question for one could mean the other."""
        if isinstance(other, Statement):
            named = set(self.label.lower().replace("'s", "").split()) - {"of", "the"}
            return self.slot != "name" and named <= other.words
        if not isinstance(other, Fact):
            return False
        if self.slot == other.slot:
            return (
                self.slot not in DISTINCT
                or not self.stem.isdisjoint(other.stem)
                or not self.names.isdisjoint(other.names)
            )
        return not self.names.isdisjoint(other.names) or {self.slot, other.slot} in ALIKE

    @property
    def names(self) -> frozenset[str]:
        """The label and its synonyms."""
        return frozenset((self.label, *SYNONYMS.get(self.label, ())))

    @property
    def stem(self) -> frozenset[str]:
        """What tells the label from others of its slot."""
        return frozenset(self.label.replace("'s", "").split()) - frames.FREE - COMMON

    def neighbour(self, r: Random, world: World) -> Fact | None:
        """Another of the slot that this one does not answer: the cat's name, if this is the dog's."""
        if self.slot not in NEAR:
            return None
        return replace(self, label=r.choice(SLOTS[self.slot].labels), value="")


def _typed(r: Random, phrases: Phrases, fact: Fact) -> str:
    text = r.choice(phrases.templates)
    x = r.random()
    if phrases is TELL and x < 0.25 and text.startswith("{o}"):
        text = f"{r.choice(statements.LEADS)} {text}"
    elif x > 0.94:
        text += statements.behind(r)
    return Phrases([text]).typed(r, {"o": fact.owner, "l": fact.label, "v": fact.value}, question=False)


def draw(r: Random, world: World, slot: Slot | None = None) -> Fact:
    """A fact: mostly of a slot, sometimes of any thing there is."""
    if slot is None and r.random() < 0.15:
        kind = r.choice(tuple(SHARED))
        label = f"{kind} of the {r.choice(values.THINGS)}"
        return Fact("thing", label, fillings.draw(SHARED[kind], r, world), "the")
    if slot is None:
        slot = r.choices(tuple(SLOTS.values()), [s.weight for s in SLOTS.values()])[0]
    owner = "my" if slot.name in ("name", "age") or (x := r.random()) < 0.8 else "our" if x < 0.88 else "the"
    return Fact(slot.name, r.choice(slot.labels), fillings.draw(r.choice(slot.kinds), r, world), owner)


def tell_together(r: Random, facts: list[Fact]) -> tuple[Turn, list[Fact]]:
    """All of them in one message."""
    parts = [
        r.choice(("{o} {l} is {v}", "{o} {l} is {v}", "{o} {l}: {v}")).format(o=f.owner, l=f.label, v=f.value)
        for f in facts
    ]
    user = r.choice((f"{', '.join(parts[:-1])} and {parts[-1]}", ", ".join(parts), ". ".join(map(sentence, parts))))
    user = Phrases(["{t}", "{t}", "remember: {t}", "note this: {t}", "about me: {t}"]).typed(r, {"t": user}, False)
    user = sentence(user)
    summary = listed([f"{f.subject} is {f.value}" for f in facts])
    turn = Turn(user, f"Noted: {summary}.", f"The user tells me: {summary}.")
    return turn, [replace(f, quote=user.removesuffix(".")) for f in facts]
