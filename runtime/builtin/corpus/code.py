"""Code in fences: the snippets of `snippets.toml`."""

from __future__ import annotations

from random import Random

from runtime.builtin.corpus import values
from runtime.builtin.corpus.dialogue import Turn
from runtime.builtin.corpus.grammar import Phrases
from runtime.builtin.corpus.registry import World, intent
from runtime.builtin.corpus.tables import load

SNIPPETS = load("snippets.toml")["snippet"]
ASK = Phrases(
    """
    how do i {i} in {l}
    write {l} code to {i}
    {l}: {i}
    show me {l} code to {i}
    give me a {l} example to {i}
    how can i {i} with {l}
    {i} in {l}
    code to {i} in {l}
    can you write {l} to {i}
    a {l} snippet to {i}
    how to {i} using {l}
    {l} to {i}
    help me {i} in {l}
    i want to {i} in {l}
    {i} with {l}
    what is the {l} for {i}
    write {i} in {l}
    show me {i} in {l}
    i need {l} code: {i}
    how does one {i} in {l}
    {i}, in {l} please
    what does {i} look like in {l}
    the {l} code to {i}
    please code this in {l}: {i}
    how would i {i} in {l}
    how do you {i} in {l}
    how can one {i} using {l}
    using {l}, {i}
    in {l}, how do i {i}
    in {l}: {i}
    i'm learning {l}, how do i {i}
    an example in {l}: {i}
    {l} example: {i}
    a bit of {l} to {i}
    give me {l} code for this: {i}
    show the {l} code to {i}
    can you show me how to {i} in {l}
    could you {i} in {l}
    write me some {l}: {i}
    write a few lines of {l} to {i}
    a short {l} program to {i}
    i forgot how to {i} in {l}
    what {l} code do i need to {i}
    {l} code please: {i}
    """
)


@intent(5, filler=0.5)
def snippet(r: Random, world: World) -> Turn:
    chosen = r.choice(SNIPPETS)
    word = "".join(filter(str.isalpha, values.word(r, world).lower()))[:12] or "data"
    number = str(r.randint(2, 99))

    def fill(text: str) -> str:
        return text.replace("{w}", word).replace("{W}", word.capitalize()).replace("{n}", number).strip()

    language = chosen["language"]
    task = fill(r.choice(chosen["tasks"].split("|")))
    named = r.choice((language, language, language.capitalize(), language.upper()))
    user = ASK.typed(r, {"i": task, "l": named})
    reply = f"Here is the {language} code:\n\n```{language}\n{fill(chosen['code'])}\n```"
    return Turn(user, reply, f"The user wants {language} code: {task}.")


INTENTS = (snippet,)
