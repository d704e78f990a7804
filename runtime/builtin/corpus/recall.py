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
from runtime.builtin.corpus.dialogue import RECALL_WEIGHT, Turn
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
TELL = Phrases(
    """
    {o} {l} is {v}
    {o} {l} is {v}
    {o} {l} is {v}
    {o} {l} is {v}
    {o} {l} is {v}
    {o} {l} is {v}
    {o} {l}: {v}
    {o} {l}: {v}
    {o} {l} = {v}
    {l}: {v}
    {l} is {v}
    {v} is {o} {l}
    {o} {l} is now {v}
    {o} {l} was {v}
    {o} {l} will be {v}
    {o} {l}, by the way, is {v}
    {o} {l} happens to be {v}
    {o} {l} is called {v}
    {v}, that is {o} {l}
    {v}, that's {o} {l}
    {o} {l} - {v}
    this is {o} {l}: {v}
    here is {o} {l}: {v}
    here's {o} {l}: {v}
    i tell you {o} {l}: {v}
    let me tell you {o} {l}: {v}
    please save {o} {l}: {v}
    please remember {o} {l}: {v}
    remember {o} {l}: {v}
    remember {o} {l}, it is {v}
    note {o} {l}: {v}
    write down {o} {l}: {v}
    memorise {o} {l}: {v}
    did you know that {o} {l} is {v}
    can you remember that {o} {l} is {v}
    can you remember {o} {l}? it's {v}
    {o} {l} reads {v}
    {o} {l} would be {v}
    {o} {l} should be {v}
    {o} {l} is simply {v}
    {o} {l} is {v}, in case you wonder
    {o} {l} is {v}, just so you know
    {o} {l} is {v}, keep it
    {o} {l}... {v}
    {o} {l}, that is {v}
    {o} {l}? it's {v}
    {o} {l}? that would be {v}
    i'd say {o} {l} is {v}
    i think {o} {l} is {v}
    as {o} {l} i have {v}
    for {o} {l} i have {v}
    for {o} {l}, put {v}
    as for {o} {l}, it's {v}
    save {o} {l}: {v}
    save {v} as {o} {l}
    store {o} {l}: {v}
    keep {o} {l}: {v}
    keep {v} as {o} {l}
    keep {o} {l} in mind: {v}
    take down {o} {l}: {v}
    add {o} {l}: {v}
    make a note of {o} {l}: {v}
    i want you to know {o} {l}: {v}
    i want you to remember {o} {l}: {v}
    you should know {o} {l}, it is {v}
    in case you need {o} {l}: {v}
    if you need {o} {l}, it's {v}
    if anyone asks, {o} {l} is {v}
    could you note {o} {l}: {v}
    can you save {o} {l}? it is {v}
    can you keep {o} {l} for me: {v}
    {v} would be {o} {l}
    {v} - that's {o} {l}
    """
)
CORRECT = Phrases(
    """
    sorry, {o} {l} is {v}
    no, {o} {l} is [now|] {v}
    no wait, {o} {l} is {v}
    i changed it: {o} {l} is {v}
    i changed {o} {l} to {v}
    i changed {o} {l}, it is {v} now
    actually, {o} {l} is {v}
    actually {o} {l} is {v} [now|]
    wait, {o} {l} is {v}
    i was wrong, {o} {l} is {v}
    i got that wrong, {o} {l} is {v}
    i made a mistake, {o} {l} is {v}
    correction: {o} {l} is {v}
    update: {o} {l} is [now|] {v}
    scratch that, {o} {l} is {v}
    {o} {l} is not that any more, it is {v}
    {o} {l} isn't that any more, it's {v}
    i have a new {l}: {v}
    i've got a new {l}, it's {v}
    forget what i said, {o} {l} is {v}
    {o} {l} changed to {v}
    {o} {l} has changed, it's {v} now
    {o} {l} is {v} now
    {o} {l} is now {v}
    from now on {o} {l} is {v}
    i meant {o} {l} is {v}
    that was {o} old {l}, {o} new one is {v}
    change {o} {l} to {v}
    please change {o} {l} to {v}
    oops, {o} {l} is {v}
    no no, {o} {l} is {v}
    nope, {o} {l} is {v}
    hang on, {o} {l} is {v}
    hold on, {o} {l} is {v}
    whoops, {o} {l} is {v}
    ah no, {o} {l} is {v}
    my mistake, {o} {l} is {v}
    my bad, {o} {l} is {v}
    sorry, {o} {l} is {v}, not what i said
    sorry, i meant {o} {l} is {v}
    sorry, wrong {l}. it is {v}
    wrong {l}, it's {v}
    wrong {l}: it should be {v}
    i gave you the wrong {l}, it's {v}
    i told you the wrong {l}, it is {v}
    i told you {o} old {l}, it is {v} now
    that {l} was wrong, it is {v}
    that {l} is out of date, it's {v} now
    the {l} i told you is wrong, it's {v}
    the {l} i gave you is no longer right, it's {v}
    {o} {l} was wrong, it's {v}
    {o} {l} is wrong, it should be {v}
    {o} {l} is out of date, now it is {v}
    {o} {l} should be {v}
    {o} {l} must be {v}, i mixed it up
    {o} {l} is actually {v}
    {o} {l} is really {v}
    {o} {l} is {v}, i was wrong
    {o} {l} is {v}, sorry
    {o} {l} is {v}, i mistyped
    {o} {l} is {v} by now
    {o} {l} is {v} these days
    {o} {l} became {v}
    {o} {l} was changed to {v}
    {o} {l} has been changed to {v}
    {o} {l} turned into {v}
    {o} {l} got changed, now it's {v}
    {o} {l} just changed: {v}
    {o} {l} is different now: {v}
    {o} {l} is no longer the same, it is {v}
    {o} {l} has become {v}
    {o} new {l} is {v}
    {o} new {l}: {v}
    new {l}: {v}
    new {l}, it's {v}
    they changed {o} {l} to {v}
    they gave me a new {l}: {v}
    i got a new {l} today: {v}
    i had to change {o} {l}, it's {v} now
    i just changed {o} {l} to {v}
    i set {o} {l} to {v}
    i switched {o} {l} to {v}
    i updated {o} {l}: {v}
    i changed my mind, {o} {l} is {v}
    on second thoughts, {o} {l} is {v}
    i checked again: {o} {l} is {v}
    i looked it up, {o} {l} is {v}
    i mixed it up, {o} {l} is {v}
    i mistyped {o} {l}, it's {v}
    i misremembered {o} {l}, it is {v}
    i have to correct {o} {l}: {v}
    i need to correct {o} {l}, it's {v}
    let me correct {o} {l}: it's {v}
    let's change {o} {l} to {v}
    can you change {o} {l} to {v}
    could you change {o} {l} to {v}
    can you update {o} {l}? it's {v} now
    please update {o} {l} to {v}
    please correct {o} {l} to {v}
    please correct {o} {l}: it is {v}
    please note the new {l}: {v}
    update {o} {l} to {v}
    update {o} {l}: {v}
    correct {o} {l} to {v}
    set {o} {l} to {v}
    replace {o} {l} with {v}
    make {o} {l} {v}
    fix {o} {l}: it is {v}
    edit {o} {l}: {v}
    use {v} as {o} {l} from now on
    make {v} {o} new {l}
    {v} is {o} new {l}
    {v} is {o} {l} now
    {v} is the right {l}
    {v}, that's {o} new {l}
    it's {v} now, {o} {l}
    about {o} {l}: it's {v} now
    about {o} {l} from before, it is {v} now
    as for {o} {l}, it's {v} by now
    remember {o} {l}? it's {v} now
    remember {o} {l}? it changed to {v}
    you know {o} {l}? it's {v} now
    coming back to {o} {l}: it is {v} now
    going back to {o} {l}, i meant {v}
    earlier i told you {o} {l}. it's {v} now
    forget {o} old {l}, it's {v} now
    forget the {l} from before, it's {v}
    ignore the {l} i gave you, it's {v}
    throw out {o} old {l}, the new one is {v}
    instead of what i said, {o} {l} is {v}
    there's a new {l}: {v}
    a correction: {o} {l} is {v}
    small change: {o} {l} is {v}
    """
)
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
        turn = Turn(user, reply, f"The user tells me: {self.subject} is {self.value}. I confirm it.", weight=2)
        return turn, replace(self, quote=user.removesuffix("."))

    def ask(self, r: Random) -> Turn:
        answer = f"{sentence(self.subject)} is {self.value}."
        thought = f"The user told me: {self.subject} is {self.value}."
        return Turn(self._question(r), answer, thought, weight=RECALL_WEIGHT)

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
        turn = Turn(user, f"Noted: {new.subject} is now {value}.", f"{sentence(new.subject)} is now {value}.", weight=2)
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
    turn = Turn(user, f"Noted: {summary}.", f"The user tells me: {summary}.", weight=2)
    return turn, [replace(f, quote=user.removesuffix(".")) for f in facts]
