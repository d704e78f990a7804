"""Full-text search over titles, tags and messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chatapp.lookup import find
from chatapp.store import Conversation, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path / "conversations.db")
    yield one
    one.close()


def said(store: Store, *texts: str, title: str = "") -> Conversation:
    made = store.create(title)
    parent = None
    for number, text in enumerate(texts):
        parent = store.add(made.id, parent, "assistant" if number % 2 else "user", text).id
    return made


def found(store: Store, query: str) -> list[str]:
    return [hit.conversation.id for hit in find(store, query)]


@pytest.mark.parametrize(
    "query",
    ["ship", "SHIP sails", "shi", "creme", "crème", "sails ship", "“ship”", "ship* (", "c++ ship", "sails at"],
)
def test_words_are_found_whatever_their_case_accents_and_signs(store: Store, query: str) -> None:
    made = said(store, "A c++ ship sails at noon with Crème.", "Does it?")
    said(store, "nothing of the kind")
    assert found(store, query) == [made.id]


@pytest.mark.parametrize("query", ["", "   ", "ship whale", "hip", '"', "*", "(", "#ship"])
def test_what_is_not_there_is_not_found_and_nothing_breaks(store: Store, query: str) -> None:
    said(store, "A ship sails at noon.")
    assert found(store, query) == []


def test_the_newest_message_is_shown_with_what_was_found(store: Store) -> None:
    made = said(store, "a ship", "no", "long before the other " * 20 + "Ships sail " + "and after " * 20)
    [hit] = find(store, "ship")
    assert hit.conversation.id == made.id
    assert hit.node == store.thread(made.id)[-1].id
    assert [hit.snippet[start:end] for start, end in hit.marks] == ["Ships"]
    assert len(hit.snippet) < 200


@pytest.mark.parametrize("query", ["世界", "天气 世界", "界"])
def test_scripts_without_spaces_are_searched_letter_by_letter(store: Store, query: str) -> None:
    made = said(store, "你好世界，今天天气很好")
    said(store, "别的")
    [hit] = find(store, query)
    assert hit.conversation.id == made.id
    assert query.split()[0] in [hit.snippet[start:end] for start, end in hit.marks]


def test_titles_and_tags_are_found_too(store: Store) -> None:
    titled = said(store, "x", title="Über Schiffe")
    tagged = said(store, "y")
    store.tag(tagged.id, ["Schiffe", "2026"])
    assert found(store, "schiff") == [tagged.id, titled.id]
    assert found(store, "#schiff") == [tagged.id]
    assert found(store, "uber") == [titled.id]


def test_those_last_written_to_come_first_and_deleted_ones_not_at_all(store: Store) -> None:
    one, two, three = (said(store, f"a ship {number}") for number in range(3))
    store.add(one.id, store.thread(one.id)[-1].id, "assistant", "again")
    assert found(store, "ship") == [one.id, three.id, two.id]
    store.delete(three.id)
    assert found(store, "ship") == [one.id, two.id]


def test_a_reply_is_found_as_it_stands_in_the_end(store: Store) -> None:
    made = said(store, "q")
    reply = store.add(made.id, None, "assistant", "", status="partial")
    store.write_partial(reply.id, "the whale", "")
    assert found(store, "whale") == [made.id]
    store.finish(reply.id, "the shark", "")
    assert found(store, "whale") == []
    assert found(store, "shark") == [made.id]
    store.delete(made.id)
    store.purge(-1, [made.id])
    with store.reading() as sql:
        assert sql.execute("SELECT count(*) FROM words WHERE words MATCH 'shark'").fetchone() == (0,)
