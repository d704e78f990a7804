"""The held-out dialogues: apart from what the generator can say, and enough."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from types import ModuleType

import pytest
from builtin_dialogues import KINDS, STAGES, many, unwrapped

from runtime.builtin.corpus import (
    app,
    code,
    events,
    facts,
    fillings,
    frames,
    markup,
    outside,
    recall,
    spelling,
    statements,
    stories,
    sums,
    talk,
    units,
    values,
)
from runtime.builtin.corpus.grammar import Phrases, normal
from runtime.builtin.corpus.registry import World
from runtime.builtin.held_out import SUBJECTS, cases


def one_of(texts: Iterable[str]) -> str:
    return "|".join(sorted({re.escape(normal(t)) for t in texts}))


def blanks_of_statements() -> dict[str, str]:
    """What the blanks can hold, as patterns."""
    some_words = r"[\w'-]+( [\w'-]+){0,4}"
    kinds = dict.fromkeys(fillings.MADE, some_words) | {
        kind: one_of(items) + (r"|[\w'-]+" if kind in fillings.WITH_MADE_UP else "")
        for kind, items in fillings.LISTS.items()
    }
    return {f"{kind}{i}": pattern for i in ("", "2", "3") for kind, pattern in kinds.items()}


def questions_of_statements() -> dict[str, dict[str, list[tuple[str, re.Pattern[str]]]]]:
    """Per kind of wrapper, by first word: ways of asking, and what they can read."""
    fields = blanks_of_statements()
    result: dict[str, dict[str, list[tuple[str, re.Pattern[str]]]]] = {kind: {} for kind in statements.WRAPPERS}
    for frame in (*frames.FRAMES, *frames.INTRODUCTIONS):
        for ask in frame.asks:
            first = "" if ask.template[0] in "{[" else normal(ask.template).split()[0]
            (pattern,) = Phrases([ask.template]).patterns(fields)
            result[ask.kind].setdefault(first, []).append((ask.template, re.compile(pattern)))
    return result


@cache
def questions_of_events() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Questions, and what they can read with any verb and any object."""
    fields = blanks_of_statements()
    objects = {p for verb in events.VERBS for p in Phrases([verb.object]).patterns(fields)}
    parts = {
        "s": "|".join(p for subject in events.SUBJECTS for p in Phrases([subject]).patterns(fields)),
        "b": f"(?P<b>{one_of(verb.base for verb in events.VERBS)})",
        "p": f"(?P<p>{one_of(w for verb in events.VERBS for w in (verb.past, f'will {verb.base}'))})",
        "o": f"(?P<o>{'|'.join(('', *sorted(objects)))})",
        "d": "did|will",
    }
    return tuple((q, re.compile(Phrases([q]).patterns(parts)[0])) for q in events.QUESTIONS)


def asked_of_an_event(question: str) -> list[str]:
    """The verbs, with their objects, in whose questions `question` could be."""
    fields = blanks_of_statements()
    found = []
    for _, pattern in questions_of_events():
        if match := pattern.fullmatch(question):
            groups = {"b": None, "p": None, "o": None} | match.groupdict()
            for verb in events.VERBS:
                said = groups["b"] in (verb.base,) or groups["p"] in (verb.past, f"will {verb.base}")
                objects = Phrases([verb.object or "-"]).patterns(fields)
                if said and (not groups["o"] or any(re.fullmatch(p, groups["o"].strip()) for p in objects)):
                    found.append(f"{verb.base} {verb.object}")
    return found


def asked_by_the_grammar(text: str, questions: dict[str, dict[str, list[tuple[str, re.Pattern[str]]]]]) -> list[str]:
    """Ways of asking for a statement that could read as `text`, in any wrapper."""
    return [
        template
        for q in unwrapped(text)
        for by_word in questions.values()
        for first in (q.split()[0], "")
        for template, pattern in by_word.get(first, [])
        if pattern.fullmatch(q)
    ] + [verb for q in unwrapped(text) for verb in asked_of_an_event(q)]


