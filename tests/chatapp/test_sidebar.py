"""The list of conversations beside the chat, and the commands that do the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_backend import FakeBackend, say
from harness import Chat, here, running
from textual.widgets import Input

from chatapp.lookup import Hit
from chatapp.options import ChatOptions
from chatapp.sidebar import Sidebar, _age, _grouped
from chatapp.store import Conversation, Store


def saved(path: Path, *texts: str) -> list[Conversation]:
    store = Store(path / "conversations.db")
    made = []
    for text in texts:
        one = store.create()
        asked = store.add(one.id, None, "user", text)
        store.add(one.id, asked.id, "assistant", f"an answer about {text}")
        made.append(one)
    store.close()
    return made


async def opened(chat: Chat, key: str = "ctrl+b", words: str = "") -> None:
    await chat.pilot.press(key)
    await chat.until(lambda: chat.screen.sidebar is not None and words in chat.text())


@here("it asks for no reply")
async def test_a_key_shows_and_hides_it(tmp_path: Path) -> None:
    saved(tmp_path, "apples", "pears")
    async with running(FakeBackend(), tmp_path, size=(130, 30)) as chat:
        await opened(chat, words="pears")
        assert "Today" in chat.text()
        assert chat.text().index("pears") < chat.text().index("apples")
        await chat.pilot.press("escape")
        assert chat.screen.composer.has_focus
        assert "pears" in chat.text()
        await chat.pilot.press("ctrl+b")
        await chat.until(lambda: chat.screen.sidebar is None)


async def test_the_search_narrows_and_enter_opens_what_was_found(tmp_path: Path) -> None:
    saved(tmp_path, "apples", "pears", "plums")
    async with running(FakeBackend(), tmp_path) as chat:
        await opened(chat, "ctrl+r", "pears")
        await chat.write("about pea")
        await chat.until(lambda: "plums" not in chat.text())
        await chat.pilot.press("enter")
        await chat.until(lambda: "an answer about pears" in chat.text() and chat.screen.sidebar is None)
        assert chat.screen.composer.has_focus
        await opened(chat, words="plums")
        await chat.write("about pea")
        await chat.until(lambda: "plums" not in chat.text())
        await chat.pilot.press("escape")
        await chat.until(lambda: "plums" in chat.text())
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.screen.sidebar is None)


@here("it asks for no reply")
@pytest.mark.parametrize("width", [100, 130], ids=["over the chat", "beside it"])
@pytest.mark.parametrize("end", ["ctrl+b", "enter", "ctrl+n"])
async def test_a_search_ends_with_what_it_was_for(end: str, width: int, tmp_path: Path) -> None:
    saved(tmp_path, "apples", "pears", "plums")
    async with running(FakeBackend(), tmp_path, size=(width, 30)) as chat:
        await opened(chat, "ctrl+r", "plums")
        await chat.write("about pea")
        await chat.until(lambda: "plums" not in chat.text())
        await chat.pilot.press(end)
        if end == "enter":
            await chat.until(lambda: "an answer about pears" in chat.text())
        if end == "ctrl+b":
            await chat.until(lambda: chat.screen.sidebar is None)
            assert chat.screen.composer.has_focus
        if chat.screen.sidebar is None:
            await opened(chat)
        await chat.until(lambda: "plums" in chat.text() and "apples" in chat.text())
        assert not chat.screen.query_one("#sidebar-input", Input).value


@here("it asks for no reply")
async def test_a_search_stays_while_what_it_found_is_deleted(tmp_path: Path) -> None:
    saved(tmp_path, "red apples", "plums", "red pears")
    async with running(FakeBackend(), tmp_path, size=(130, 30)) as chat:
        await opened(chat, "ctrl+r", "plums")
        await chat.write("pears")
        await chat.pilot.press("enter")
        await chat.until(lambda: "an answer about red pears" in chat.text())
        await opened(chat, "ctrl+r", "plums")
        await chat.write("red")
        await chat.until(lambda: "plums" not in chat.text())
        assert chat.text().index("red pears") < chat.text().index("red apples")
        await chat.pilot.press("ctrl+d")
        await chat.until(lambda: "pears" not in "".join(chat.lines()[:-1]))
        await chat.pilot.press("ctrl+d")
        await chat.until(lambda: "Nothing found." in chat.text())
        assert [each.title for each in chat.store.conversations()] == ["plums"]


async def test_a_message_is_found_in_the_version_where_it_is(tmp_path: Path) -> None:
    [made] = saved(tmp_path, "apples")
    store = Store(tmp_path / "conversations.db")
    first = store.thread(made.id)[0]
    store.add(made.id, first.id, "assistant", "another version")
    store.close()
    async with running(FakeBackend(), tmp_path) as chat:
        await opened(chat, "ctrl+r")
        await chat.write("an answer about")
        await chat.until(lambda: "…" not in chat.text() and "an answer" in chat.text())
        await chat.until(lambda: any("answer about" in line for line in chat.lines()[5:]))
        await chat.pilot.press("enter")
        await chat.until(lambda: "‹ 1/2 ›" in chat.text())
        assert "an answer about apples" in chat.text()


async def test_a_message_far_up_is_found_and_in_sight(tmp_path: Path) -> None:
    store = Store(tmp_path / "conversations.db")
    made, head = store.create(), None
    with store.transaction():
        for number in range(100):
            head = store.add(made.id, head, "user", f"question {number} about {'whales' * (number == 20)}").id
            head = store.add(made.id, head, "assistant", "an answer").id
    store.close()
    async with running(FakeBackend(), tmp_path) as chat:
        await opened(chat, "ctrl+r")
        await chat.write("whales")
        await chat.until(lambda: any("about whales" in line for line in chat.lines()[5:]))
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.screen.sidebar is None and "question 20 about whales" in chat.text())


async def test_it_pins_names_tags_deletes_and_takes_back(tmp_path: Path) -> None:
    first, _ = saved(tmp_path, "apples", "pears")
    async with running(FakeBackend(), tmp_path, size=(130, 30)) as chat:
        await opened(chat, words="apples")
        await chat.pilot.press("down", "ctrl+s")
        await chat.until(lambda: "Pinned" in chat.text())
        assert chat.text().index("apples") < chat.text().index("pears")
        await chat.pilot.press("ctrl+e")
        await chat.until(lambda: "New title" in chat.text())
        await chat.pilot.press(*["backspace"] * 6)
        await chat.write("Fruit")
        await chat.pilot.press("enter")
        await chat.until(lambda: "Fruit" in chat.text() and "apples" not in chat.text())
        await chat.pilot.press("ctrl+l")
        await chat.write("red, #round")
        await chat.pilot.press("enter")
        await chat.until(lambda: "#red #round" in chat.text())
        await chat.pilot.press("ctrl+d")
        await chat.until(lambda: "Fruit" not in "".join(chat.lines()[:-1]))
        assert "deleted: Fruit" in chat.status()
        assert chat.store.get(first.id) is None
        await chat.pilot.press("ctrl+z")
        await chat.until(lambda: "#red #round" in chat.text())
        found = chat.store.get(first.id)
        assert found is not None
        assert (found.title, found.titled, found.pinned) == ("Fruit", "user", True)


@here("it asks for no reply")
async def test_while_a_title_or_tags_are_written_the_keys_are_the_field_s(tmp_path: Path) -> None:
    first, second = saved(tmp_path, "apples", "pears")
    async with running(FakeBackend(), tmp_path, size=(130, 30)) as chat:
        await opened(chat, words="apples")
        await chat.pilot.press("ctrl+e")
        await chat.until(lambda: "New title" in chat.text())
        await chat.pilot.press("down", "ctrl+s", "ctrl+z", "home", "ctrl+d", "ctrl+e", "X", "enter")
        await chat.until(lambda: "earsX" in chat.text())
        await chat.pilot.press("ctrl+l")
        await chat.write("red")
        await chat.pilot.press("down", "enter")
        await chat.until(lambda: "#red" in chat.text())
        found = {each.id: (each.title, each.tags, each.pinned) for each in chat.store.conversations()}
        assert found == {first.id: ("apples", (), False), second.id: ("earsX", ("red",), False)}
        await chat.pilot.press("down", "ctrl+s")  # theirs again
        await chat.until(lambda: "Pinned" in chat.text())


@pytest.mark.parametrize(("words", "told"), [("/rename Fruit", "Fruit"), ("/rename", "work")])
@here("it asks for no reply")
async def test_one_begun_with_a_name_is_called_by_the_title_it_is_given(tmp_path: Path, words: str, told: str) -> None:
    store = Store(tmp_path / "conversations.db")
    named = store.create(name="work")
    store.add(named.id, None, "user", "apples")
    store.rename(named.id, "Before")
    store.close()
    async with running(FakeBackend(), tmp_path, ChatOptions(conversation_id=named.id)) as chat:
        await chat.send(words)
        await chat.until(lambda: f"called {told} from now on" in chat.status())
        await chat.pilot.press("ctrl+b")
        await chat.until(lambda: chat.screen.query(Sidebar) and told in chat.text())
        assert not ({"Before", "Fruit", "work"} - {told}) & set(chat.words().split())
        assert chat.store.by_name("work") is not None  # by which --conversation finds it as before


async def test_the_commands_do_the_same_to_the_open_one(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        await chat.send("/rename too early")
        await chat.until(lambda: "nothing was written in it yet" in chat.words())
        await chat.ask("apples")
        [made] = chat.store.conversations()
        await chat.send("/rename Fruit")
        await chat.until(lambda: "called Fruit from now on" in chat.status())
        await chat.send("/pin")
        await chat.send("/tag red round")
        await chat.until(lambda: "Tags: #red #round" in chat.text())
        found = chat.store.get(made.id)
        assert found is not None
        assert (found.title, found.pinned, found.tags) == ("Fruit", True, ("red", "round"))
        await chat.send("/tag -")
        await chat.until(lambda: "has no tags" in chat.text())
        await chat.send("/delete")
        await chat.until(lambda: "apples" not in chat.text())
        assert chat.store.conversations() == []
        await chat.send("/undelete")
        await chat.until(lambda: chat.store.get(made.id))
        await chat.send("/undelete")
        await chat.until(lambda: "could be brought back" in chat.words())


@here("it asks for no reply")
async def test_an_empty_list_says_so(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        await opened(chat, words="No conversations yet.")
        await chat.write("x")
        await chat.until(lambda: "Nothing found." in chat.text())


async def test_it_follows_what_happens_in_the_chat(tmp_path: Path) -> None:
    async with running(FakeBackend([say("ok")]), tmp_path, size=(130, 30)) as chat:
        await opened(chat, words="No conversations yet.")
        await chat.pilot.press("escape")
        await chat.ask("a new one")
        await chat.until(lambda: sum("a new one" in line[:36] for line in chat.lines()) == 1)


def conversation(updated: float, *, pinned: bool = False) -> Hit:
    return Hit(Conversation(str(updated), "t", None, 0, updated, 1, "m", pinned))


NOON = time.mktime((2026, 3, 29, 12, 0, 0, 0, 0, -1))  # the day on which many clocks change
HOUR, DAY = 3600.0, 86_400.0


@pytest.mark.parametrize(
    ("before", "group"),
    [(0, 0), (11 * HOUR, 0), (13 * HOUR, 1), (35 * HOUR, 1), (2 * DAY, 2), (8 * DAY, 3), (31 * DAY, 4), (-DAY, 0)],
)
def test_days_begin_at_midnight(before: float, group: int) -> None:
    assert _age(NOON - before, NOON) == group


def test_a_clock_that_was_wrong_begins_no_group_twice() -> None:
    hits = [conversation(NOON), conversation(NOON - 40 * DAY), conversation(NOON - 1), conversation(NOON, pinned=True)]
    groups = [(heading, len(group)) for heading, group in _grouped(hits, NOON, searched=False)]
    assert groups == [("Pinned", 1), ("Today", 1), ("Earlier", 2)]


@here("it asks for no reply")
async def test_control_characters_in_titles_stay_text(tmp_path: Path) -> None:
    saved(tmp_path, "\x1b]52;c;eA==\x07 title")
    async with running(FakeBackend(), tmp_path, size=(130, 30)) as chat:
        await opened(chat, words="title")
        assert "\x1b" not in chat.text()
        assert chat.screen.query_one(Sidebar)
