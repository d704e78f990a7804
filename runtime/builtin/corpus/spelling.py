"""Spelling and letters: tokens hide their letters, so the word is spelt out before anything is counted."""

from __future__ import annotations

from random import Random

from runtime.builtin.corpus import statements, values
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, sentence
from runtime.builtin.corpus.registry import World, intent

SPELL = Phrases(
    """
    spell {w}
    how do you spell {w}
    spell the word {w}
    how is {w} spelled
    can you spell {w}
    spell out {w}
    what is the spelling of {w}
    write {w} letter by letter
    give me the letters of {w}
    how do i write {w}
    which letters are in {w}
    please spell {w} for me
    i cannot spell {w}
    list the letters of {w}
    """
)
LENGTH = Phrases(
    """
    how many letters [are in|does] {w} [have|]
    how many letters are there in {w}
    how many letters has {w}
    how many letters are in the word {w}
    count the letters [in|of] {w}
    number of letters in {w}
    how long is the word {w}
    length of {w}
    how many characters does {w} have
    letters in {w}
    """
)
COUNT = Phrases(
    """
    how many {c}'s are in {w}
    how many {c} are in {w}
    how many {c}s are there in {w}
    how many times does {c} [occur|appear] in {w}
    how often is {c} in {w}
    count the letter {c} in {w}
    count the {c}s in {w}
    how many letters {c} are in {w}
    how many times is the letter {c} in {w}
    number of {c}s in {w}
    how often does the letter {c} appear in {w}
    """
)
REVERSE = Phrases(
    """
    reverse {w}
    reverse the word {w}
    spell {w} backwards
    write {w} backwards
    {w} backwards
    what is {w} backwards
    say {w} backwards
    turn {w} around
    what is {w} spelled backwards
    """
)
ENDS = Phrases(
    """
    what is the {p} letter of {w}
    which letter is the {p} in {w}
    {p} letter of {w}
    what's the {p} letter in {w}
    tell me the {p} letter of {w}
    which letter does {w} {q} with
    what letter does {w} {q} with
    """
)
UPPER = Phrases(
    """
    write {w} in [capitals|capital letters|upper case|uppercase]
    {w} in [capitals|capital letters|upper case|uppercase]
    make {w} [uppercase|upper case]
    capitalise {w}
    put {w} in capital letters
    shout {w}
    """
)


def _word(r: Random, world: World) -> str:
    """Mostly a common word: the letters of each token have to be learnt, and those of three thousand never are."""
    if r.random() < 0.9:
        return r.choice(values.WORDS)
    w = "".join(filter(str.isalpha, values.word(r, world)))[:14]
    return w or "cat"


def _shown(r: Random, w: str) -> str:
    return r.choice((w, w, w, f'"{w}"', f"'{w}'", w.capitalize()))


@intent(3, filler=0.4)
def spell(r: Random, world: World) -> Turn:
    w = _word(r, world)
    spelt = "-".join(w)
    return Turn(SPELL.typed(r, {"w": _shown(r, w)}), spelt, f"{w} is spelt {spelt}.")


@intent(2, filler=0.2)
def length(r: Random, world: World) -> Turn:
    w = _word(r, world)
    user = LENGTH.typed(r, {"w": _shown(r, w)})
    working = " ".join(f"{c}{i}" for i, c in enumerate(w, 1))
    return Turn(user, f"{w} has {len(w)} letters.", working, plain=f"{working}. So {w} has {len(w)} letters.")


@intent(2, filler=0.2)
def count(r: Random, world: World) -> Turn:
    w = _word(r, world)
    c = r.choice(w) if r.random() < 0.85 else r.choice(values.LETTERS)
    user = COUNT.typed(r, {"w": _shown(r, w), "c": r.choice((c, c, c, f'"{c}"', c.upper()))})
    marks, seen = [], 0
    for letter in w:
        seen += letter == c
        marks.append(f"{letter}{seen}" if letter == c else letter)
    answer = f"The letter {c} occurs {_times(seen)} in {w}."
    return Turn(user, answer, " ".join(marks), plain=f"{' '.join(marks)}. {answer}")


def _times(n: int) -> str:
    return {0: "not once", 1: "once", 2: "twice"}.get(n, f"{n} times")


@intent(1)
def reverse(r: Random, world: World) -> Turn:
    w = _word(r, world)[:9]
    user = REVERSE.typed(r, {"w": _shown(r, w)})
    working = f"{'-'.join(w)} is backwards {'-'.join(reversed(w))}"
    return Turn(user, w[::-1], working, plain=f"{working}: {w[::-1]}")


@intent(1.5)
def ends(r: Random, world: World) -> Turn:
    w = _word(r, world)
    last = r.random() < 0.5
    position, verb = ("last", "end") if last else ("first", r.choice(("start", "begin")))
    user = ENDS.typed(r, {"w": _shown(r, w), "p": position, "q": verb})
    return Turn(user, f"The {position} letter of {w} is {w[-1] if last else w[0]}.", "-".join(w))


@intent(0.5)
def upper(r: Random, world: World) -> Turn:
    w = _word(r, world)
    return Turn(UPPER.typed(r, {"w": w}), w.upper(), f"{'-'.join(w)} becomes {'-'.join(w.upper())}.")


REPEAT = Phrases(
    """
    repeat this: {t}
    please say {t}
    write this: {t}
    can you say {t}
    type {t}
    now say {t}
    say the following: {t}
    please echo {t}
    can you write {t}
    i want you to say {t}
    repeat: {t}
    say: {t}
    repeat after me: {t}
    please repeat {t}
    say {t}
    write {t}
    echo {t}
    copy this: {t}
    copy {t}
    say exactly: {t}
    say exactly {t}
    repeat exactly: {t}
    repeat word for word: {t}
    word for word: {t}
    repeat the following: {t}
    repeat the sentence: {t}
    repeat this sentence: {t}
    repeat this back to me: {t}
    echo the following: {t}
    quote me: {t}
    quote this: {t}
    output this: {t}
    output exactly: {t}
    reply with: {t}
    answer with: {t}
    respond with exactly: {t}
    type this: {t}
    type the following: {t}
    write down: {t}
    write exactly: {t}
    say it after me: {t}
    after me: {t}
    give this back to me: {t}
    [can|could|would] you repeat: {t}
    please say exactly: {t}
    please copy this text: {t}
    copy this line: {t}
    copy the sentence: {t}
    print {t}
    just say {t}
    say back to me {t}
    """
)
TWICE = Phrases("say {t} twice\nwrite {t} two times\nrepeat {t} twice\n{t}, twice please\nsay {t} 2 times")


@intent(7, filler=0.7)
def repeat(r: Random, world: World) -> Turn:
    t = values.phrase(r, world) if r.random() < 0.5 else statements.any_sentence(r, world)
    if r.random() < 0.12:
        return Turn(TWICE.plain(r, {"t": t}), f"{t}\n{t}", f"I say it twice: {t}")
    return Turn(sentence(REPEAT.plain(r, {"t": t})), t, f"I repeat: {t}")


INTENTS = (spell, length, count, reverse, ends, upper, repeat)
