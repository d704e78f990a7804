"""Other words for the same, corrections in free form, near misses, and turns that were misheard."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

from runtime.builtin.corpus import facts, frames, grammar, memory, statements
from runtime.builtin.corpus.dialogue import segments
from runtime.builtin.corpus.grammar import Piece, reworded
from runtime.builtin.corpus.mix import BY_NAME, dialogue
from runtime.builtin.corpus.registry import World


def test_a_thesaurus_gives_each_word_others() -> None:
    assert len(grammar.THESAURUS) > 600
    for word, others in grammar.THESAURUS.items():
        assert re.fullmatch(r"[a-z]+('[a-z]+)?", word), word
        assert others and word not in others and len(set(others)) == len(others), word
        assert all(re.fullmatch(r"[a-z][a-z' -]*", other) for other in others), word


def test_only_fixed_text_is_put_in_other_words() -> None:
    r = Random(1)
    fixed = "Delete the conversation "
    pieces = [Piece(fixed, False), Piece("delete conversation", True), Piece(" settings.toml", False)]
    seen: Counter[str] = Counter()
    for _ in range(400):
        first, *rest = reworded(r, pieces)
        assert rest == pieces[1:]
        seen[first.text] += 1
    assert len(seen) > 10
    assert "Remove the conversation " in seen and "Delete the chat " in seen
    assert seen[fixed] > 150  # most messages stay


def test_an_article_goes_with_the_word_behind_it() -> None:
    r = Random(2)
    texts = {reworded(r, [Piece("an animal", False)])[0].text for _ in range(200)}
    assert {"an animal", "a creature"} <= texts
    assert not any(re.search(r"\ban [^aeiou]|\ba [aeiou]", text) for text in texts)


def test_corrections_name_the_blank_that_they_correct() -> None:
    assert len(frames.CORRECTED) > 300
    for frame in frames.CORRECTED:
        (blank,) = frame.blanks
        assert len(frame.corrections) >= 2
        assert all(frames.blanks(c) == {blank} for c in frame.corrections), frame.tell
        assert all(not ask.blanks for ask in frame.asks), frame.tell


def test_a_correction_out_of_the_blue_says_what_it_is_about(world: World) -> None:
    """One that holds nothing but the value is for what was said last."""
    dentist = next(f for f in frames.CORRECTED if len(f.corrections_apart) < len(f.corrections))
    r = Random(3)
    told = statements.fill(r, world, dentist)
    patterns = [re.sub(r"\\{\w+\\}", ".+", re.escape(c)) for c in {*dentist.corrections} - {*dentist.corrections_apart}]
    for _ in range(100):
        turn, new = told.correct(r, world, just_told=False)
        assert new.value != told.value and new.value in turn.user
        assert not any(re.fullmatch(p, turn.user.rstrip("."), re.I) for p in patterns), turn.user


def test_of_two_things_of_one_sort_each_has_its_own_questions(world: World) -> None:
    r = Random(4)
    found = 0
    while found < 200:
        told = statements.draw(r, world)
        pair = statements.rival(r, world, told)
        if pair is None or not (word := pair[1].frame.word):
            continue
        found += 1
        (named,) = (
            w for w in told.frame.named if word in frames.SIBLINGS[w] and not frames.holds(pair[1].frame.tell, w)
        )
        assert all(frames.holds(ask.template, named) for ask in pair[0].asks)
        assert all(frames.holds(ask.template, word) for ask in pair[1].asks)
        assert pair[1].tells_apart(told) == (word not in told.words)


def test_what_was_misheard_is_context_and_not_learnt(world: World) -> None:
    r = Random(5)
    misheard = 0
    for _ in range(900):
        drawn = dialogue(r, world)
        assert drawn.turns[-1].weight > 0
        for turn in drawn.turns:
            if turn.weight == 0:
                misheard += 1
                assert drawn.subject in ("recall", "drill")
        if any(turn.weight == 0 for turn in drawn.turns):
            learnt = sum(turn.weight > 0 for turn in drawn.turns)
            assert len({s.text for s in segments(drawn) if s.weight}) <= learnt
    assert misheard > 8


def test_what_was_told_is_quoted_though_it_was_misheard(world: World) -> None:
    r = Random(6)
    filler = lambda: BY_NAME["weather"].make(r, world)  # noqa: E731
    for _ in range(300):
        turns, _ = memory.dialogue(r, world, "all", filler)
        told = " ".join(turn.user for turn in turns)
        for turn in turns:
            if turn.weight and turn.reply.startswith('You told me: "'):
                assert all(quote in told for quote in re.findall('"([^"]*)"', turn.reply))


def test_other_forms_of_a_key_are_asked_for_like_the_key(world: World) -> None:
    for name, family in facts.FAMILIES.items():
        keys = {key.removeprefix("a ").removeprefix("an ") for key, _ in family.pairs}
        for ask in family.asks:
            if ask.forms:
                assert keys <= set(ask.forms), name
                assert all("{f}" in t for t in ask.formed.templates), name
    r = Random(7)
    users = [(t.user.lower(), t.reply) for t in (BY_NAME["capital"].make(r, world) for _ in range(8000))]
    assert any("peruvian" in user and "Lima" in reply for user, reply in users)
    assert all("Lima" in reply for user, reply in users if "peruvian" in user)
