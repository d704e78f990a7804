"""Phrasings: templates with alternatives and fields, dressed the way people type.

A template is a line such as `[can|could] you tell me {x}[ please|]`: brackets choose, and nest; braces are filled with
values, which no noise ever touches, since the reply depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import NamedTuple

from runtime.builtin.corpus.tables import load


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def alternatives(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


OPENERS = alternatives(
    "hey, |ok, |so, |please, |hi, |hello! |well, |a question: |tell me, |hm, |next question: |sorry, |one more: |and "
    "|quick question: |good, |alright, |hi there, |hey there! |now, |oh, |also, |um, |by the way, |hi! |okay so "
    "|right, |thanks. |cool, |great! |i see. |last one: |help: |ah, |then |nice. |excuse me, |yo, |listen, "
    "|just wondering, "
)
CLOSERS = alternatives(
    "| please| please?| thanks| thank you| :)| now?|, please.| then?|, thanks!| pls| for me| ?|...|!"
)
LEADS = alternatives(
    "i have a question. |a silly question: |maybe a silly question: |this may be easy: |sorry to bother you, "
    "|i hope you can help. |you may know this. |i'm curious: |let me ask you something. |here is my question: "
    "|could you help me? |i need your help. |i was asked this today: |hello, a small question: |hi, i'm new here. "
    "|good morning. |good evening! |hey friend, |to change the subject: |next topic: |something else: "
    "|and another thing: |before i forget: |while you are at it: |if you don't mind, |i'm in a hurry: |seriously, "
    "|first of all, |my last question for today: |excuse my english. |i'm not good with computers. "
    "|thanks for that. now |great, and now |ok got it. |that was helpful. |i'm back. |wait, |one thing i don't know: "
    "|i looked everywhere. |nobody could tell me: |my friend asked me: |just out of interest: |i keep forgetting: "
)
SHORTHAND = {
    "you": "u",
    "please": "pls",
    "are": "r",
    "what": "wat",
    "because": "cuz",
    "thanks": "thx",
    "going to": "gonna",
}
# Words that change nothing wherever they stand.
NEEDLESS = words(
    "really actually just maybe quickly somehow simply again perhaps still even basically today anyway though properly "
    "directly easily exactly possibly honestly normally usually currently finally truly surely kindly briefly"
)
# Verbs whose last letter is doubled before -ing.
DOUBLED = words(
    "get set cut put stop quit run begin drop forget wrap skip pin tag shut let unpin unwrap grep scrap swap bin cap "
    "chat debug flip format log refer remap rerun reset split star step submit win"
)
KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
REWORDED = 0.24  # share of the messages in which other words stand, if there are any for theirs


def _thesaurus(text: str) -> dict[str, tuple[str, ...]]:
    rows = (row.split(":", 1) for row in text.splitlines() if row.strip())
    return {word.strip(): tuple(other.strip() for other in others.split("|")) for word, others in rows}


THESAURUS = _thesaurus(load("thesaurus.toml")["words"])
WORD = re.compile(r"(?<![\w.'/-])[A-Za-z]+(?:'[a-z]+)?(?![\w'/-]|\.\w)")
ARTICLE = re.compile(r"\ban? $")


class Piece(NamedTuple):
    text: str
    value: bool  # filled from a field


class Phrases:
    """Templates that mean the same, one a line."""

    def __init__(self, lines: str | Iterable[str]) -> None:
        rows = lines.splitlines() if isinstance(lines, str) else lines
        self.templates = tuple(row.strip() for row in rows if row.strip())

    def plain(self, r: Random, values: Mapping[str, object] = {}) -> str:
        """One template expanded, as written."""
        return "".join(p.text for p in expand(r, r.choice(self.templates), values))

    def typed(
        self, r: Random, values: Mapping[str, object] = {}, question: bool = True, slips: Collection[str] = ()
    ) -> str:
        """One template expanded as a user would type it: other words, openers, closers, case and typing mistakes.

        The values of the fields in `slips` are ordinary words, in which mistakes may happen too.
        """
        return dress(r, expand(r, r.choice(self.templates), values, slips), question)

    def matches(self, text: str, fields: Mapping[str, str] = {}) -> bool:
        """Whether `text` is one of the templates, but for case and marks; `fields` are patterns, by default any."""
        return any(re.fullmatch(pattern, normal(text)) for pattern in self.patterns(fields))

    def patterns(self, fields: Mapping[str, str] = {}) -> list[str]:
        """A regular expression of each template."""
        return [_pattern(t, fields) for t in self.templates]


def expand(r: Random, template: str, values: Mapping[str, object], slips: Collection[str] = ()) -> list[Piece]:
    """Raises KeyError for a field without a value."""
    pieces: list[Piece] = []
    for token in re.split(r"(\{\w+\})", _choose(r, template).strip()):
        if token.startswith("{"):
            pieces.append(Piece(str(values[token[1:-1]]), token[1:-1] not in slips))
        elif token:
            pieces.append(Piece(token, False))
    return pieces


def _choose(r: Random, template: str) -> str:
    while (inner := re.search(r"\[([^\[\]]*)\]", template)) is not None:
        template = template[: inner.start()] + r.choice(alternatives(inner[1])) + template[inner.end() :]
    return re.sub(r"  +", " ", template)


def _pattern(template: str, fields: Mapping[str, str]) -> str:
    regex = re.escape(normal(template))
    regex = regex.replace(r"\[", "(?:").replace(r"\]", ")").replace(r"\|", "|")
    regex = re.sub(r"\\\{(\w+)\\\}", lambda m: f"(?:{fields.get(m[1], '.+')})", regex)
    return regex.replace(r"\ ", " *")


def normal(text: str) -> str:
    """Lower case, without marks and double spaces: the form in which phrasings are compared."""
    return re.sub(r"\s+", " ", re.sub(r"[?!.,]", "", text.lower())).strip()


def dress(r: Random, pieces: list[Piece], question: bool = True) -> str:
    pieces = reworded(r, pieces)
    if r.random() < 0.06:
        pieces = [p if p.value else Piece(_shorthand(r, p.text), False) for p in pieces]
    if r.random() < 0.06:
        pieces = [p if p.value else Piece(_terse(p.text), False) for p in pieces]
    if r.random() < 0.05:
        pieces = _padded(r, pieces)
    if r.random() < 0.09:
        pieces = mistyped(r, pieces)
    if r.random() < 0.08:
        pieces = [p if p.value else Piece(p.text.replace("'", ""), False) for p in pieces]
    text = "".join(p.text for p in pieces)
    first_is_value = bool(pieces) and pieces[0].value
    if r.random() < 0.16:
        text = r.choice(OPENERS) + text
        first_is_value = False
    if r.random() < 0.55 and not first_is_value:
        text = text[:1].upper() + text[1:]
    if text.endswith((".", "?", "!")):
        return text
    x = r.random()
    if x < 0.16:
        return text + r.choice(CLOSERS)
    if x < 0.62:
        return text + ("?" if question else ".")
    return text


def reworded(r: Random, pieces: list[Piece]) -> list[Piece]:
    """With one or two words of the fixed text in other words, now and then."""
    if r.random() >= REWORDED:
        return pieces
    places = [
        (i, m.start(), m.end(), word)
        for i, p in enumerate(pieces)
        if not p.value
        for m in WORD.finditer(p.text)
        if (word := m[0].lower()) in THESAURUS
    ]
    chosen = r.sample(places, min(len(places), r.choice((1, 1, 2))))
    result = list(pieces)
    for i, start, end, word in sorted(chosen, reverse=True):  # from the end, so that places hold
        text = result[i].text
        other = r.choice(THESAURUS[word])
        other = sentence(other) if text[start].isupper() else other
        before = ARTICLE.sub(f"{'an' if before_vowel(other) else 'a'} ", text[:start])
        result[i] = Piece(before + other + text[end:], False)
    return result


def _padded(r: Random, pieces: list[Piece]) -> list[Piece]:
    """With a needless word between two words of the fixed text."""
    gaps = [(i, m.end()) for i, p in enumerate(pieces) if not p.value for m in re.finditer(r"(?<=\w) (?=\w)", p.text)]
    if not gaps:
        return pieces
    i, at = r.choice(gaps)
    text = pieces[i].text
    return [*pieces[:i], Piece(f"{text[:at]}{r.choice(NEEDLESS)} {text[at:]}", False), *pieces[i + 1 :]]


def _shorthand(r: Random, text: str) -> str:
    for word, short in SHORTHAND.items():
        if r.random() < 0.6:
            text = re.sub(rf"\b{word}\b", short, text)
    return text


def _terse(text: str) -> str:
    """Without the articles, as in a telegram."""
    return re.sub(r"\b(?:the|a|an|my|this) (?=\w)", "", text)


def mistyped(r: Random, pieces: list[Piece]) -> list[Piece]:
    """One or two slips of the fingers in the fixed text."""
    result = list(pieces)
    for _ in range(r.choice((1, 1, 2))):
        places = [i for i, p in enumerate(result) if not p.value and len(p.text) > 5]
        if not places:
            break
        i = r.choice(places)
        result[i] = Piece(_slip(r, result[i].text), False)
    return result


def _slip(r: Random, text: str) -> str:
    i = r.randrange(1, len(text) - 1)
    if not text[i].isalpha() or not text[i - 1].isalpha():
        return text
    kind = r.randrange(4)
    if kind == 0:
        return text[:i] + text[i + 1 :]
    if kind == 1:
        return text[:i] + text[i] + text[i:]
    if kind == 2:
        return text[: i - 1] + text[i] + text[i - 1] + text[i + 1 :]
    row = next((k for k in KEYS if text[i].lower() in k), "")
    near = row[max(0, row.find(text[i].lower()) - 1) :][:3].replace(text[i].lower(), "")
    return text[:i] + (r.choice(near) if near else text[i]) + text[i + 1 :]


def led(r: Random, text: str, share: float = 0.1) -> str:
    """Now and then with a sentence before it, as a question comes up in a chat."""
    return r.choice(LEADS) + text if r.random() < share else text


def gerund(verb: str) -> str:
    """`deleting` of `delete`; of the verbs that the corpus uses."""
    if verb in DOUBLED:
        return f"{verb}{verb[-1]}ing"
    if verb.endswith("ie"):
        return f"{verb[:-2]}ying"
    return f"{verb[:-1] if verb.endswith('e') and not verb.endswith(('ee', 'be')) else verb}ing"


def third_person(verb: str) -> str:
    """`deletes` of `delete`."""
    if verb in ("have", "be"):
        return {"have": "has", "be": "is"}[verb]
    if verb.endswith("y") and verb[-2] not in "aeou":
        return f"{verb[:-1]}ies"
    return f"{verb}{'es' if verb.endswith(('s', 'sh', 'ch', 'x', 'z', 'o')) else 's'}"


def sentence(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def listed(items: list[str], last: str = "and") -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def article(noun: str) -> str:
    """The noun with `a` or `an`."""
    return f"{'an' if before_vowel(noun) else 'a'} {noun}"


def before_vowel(noun: str) -> bool:
    """Whether the noun begins with the sound of a vowel, as far as its letters tell."""
    return noun[:1] in "aeiouAEIOU" and re.match("eu|uk|uni|us", noun, re.I) is None
