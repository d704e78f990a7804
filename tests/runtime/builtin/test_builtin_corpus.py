"""The generator: seeded, well formed, right, and apart from the held-out dialogues."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from builtin_dialogues import STAGES, many, unwrapped

from runtime.builtin.corpus import (
    app,
    fillings,
    frames,
    memory,
    outside,
    recall,
    statements,
    sums,
    units,
    values,
)
from runtime.builtin.corpus.dialogue import Dialogue, Turn, segments
from runtime.builtin.corpus.grammar import Phrases, expand, gerund, normal, third_person
from runtime.builtin.corpus.mix import BY_NAME, INTENTS, dialogue
from runtime.builtin.corpus.registry import World
from runtime.builtin.prompt import render

FRAMES = 700  # statements at the least


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_seed_gives_the_same_dialogues(world: World, stage: str) -> None:
    assert many(world, 50, stage) == many(world, 50, stage)
    assert many(world, 50, stage) != many(world, 50, stage, seed=8)


@pytest.mark.parametrize("stage", STAGES)
def test_segments_are_the_text_of_the_chat_template(world: World, stage: str) -> None:
    for d in many(world, 200, stage):
        assert "".join(s.text for s in segments(d)) == render(d.messages(), preserve=d.preserve)


@pytest.mark.parametrize("stage", STAGES)
def test_a_prompt_of_the_last_turn_begins_its_document(world: World, stage: str) -> None:
    for d in many(world, 100, stage):
        prompt = render(d.messages()[:-1], thinking=d.thinking[-1], preserve=d.preserve)
        text = "".join(s.text for s in segments(d))
        assert text.startswith(prompt)
        assert text[len(prompt) :].rstrip("\n").endswith("<|im_end|>")


def test_no_text_is_loose_at_its_ends_or_holds_control_tokens(world: World) -> None:
    for d in many(world):
        for turn in d.turns:
            for text in (turn.user, turn.reply, turn.thought, turn.plain or "x"):
                assert text and text == text.strip()
                assert "<|" not in text and "think>" not in text
                assert not re.search(r"\{\w+\}|[\[\]]\w+\|", re.sub("`[^`]*`", "", text)), text


def test_a_reply_that_needs_a_dropped_thought_is_not_learnt() -> None:
    turn = Turn("7 + 8", "7 + 8 = 15", "ones: 7 + 8 = 15", plain="ones: 7 + 8 = 15\nSo 7 + 8 = 15.")
    weights = {s.text: s.weight for s in segments(Dialogue((turn, turn), (True, False)))}
    assert weights["7 + 8 = 15<|im_end|>"] == 0
    assert weights["ones: 7 + 8 = 15\nSo 7 + 8 = 15.<|im_end|>"] == 1


@pytest.mark.parametrize("name", [i.name for i in sums.INTENTS])
def test_arithmetic_is_right_in_every_line(world: World, name: str) -> None:
    r = Random(name)
    for _ in range(400):
        turn = BY_NAME[name].make(r, world)
        for line in f"{turn.thought}\n{turn.reply}\n{turn.plain}".splitlines():
            check_equation(line)


def check_equation(line: str) -> None:
    """Every `expression = number` of a line of working holds."""
    line = line.split(": ", 1)[-1].removeprefix("So ").rstrip(".")
    line = re.sub(r", (write|borrow|carry).*", "", line)
    match = re.fullmatch(r"([\d+\-×÷ ]+) = (-?\d+)(?:, plus (\d+) = (\d+))?( remainder (\d+))?", line)
    if match is None:
        return
    left, value = match[1].replace("×", "*"), int(match[2])
    if "÷" in left:
        a, b = map(int, left.split("÷"))
        assert (a // b, a % b) == (value, int(match[6] or 0))
    else:
        assert eval(left) == value, line
    if match[3]:
        assert value + int(match[3]) == int(match[4]), line


def test_columns_agree_with_python() -> None:
    r = Random(1)
    for _ in range(500):
        a, b, d = r.randint(0, 9999), r.randint(0, 9999), r.randint(0, 9)
        assert written(sums.add_steps(a, b)) == a + b
        assert written(sums.subtract_steps(max(a, b), min(a, b))) == abs(a - b)
        assert written(sums.multiply_steps(a, d)) == a * d


def written(steps: list[str]) -> int:
    """The number that the steps write, digit by digit."""
    last = int(re.findall(r"= (\d+)", steps[-1])[-1])
    total = last * 10 ** (len(steps) - 1)
    for i, step in enumerate(steps[:-1]):
        digit = re.search(r"write (\d)", step) or re.search(r"= (\d), borrow", step)
        assert digit is not None
        total += int(digit[1]) * 10**i
    return total


def test_numbers_are_spelt_as_in_english() -> None:
    spelt = {0: "zero", 13: "thirteen", 20: "twenty", 42: "forty-two", 99: "ninety-nine", 100: "one hundred"}
    spelt |= {305: "three hundred and five", 999: "nine hundred and ninety-nine"}
    assert {n: sums.in_words(n) for n in spelt} == spelt


def test_two_digit_sums_carry_and_borrow_in_every_second(world: World) -> None:
    for name, mark in (("addition", "carry 1"), ("subtraction", "borrow 1")):
        r = Random(11)
        turns = [BY_NAME[name].make(r, world) for _ in range(1000)]
        lines = [line for t in turns for line in t.thought.splitlines() if line.startswith("ones")]
        assert 400 < sum(mark in line for line in lines if "," in line) < 600
        assert sum(max(map(int, re.findall(r"\d+", t.thought.splitlines()[0]))) < 100 for t in turns) > 600


def test_conversions_are_right(world: World) -> None:
    r = Random(3)
    known = {u: c for c in units.CONVERSIONS for u in (*c.large[:2], *c.small[:2])}
    for _ in range(300):
        turn = BY_NAME["conversion"].make(r, world)
        match = re.fullmatch(r"(\d+) (\S+) = (\d+) (\S+)", turn.reply)
        assert match is not None
        a, x, b, y = int(match[1]), match[2], int(match[3]), match[4]
        (c,) = [c for c in units.CONVERSIONS if x in (*c.large, *c.small) and y in (*c.large, *c.small)]
        assert a * c.factor == b if x in c.large else a == b * c.factor
        assert x in known


def test_letters_are_counted_right(world: World) -> None:
    r = Random(4)
    for _ in range(200):
        letters = re.fullmatch(r"(\w+) has (\d+) letters\.", BY_NAME["length"].make(r, world).reply)
        assert letters is not None and len(letters[1]) == int(letters[2])
        count = re.fullmatch(r"The letter (.) occurs (.+) in (\w+)\.", BY_NAME["count"].make(r, world).reply)
        assert count is not None
        times = {"not once": 0, "once": 1, "twice": 2}.get(count[2]) if "times" not in count[2] else int(count[2][0])
        assert count[3].count(count[1]) == times


def test_a_hero_has_one_story(world: World) -> None:
    r = Random(6)
    told: dict[str, set[str]] = {}
    for _ in range(400):
        turn = BY_NAME["story"].make(r, world)
        name, hero = turn.thought.removesuffix(".").rpartition("The hero is ")[2].split(" the ")
        if name not in ("Once", "One", "From"):  # a made-up name may be a word of the story too
            told.setdefault(hero, set()).add(re.sub(rf"\b{name}\b", "NAME", turn.reply))
    assert len(told) == len(values.ANIMALS)
    assert all(len(stories) == 1 for stories in told.values())


def test_told_values_are_asked_back_as_last_told(world: World) -> None:
    r = Random(5)
    seen = 0
    for _ in range(1500):
        d = dialogue(r, world)
        told: dict[str, str] = {}
        for turn in d.turns:
            if met := re.fullmatch(r"Nice to meet you, (.+)!", turn.reply):
                told["your name"] = met[1]
            elif " Noted: " in f" {turn.reply}":
                for part in re.split(r"(?:, | and )(?=your |the )", turn.reply.partition("Noted: ")[2][:-1]):
                    subject, _, value = part.partition(" is ")
                    told[subject] = value.removeprefix("now ")
            elif turn.thought.startswith("The user told me: ") and (
                said := re.fullmatch(r"((?:Your|The) .+?) is (.+)\.", turn.reply)
            ):
                key = said[1][0].lower() + said[1][1:]
                if key in told:
                    assert told[key] == said[2]
                    seen += 1
    assert seen > 50


@pytest.mark.parametrize("stage", STAGES)
def test_every_quotation_is_what_the_user_said_before(world: World, stage: str) -> None:
    quotes = 0
    for d in many(world, 400, stage):
        for i, turn in enumerate(d.turns):
            if turn.reply.startswith("You told me: "):
                earlier = [t.user for t in d.turns[: max(i, 1)]]  # or in the one message that tells and asks
                for quote in re.findall(r'"([^"]+)"', turn.reply):
                    assert any(quote in message for message in earlier), quote
                    quotes += 1
                assert turn.thought == turn.reply.replace("You told me", "The user told me", 1)
    assert quotes > 50


def test_a_statement_is_answered_by_the_sentence_that_holds_its_value(world: World) -> None:
    r = Random(11)
    for frame in (*frames.FRAMES, *frames.INTRODUCTIONS):
        for statement in (*(statements.fill(r, world, frame) for _ in range(2)), statements.draw(r, world)):
            turn, told = statement.tell(r, world)
            assert turn.reply == statements.NOTED
            assert told.value in told.quote and told.quote in turn.user
            answer = told.ask(r)
            assert answer.reply == f'You told me: "{told.quote}".'
            assert all(told.sought not in ask.blanks for ask in told.asks)


def test_the_newest_of_two_values_is_answered(world: World) -> None:
    r = Random(12)
    for _ in range(500):
        item: memory.Told = memory.draw(r, world)
        _, old = item.tell(r, world)
        turn, new = old.correct(r, world, just_told=r.random() < 0.5)
        assert new.value in turn.user and new.value in new.ask(r).reply
        assert new.value != old.value or not new.value
        assert new.quote in turn.user


def test_a_short_question_means_one_statement_alone(world: World) -> None:
    """It asks for a sort of thing, of which there is one in what was told."""
    r = Random(14)
    short = {sort: [re.compile(p) for p in phrases.patterns()] for sort, phrases in statements.SHORT.items()}
    seen = 0
    for _ in range(400):
        one, *others = (s.tell(r, world)[1] for s in (statements.draw(r, world) for _ in range(3)))
        turn = one.ask_shortly(r, others)
        assert turn.reply == f'You told me: "{one.quote}".'
        sorts = {sort for sort, patterns in short.items() if any(p.fullmatch(normal(turn.user)) for p in patterns)}
        seen += bool(sorts)
        for sort in sorts:
            blanks = [b for s in (one, *others) for b in s.frame.blanks]
            assert sum(b.rstrip("23") in fillings.SORTS[sort] for b in blanks) == 1
    assert seen > 50


def test_a_wrong_value_is_answered_by_the_right_one(world: World) -> None:
    r = Random(15)
    for _ in range(200):
        _, told = statements.draw(r, world).tell(r, world)
        turn = told.confirm(r, world)
        assert told.value in told.quote and turn.reply == f'You told me: "{told.quote}".'


def test_things_told_together_have_questions_of_their_own(world: World) -> None:
    """No question for one thing, however asked, fits the words of another's question."""
    r = Random(13)
    for _ in range(300):
        told = [t for t in memory.several(r, world, 4) if isinstance(t, statements.Statement)]
        questions = [{fill_in(ask.template, t) for ask in t.asks} for t in told]
        for i, mine in enumerate(questions):
            assert mine and mine.isdisjoint(set().union(*questions[:i], *questions[i + 1 :]))


