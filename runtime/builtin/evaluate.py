"""How good the built-in model is on held-out dialogues: `python -m runtime.builtin.evaluate --model FILE.gguf`.

Works on anything that answers: a callable from messages and thinking to thought and reply. Replies are greedy; the
model's own earlier replies, not written ones, stand in the conversation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runtime.builtin.corpus.tour import DEFAULT_TOUR, Tour, TourError, read_tour
from runtime.builtin.expectations import holds
from runtime.builtin.export import load_run
from runtime.builtin.generate import Generated, Generator, Request
from runtime.builtin.held_out import BOTH, DEVELOPMENT, HERE, SUBJECTS, Case, cases
from runtime.builtin.runtime_answers import RuntimeAnswers
from runtime.errors import UserError

Reply = Callable[[Sequence[dict[str, str]], bool], tuple[str, str]]


class Answers(Protocol):
    """What is evaluated: one reply per request."""

    def answer(self, requests: Sequence[Request]) -> list[Generated]: ...


@dataclass(frozen=True, slots=True)
class Single:
    """Makes `Answers` of a callable that answers one conversation."""

    reply: Reply

    def answer(self, requests: Sequence[Request]) -> list[Generated]:
        return [Generated(*self.reply(q.messages, q.thinking), ended=True, closed=True) for q in requests]


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    replies: tuple[Generated, ...]
    right: bool


def run(answers: Answers, chosen: Sequence[Case], tour: Tour) -> list[Outcome]:
    """Holds all dialogues, a turn of each at a time."""
    histories: list[list[dict[str, str]]] = [[] for _ in chosen]
    replies: list[list[Generated]] = [[] for _ in chosen]
    for turn in range(max((len(c.users) for c in chosen), default=0)):
        live = [i for i, c in enumerate(chosen) if turn < len(c.users)]
        for i in live:
            histories[i].append({"role": "user", "content": chosen[i].users[turn]})
        made = answers.answer([Request(tuple(histories[i]), chosen[i].thinking) for i in live])
        for i, m in zip(live, made, strict=True):
            replies[i].append(m)
            histories[i].append({"role": "assistant", "content": m.reply, "reasoning_content": m.thought})
    return [Outcome(c, tuple(r), holds(c.expectation, r[-1].reply, tour)) for c, r in zip(chosen, replies, strict=True)]


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares in per cent: right by subject and by section, replies that ended, thoughts that closed."""
    right: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    for o in outcomes:
        mode = ("/thinking" if o.case.thinking else "/plain") if o.case.subject in BOTH else ""
        for key in {o.case.subject, f"{o.case.subject}/{o.case.section}{mode}"}:
            right[key][o.right] += 1
    replies = [(o.case, r) for o in outcomes for r in o.replies]
    thoughts = [r.closed for c, r in replies if c.thinking]
    return {
        "right": {key: _share(n[True], n.total()) for key, n in sorted(right.items())},
        "ended": _share(sum(r.ended for _, r in replies), len(replies)),
        "closed": _share(sum(thoughts), len(thoughts)),
        "dialogues": len(outcomes),
    }


def _share(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.builtin.evaluate", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, help="the folder of a training run: its last checkpoint, in batches")
    source.add_argument("--model", type=Path, help="a GGUF file, through the runtime")
    parser.add_argument("--tour", type=Path, default=DEFAULT_TOUR, help="what the model was told of the app")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help=f"some of {','.join(SUBJECTS)}")
    told = "the development set: its failures may be read, and the grammar widened accordingly"
    parser.add_argument("--development", action="store_true", help=told)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth dialogue")
    parser.add_argument("--wrong", type=Path, help="write the dialogues that went wrong to this file")
    options = parser.parse_args(arguments)
    try:
        tour = read_tour(options.run / "tour.json" if options.run else options.tour)
        answers: Generator | RuntimeAnswers
        answers = Generator(*load_run(options.run)) if options.run else RuntimeAnswers(options.model)
    except (OSError, TourError, UserError) as error:
        print(error, file=sys.stderr)
        return 1
    folder = DEVELOPMENT if options.development else HERE
    outcomes = run(answers, cases(tour, options.subjects.split(","), folder)[:: options.every], tour)
    result = figures(outcomes)
    if isinstance(answers, Generator):
        result["acceptance"] = dataclasses.asdict(answers.acceptance([o.replies[-1] for o in outcomes]))
    else:
        result["acceptance"] = {"drafted": answers.drafted, "accepted": answers.accepted}
    print(json.dumps(result, indent=1))
    if options.wrong:
        options.wrong.write_text("\n\n".join(transcript(o) for o in outcomes if not o.right), encoding="utf-8")
    return 0


def transcript(outcome: Outcome) -> str:
    lines = [f"[{outcome.case.section}] == {outcome.case.expectation}"]
    for user, made in zip(outcome.case.users, outcome.replies, strict=True):
        thought = f"({made.thought!r}) " if made.thought else ""
        lines += [f"> {user}", f"  {thought}{made.reply!r}{'' if made.ended else ' …'}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
