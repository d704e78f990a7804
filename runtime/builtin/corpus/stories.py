"""Short stories and poems: fixed plots with drawn heroes, places and things."""

from __future__ import annotations

from random import Random

from runtime.builtin.corpus import values
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases, alternatives, article, sentence
from runtime.builtin.corpus.registry import World, intent

ASK = Phrases(
    """
    tell me a [short|little|nice|] story about {x}
    write a [short|] story about {x}
    a story about {x}
    can you tell [me|] a story about {x}
    story: {x}
    give me a tale about {x}
    make up a story about {x}
    i like stories about {x}, tell one
    write something about {x}
    read me a story about {x}
    do you have a story about {x}
    invent a story with {x}
    i want to hear a story about {x}
    tell us about {x}, as a story
    a bedtime story [about|with] {x}
    once upon a time there was {x}
    tell a story in which {x} appears
    a fairy tale about {x}
    my child wants a story about {x}
    tell me about the adventures of {x}
    another story, with {x} this time
    let me hear a story about {x}
    write [me|] a tale of {x}
    spin me a yarn about {x}
    """
)
ANY = Phrases(
    """
    tell me a [short|little|nice|bedtime|new|] story
    can you tell [me|] a story
    do you know a story
    a story
    i want a story
    make up a story
    write a [short|] story
    please tell me a [tale|fairy tale]
    another story
    one more story
    let me hear a story
    i'd like to hear a story
    read me something
    tell me one of your stories
    """
)
PLOTS = (
    "Once upon a time there was {a} named {n} who lived in {p}. One day {n} found {t} under a tree. {A2} came by and "
    "asked for help. {n} gave the {t0} away, and they became friends. From that day on they were never alone.",
    "In {p} lived {a} called {n}. Every night {n} dreamt of {t}. One morning {a2} knocked and brought {t}. "
    '"How did you know?" asked {n}. "You talk in your sleep," said the {a20}. They laughed all day.',
    "{n} was the smallest {a0} in {p}. Nobody thought that {n} could do anything. Then a storm came, and {t} fell into "
    "the river. {n} jumped in and pulled it out. After that everyone in {p} knew the name {n}.",
    "{n} the {a0} and {a2} both wanted {t}. They pulled and pulled until it broke. They looked at the pieces, sat down "
    "and mended it together. Now it belonged to both of them, and it was better than before.",
    "One winter {n} the {a0} lost the way to {p}. The snow was deep and the night was dark. Far away {a2} lit a lamp. "
    "{n} followed the light and was home before morning. Since then a lamp burns there every night.",
    "{n} the {a0} wanted to see the sea. The way from {p} was long. {A2} said: take {t} with you, you will need it. "
    "{n} walked for seven days, saw the sea, and came back with a shell and a thousand things to tell.",
    "There was a locked door in {p}. {n} the {a0} had {t}, and {a2} had a key. Neither opened the door alone. Together "
    "they tried, and behind it was a garden full of flowers. They left the door open for all.",
)
PLACES = alternatives(
    "a quiet forest|a small village|a big city|a green valley|an old castle|a garden by the sea|a house on a hill"
)
POEM = Phrases(
    """
    write [me|] a [short|little|] poem about {t}
    a poem about {t}
    can you write a poem about {t}
    poem about {t}
    make [me|] a poem about {t}
    i would like a poem about {t}
    compose a poem on {t}
    rhyme something about {t}
    a rhyme about {t}
    give me a verse about {t}
    some lines about {t}
    tell me a poem about {t}
    """
)
VERSES = (
    "I think of {t} at night,\nI think of {t} by day.\nIt fills my screen with light\nand never goes away.",
    "Oh {t}, oh {t}, so near and far,\nyou are my little guiding star.\nI write your name, I write it twice,\n"
    "and every time it sounds so nice.",
    "A word of {t}, a quiet line,\na small machine, a thought of mine.\nThe day is short, the song is too:\n"
    "I made this verse of {t} for you.",
)


HEROES = ("hedgehog", "fox", "owl")  # of a story about nobody in particular


@intent(4, filler=0.7)
def story(r: Random, world: World) -> Turn:
    """A hero has one story, and a name of its own unless the user gives another: greedy text is stable."""
    any_hero = r.random() < 0.3
    hero = r.choice(HEROES if any_hero else values.ANIMALS)
    own = Random(hero)
    helper = own.choice([animal for animal in values.ANIMALS if animal != hero])
    name, thing = own.choice(values.NAMES), f"{own.choice(values.COLOURS)} {own.choice(values.THINGS)}"
    plot, place = own.choice(PLOTS), own.choice(PLACES)
    if any_hero:
        user, wish = ANY.typed(r), "a story"
    else:
        wish = article(hero)
        if r.random() < 0.5:
            name = values.name(r, world).split()[0].capitalize()
            wish = r.choice((f"{wish} named {name}", f"{name} the {hero}"))
        user = ASK.typed(r, {"x": wish})
    text = plot.format(
        a=article(hero),
        a0=hero,
        n=name,
        p=place,
        t=article(thing),
        t0=thing,
        a2=article(helper),
        a20=helper,
        A2=sentence(article(helper)),
    )
    return Turn(user, sentence(text), f"The user wants {wish}. The hero is {name} the {hero}.")


@intent(2.5, filler=0.3)
def poem(r: Random, world: World) -> Turn:
    topic = values.word(r, world) if r.random() < 0.6 else f"the {r.choice(values.COLOURS)} {values.word(r, world)}"
    return Turn(POEM.typed(r, {"t": topic}), r.choice(VERSES).format(t=topic), f"A poem about {topic}.")


INTENTS = (story, poem)