def fill_in(template: str, statement: statements.Statement) -> str:
    return normal(template.format(**dict(statement.fields)))


def test_what_was_not_told_is_not_in_the_dialogue(world: World) -> None:
    """A question that is answered by "not told" would not be answered by anything told, if only nearly."""
    r = Random(6)
    for _ in range(1500):
        known = [t.tell(r, world)[1] for t in memory.several(r, world, r.randint(0, 3))]
        turn = memory.ask_untold(r, world, known)
        assert turn.reply in (statements.UNTOLD, "You have not told me anything yet.")
        asked = normal(turn.user)
        for told in known:
            if isinstance(told, statements.Statement):
                assert unwrapped(asked).isdisjoint(fill_in(a.template, told) for a in told.asks), asked
            elif told.owner != "the":
                assert not re.search(rf"\b(my|our) {re.escape(normal(told.label))}$", asked), asked


def test_there_are_many_statements_and_many_ways_to_ask() -> None:
    assert len({frame.tell for frame in frames.FRAMES}) == len(frames.FRAMES) >= FRAMES
    assert all(len(frame.asks) >= 3 for frame in frames.FRAMES)


def test_the_blanks_of_questions_are_those_of_their_statement() -> None:
    for frame in (*frames.FRAMES, *frames.INTRODUCTIONS):
        for ask in frame.asks:
            assert ask.blanks <= set(frame.blanks), frame
            assert ask.template and "|" not in re.sub(r"\[[^\]]*\]", "", ask.template), frame


