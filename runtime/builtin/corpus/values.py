"""Random values: names, words, passwords, numbers. The held-out evaluation uses none of the listed ones."""

from __future__ import annotations

from random import Random

from runtime.builtin.corpus.grammar import words
from runtime.builtin.corpus.registry import World

NAMES = words(
    """
    Anna Ben Clara David Emma Felix Greta Hugo Iris Jonas Karla Leo Mia Noah Olivia Paul Rosa Sam Tina Uwe Walter
    Yara Zoe Adam Bella Carl Diana Erik Fiona George Hanna Ivan Julia Kevin Laura Martin Nina Oscar Petra Quinn
    Robert Sofia Thomas Ursula Victor Wendy Xavier Yusuf Zara Amir Bianca Chen Dalia Elias Farah Gita Hiro Ines
    Jamal Kira Liam Maya Nils Omar Priya Rafael Sana Tariq Uma Viktor Wei Ximena Alice Bob Carol Dave Eve Frank
    Grace Heidi Judy Mallory Niko Oleg Peggy Ralf Sybil Trent Lena Marco Elena Pavel Ingrid Soren Bjorn Chloe Dmitri
    Esther Fatima Gustav Hassan Isabel Jakob Katya Lars Magnus Nadia Otto Paula Rita Stefan Tomas Viola Charlotte
    Benjamin Mohammed Aisha Kofi Mei Sven
    """
)
FOREIGN_NAMES = words(  # with letters and marks that the others lack
    """
    José Zoë Renée Björn Łukasz Søren Núria Chloé Jürgen Ágnes Noël Šárka Håkon Thảo Nguyễn O'Brien D'Angelo Jean-Luc
    Mary-Ann Anne-Marie Inês João Ana-María Émile Günther Müller Åsa Dvořák Nikolić Şebnem Ömer Çelik Ó'Neill Siân
    Zofia-Ewa Kjærsti Þóra Iñaki Begoña Théo Lætitia Márton Ödön Žiga Jānis Giedrė Vũ Trần Hồng Abd-al-Rahman Ngọc
    """
)
WORDS = words(
    """
    apple river stone cloud tiger candle window garden silver pepper rocket violin anchor copper marble lantern
    forest harbor meadow thunder pebble canyon orchid saddle beacon bridge button castle desert engine feather
    guitar hammer island jacket kettle ladder mirror needle ocean paper rabbit shadow table umbrella valley wagon
    yellow basket bottle carpet dragon flower hunter jungle kitten lemon magnet monkey orange planet pocket pumpkin
    ribbon salmon school spider summer temple tomato tunnel turtle winter wizard blanket cabbage captain diamond
    fountain giraffe hamster library machine morning nothing picture rainbow scissors station teacher thursday
    triangle vegetable welcome because computer elephant language mountain question sandwich strawberry telephone
    tomorrow butterfly chocolate knowledge crocodile helicopter refrigerator banana coffee music people money water
    house light green happy bread chair cat dog sun moon tree book fish bird rain snow door hand foot king milk ship
    star wind zero bee hello letter pencil sugar holiday
    """
)
COLOURS = words(
    """
    red blue green yellow purple orange pink black white brown grey turquoise violet silver gold crimson teal navy
    lime beige indigo maroon olive coral amber lilac bronze scarlet mint cream
    """
)
ANIMALS = words(
    """
    cat dog fox rabbit owl horse mouse bear wolf frog turtle duck hamster parrot snake goat lion tiger hedgehog
    squirrel penguin badger beaver crow deer donkey otter raven seal swan
    """
)
FOODS = words(
    """
    pizza pasta rice soup bread cheese cake salad noodles sushi tacos curry pancakes chocolate potatoes beans mango
    grapes lasagne dumplings omelette risotto hummus waffles burgers goulash ramen paella porridge
    """
)
DRINKS = words("tea coffee water milk cocoa lemonade cider juice ginger-ale lassi espresso")
TOWNS = words(
    """
    Hamburg Lyon Porto Osaka Boston Chicago Dallas Milan Kyoto Bergen Leeds Malmo Ghent Basel Graz Oslo Paris Berlin
    Rome Madrid Vienna Prague Lima Cairo Toronto Sydney Mumbai Seoul Dublin Zurich Naples Bristol Nice Kazan Austin
    Denver
    """
)
JOBS = words(
    """
    teacher nurse baker pilot farmer writer doctor painter singer driver lawyer gardener engineer student cook
    tailor plumber librarian carpenter dentist electrician translator waiter musician programmer postman
    """
)
HOBBIES = words(
    """
    chess painting hiking climbing knitting cooking football tennis swimming running gardening fishing dancing
    reading photography cycling sailing pottery karate yoga skiing archery baking birdwatching singing surfing
    """
)
SUBJECTS = words("maths history physics biology art music geography chemistry latin sports drawing")
SEASONS = words("spring summer autumn winter")
WEEKDAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")
THINGS = words(
    """
    bike car house boat tent laptop phone guitar piano camera desk chair lamp sofa jacket hat coat umbrella bag
    suitcase box key book notebook letter parcel ticket plant tree garden door window kettle cup bottle plate knife
    robot drone train bus server router printer keyboard monitor project team company shop school hotel street band
    film game recipe song painting poem essay report meeting flight order invoice account badge locker safe table
    room office kitchen
    """
)
ONSETS = words("b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t th tr v w x y z bl sl sp sn")
VOWELS = words("a e i o u ai ea io ou ee y")
CODAS = (*words("n r l s t m k d x nd rk th ck sh p"), *[""] * 6)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"


