"""The store of conversations, also under several processes, kills and damage."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chatapp.store import AmbiguousError, Node, Store, StoreError
from chatapp.thread import messages
from runtime.protocol import Message


class Clock:
    """Each look at it is one second later."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    one = Store(path, Clock())
    yield one
    one.close()


def texts(nodes: list[Node]) -> list[str]:
    return [node.content for node in nodes]


# Conversations


def test_a_new_conversation_is_empty_and_can_be_found(store: Store) -> None:
    made = store.create(model="/m/q.gguf")
    assert (made.title, made.name, made.head, made.model) == ("", None, None, "/m/q.gguf")
    assert store.get(made.id) == made
    assert store.thread(made.id) == []


def test_a_name_belongs_to_one_conversation(store: Store) -> None:
    made = store.create(name="work")
    assert store.by_name("work") == made
    with pytest.raises(StoreError, match="named 'work' already"):
        store.create(name="work")
    assert store.named("work") == made
    assert store.named("home").name == "home"


def test_what_does_not_exist_is_none(store: Store) -> None:
    assert store.get("x") is None
    assert store.by_name("x") is None
    assert store.latest() is None
    assert store.conversations() == []


def test_find_takes_a_name_an_id_or_the_beginning_of_one(store: Store) -> None:
    first, second = store.create(name="work"), store.create()
    assert store.find("work") == first
    assert store.find(second.id) == second
    length = next(n for n in range(1, 32) if first.id[:n] != second.id[:n])
    assert store.find(second.id[:length]) == second
    assert store.find("") is None
    assert store.find("%") is None


def test_find_takes_a_title_or_the_beginning_of_one_if_it_is_of_one_conversation_only(store: Store) -> None:
    marigold, river, rivers, straße = (
        store.create(title) for title in ("My name is Marigold.", "Name a river", "Name a river in Spain", "Straße…")
    )
    assert store.find("my NAME  is marigold.") == marigold
    assert store.find("name a river") == river  # the whole title of one, though another begins so
    assert store.find("name a river i") == store.find("Name a river in S…") == rivers
    assert store.find("STRASSE") == straße
    assert store.find("a river") is None
    assert store.find("\N{HORIZONTAL ELLIPSIS}") is None
    named = store.create(name="Name a")
    assert store.find("Name a") == named  # a name comes before the beginning of a title
    assert store.find(river.id) == river
    store.delete(marigold.id)
    assert store.find("My name is Marigold.") is None


def test_several_conversations_of_a_title_are_listed_by_their_ids(store: Store) -> None:
    first, second = store.create("Rivers"), store.create("rivers")
    with pytest.raises(AmbiguousError, match=r"'RIVERS' fits 2 conversations: .* Give the id in place") as told:
        store.find("RIVERS")
    assert all(f"{each.id[:8]} ({each.title}, " in str(told.value) for each in (first, second))
    assert store.find(first.id[:8]) == first
    for _ in range(5):
        store.create("River Tejo")
    with pytest.raises(AmbiguousError, match=r"'Riv' fits 7 conversations: .* and 2 more[.] Give"):
        store.find("Riv")


def test_the_last_written_to_comes_first(store: Store) -> None:
    first, second, third = (store.create() for _ in range(3))
    store.add(second.id, None, "user", "hello")
    assert [c.id for c in store.conversations()] == [second.id, third.id, first.id]
    assert [c.id for c in store.conversations(limit=1, offset=1)] == [third.id]
    latest = store.latest()
    assert latest is not None
    assert latest.id == second.id


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  What is\ta  hybrid?\nMore.", "What is a hybrid?"),
        ("\n\n  second line", "second line"),
        ("x" * 100, "x" * 79 + "…"),
        (" \n ", ""),
    ],
)
def test_the_first_question_names_the_conversation(store: Store, text: str, title: str) -> None:
    made = store.create()
    store.add(made.id, None, "user", text)
    store.add(made.id, None, "assistant", "answer")
    assert store.conversations()[0].title == title


def test_a_title_once_given_stays(store: Store) -> None:
    made = store.create()
    store.rename(made.id, "Mine")
    store.add(made.id, None, "user", "hello")
    assert store.conversations()[0].title == "Mine"


def test_delete_takes_the_messages_along_and_no_others(store: Store, path: Path) -> None:
    made, other = store.create(), store.create()
    for one in (made, other):
        asked = store.add(one.id, None, "user", "hello")
        store.add(one.id, asked.id, "assistant", "hi")
    store.delete(made.id)
    assert store.get(made.id) is None
    store.purge(0, [made.id, other.id])
    assert store.deleted() == []
    assert texts(store.thread(other.id)) == ["hello", "hi"]
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM nodes").fetchone() == (2,)
    with pytest.raises(StoreError, match="was deleted"):
        store.add(made.id, None, "user", "still there?")


