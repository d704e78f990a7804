"""Arithmetic, with the working in the thought, or in the answer when there is none.

The working goes digit by digit from the ones, as on paper: every step reads at most three digits that are already in
sight. Without working a model of this size guesses.
"""

from __future__ import annotations

from random import Random

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, sentence, words
from runtime.builtin.corpus.registry import World, intent
from runtime.builtin.corpus.values import NAMES

PLACES = ("ones", "tens", "hundreds", "thousands", "ten thousands")
ASK = Phrases(
    """
    [what is|what's|whats] {e}
    {e}
    {e}
    {e} =
    calculate {e}
    how much is {e}
    compute {e}
    work out {e}
    can you do {e}
    solve {e}
    what does {e} make
    {e} equals
    {e} is what
    {e} makes
    how many is {e}
    can you calculate {e}
    do you know {e}
    please do {e}
    figure out {e}
    a sum: {e}
    i want to know {e}
    can you work out {e}
    what do i get for {e}
    give me {e}
    find {e}
    how about {e}
    try {e}
    the answer to {e}
    what about {e}
    and {e}
    can you add up {e}
    my homework: {e}
    next sum: {e}
    what would {e} be
    help me with {e}
    quick, {e}
    and now {e}
    what comes out of {e}
    {e} gives
    {e} is equal to
    the value of {e}
    so {e} would make
    tell me {e}
    result: {e}
    i have to do {e}
    check {e} for me
    {e}, what do you get
    let us do {e}
    do the sum {e}
    please solve this: {e}
    what number is {e}
    {e}, for my homework
    is it hard to do {e}
    how big is {e}
    i wonder what {e} is
    {e} as a number
    type the result of {e}
    a quick one: {e}
    one sum: {e}
    can you tell me what {e} is
    """
)
ADD = Phrases(
    """
    add {a} and {b}
    add {a} to {b}
    the sum of {a} and {b}
    what is the sum of {a} and {b}
    what do you get if you add {a} and {b}
    {a} and {b} together
    how much are {a} and {b} together
    what is {b} more than {a}
    put {a} and {b} together
    {a} increased by {b}
    """
)
SUBTRACT = Phrases(
    """
    subtract {b} from {a}
    take {b} from {a}
    take {b} away from {a}
    {a} take away {b}
    the difference between {a} and {b}
    what is the difference between {a} and {b}
    what is left of {a} without {b}
    {a} less {b}
    how much is {a} reduced by {b}
    what is {b} less than {a}
    """
)
MULTIPLY = Phrases(
    """
    multiply {a} by {b}
    multiply {a} and {b}
    the product of {a} and {b}
    what is the product of {a} and {b}
    how much is {a} multiplied by {b}
    {a} multiplied by {b}
    """
)
DIVIDE = Phrases(
    """
    divide {a} by {b}
    {a} divided by {b}
    what is {a} divided by {b}
    how often does {b} fit into {a}
    how many times does {b} go into {a}
    split {a} into {b} parts
    """
)
COMPARE = Phrases(
    """
    which is [bigger|larger|greater|more], {a} or {b}
    what is [bigger|larger|greater|more], {a} or {b}
    is {a} [bigger|larger|greater|more] than {b}
    {a} or {b}, which is [bigger|larger|greater|more]
    which number is [bigger|larger|greater], {a} or {b}
    compare {a} and {b}
    """
)
GAIN = (
    "{n} has {a} {x} and [buys|gets|finds|wins|picks] {b} more. How many {x} does {n} have [now|]",
    "i have {a} {x} and [buy|get|find] {b} more. how many [{x}|] [do i have|are there]",
    "if i have {a} {x} and someone gives me {b}, how many do i have",
    "there are {a} {x} in one box and {b} in another. how many [are there|] [in total|together|altogether]",
    "{a} {x} and {b} {x} are how many {x}",
)
LOSS = (
    "{n} has {a} {x} and [eats|loses|sells|gives away|drops] {b}. How many {x} are left",
    "i have {a} {x} and [eat|lose|sell|give away] {b}. how many [{x}|] are left",
    "if i have {a} {x} and someone takes {b}, how many do i have",
    "there are {a} {x} and {b} are taken away. how many [are left|remain]",
    "of {a} {x} {b} are gone. how many are left",
)
GAINS, LOSSES = Phrases(GAIN), Phrases(LOSS)
COUNTED = words("apples books coins eggs cards stones cats sweets stamps pens marbles balls cookies cups flowers euros")


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
    return Turn(user, answer, thought, plain="\n".join([*steps, f"So {answer}."]) if steps else "")


def _operands(r: Random) -> tuple[int, int]:
    """Mostly two digits; all pairs occur, zero and equal numbers too."""
    size = r.choices((9, 99, 999, 9999), (10, 62, 22, 6))[0]
    other = size if r.random() < 0.7 else r.choice((9, 20, 99))
    a, b = r.randint(0, size), r.randint(0, other)
    return (b, a) if r.random() < 0.3 else (a, b)


