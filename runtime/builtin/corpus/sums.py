"""Arithmetic, with the working in the thought, or in the answer when there is none.

The working goes digit by digit from the ones, as on paper: every step reads at most three digits that are already in
sight. It begins with the sum in figures, since it may have been asked in words or in a story. Without working a model
of this size guesses.
"""

from __future__ import annotations

from random import Random

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, led, sentence, words
from runtime.builtin.corpus.registry import World, intent
from runtime.builtin.corpus.tables import load
from runtime.builtin.corpus.values import NAMES

PHRASES = {name: Phrases(text) for name, text in load("sums.toml").items()}
STORIES = ("gain", "loss", "difference", "boxes", "share")
PLACES = ("ones", "tens", "hundreds", "thousands", "ten thousands")
COUNTED = words(
    "apples books coins eggs cards stones cats sweets stamps pens marbles balls cookies cups flowers oranges pears "
    "tickets cakes nuts shells toys pictures plates chairs birds fish"
)
IN_WORDS = 0.28  # share of operands written as words
SMALL = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")


def in_words(n: int, dash: str = "-") -> str:
    """`n` below 1000, spelt out."""
    if n < 20:
        return SMALL[n]
    if n < 100:
        return TENS[n // 10 - 2] + (f"{dash}{SMALL[n % 10]}" if n % 10 else "")
    rest = f" and {in_words(n % 100, dash)}" if n % 100 else ""
    return f"{SMALL[n // 100]} hundred{rest}"


def add_steps(a: int, b: int) -> list[str]:
    """The column addition of a and b."""
    steps, carry = [], 0
    width = max(len(str(a)), len(str(b)))
    for i in range(width):
        x, y = a // 10**i % 10, b // 10**i % 10
        total = x + y + carry
        carried = f" + {carry}" if i else ""
        if i == width - 1:
            steps.append(f"{PLACES[i]}: {x} + {y}{carried} = {total}")
        else:
            steps.append(f"{PLACES[i]}: {x} + {y}{carried} = {total}, write {total % 10} carry {total // 10}")
        carry = total // 10
    return steps


def subtract_steps(a: int, b: int) -> list[str]:
    """The column subtraction for a ≥ b."""
    steps, borrow = [], 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10, b // 10**i % 10
        taken = f" - {borrow}" if i else ""
        short = x - y - borrow < 0
        top = x + 10 if short else x
        steps.append(f"{PLACES[i]}: {top} - {y}{taken} = {top - y - borrow}, borrow {int(short)}")
        borrow = int(short)
    return steps


def multiply_steps(a: int, d: int) -> list[str]:
    """The column multiplication of a by one digit."""
    steps, carry = [], 0
    digits = len(str(a))
    for i in range(digits):
        x = a // 10**i % 10
        total = x * d + carry
        product = f"{x} × {d} = {x * d}" + (f", plus {carry} = {total}" if i else "")
        steps.append(
            f"{PLACES[i]}: {product}" + (f", write {total % 10} carry {total // 10}" if i < digits - 1 else "")
        )
        carry = total // 10
    return steps


def worked(user: str, expression: str, steps: list[str], result: int | str) -> Turn:
    """A turn whose working stands in the thought, or before the result in the answer."""
    thought = "\n".join([expression, *steps, f"result: {result}"])
    answer = f"{expression} = {result}"
    return Turn(user, answer, thought, plain="\n".join([f"{expression}:", *steps, f"So {answer}."]) if steps else "")


def _operands(r: Random) -> tuple[int, int]:
    """Mostly two digits; all pairs occur, zero and equal numbers too."""
    size = r.choices((9, 99, 999, 9999), (9, 80, 9, 2))[0]
    other = size if r.random() < 0.75 else r.choice((9, 20, 99))
    a, b = r.randint(0, size), r.randint(0, other)
    return (b, a) if r.random() < 0.3 else (a, b)


def _balanced(r: Random, sign: str) -> tuple[int, int]:
    """Operands whose ones carry, or borrow, in every second sum."""
    wanted = r.random() < 0.5
    while True:
        a, b = _operands(r)
        if sign == "-" and b > a and r.random() < 0.85:
            a, b = b, a
        over = a % 10 + b % 10 > 9 if sign == "+" else a % 10 < b % 10
        if over == wanted:
            return a, b


def _spelt(r: Random, *numbers: int) -> list[str]:
    """The numbers as users write them: in figures, or all in words."""
    if r.random() > IN_WORDS or max(numbers) > 999:
        return [str(n) for n in numbers]
    dash = r.choice("-- ")
    return [in_words(n, dash) for n in numbers]


def _written(r: Random, a: int, sign: str, word: str, b: int) -> str:
    x = r.random()
    if x < 0.4:
        return f"{a} {sign} {b}"
    if x < 0.6:
        return f"{a}{sign}{b}"
    first, second = _spelt(r, a, b)
    return f"{first} {word} {second}"


def _asked(r: Random, name: str, *numbers: int) -> str:
    """One of the phrases of `name`, with numbers, names and things."""
    n, m = r.sample(NAMES, 2)
    fields = dict(zip("ab", _spelt(r, *numbers), strict=False))
    text = PHRASES[name].typed(r, {**fields, "n": n, "m": m, "x": r.choice(COUNTED)})
    return sentence(text) if name in STORIES and r.random() < 0.6 else text


def _ask(r: Random, expression: str) -> str:
    return led(r, PHRASES["ask"].typed(r, {"e": expression}), 0.05)


@intent(19, filler=1)
def addition(r: Random, world: World) -> Turn:
    a, b = _balanced(r, "+")
    x = r.random()
    if x < 0.4:
        user = _ask(r, _written(r, a, "+", r.choice(("plus", "plus", "and", "added to")), b))
    else:
        user = _asked(r, "add" if x < 0.68 else "gain", a, b)
    return worked(user, f"{a} + {b}", add_steps(a, b), a + b)


@intent(20, filler=1)
def subtraction(r: Random, world: World) -> Turn:
    a, b = _balanced(r, "-")
    x = r.random()
    if x < 0.36 or b > a:
        user = _ask(r, _written(r, a, r.choice("--−"), "minus", b))
    else:
        user = _asked(r, "subtract" if x < 0.61 else "loss" if x < 0.81 else "difference", a, b)
    if b <= a:
        return worked(user, f"{a} - {b}", subtract_steps(a, b), a - b)
    steps = [f"{b} is more than {a}, so the result is negative", f"{b} - {a}", *subtract_steps(b, a)]
    return worked(user, f"{a} - {b}", steps, a - b)


@intent(6, filler=0.5)
def multiplication(r: Random, world: World) -> Turn:
    a, d = r.choices((r.randint(0, 9), r.randint(10, 99), r.randint(100, 999)), (5, 4, 1))[0], r.randint(0, 9)
    first, second = (d, a) if r.random() < 0.4 else (a, d)
    x = r.random()
    if x < 0.45:
        sign = r.choice(("*", "x", "×", "*"))
        user = _ask(r, _written(r, first, sign, "times", second))
    elif x < 0.67:
        user = _asked(r, "multiply", first, second)
    elif x < 0.9:
        a, d = max(a, 2), max(d, 2)
        user = _asked(r, "boxes", *((d, a) if r.random() < 0.5 else (a, d)))
    else:
        d = r.choice((2, 2, 3))
        user = _asked(r, "double" if d == 2 else "triple", a)
    return worked(user, f"{a} × {d}", multiply_steps(a, d), a * d)


@intent(7)
def division(r: Random, world: World) -> Turn:
    d, q = r.randint(1, 9), r.randint(0, 10)
    rest = r.randrange(d) if r.random() < 0.3 else 0
    x = r.random()
    if x > 0.88:
        d, q, rest = 2, r.randint(1, 12), 0
    a = d * q + rest
    if x < 0.35:
        user = _ask(r, _written(r, a, r.choice("//:÷"), "divided by", d))
    else:
        user = _asked(r, "half" if x > 0.88 else "divide" if x < 0.65 or not q or d < 2 else "share", a, d)
    steps = [f"{d} × {q} = {d * q}"] + ([f"{a} - {d * q} = {rest}"] if rest else [])
    return worked(user, f"{a} ÷ {d}", steps, f"{q} remainder {rest}" if rest else q)


@intent(2)
def three_terms(r: Random, world: World) -> Turn:
    a, b, c = (r.randint(1, 60) for _ in range(3))
    user = _ask(
        r, r.choice((f"{a} + {b} + {c}", f"{a}+{b}+{c}", f"{a} plus {b} plus {c}", f"{a}, {b} and {c} together"))
    )
    first = a + b
    steps = [f"{a} + {b}", *add_steps(a, b), f"= {first}", f"{first} + {c}", *add_steps(first, c)]
    return worked(user, f"{a} + {b} + {c}", steps, first + c)


@intent(2)
def comparison(r: Random, world: World) -> Turn:
    a, b = _operands(r)
    while a == b:
        a, b = _operands(r)
    user = _asked(r, "compare", a, b)
    big, small = max(a, b), min(a, b)
    digits = f"{big} has {len(str(big))} digits, {small} has {len(str(small))}."
    return Turn(user, f"{big} is more than {small}.", f"I compare {a} and {b}. {digits}")


def continued(r: Random, world: World) -> list[Turn]:
    """A sum and one to three others that go on from its result."""
    turns = [r.choice((addition, subtraction)).make(r, world)]
    value = int(turns[0].reply.rsplit(" ", 1)[1])
    for _ in range(r.choices((1, 2, 3), (6, 3, 1))[0]):
        if value < 0:
            break
        b = r.randint(1, 60)
        if r.random() < 0.5 or b > value:
            user, sign, steps, result = _asked(r, "plus_more", 0, b), "+", add_steps(value, b), value + b
        else:
            user, sign, steps, result = _asked(r, "minus_more", 0, b), "-", subtract_steps(value, b), value - b
        turns.append(worked(user, f"{value} {sign} {b}", steps, result))
        value = result
    return turns


INTENTS = (addition, subtraction, multiplication, division, three_terms, comparison)
