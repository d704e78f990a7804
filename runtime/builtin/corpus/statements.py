"""Statements in free form, and questions for them: the model quotes the user's own sentence.

Whatever is not "my … is …" or a name (`recall.py`) is acknowledged without being parsed, and answered later by the
sentence that said it, word for word. The frames are the tables of `statements.toml`, one table per topic: a question
for one frame of a topic could mean another, so a dialogue holds two of a topic only where a blank tells them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from runtime.builtin.corpus import events, fillings
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.frames import FRAMES, FREE, SIBLINGS, Ask, Frame, holds
from runtime.builtin.corpus.grammar import Phrases, Piece, dress, expand, listed, mistyped, reworded
from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.tables import load

NOTED = "Noted, I will remember that."
UNTOLD = "You have not told me that yet."
ASKING = load("asking.toml")
WRAPPERS = {kind: Phrases(ASKING[kind]) for kind in ("direct", "indirect", "noun")}
LAST, EVERYTHING = Phrases(ASKING["last"]), Phrases(ASKING["everything"])
ELLIPTIC, AGAIN = Phrases(ASKING["elliptic"]), Phrases(ASKING["again"])
CONFIRM = Phrases(ASKING["confirm"])
SHORT = {sort: Phrases(text) for sort, text in ASKING["short"].items()}
DECLARED = re.compile(r"(?:I|I'm|I've|we|my|the|our|there|\{name\}) [^:]*")
LEADS, BEHIND, BEFORE, AFTER = (
    tuple(row.strip() for row in ASKING[kind].splitlines() if row.strip())
    for kind in ("lead", "behind", "before", "after")
)
PERSONAL = re.compile(r"\b(I|I'm|my|me|our|we|us)\b")
BARE = 0.45  # share of the direct questions that stand alone
EVENTS = 0.15  # share of statements that are put together


@dataclass(frozen=True, slots=True)
class Statement:
    """A frame with its blanks filled. `sought` is the blank asked for, `quote` how the user put it, once told."""

    frame: Frame
    fields: tuple[tuple[str, str], ...]
    sought: str
    asks: tuple[Ask, ...]
    quote: str = ""
    whole: bool = True  # the quote holds all of it, as a correction in few words does not

    @property
    def value(self) -> str:
        """What a question for it wants to know; empty where nothing of the frame is left open."""
        return dict(self.fields).get(self.sought, "")

    @property
    def words(self) -> frozenset[str]:
        """All words of statement and questions."""
        filled = " ".join(value for _, value in self.fields)
        return self.frame.words | set(re.findall(r"[a-z]+", filled.lower()))

    def tell(self, r: Random, world: World) -> tuple[Turn, Statement]:
        turn, (told,) = tell_together(r, [self])
        return turn, told

    def ask(self, r: Random) -> Turn:
        return quoting(_question(r, self.frame, self.fields, self.asks), [self.quote])

    def confirm(self, r: Random, world: World) -> Turn:
        """Whether it was so, with the value that was told or another; the quotation tells."""
        if not DECLARED.fullmatch(self.frame.tell):
            return self.ask(r)
        fields = dict(self.fields)
        if self.sought and r.random() < 0.5:
            fields[self.sought] = fillings.draw(self.sought, r, world)
        pieces = expand(r, r.choice(CONFIRM.templates).replace("{s}", self.frame.tell), fields)
        return quoting(dress(r, lowered(pieces) if r.random() < 0.45 else pieces).strip(), [self.quote])

    def ask_shortly(self, r: Random, others: list[Statement]) -> Turn:
        """For what no other statement could give, in a word or two if there is such a thing."""
        sorts = [fillings.sort(b) for b in self.frame.blanks]
        foreign = {fillings.sort(b) for other in others for b in other.frame.blanks}
        own = [s for s in sorts if s and sorts.count(s) == 1 and s not in foreign]
        if not own or (len(self.frame.blanks) > 1 and not self.whole):
            return self.ask(r)
        return quoting(SHORT[r.choice(own)].typed(r), [self.quote])

    def tell_and_ask(self, r: Random, world: World) -> tuple[Turn, Statement]:
        """Both in one message."""
        turn, told = self.tell(r, world)
        return quoting(joined(turn.user, told.ask(r).user), [told.quote]), told

    def ask_untold(self, r: Random) -> Turn:
        return untold(_question(r, self.frame, self.fields, self.asks))

    def correct(self, r: Random, world: World, just_told: bool) -> tuple[Turn, Statement]:
        """The same statement with another value; in a few words only if it was the last thing told."""
        if not self.sought:
            return Statement(self.frame, self.fields, "", self.asks).tell(r, world)
        value = self.value
        while value == self.value:
            value = fillings.draw(self.sought, r, world)
        fields = tuple((k, value if k == self.sought else v) for k, v in self.fields)
        # The few words hold the new value alone: only questions that name all the rest are answered by them.
        precise = tuple(a for a in self.asks if a.blanks == {*self.frame.blanks} - {self.sought})
        if just_told and precise and r.random() < (0.2 if self.frame.corrections else 0.7):
            said = _ended(r, _cased(r, expand(r, r.choice(ELLIPTIC.templates), {"v": self._phrase(value)})))
            return noted(said), replace(self, fields=fields, asks=precise, quote=_quotable(said), whole=False)
        fitting = self.frame.corrections if just_told else self.frame.corrections_apart
        again = r.choice(AGAIN.templates).replace("{s}", self.frame.tell)
        template = r.choice(fitting) if fitting and r.random() < 0.75 else again
        said = _ended(r, _cased(r, expand(r, template, dict(fields))))
        return noted(said), replace(self, fields=fields, quote=_quotable(said), whole=True)

    def _phrase(self, value: str) -> str:
        return fillings.phrase(self.sought, value)

    def clashes(self, other: object) -> bool:
        """Whether a question for one could mean the other."""
        return isinstance(other, Statement) and (
            self.frame.clashes(other.frame) or not self.about.isdisjoint(other.about)
        )

    @property
    def about(self) -> frozenset[frozenset[str]]:
        """Per question, the words that tell what it is about."""
        fields = {name: value.lower() for name, value in self.fields}
        texts = (ask.template.lower().format_map(fields) for ask in self.asks)
        return frozenset(frozenset(re.findall(r"\w+", text)) - FREE for text in texts)

    def tells_apart(self, other: Statement) -> bool:
        """Whether no question of this one could mean the other."""
        if self.frame.stem is (other.frame.stem or other.frame):
            return self.frame.word not in other.words
        if self.frame is not other.frame:
            return not self.clashes(other)
        differing = _differing(self, other)
        return all(ask.blanks & differing for ask in self.asks)

    def personal(self) -> Statement | None:
        """With those questions alone that speak of the user; None without any."""
        asks = tuple(a for a in self.asks if PERSONAL.search(a.template))
        return replace(self, asks=asks) if asks else None


def draw(r: Random, world: World) -> Statement:
    if r.random() < EVENTS:
        return fill(r, world, _of_event(events.draw(r)))
    return fill(r, world, r.choice(FRAMES))


@cache
def _of_event(event: events.Event) -> Frame:
    asks = [Ask("direct", text) for text in event.direct] + [Ask("indirect", text) for text in event.indirect]
    return Frame(f"to {event.verb}", event.tell, tuple(asks))


def _differing(a: Statement, b: Statement) -> set[str]:
    """Blanks of one frame that two statements fill differently."""
    mine, theirs = dict(a.fields), dict(b.fields)
    return {blank for blank in mine if mine[blank].lower() != theirs[blank].lower()}


def fill(r: Random, world: World, frame: Frame) -> Statement:
    fields = tuple((b, fillings.draw(b, r, world)) for b in frame.blanks)
    sought = r.choice(frame.sought) if frame.sought else ""
    return Statement(frame, fields, sought, tuple(a for a in frame.asks if sought not in a.blanks))


def rival(r: Random, world: World, statement: Statement) -> tuple[Statement, Statement] | None:
    """The statement, and another of its frame: their questions differ by a blank or a word. None if they cannot."""
    if statement.frame.named and r.random() < 0.6:
        word = r.choice(statement.frame.named)
        other = fill(r, world, statement.frame.narrowed(word, r.choice(SIBLINGS[word])))
        asks = tuple(a for a in statement.asks if holds(a.template, word))
        if asks and other.asks:
            return replace(statement, asks=asks), other
    other = fill(r, world, statement.frame)
    differing = _differing(statement, other) - {statement.sought}
    asks = tuple(a for a in statement.asks if a.blanks & differing)
    if not asks:
        return None
    return replace(statement, asks=asks), replace(other, sought=statement.sought, asks=asks)


def tell_together(r: Random, statements: list[Statement]) -> tuple[Turn, list[Statement]]:
    """All of them in one message, a sentence each, sometimes among others that say nothing."""
    told = [(s, _said(r, s)) for s in statements]
    sentences = [said for _, said in told]
    x = r.random()
    if x < 0.10:
        sentences.insert(0, r.choice(BEFORE))
    elif x < 0.20:
        sentences.append(r.choice(AFTER))
    if len(sentences) > 1:
        sentences = [s if s[-1] in ".!?" else f"{s}." for s in sentences[:-1]] + sentences[-1:]
    user = (" " if r.random() < 0.9 else "\n").join(sentences)
    return noted(user), [replace(s, quote=_quotable(said)) for s, said in told]


def joined(told: str, asked: str) -> str:
    """A statement and a question after it, in one message."""
    return f"{told if told[-1] in '.!?' else f'{told}.'} {asked}"


def ask_together(r: Random, statements: list[Statement]) -> Turn:
    """For two things in one message."""
    first, second = (s.ask(r) for s in statements)
    tail = second.user if second.user.startswith(("I ", "I'")) else second.user[:1].lower() + second.user[1:]
    user = f"{first.user.rstrip('.?! ')}{r.choice((' and ', ', and ', '? And ', ' and also ', ', also '))}{tail}"
    return quoting(user, [s.quote for s in statements])


def noted(user: str) -> Turn:
    return Turn(user, NOTED, "The user tells me something. I will remember it.")


def quoting(user: str, quotes: list[str]) -> Turn:
    quoted = listed([f'"{q}"' for q in quotes])
    return Turn(user, f"You told me: {quoted}.", f"The user told me: {quoted}.")


def untold(user: str) -> Turn:
    return Turn(user, UNTOLD, "The user has not told me that.")


def everything(r: Random, quotes: list[str]) -> Turn:
    """What do you know of me?"""
    user = EVERYTHING.typed(r)
    if not quotes:
        return Turn(user, "You have not told me anything yet.", "The user has told me nothing so far.")
    return quoting(user, quotes)


def any_sentence(r: Random, world: World) -> str:
    """Something one may say or ask, to be copied."""
    statement = draw(r, world)
    x = r.random()
    if x < 0.55:
        return _said(r, statement)
    if x < 0.8:
        return _question(r, statement.frame, statement.fields, statement.asks)
    return f"{_quotable(_said(r, statement))}{r.choice((', ', '; ', ' - ', ' and '))}{_said(r, draw(r, world))}"


def _question(r: Random, frame: Frame, fields: tuple[tuple[str, str], ...], asks: tuple[Ask, ...]) -> str:
    ask = r.choice(asks)
    template = ask.template
    if ask.kind != "direct" or r.random() > BARE:
        template = r.choice(WRAPPERS[ask.kind].templates).replace("{q}", ask.template)
    pieces = expand(r, template, dict(fields))
    if r.random() < 0.45:
        pieces = lowered(pieces)
    return dress(r, pieces).strip()


def _said(r: Random, statement: Statement) -> str:
    """The statement as one types it: terse or proper, with words before or behind, and slips."""
    pieces = reworded(r, expand(r, statement.frame.tell, dict(statement.fields)))
    x = r.random()
    if x < 0.28:
        pieces = [Piece(f"{r.choice(LEADS)} ", False), *_continued(pieces)]
    elif x < 0.36:
        pieces = [*pieces, Piece(behind(r), False)]
    return _ended(r, _cased(r, pieces))


def behind(r: Random) -> str:
    """Words behind a statement, to be joined to it."""
    tail = r.choice(BEHIND)
    return tail if tail[0] == "," else f" {tail}"


def _continued(pieces: list[Piece]) -> list[Piece]:
    """After other words: The train becomes the train, and I stays I."""
    first = pieces[0].text
    if pieces[0].value or first.startswith(("I ", "I'")):
        return pieces
    return [Piece(first[0].lower() + first[1:], False), *pieces[1:]]


def _cased(r: Random, pieces: list[Piece]) -> str:
    if r.random() < 0.07:
        pieces = mistyped(r, pieces)
    if r.random() < 0.5:
        pieces = lowered(pieces)
        if r.random() < 0.3:
            pieces = [p if p.value else Piece(p.text.replace("'", ""), False) for p in pieces]
    elif not pieces[0].value:
        pieces = [Piece(pieces[0].text[:1].upper() + pieces[0].text[1:], False), *pieces[1:]]
    return "".join(p.text for p in pieces)


def lowered(pieces: list[Piece]) -> list[Piece]:
    """Small letters but in values."""
    return [p if p.value else Piece(p.text.lower(), False) for p in pieces]


def _ended(r: Random, text: str) -> str:
    if text[-1] in ".!?)":
        return text
    x = r.random()
    return text + ("." if x < 0.4 else "!" if x < 0.44 else "")


def _quotable(said: str) -> str:
    """As it is quoted: without the full stop, which the quotation has of its own."""
    return said.removesuffix(".")