def _written(r: Random, a: int, sign: str, word: str, b: int) -> str:
    x = r.random()
    if x < 0.45:
        return f"{a} {sign} {b}"
    if x < 0.7:
        return f"{a}{sign}{b}"
    return f"{a} {word} {b}"


def _story(r: Random, phrases: Phrases, a: int, b: int) -> str:
    return phrases.typed(r, {"a": a, "b": b, "n": r.choice(NAMES), "x": r.choice(COUNTED)})


@intent(12, filler=1)
def addition(r: Random, world: World) -> Turn:
    a, b = _operands(r)
    x = r.random()
    if x < 0.65:
        user = ASK.typed(r, {"e": _written(r, a, "+", r.choice(("plus", "and", "added to")), b)})
    elif x < 0.85:
        user = ADD.typed(r, {"a": a, "b": b})
    else:
        user = sentence(_story(r, GAINS, a, b))
    return worked(user, f"{a} + {b}", add_steps(a, b), a + b)


@intent(12, filler=1)
def subtraction(r: Random, world: World) -> Turn:
    a, b = _operands(r)
    if b > a and r.random() < 0.85:
        a, b = b, a
    x = r.random()
    if x < 0.65 or b > a:
        user = ASK.typed(r, {"e": _written(r, a, r.choice("--−"), "minus", b)})
    elif x < 0.85:
        user = SUBTRACT.typed(r, {"a": a, "b": b})
    else:
        user = sentence(_story(r, LOSSES, a, b))
    if b <= a:
        return worked(user, f"{a} - {b}", subtract_steps(a, b), a - b)
    steps = [f"{b} is more than {a}, so the result is negative", f"{b} - {a}", *subtract_steps(b, a)]
    return worked(user, f"{a} - {b}", steps, a - b)


@intent(4, filler=0.5)
def multiplication(r: Random, world: World) -> Turn:
    a, d = r.choices((r.randint(0, 9), r.randint(10, 99), r.randint(100, 999)), (5, 4, 1))[0], r.randint(0, 9)
    first, second = (d, a) if r.random() < 0.4 else (a, d)
    if r.random() < 0.8:
        sign = r.choice(("*", "x", "×", "*"))
        user = ASK.typed(r, {"e": _written(r, first, sign, "times", second)})
    else:
        user = MULTIPLY.typed(r, {"a": first, "b": second})
    steps = multiply_steps(a, d)
    return worked(user, f"{a} × {d}", steps, a * d)


@intent(2.5)
def division(r: Random, world: World) -> Turn:
    d, q = r.randint(1, 9), r.randint(0, 10)
    rest = r.randrange(d) if r.random() < 0.3 else 0
    a = d * q + rest
    if r.random() < 0.6:
        user = ASK.typed(r, {"e": _written(r, a, r.choice("//:÷"), "divided by", d)})
    else:
        user = DIVIDE.typed(r, {"a": a, "b": d})
    steps = [f"{d} × {q} = {d * q}"] + ([f"{a} - {d * q} = {rest}"] if rest else [])
    return worked(user, f"{a} ÷ {d}", steps, f"{q} remainder {rest}" if rest else q)


@intent(2)
def three_terms(r: Random, world: World) -> Turn:
    a, b, c = (r.randint(1, 60) for _ in range(3))
    user = ASK.typed(r, {"e": r.choice((f"{a} + {b} + {c}", f"{a}+{b}+{c}", f"{a} plus {b} plus {c}"))})
    first = a + b
    steps = [f"{a} + {b}", *add_steps(a, b), f"= {first}", f"{first} + {c}", *add_steps(first, c)]
    return worked(user, f"{a} + {b} + {c}", steps, first + c)


@intent(1.5)
def comparison(r: Random, world: World) -> Turn:
    a, b = _operands(r)
    while a == b:
        a, b = _operands(r)
    user = COMPARE.typed(r, {"a": a, "b": b})
    big, small = max(a, b), min(a, b)
    digits = f"{big} has {len(str(big))} digits, {small} has {len(str(small))}."
    return Turn(user, f"{big} is more than {small}.", f"I compare {a} and {b}. {digits}")


def continued(r: Random, world: World) -> list[Turn]:
    """A sum and another that goes on from its result."""
    first = r.choice((addition, subtraction)).make(r, world)
    start = int(first.reply.rsplit(" ", 1)[1])
    if start < 0:
        return [first]
    b = r.randint(1, 60)
    if r.random() < 0.5 or b > start:
        user = Phrases("plus {b}\nand plus {b}\nadd {b}\nadd {b} to that\nnow add {b}\nand {b} more").typed(r, {"b": b})
        return [first, worked(user, f"{start} + {b}", add_steps(start, b), start + b)]
    user = Phrases("minus {b}\nand minus {b}\nsubtract {b}\nsubtract {b} from that\nnow take away {b}").typed(
        r, {"b": b}
    )
    return [first, worked(user, f"{start} - {b}", subtract_steps(start, b), start - b)]


INTENTS = (addition, subtraction, multiplication, division, three_terms, comparison)
