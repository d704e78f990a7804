"""Dialogues about what was told: several things among others, corrected, asked for near and far, or never told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from runtime.builtin.corpus import frames, recall, statements
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.recall import Fact
from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.statements import Statement

Told = Fact | Statement
Filler = Callable[[], Turn]
PARSED = 0.36  # share of facts: names and "my … is …"
# Share of the turns whose reply is another's: what was told holds, whatever the model said to it.
MISHEARD = 0.12
# How many things are told, in short dialogues: of the first stage, and of a drill.
TOLD = {"copying": ((1, 2), (4, 1)), "drill": ((1, 2, 3), (5, 4, 2))}


def draw(r: Random, world: World) -> Told:
    return recall.draw(r, world) if r.random() < PARSED else statements.draw(r, world)


def clash(a: Told, b: Told) -> bool:
    return a.clashes(b) or b.clashes(a)


def several(r: Random, world: World, n: int, known: list[Told] | None = None) -> list[Told]:
    """Things to tell, so that each question has one answer; `known` are told as well."""
    chosen: list[Told] = []
    while len(chosen) < n:
        new = draw(r, world)
        if not any(clash(new, other) for other in (*chosen, *(known or ()))):
            chosen.append(new)
            if isinstance(new, Statement) and len(chosen) < n and r.random() < 0.25:
                pair = statements.rival(r, world, new)
                if pair is not None:
                    chosen[-1:] = pair
    return chosen


def dialogue(r: Random, world: World, stage: str, filler: Filler) -> tuple[list[Turn], str]:
    """Turns that tell, fill and ask; the system prompt that goes with them, mostly none."""
    copying = stage == "copying"
    told = r.choices(*TOLD.get(stage, ((1, 2, 3, 4, 5), (50, 29, 13, 5, 3))))[0]
    between = r.choice((0, 0, 1)) if stage in TOLD else r.choices(range(8), (46, 23, 11, 8, 5, 3, 2, 2))[0]
    if stage == "long":
        between = r.randint(8, 20)
    if not copying and r.random() < 0.03:
        return _of_the_system(r, world, filler, between)
    if r.random() < 0.04:
        return [draw(r, world).tell_and_ask(r, world)[0]], ""
    turns: list[Turn] = []
    known: list[Told] = []
    if not copying and r.random() < 0.07:
        turn, introduced = introduction(r, world)
        turns.append(turn)
        known += introduced
        told -= 1
    waiting = several(r, world, told, known)
    while waiting:
        n = _together(r, waiting) if r.random() < 0.25 else 1
        now, waiting = waiting[:n], waiting[n:]
        turn, now = _tell(r, world, now)
        turns.append(turn)
        known += now
        if copying:
            continue
        if r.random() < MISHEARD:
            turns[-1] = _misheard(turn, filler())
        if r.random() < _correctable(now):
            _correct(r, world, turns, known, just_told=n == 1)
        if waiting and r.random() < 0.12:
            turns.append(filler() if r.random() < 0.5 else r.choice(known).ask(r))
    if len(turns) == 1 and r.random() < 0.05:
        turns.append(statements.quoting(statements.LAST.typed(r), [known[-1].quote]))
    turns += [_filling(r, filler, known) for _ in range(between)]
    if not copying and r.random() < 0.08:
        _correct_later(r, world, turns, known)
    turns += _questions(r, world, known, filler)
    return turns, ""


def _correctable(told: list[Told]) -> float:
    """How often that is corrected at once."""
    if len(told) > 1:
        return 0.04
    return 0.45 if isinstance(told[0], Statement) and told[0].frame.corrections else 0.14


def _misheard(turn: Turn, other: Turn) -> Turn:
    """Answered as if it were another message, which is not to be learnt."""
    return replace(turn, reply=other.reply, thought=other.thought, plain=other.plain, weight=0)


def _filling(r: Random, filler: Filler, known: list[Told]) -> Turn:
    """Something else; now and then taken for what was told, or asked."""
    turn = filler()
    if r.random() >= MISHEARD / 2:
        return turn
    others = (r.choice(known).ask(r), statements.untold(""), statements.noted(""))
    return _misheard(turn, r.choice(others))


def _together(r: Random, waiting: list[Told]) -> int:
    """How many of the next things, all of one sort, go into one message."""
    n = 1
    while n < min(4, len(waiting)) and type(waiting[n]) is type(waiting[0]):
        n += 1
    return n


def _tell(r: Random, world: World, now: list[Told]) -> tuple[Turn, list[Told]]:
    """All in one message; only things of one sort go together."""
    facts = [t for t in now if isinstance(t, Fact)]
    if len(now) == 1:
        turn, one = now[0].tell(r, world)
        return turn, [one]
    if len(facts) == len(now):
        turn, noted = recall.tell_together(r, facts)
        return turn, [*noted]
    turn, quoted = statements.tell_together(r, [t for t in now if isinstance(t, Statement)])
    return turn, [*quoted]


def _correct(r: Random, world: World, turns: list[Turn], known: list[Told], just_told: bool) -> None:
    """One of the known things takes another value, often the last told; the newest stands last."""
    i = len(known) - 1 if r.random() < 0.6 else r.randrange(len(known))
    told = known[i]
    if isinstance(told, Statement) and told.frame.topic == frames.INTRODUCING:
        return
    turn, new = told.correct(r, world, just_told and i == len(known) - 1)
    turns.append(turn)
    known[i : i + 1] = []
    known.append(new)


def _correct_later(r: Random, world: World, turns: list[Turn], known: list[Told]) -> None:
    """Out of the blue, in a sentence; or in few words, behind the answer that is out of date."""
    if asked := r.random() < 0.5:
        turns.append(known[-1].ask(r))
    _correct(r, world, turns, known, just_told=asked)


def _questions(r: Random, world: World, known: list[Told], filler: Filler) -> list[Turn]:
    """For one, some or all, in any order; perhaps for what was not told, and for everything."""
    n = len(known) if r.random() < 0.6 else r.randint(1, len(known))
    chosen = r.sample(known, n)
    pair = [t for t in chosen[:2] if isinstance(t, Statement)]
    if len(pair) == 2 and r.random() < 0.12:
        asked = [statements.ask_together(r, pair), *(t.ask(r) for t in chosen[2:])]
    else:
        asked = [_ask(r, world, t, known) for t in chosen]
    if len(known) < 3 and r.random() < 0.1:
        asked.append(r.choice(known).ask(r))
    if r.random() < 0.25:
        asked.insert(r.randint(0, len(asked)), ask_untold(r, world, known))
    if len(asked) > 1 and r.random() < 0.15:
        asked.insert(1, filler())
    if r.random() < 0.05:
        asked.append(statements.everything(r, list(dict.fromkeys(t.quote for t in known))))
    return asked


def _ask(r: Random, world: World, told: Told, known: list[Told]) -> Turn:
    """For one thing told: in its own words, whether it was so, or shortly where nothing else can be meant."""
    others = [t for t in known if isinstance(t, Statement) and t is not told]
    if not isinstance(told, Statement) or (x := r.random()) > 0.14:
        return told.ask(r)
    if x < 0.06 and all(t.frame is not told.frame for t in others):
        return told.confirm(r, world)
    if x >= 0.06 and len(others) == len(known) - 1:
        return told.ask_shortly(r, others)
    return told.ask(r)


def ask_untold(r: Random, world: World, known: list[Told]) -> Turn:
    """A question that nothing known answers; often nearly one that is answered."""
    if not known and r.random() < 0.1:
        return statements.everything(r, [])
    if known and r.random() < 0.65:
        near = _near_miss(r, world, r.choice(known))
        if near is not None and all(_tells_apart(near, other) for other in known):
            return near.ask_untold(r)
    slots = {t.slot for t in known if isinstance(t, Fact)}
    while True:
        new = draw(r, world)
        personal = new.personal() if isinstance(new, Statement) else new if new.slot not in slots else None
        if personal is not None and not any(clash(personal, other) for other in known):
            return personal.ask_untold(r)


def _near_miss(r: Random, world: World, told: Told) -> Told | None:
    """Asked for like what was told, and not told."""
    if isinstance(told, Fact):
        return told.neighbour(r, world)
    pair = statements.rival(r, world, told)
    return pair and pair[1]


def _tells_apart(near: Told, other: Told) -> bool:
    if isinstance(near, Statement) and isinstance(other, Statement):
        return near.tells_apart(other)
    return not clash(near, other)


def introduction(r: Random, world: World) -> tuple[Turn, list[Told]]:
    """A name and more in one sentence, as people introduce themselves."""
    statement = statements.fill(r, world, r.choice(frames.INTRODUCTIONS))
    turn, statement = statement.tell(r, world)  # the reply is another: it takes the name
    name = Fact("name", "name", dict(statement.fields)["name"], quote=statement.quote)
    thought = f"The user tells me: your name is {name.value}. I confirm it."
    return Turn(turn.user, f"Nice to meet you, {name.value}!", thought), [name, statement]


def _of_the_system(r: Random, world: World, filler: Filler, between: int) -> tuple[list[Turn], str]:
    """A fact that the system prompt holds."""
    fact = recall.draw(r, world)
    subject = fact.subject if fact.owner == "the" else f"the user's {fact.label}"
    system = f"You are a helpful assistant. {subject[0].upper()}{subject[1:]} is {fact.value}."
    return [*(filler() for _ in range(between)), fact.ask(r)], system
