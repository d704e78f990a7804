"""Conversion of units, by shifting the point or by one small multiplication."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases
from runtime.builtin.corpus.registry import World, intent
from runtime.builtin.corpus.sums import multiply_steps, worked


@dataclass(frozen=True, slots=True)
class Conversion:
    """1 `large` = `factor` `small`; each unit by its singular, plural and sign."""

    large: tuple[str, str, str]
    small: tuple[str, str, str]
    factor: int


CONVERSIONS = (
    Conversion(("kilometre", "kilometres", "km"), ("metre", "metres", "m"), 1000),
    Conversion(("metre", "metres", "m"), ("centimetre", "centimetres", "cm"), 100),
    Conversion(("centimetre", "centimetres", "cm"), ("millimetre", "millimetres", "mm"), 10),
    Conversion(("kilogram", "kilograms", "kg"), ("gram", "grams", "g"), 1000),
    Conversion(("gram", "grams", "g"), ("milligram", "milligrams", "mg"), 1000),
    Conversion(("tonne", "tonnes", "t"), ("kilogram", "kilograms", "kg"), 1000),
    Conversion(("litre", "litres", "l"), ("millilitre", "millilitres", "ml"), 1000),
    Conversion(("euro", "euros", "€"), ("cent", "cents", "ct"), 100),
    Conversion(("hour", "hours", "h"), ("minute", "minutes", "min"), 60),
    Conversion(("minute", "minutes", "min"), ("second", "seconds", "s"), 60),
    Conversion(("week", "weeks", "weeks"), ("day", "days", "days"), 7),
    Conversion(("foot", "feet", "ft"), ("inch", "inches", "in"), 12),
    Conversion(("dozen", "dozens", "dozen"), ("piece", "pieces", "pieces"), 12),
    Conversion(("year", "years", "years"), ("month", "months", "months"), 12),
    Conversion(("yard", "yards", "yd"), ("foot", "feet", "ft"), 3),
    Conversion(("day", "days", "days"), ("hour", "hours", "h"), 24),
    Conversion(("kilobyte", "kilobytes", "kB"), ("byte", "bytes", "B"), 1000),
    Conversion(("megabyte", "megabytes", "MB"), ("kilobyte", "kilobytes", "kB"), 1000),
    Conversion(("gigabyte", "gigabytes", "GB"), ("megabyte", "megabytes", "MB"), 1000),
)
ASK = Phrases(
    """
    convert {n} {x} [to|into|in] {y}
    how many {y} are {n} {x}
    how many {y} are in {n} {x}
    how many {y} is {n} {x}
    {n} {x} in {y}
    {n} {x} to {y}
    what is {n} {x} in {y}
    what are {n} {x} in {y}
    how much is {n} {x} in {y}
    {n} {x} are how many {y}
    change {n} {x} [to|into] {y}
    turn {n} {x} into {y}
    express {n} {x} in {y}
    tell me {n} {x} in {y}
    i have {n} {x}, how many {y} is that
    can you convert {n} {x} to {y}
    {n} {x} = ? {y}
    i need {n} {x} in {y}
    give me {n} {x} in {y}
    how do i convert {n} {x} to {y}
    write {n} {x} as {y}
    {n} {x}, in {y}
    {n} {x}: how many {y}
    {n} {x} is how many {y}
    {n} {x} make how many {y}
    {n} {x} equals how many {y}
    what's {n} {x} in {y}
    how many {y} do {n} {x} make
    how many {y} make {n} {x}
    how many {y} do i get from {n} {x}
    how many {y} fit into {n} {x}
    how many {y} have {n} {x}
    {n} {x} converted [to|into] {y}
    [can|could] you turn {n} {x} into {y}
    [can|could] you change {n} {x} [to|into] {y}
    please convert {n} {x} [to|into] {y}
    calculate {n} {x} in {y}
    i want {n} {x} in {y}
    i want to know how many {y} {n} {x} are
    what do {n} {x} come to in {y}
    if i have {n} {x}, how many {y} [is that|do i have]
    in {y}, how much is {n} {x}
    in {y}, what is {n} {x}
    from {x} to {y}: {n}
    it says {n} {x}, but i need {y}
    the recipe says {n} {x}, how many {y} is that
    do you know how many {y} are in {n} {x}
    {n} {x} come out as how many {y}
    work out {n} {x} in {y}
    """
)
CELSIUS = Phrases(
    """
    {n} [celsius|degrees celsius|c|°C] in fahrenheit
    convert {n} [celsius|degrees celsius|°C] to fahrenheit
    what is {n} [celsius|degrees celsius|°C] in fahrenheit
    how much is {n} [celsius|degrees|°C] in fahrenheit
    how hot is {n} celsius in fahrenheit
    {n} [celsius|°C] to fahrenheit
    {n} [degrees celsius|celsius] are how many fahrenheit
    what's {n} [celsius|degrees celsius|°C] in fahrenheit
    how many [degrees|] fahrenheit [are|is] {n} [celsius|degrees celsius|°C]
    turn {n} [celsius|degrees celsius|°C] into fahrenheit
    it is {n} degrees celsius, what is that in fahrenheit
    {n} degrees in celsius are what in fahrenheit
    in fahrenheit, how much is {n} celsius
    i need {n} celsius in fahrenheit
    fahrenheit for {n} celsius
    {n} °C as °F
    what does {n} celsius come to in fahrenheit
    """
)


def _count(n: int, unit: tuple[str, str, str]) -> str:
    return f"{n} {unit[0] if n == 1 else unit[1]}"


@intent(5, filler=0.5)
def conversion(r: Random, world: World) -> Turn:
    c = r.choice(CONVERSIONS)
    n = r.randint(1, 99 if c.factor in (10, 100, 1000) else 12)
    up = r.random() < 0.3  # from the small unit to the large one
    source, target = (c.small, c.large) if up else (c.large, c.small)
    value, result = (n * c.factor, n) if up else (n, n * c.factor)
    signs = r.random() < 0.3
    user = ASK.typed(
        r,
        {
            "n": value,
            "x": source[2] if signs else source[0] if value == 1 else source[1],
            "y": target[2] if signs else target[1],
        },
    )
    basis = f"1 {c.large[0]} = {c.factor} {c.small[1]}"
    steps = [basis]
    if up:
        steps.append(f"{value} ÷ {c.factor} = {result}")
    elif c.factor in (10, 100, 1000) or n == 1:
        steps.append(f"{n} × {c.factor} = {result}")
    elif c.factor == 60:
        steps += [f"{n} × 6 = {n * 6}", f"{n} × 60 = {result}"]
    elif c.factor < 10:
        steps += multiply_steps(n, c.factor)
    else:
        tens, ones = c.factor // 10 * 10, c.factor % 10
        steps += [f"{n} × {tens} = {n * tens}", f"{n} × {ones} = {n * ones}", f"{n * tens} + {n * ones} = {result}"]
    return worked(user, _count(value, source), steps, _count(result, target))


@intent(1)
def temperature(r: Random, world: World) -> Turn:
    n = r.randrange(0, 105, 5)
    steps = [f"{n} × 9 = {n * 9}", f"{n * 9} ÷ 5 = {n * 9 // 5}", f"{n * 9 // 5} + 32 = {n * 9 // 5 + 32}"]
    return worked(CELSIUS.typed(r, {"n": n}), f"{n} °C", steps, f"{n * 9 // 5 + 32} °F")


INTENTS = (conversion, temperature)