def characters(r: Random, n: int, alphabet: str = LETTERS + DIGITS) -> str:
    return "".join(r.choice(alphabet) for _ in range(n))


def syllables(r: Random, low: int = 1, high: int = 3) -> str:
    """A made-up word."""
    return "".join(r.choice(ONSETS) + r.choice(VOWELS) + r.choice(CODAS) for _ in range(r.randint(low, high)))


def piece_word(r: Random, world: World) -> str:
    """A word of vocabulary tokens drawn uniformly."""
    if not world.pieces:
        return syllables(r)
    return "".join(r.choice(world.pieces) for _ in range(r.choice((1, 1, 2, 2, 3))))


def name(r: Random, world: World) -> str:
    x = r.random()
    if x < 0.35:
        return syllables(r).capitalize()
    if x < 0.55:
        return piece_word(r, world).capitalize()
    if x < 0.65:
        return r.choice(NAMES).lower()
    if x < 0.75:
        return f"{r.choice(NAMES)} {syllables(r, 1, 2).capitalize()}"
    if x < 0.80:
        return r.choice(FOREIGN_NAMES)
    if x < 0.82:
        return "-".join(syllables(r, 1, 2).capitalize() for _ in range(2))
    if x < 0.84:
        particle = r.choice(("van", "de", "von", "al", "di"))
        return f"{syllables(r, 1, 2).capitalize()} {particle} {syllables(r).capitalize()}"
    return r.choice(NAMES)


def word(r: Random, world: World) -> str:
    """A word in lower case, real or made up."""
    x = r.random()
    if x < 0.4:
        return r.choice(WORDS)
    if x < 0.7:
        return piece_word(r, world).lower()
    return syllables(r)


def password(r: Random, world: World) -> str:
    kind = r.randrange(8)
    if kind == 0:
        return characters(r, r.randint(3, 9))
    if kind == 1:
        return characters(r, r.randint(3, 8), LETTERS + LETTERS.upper() + DIGITS)
    if kind == 2:
        return word(r, world) + characters(r, r.randint(1, 4), DIGITS)
    if kind == 3:
        return f"{word(r, world)}{r.choice('-_')}{word(r, world)}"
    if kind == 4:
        return word(r, world).upper() + characters(r, r.randint(0, 3), DIGITS)
    if kind == 5:
        return f"{word(r, world).capitalize()}{characters(r, r.randint(1, 3), DIGITS)}{r.choice('!?#$%&*')}"
    if kind == 6:
        return " ".join(word(r, world) for _ in range(r.randint(2, 4)))
    return word(r, world)


def number(r: Random, world: World) -> str:
    return str(r.randint(0, 10 ** r.choice((1, 2, 2, 3, 4, 5)) - 1))


def code(r: Random, world: World) -> str:
    """Digits, leading zeros included, sometimes grouped."""
    if r.random() < 0.15:
        return f"{characters(r, 3, DIGITS)}-{characters(r, 3, DIGITS)}"
    if r.random() < 0.2:
        return f"{characters(r, r.randint(1, 3), LETTERS.upper())}{characters(r, r.randint(1, 4), DIGITS)}"
    return characters(r, r.randint(3, 8), DIGITS)


def date(r: Random, world: World) -> str:
    month, day = r.choice(MONTHS), r.randint(1, 28)
    return r.choice(
        (
            f"{month} {day}",
            f"{day} {month}",
            f"the {ordinal(day)} of {month}",
            f"{month} {day}, {r.randint(1950, 2024)}",
        )
    )


def ordinal(n: int) -> str:
    ending = "th" if 10 < n % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def clock(r: Random, world: World) -> str:
    return r.choice(
        (f"{r.randint(1, 12)} {r.choice(('am', 'pm'))}", f"{r.randint(0, 23)}:{r.choice(('00', '15', '30', '45'))}")
    )


def town(r: Random, world: World) -> str:
    return r.choice(TOWNS) if r.random() < 0.5 else syllables(r, 2, 3).capitalize()


def colour(r: Random, world: World) -> str:
    return r.choice(COLOURS) if r.random() < 0.8 else f"{r.choice(('dark', 'light', 'pale'))} {r.choice(COLOURS)}"


def phrase(r: Random, world: World) -> str:
    """Some words to be said again."""
    kind = r.randrange(5)
    if kind == 0:
        return " ".join(characters(r, r.randint(1, 5), LETTERS) for _ in range(r.randint(1, 5)))
    if kind == 1:
        return " ".join(word(r, world) for _ in range(r.randint(1, 6)))
    if kind == 2:
        return " ".join(piece_word(r, world) for _ in range(r.randint(1, 6)))
    if kind == 3:
        return characters(r, r.randint(3, 12), LETTERS + DIGITS + LETTERS.upper())
    return " ".join(str(r.randint(0, 999)) for _ in range(r.randint(1, 5)))