def test_a_deleted_conversation_can_be_brought_back_with_its_name(store: Store) -> None:
    made = store.create(name="work")
    store.add(made.id, None, "user", "hello")
    store.delete(made.id)
    assert store.by_name("work") is store.find("work") is store.latest() is None
    assert [each.id for each in store.deleted()] == [made.id]
    store.undelete(made.id)
    assert store.by_name("work") == store.latest()
    assert texts(store.thread(made.id)) == ["hello"]
    store.delete(made.id)
    other = store.create(name="work")
    store.undelete(made.id)
    found = store.get(made.id)
    assert found is not None
    assert found.name is None
    assert store.by_name("work") == other


def test_what_was_deleted_long_ago_is_removed(store: Store) -> None:
    first, second = store.create(), store.create()
    for each in (first, second):
        store.add(each.id, None, "user", "hello")
    store.delete(first.id)
    store._clock.now += 100  # type: ignore[attr-defined]
    store.delete(second.id)
    assert store.expired(50) == [first.id]
    store.purge(50, [first.id, second.id])
    assert [each.id for each in store.deleted()] == [second.id]


def test_pins_and_tags(store: Store) -> None:
    made = store.create()
    store.pin(made.id, True)
    store.tag(made.id, ["  two  words ", "b", "b", " "])
    found = store.get(made.id)
    assert found is not None
    assert (found.pinned, found.tags) == (True, ("b", "two words"))
    store.tag(made.id, [])
    found = store.get(made.id)
    assert found is not None
    assert found.tags == ()


def test_a_title_of_the_model_gives_way_to_one_of_the_user(store: Store) -> None:
    made = store.create()
    store.add(made.id, None, "user", "the first words")
    for title, by, shown in [
        ("Model's", "model", "Model's"),
        ("Mine", "user", "Mine"),
        ("Again", "model", "Mine"),
        ("", "user", "the first words"),
    ]:
        store.rename(made.id, title, by)  # type: ignore[arg-type]
        found = store.get(made.id)
        assert found is not None
        assert found.title == shown
    store.add(made.id, None, "user", "other words")
    assert store.conversations()[0].title == "the first words"


# The tree


def test_a_message_keeps_all_that_is_said_of_it(store: Store) -> None:
    made = store.create()
    text = "a\x00b\n\u2028 世 👩‍👩‍👧 \x1b[31m"
    meta = {"stats": {"ttft_ms": 12.5}, "finish_reason": "length"}
    node = store.add(made.id, None, "assistant", text, "thought", "cancelled", False, meta)
    assert store.thread(made.id) == [node]
    assert (node.content, node.thought, node.status, node.thought_closed) == (text, "thought", "cancelled", False)
    assert node.meta == meta


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_its_character(store: Store) -> None:
    made = store.create(title="\udce4")
    node = store.add(made.id, None, "user", "a\udce4b \ud83d\ude00")
    assert store.thread(made.id)[0].content == node.content == "a\ufffdb 😀"


def test_branches_lie_side_by_side_and_the_head_chooses(store: Store) -> None:
    made = store.create()
    asked = store.add(made.id, None, "user", "q")
    first = store.add(made.id, asked.id, "assistant", "one")
    second = store.add(made.id, asked.id, "assistant", "two")
    assert texts(store.thread(made.id)) == ["q", "two"]
    assert texts(store.thread(made.id, first.id)) == ["q", "one"]
    assert store.children(made.id, asked.id) == [first, second]
    assert store.children(made.id, None) == [asked]
    store.set_head(made.id, first.id)
    assert texts(store.thread(made.id)) == ["q", "one"]


def test_a_thread_does_not_cross_into_another_conversation(store: Store) -> None:
    made, other = store.create(), store.create()
    asked = store.add(made.id, None, "user", "q")
    assert store.thread(other.id, asked.id) == []
    with pytest.raises(StoreError):
        store.add(other.id, asked.id, "assistant", "a")
    with pytest.raises(StoreError):
        store.set_head(other.id, asked.id)
    assert store.thread(other.id) == []


def test_a_partial_reply_grows_and_ends_once(store: Store) -> None:
    made = store.create()
    asked = store.add(made.id, None, "user", "q")
    reply = store.add(made.id, asked.id, "assistant", "", status="partial")
    store.write_partial(reply.id, "half", "thought")
    assert (store.thread(made.id)[-1].content, store.thread(made.id)[-1].status) == ("half", "partial")
    store.finish(reply.id, "whole", "thought", "complete", meta={"n": 1})
    done = store.thread(made.id)[-1]
    assert (done.content, done.status, done.meta) == ("whole", "complete", {"n": 1})
    store.write_partial(reply.id, "late", "")
    store.finish(reply.id, "later", "", "failed")
    assert store.thread(made.id)[-1] == done


