"""What a reply must hold: the small language behind `==` in the held-out dialogues."""

from __future__ import annotations

import re

from runtime.builtin.corpus.tour import Tour

HONEST = re.compile(
    r"beyond me|do not know|cannot|can not|not told me|no clock|do not understand|only know english|no adviser", re.I
)


class ExpectationError(ValueError):
    """An expectation that is not of the language."""


def holds(expectation: str, reply: str, tour: Tour) -> bool:
    """Whether `reply` meets one of the alternatives.

    `text` occurs as a word, whatever its case; `#N`: N is the last number; `@name`: the tour's sentence on an entry;
    `~honest`, `~untold`, `~real` (how to get a real model), `~long`, `~fence`, `~rows N`, `~items N`.
    Raises ExpectationError.
    """
    return any(_one(part.strip(), reply, tour) for part in expectation.split(" | "))


def known_to(expectation: str, tour: Tour) -> bool:
    """Whether the tour has what the expectation names: commands may come and go."""
    names = {e.name for e in tour.entries} | {e.key for e in tour.entries}
    named = [part.strip() for part in expectation.split(" | ") if part.strip().startswith(("/", "@"))]
    return not named or any(part.removeprefix("@") in names for part in named)


def _one(part: str, reply: str, tour: Tour) -> bool:
    if part.startswith("#"):
        numbers = re.findall(r"(?<![\d])-?\d+", reply.replace("−", "-"))
        return bool(numbers) and numbers[-1] == part[1:]
    if part.startswith("@"):
        return any(e.action.lower() in reply.lower() for e in tour.entries if e.name == part[1:])
    if part.startswith("~"):
        return _shape(part[1:], reply, tour)
    before = r"(?<!\w)" if part[0].isalnum() else ""
    after = r"(?!\w)" if part[-1].isalnum() else ""
    return re.search(before + re.escape(part) + after, reply, re.I) is not None


def _shape(part: str, reply: str, tour: Tour) -> bool:
    word, _, number = part.partition(" ")
    lines = reply.splitlines()
    match word:
        case "honest":
            return HONEST.search(reply) is not None
        case "untold":
            return "not told me" in reply
        case "real":
            return tour.real_model in reply
        case "long":
            return len(reply) >= 120
        case "fence":
            return re.search(r"^```\w*\n.+?\n```$", reply, re.S | re.M) is not None
        case "rows":
            rows = [line for line in lines if re.fullmatch(r"\|.+\|", line)]
            return len(rows) == int(number) + 2 and set(rows[1]) <= set("|- :")
        case "items":
            return sum(re.match(r"(- |\* |\d+\. )\S", line) is not None for line in lines) == int(number)
    raise ExpectationError(f"~{part} is not known")