def own_grammar(world: World) -> dict[str, list[tuple[Phrases, dict[str, str]]]]:
    """Per subject the phrasings that could make its messages, with what their fields can hold."""
    words = r"[\w'-]+( [\w'-]+)*"
    spelt = rf"(?:{'|'.join((*sums.SMALL, *sums.TENS, 'hundred', 'and'))})"
    number = rf"(?:\d+|{spelt}(?:[- ]{spelt})*)"
    operation = r"(\+|-|−|\*|x|×|/|:|÷|plus|minus|times|and|divided by)"
    numbers = {"a": number, "b": number, "n": r"\w+", "m": r"\w+", "x": r"\w+", "e": f"{number} ?{operation} ?{number}"}
    named = [label for slot in recall.SLOTS.values() for label in slot.labels]
    labels = one_of([*named, *(other for label in named for other in recall.SYNONYMS.get(label, ()))])
    told = {"o": "my|the", "l": rf"{labels}|({'|'.join(recall.SHARED)}) of the \w+", "v": words}
    names = {"c": one_of(e.name for e in world.tour.entries), "k": KINDS}
    known = {
        ask.phrases: {"k": one_of(k for k, _ in family.pairs), "v": one_of(v for _, v in family.pairs)}
        for family in facts.FAMILIES.values()
        for ask in family.asks
    }
    unit_names = one_of(u for c in units.CONVERSIONS for u in (*c.large, *c.small))
    tasks = "|".join(
        normal(re.escape(task.strip()).replace(r"\{n\}", number).replace(r"\{w\}", r"\w+").replace(r"\{W\}", r"\w+"))
        for snippet in code.SNIPPETS
        for task in snippet["tasks"].split("|")
    )
    shapes = {
        "n": one_of((*map(str, markup.COUNTS), *markup.COUNTS.values())),
        "c": one_of(markup.CATEGORIES),
        "k": one_of([title for title, *_ in markup.COLUMNS.values()]),
        "d": number,
    }

    lists = {name: one_of(items) for name, items in (outside.LISTS | outside.KNOWN).items()}
    fields_of = {"topic": "topics", "adjective": "adjectives", "verb": "verbs", "person": "people", "place": "places"}
    fields_of |= {"work": "works", "language": "languages", "country": "countries", "element": "elements"}
    beyond = {field: lists[name] for field, name in fields_of.items()}
    beyond |= {f"{field}2": lists[fields_of[field]] for field in ("topic", "person", "place")}
    beyond |= {"job": one_of(values.JOBS), "food": one_of(values.FOODS), "animal": one_of(outside.ANIMALS)}
    beyond |= {"n": r"\d+", "m": r"\d+", "year": r"\d+", "d": r"\d", "e": r"\d"}
    beyond |= dict.fromkeys(("date", "clock", "words"), "(?!)")  # drawn afresh

    def all_of(module: ModuleType, fields: dict[str, str]) -> list[tuple[Phrases, dict[str, str]]]:
        return [(p, fields) for p in vars(module).values() if isinstance(p, Phrases)]

    return {
        "recall": [
            *((p, told) for p in (recall.ASK, *(slot.ask for slot in recall.SLOTS.values()))),
        ],
        "sums": [(p, numbers) for p in sums.PHRASES.values()],
        "app": [
            *((app.FRAMES[frame], names) for frame in ("what", "press", "setting", "usage", "key_of")),
            *((p, {}) for p in (*app.ASKED.values(), *talk.PHRASES.values())),
        ],
        "facts": [*known.items(), *((p, {}) for _, p in facts.SINGLES)],
        "talk": [(p, {}) for p in talk.PHRASES.values()],
        "words": [
            *all_of(spelling, {"w": r"[\w'\"]+", "c": r"\w", "p": r"\w+", "q": r"\w+", "t": words}),
            *all_of(units, {"n": number, "x": unit_names, "y": unit_names}),
            *all_of(stories, {"x": words, "t": words}),
        ],
        "markup": [
            *all_of(code, {"i": tasks, "l": one_of(snippet["language"] for snippet in code.SNIPPETS)}),
            *all_of(markup, shapes),
        ],
        "outside": [(p, beyond) for p in (*outside.PHRASES.values(), *outside.BEYOND.values())],
    }