def test_a_thread_of_two_thousand_messages_is_read_in_order(store: Store) -> None:
    made = store.create()
    parent = None
    with store.transaction():
        for number in range(2000):
            parent = store.add(made.id, parent, "user", str(number)).id
    assert texts(store.thread(made.id)) == [str(number) for number in range(2000)]


# What the model is sent


def node(role: str, content: str, thought: str = "", **changes: object) -> Node:
    return replace(Node(0, "c", None, role, content, thought), **changes)  # type: ignore[arg-type]


def test_messages_carry_thoughts_and_put_the_last_system_prompt_first() -> None:
    thread = [
        node("system", "be brief"),
        node("user", "q1"),
        node("assistant", "a1", "t1"),
        node("system", "be long"),
        node("user", "q2"),
    ]
    assert messages(thread) == (
        Message("system", "be long"),
        Message("user", "q1"),
        Message("assistant", "a1", "t1"),
        Message("user", "q2"),
    )


def test_an_emptied_system_prompt_is_none() -> None:
    assert messages([node("system", "be brief"), node("system", ""), node("user", "q")]) == (Message("user", "q"),)


def test_a_reply_stopped_in_its_thought_is_left_out_and_a_stopped_answer_is_not() -> None:
    thread = [
        node("user", "q1"),
        node("assistant", "", "unfinished", status="cancelled", thought_closed=False),
        node("user", "q2"),
        node("assistant", "half an", "t", status="cancelled"),
        node("user", "q3"),
    ]
    assert [message.content for message in messages(thread)] == ["q1", "q2", "half an", "q3"]


# Several windows, kills, threads


WRITER = """
import sys
from pathlib import Path
from chatapp.store import Store
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = Store(path)
shared = store.named("shared")
head = None
for number in range(count):
    head = store.add(shared.id, head, "user", f"{name} asks {number}").id
    reply = store.add(shared.id, head, "assistant", "", status="partial")
    store.write_partial(reply.id, "half", "")
    store.finish(reply.id, f"{name} hears {number}", "")
    head = reply.id
print(head)
store.close()
"""


def test_two_windows_on_one_file_lose_and_mix_nothing(path: Path) -> None:
    """They also open it, and thereby create it, at the same time."""
    count = 25
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = {
        name: subprocess.Popen([*command, name, str(count)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in ("left", "middle", "right")
    }
    heads = {}
    for name, process in writers.items():
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        heads[name] = int(out)
    store = Store(path)
    [shared] = store.conversations()
    assert shared.head in heads.values()
    for name, head in heads.items():
        expected = [f"{name} {verb} {number}" for number in range(count) for verb in ("asks", "hears")]
        assert texts(store.thread(shared.id, head)) == expected
    store.close()


def test_a_window_killed_in_a_reply_leaves_the_prompt_and_what_was_written(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from chatapp.store import Store\n"
        "store = Store(Path(sys.argv[1])); made = store.create(name='killed')\n"
        "asked = store.add(made.id, None, 'user', 'the prompt')\n"
        "reply = store.add(made.id, asked.id, 'assistant', '', status='partial')\n"
        "store.write_partial(reply.id, 'the answer so f', 'thought')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    store = Store(path)
    made = store.by_name("killed")
    assert made is not None
    prompt, reply = store.thread(made.id)
    assert prompt.content == "the prompt"
    assert (reply.content, reply.thought, reply.status) == ("the answer so f", "thought", "partial")
    store.close()


def test_opening_leaves_the_reply_that_another_window_is_writing_alone(store: Store, path: Path) -> None:
    made = store.create()
    reply = store.add(made.id, None, "assistant", "", status="partial")
    other = Store(path)
    assert other.thread(made.id)[0].status == "partial"
    other.close()
    store.finish(reply.id, "done", "")
    assert store.thread(made.id)[0].status == "complete"


def test_threads_may_share_a_store(store: Store) -> None:
    made = store.create()

    def write(name: str) -> None:
        for number in range(20):
            store.add(made.id, None, "user", f"{name}{number}")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts(store.children(made.id, None))) == sorted(f"{n}{i}" for n in "abc" for i in range(20))


def test_a_message_that_names_itself_as_the_one_before_ends_the_thread(tmp_path: Path) -> None:
    """Only damage makes such a circle; it must not hang whoever opens the conversation."""
    path = tmp_path / "conversations.db"
    store = Store(path)
    conversation = store.create()
    first = store.add(conversation.id, None, "user", "one")
    second = store.add(conversation.id, first.id, "assistant", "two")
    with sqlite3.connect(path) as sql:
        sql.execute("UPDATE nodes SET parent = id WHERE id = ?", (second.id,))
    assert [node.content for node in store.thread(conversation.id)] == ["two"]
    store.close()