def test_every_intent_and_every_entry_of_the_tour_occurs(world: World) -> None:
    r = Random(2)
    replies = [BY_NAME[name].make(r, world).reply for name in ("what_is_it", "how_to") for _ in range(2500)]
    for entry in world.tour.entries:
        assert any(f"`{entry.name}`" in reply for reply in replies), entry.name
    for intent in INTENTS:
        assert intent.make(r, world).reply


def test_lists_hold_each_thing_once() -> None:
    for name, items in outside.LISTS.items():
        assert all(items) and len(set(items)) == len(items), name


def test_intents_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(INTENTS)


def test_a_word_that_is_not_heard_leaves_no_space_and_the_wish_whole(world: World) -> None:
    r = Random(12)
    shorter = 0
    for _ in range(2000):
        frame = r.choice(app.FRAMES["how"].templates)
        whole = expand(r, frame, {"i": "delete a chat", "k": "key"}, ("i",))
        text = "".join(p.text for p in app._half_heard(r, whole, "delete a chat"))
        shorter += len(text.split()) == len("".join(p.text for p in whole).split()) - 1
        assert "delete a chat" in text and text == text.strip() and "  " not in text, text
    assert shorter > 1900


def test_wishes_belong_to_entries(world: World) -> None:
    assert set(app.WISHES) | set(app.ASKED) <= {e.name for e in world.tour.entries}