def wish_clashes(wishes: Iterable[dict[str, Phrases]], questions: Iterable[str]) -> list[tuple[str, str]]:
    """Frame and wish of the how-to questions among `questions`: matched in two steps, since all pairs are too many."""
    clashes = []
    for form, (frame, field) in app.FRAME_OF.items():
        frames = [re.compile(p) for p in app.FRAMES[frame].patterns({field: "(?P<wish>.+)", "k": KINDS})]
        texts = [t for forms in wishes if form in forms for t in forms[form].templates]
        patterns = [(t, re.compile(Phrases([t]).patterns()[0])) for t in texts]
        for question in questions:
            for m in filter(None, (f.fullmatch(normal(question)) for f in frames)):
                clashes += [(m.re.pattern, t) for t, p in patterns if p.fullmatch(m["wish"])]
    return clashes


LARGE = ("app", "facts", "recall", "outside")  # as many phrasings take a while


@pytest.mark.parametrize("subject", [pytest.param(s, marks=pytest.mark.slow) if s in LARGE else s for s in SUBJECTS])
def test_no_held_out_question_is_a_phrasing_of_the_grammar(world: World, subject: str) -> None:
    """Bare sums aside: 6 + 7 has one phrasing. Says which phrasing clashes, and never the question."""
    questions = {c.users[-1] for c in cases(world.tour, [subject])}
    worded = [normal(q) for q in questions if re.search("[a-z]", q)]
    clashes: list[object] = []
    for phrases, fields in own_grammar(world)[subject]:
        patterns = zip(phrases.templates, phrases.patterns(), phrases.patterns(fields), strict=True)
        for (
            template,
            loose,
            exact,
        ) in patterns:  # most questions fail with anything in the fields: those patterns are short
            near = list(filter(re.compile(loose).fullmatch, worded))
            clashes += [template] * any(re.fullmatch(exact, q) for q in near)
    if subject == "app":
        clashes += wish_clashes(app.WISHES.values(), questions)
    if subject == "outside":
        clashes += wish_clashes(outside.WISHES.values(), questions)
    if clashes:
        pytest.fail(f"{len(clashes)} phrasings to be worded differently: {clashes}", pytrace=False)


@pytest.mark.slow
def test_no_held_out_question_is_asked_for_a_statement(world: World) -> None:
    questions = questions_of_statements()
    assert "where is the {spare}" in asked_by_the_grammar("Hey, where is the drill?", questions)
    assert "buy a {gift}" in asked_by_the_grammar("So where did we buy a kite?", questions)
    assert "camp " in asked_by_the_grammar("I forgot where we camped", questions)
    held_out = {question for case in cases(world.tour, ["recall"]) for question in case.users}
    clashes = sorted({template for question in held_out for template in asked_by_the_grammar(question, questions)})
    if clashes:
        pytest.fail(f"{len(clashes)} questions to be worded differently: {clashes}", pytrace=False)


def test_the_generator_never_utters_a_held_out_message(world: World) -> None:
    """Nor one that differs in its marks only."""
    assert len(world.reserved) > 600
    for seed, stage in enumerate(STAGES):
        for d in many(world, 1500 if stage == "all" else 300, stage, seed):
            assert world.reserved.isdisjoint(normal(turn.user) for turn in d.turns)


def test_a_reserved_message_is_drawn_again(world: World) -> None:
    said = Counter(normal(t.user) for d in many(world, 300) for t in d.turns)
    (common, _), *_ = said.most_common()
    without = dataclasses.replace(world, reserved=world.reserved | {common})
    assert all(normal(t.user) != common for d in many(without, 300) for t in d.turns)


def test_the_held_out_set_is_large_enough(world: World) -> None:
    distinct = {c.users for c in cases(world.tour, [s for s in SUBJECTS if s != "outside"])}
    assert len(distinct) >= 600
    assert len(cases(world.tour, ["outside"])) >= 200


def test_held_out_values_are_not_listed(world: World) -> None:
    listed = {
        w.lower()
        for w in (*values.NAMES, *values.FOREIGN_NAMES, *values.TOWNS, *values.JOBS, *values.HOBBIES, *values.COLOURS)
    }
    for case in cases(world.tour, ["recall"]):
        assert case.expectation.lower() not in listed, case.expectation
