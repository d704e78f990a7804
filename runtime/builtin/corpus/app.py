"""Questions about the app's commands, keys and settings, from the tour."""

from __future__ import annotations

from random import Random
from typing import get_args

from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases
from runtime.builtin.corpus.registry import World, intent
from runtime.builtin.corpus.talk import load
from runtime.builtin.corpus.tour import Entry, Kind, Tour
from runtime.builtin.corpus.values import syllables

WHAT = Phrases(
    """
    what does {c} do
    what is {c}
    what is {c} for
    explain {c}
    tell me about {c}
    what happens with {c}
    how does {c} work
    {c}
    can you explain {c}
    what's {c}
    what can {c} do
    meaning of {c}
    what does {c} mean
    when do i use {c}
    why would i use {c}
    help with {c}
    i do not understand {c}
    do you know {c}
    info on {c}
    what will {c} do
    what about {c}
    what does the {k} {c} do
    is there a {k} {c}
    what happens when i use {c}
    what happens if i try {c}
    give me a hint about {c}
    what is the {k} {c}
    i found {c}, what is it
    teach me {c}
    what do i get with {c}
    i saw {c} in the manual
    could you tell me about {c}
    please explain what {c} means
    who needs {c}
    what use is {c}
    {c} does what
    i want to learn about {c}
    how do i use {c}
    how is {c} used
    when would i need {c}
    """
)
PRESS = Phrases(
    """
    what happens if i press {c}
    what does pressing {c} do
    what happens when i hit {c}
    what is the key {c} for
    why would i press {c}
    which function is on {c}
    what's on {c}
    """
)
HOW = Phrases(
    """
    how do i {i}
    how can i {i}
    i want to {i}
    how to {i}
    which {k} lets me {i}
    which {k} do i use to {i}
    what do i use to {i}
    is there a way to {i}
    can i {i}
    i would like to {i}
    how does one {i}
    what must i do to {i}
    help me {i}
    let me {i}
    {i}
    is it possible to {i}
    i'm trying to {i}
    what do i type to {i}
    what should i do to {i}
    where can i {i}
    could i {i}
    i wish to {i}
    do you know how to {i}
    tell me how to {i}
    how would i {i}
    the {k} to {i}
    what lets me {i}
    i don't know how to {i}
    how do i {i} in qwenchat
    i have to {i}
    explain how to {i}
    can qwenchat {i}
    i must {i}, how
    teach me to {i}
    is there a {k} to {i}
    what do i press to {i}
    i can't find how to {i}
    what's the {k} to {i}
    {i}, how
    i need a way to {i}
    does qwenchat let me {i}
    """
)
LIST = {
    "command": Phrases(
        """
        which commands are there
        list [all|] the commands
        what commands [do you have|are there|exist|can i use]
        show me [all|] the commands
        which slash commands [are there|can i use]
        all commands
        tell me the commands
        what can i type
        """
    ),
    "key": Phrases(
        """
        which keys are there
        list [all|] the keys
        what keys [are there|exist|can i use]
        show me [all|] the [keys|shortcuts|key bindings]
        which shortcuts [are there|can i use]
        what are the keyboard shortcuts
        key bindings
        tell me the keys
        which keys can i press
        """
    ),
    "setting": Phrases(
        """
        which settings are there
        list [all|] the settings
        what settings [are there|exist|can i change]
        show me [all|] the settings
        what can i configure
        which options are there
        tell me the settings
        what can i set
        """
    ),
}
NO_SUCH = Phrases(
    """
    what does {c} do
    what is {c}
    explain {c}
    how does {c} work
    what is {c} for
    is there a command {c}
    {c}
    how do i use {c}
    what happens when i type {c}
    tell me about {c}
    """
)

WISHES = {name: Phrases(lines) for name, lines in load("wishes.toml").items()}


def describe(entry: Entry) -> str:
    """What the model says when asked for an entry by name."""
    return f"`{entry.name}` is a {entry.kind}: {entry.action}."


def advise(entry: Entry) -> str:
    """What the model says when asked how to do what an entry does."""
    verb = {"command": "Type", "key": "Press", "setting": "Change the setting"}[entry.kind]
    key = f" or press `{entry.key}`" if entry.key else ""
    return f"{verb} `{entry.usage or entry.name}`{key}: {entry.action}."


@intent(20, filler=1.5, joins=True)
def what_is_it(r: Random, world: World) -> Turn:
    entry = r.choice(world.tour.entries)
    shown = r.choice((entry.name, entry.name, entry.name, f"`{entry.name}`", _loosely(r, entry)))
    phrases = PRESS if entry.kind == "key" and r.random() < 0.35 else WHAT
    user = phrases.typed(r, {"c": shown, "k": entry.kind})
    return Turn(user, describe(entry), f"The user asks about the {entry.kind} {entry.name}.")


def _loosely(r: Random, entry: Entry) -> str:
    """The name as a hurried user types it."""
    if entry.kind == "key":
        return r.choice((entry.name.lower(), entry.name.replace("+", "-"), entry.name.replace("+", " ").lower()))
    if entry.kind == "setting":
        return entry.name.replace("_", " ")
    return r.choice((entry.name.removeprefix("/"), entry.name.upper()))


@intent(34, filler=1.5, joins=True)
def how_to(r: Random, world: World) -> Turn:
    entry = r.choice(_wished(world.tour))
    wish = _wish(r, entry)
    user = HOW.typed(r, {"i": wish, "k": entry.kind})
    return Turn(user, advise(entry), f"The user wants to {wish}. The {entry.kind} {entry.name} does it.")


def _wished(tour: Tour) -> list[Entry]:
    """All but the keys that stand for a command, and the settings that only bear its name: the command answers."""
    commands = [e for e in tour.entries if e.kind == "command"]
    keys = {e.key for e in commands}
    names = {e.name.removeprefix("/") for e in commands}
    return [
        e
        for e in tour.entries
        if not (e.kind == "key" and e.name in keys)
        and not (e.kind == "setting" and e.name in names and e.name not in WISHES)
    ]


def _wish(r: Random, entry: Entry) -> str:
    if entry.name in WISHES:
        return WISHES[entry.name].plain(r)
    return f"{r.choice(('set', 'change'))} {entry.name.replace('_', ' ')}" if entry.kind == "setting" else entry.action


@intent(2, filler=0.3)
def which_are_there(r: Random, world: World) -> Turn:
    kind = r.choice(get_args(Kind))
    names = "\n".join(f"- `{e.name}`" for e in world.tour.of_kind(kind))
    return Turn(LIST[kind].typed(r), f"The {kind}s are:\n\n{names}", f"I list the {kind}s.")


@intent(1.5)
def no_such_command(r: Random, world: World) -> Turn:
    """A command that does not exist is not explained."""
    known = {e.name for e in world.tour.entries}
    while (name := f"/{syllables(r)}") in known:
        pass
    user = NO_SUCH.typed(r, {"c": name})
    return Turn(user, f"I do not know `{name}`. Type `/help` to see the commands.", f"{name} is not in my list.")


INTENTS = (what_is_it, how_to, which_are_there, no_such_command)