def test_other_names_are_of_labels() -> None:
    labels = {label for slot in recall.SLOTS.values() for label in slot.labels}
    assert set(recall.SYNONYMS) <= labels
    assert all(name and name == name.strip() for names in recall.SYNONYMS.values() for name in names)


def test_things_whose_names_could_be_mistaken_are_not_told_together() -> None:
    label = "daughter's name"
    other = recall.SYNONYMS[label][0]
    told = recall.Fact("person", label, "Zoe")
    assert told.clashes(recall.Fact("person", label, "Ida"))
    assert told.clashes(recall.Fact("thing", other, "Ida"))
    assert not told.clashes(recall.Fact("thing", "boat", "Ida"))


def test_what_is_asked_belongs_to_one_answer(world: World) -> None:
    answers: dict[str, set[str]] = {}
    for entry in world.tour.entries:
        for question in app.ASKED.get(entry.name, Phrases("")).templates:
            answers.setdefault(normal(question), set()).add(app.advise(world.tour, entry))
    assert {question: found for question, found in answers.items() if len(found) > 1} == {}


def test_unlisted_keys_are_answered_honestly(world: World) -> None:
    r = Random(9)
    honest = Counter(BY_NAME["capital"].make(r, world).reply.startswith("I do not know") for _ in range(500))
    assert 20 < honest[True] < 150


def test_a_template_expands_and_matches_itself() -> None:
    phrases = Phrases("[can|could] you tell me {x}[ please|]")
    r = Random(0)
    texts = {"".join(p.text for p in expand(r, phrases.templates[0], {"x": "the time"})) for _ in range(50)}
    assert texts == {f"{a} you tell me the time{b}" for a in ("can", "could") for b in (" please", "")}
    assert all(phrases.matches(t.upper() + "?") for t in texts)
    assert phrases.matches("can you tell me 42", {"x": r"\d+"})
    assert not phrases.matches("can you tell me it", {"x": r"\d+"})
    assert not phrases.matches("would you tell me the time")


def test_verbs_are_inflected_as_in_english() -> None:
    verbs = {"delete": "deleting", "see": "seeing", "stop": "stopping", "copy": "copying", "tie": "tying"}
    assert {v: gerund(v) for v in verbs} == verbs
    verbs = {"delete": "deletes", "copy": "copies", "fix": "fixes", "go": "goes", "have": "has", "display": "displays"}
    assert {v: third_person(v) for v in verbs} == verbs
    forms = app.forms({"do": "[get rid of|drop] the {x}\nmake it dark"})
    assert forms["doing"].templates == ("[getting rid of|dropping] the {x}", "[making] it dark")
    assert forms["does"].templates == ("[gets rid of|drops] the {x}", "[makes] it dark")


def test_values_stay_as_they_are_under_typing_noise() -> None:
    r = Random(0)
    phrases = Phrases("please remember the following word: {v}")
    assert all("aWkWaRd-Value77" in phrases.typed(r, {"v": "aWkWaRd-Value77"}) for _ in range(500))
