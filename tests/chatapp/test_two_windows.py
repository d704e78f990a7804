"""Several windows in one conversation: nobody's messages are lost, mixed or hidden, and both see them (CASES 36)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, say
from harness import running
from program import Program

from chatapp.branch import News
from chatapp.claim import Claim
from chatapp.options import ChatOptions
from chatapp.session import Session, Turn
from chatapp.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """That of the other window."""
    one = Store(tmp_path / "conversations.db")
    yield one
    one.close()


async def asked(session: Session, text: str) -> Turn:
    turn = await session.ask(text, "m")
    assert turn is not None
    return turn


async def turn(session: Session, text: str, reply: str) -> None:
    await session.finish(await asked(session, text), reply, "", "complete", True, {"reason": "stop"})


def test_one_shots_at_once_answer_one_after_the_other(tmp_path: Path) -> None:
    qwenchat = Program(tmp_path)
    qwenchat.replies({"delay": 0.1}, {"echo": True})
    qwenchat.start("-p", "begin", "--conversation", "notes").communicate()
    with ThreadPoolExecutor() as pool:
        names = ["one", "two", "three"]
        results = list(pool.map(lambda name: qwenchat("-p", name, "--conversation", "notes"), names))
    assert [result.returncode for result in results] == [0, 0, 0]
    thread = qwenchat.thread("notes")
    assert {node.content for node in thread[2::2]} == set(names)
    for place, reply in enumerate(thread[1::2], start=1):  # each was sent all that stands above it
        sent = [message["content"] for message in json.loads(reply.content)["messages"]]
        assert sent == [node.content for node in thread[: 2 * place - 1]]


async def test_a_message_goes_below_what_the_other_window_has_written(store: Store) -> None:
    one, other = Session(store), Session(store)
    await turn(one, "first", "1")
    assert one.conversation is not None
    await other.open(one.conversation.id)
    await turn(other, "second", "2")
    third = await asked(one, "third")
    assert [node.content for node in third.news.nodes] == ["second", "2"]
    assert [message.content for message in third.messages] == ["first", "1", "second", "2", "third"]
    await one.finish(third, "3", "", "complete", True, {})
    assert [node.content for node in (await other.look()).nodes] == ["third", "3"]
    assert await other.look() == News()


async def test_it_waits_for_the_reply_of_the_other_window_and_can_be_called_off(store: Store) -> None:
    one, other = Session(store), Session(store)
    await turn(one, "first", "1")
    assert one.conversation is not None
    await other.open(one.conversation.id)
    running_ = await asked(one, "second")
    told: list[str] = []
    assert await other.ask("x", "m", waits=lambda: told.append("waits"), gives_up=lambda: bool(told)) is None
    assert told == ["waits"]
    assert await other.look() == News()
    await one.finish(running_, "2", "", "complete", True, {})
    assert [node.content for node in (await asked(other, "third")).news.nodes] == ["second", "2"]


async def test_what_leaves_the_context_takes_no_right_from_a_reply_that_runs(store: Store) -> None:
    one, other = Session(store), Session(store)
    await turn(one, "first", "1")
    running_ = await asked(one, "second")
    assert await one.cut("", {"cut": {"from": 1}}) is None
    await other.open(running_.conversation_id)
    assert await other.cut("", {"cut": {"from": 1}}) is None
    assert await other.ask("x", "m", gives_up=lambda: True) is None
    await one.finish(running_, "2", "", "complete", True, {})
    assert await one.cut("", {"cut": {"from": 1}}) is not None
    assert not store.claimed(running_.conversation_id)


@pytest.mark.parametrize("way", ["retry", "go_on"])
async def test_a_reply_is_not_made_anew_above_what_the_other_window_has_written(way: str, store: Store) -> None:
    one, other = Session(store), Session(store)
    await one.finish(await asked(one, "first"), "half", "", "cancelled", True, {})
    assert one.conversation is not None
    await other.open(one.conversation.id)
    await turn(other, "second", "2")
    news = await getattr(one, way)()
    assert isinstance(news, News)
    assert [node.content for node in news.nodes] == ["second", "2"]
    assert [node.content for node in one.thread] == ["first", "half", "second", "2"]
    again = await one.retry()
    assert isinstance(again, Turn)
    assert [message.content for message in again.messages] == ["first", "half", "second"]


async def test_another_version_is_made_aside_of_the_other_window_and_that_is_told(store: Store) -> None:
    one, other = Session(store), Session(store)
    await one.finish(await asked(one, "q"), "half", "", "cancelled", True, {})
    assert one.conversation is not None
    await other.open(one.conversation.id)
    again = await other.retry()
    assert isinstance(again, Turn)
    await other.finish(again, "another", "", "complete", True, {})
    rest = await one.go_on()
    assert isinstance(rest, Turn)
    assert rest.news == News(aside=True)
    assert one.versions(rest.reply_id) == (2, 2)


async def test_what_leaves_the_context_leaves_below_what_the_other_window_has_written(store: Store) -> None:
    one, other = Session(store), Session(store)
    await turn(one, "first", "1")
    assert one.conversation is not None
    await other.open(one.conversation.id)
    await turn(other, "second", "2")
    cut = await one.cut("", {"cut": {"from": 3}})
    assert cut is not None
    assert [node.content for node in cut.news.nodes] == ["second", "2"]
    assert [node.content for node in one.thread] == ["first", "1", "second", "2", ""]
    assert one.thread[-1] == cut.marker


async def test_another_reply_waits_for_the_other_window_and_shows_its_messages(tmp_path: Path, store: Store) -> None:
    other = Session(store)
    await turn(other, "first", "1")
    assert other.conversation is not None
    backend = FakeBackend()
    options = ChatOptions(model=MODEL.path, conversation_id=other.conversation.id)
    async with running(backend, tmp_path, options) as chat:
        await chat.until(lambda: "ready" in chat.status())
        theirs = await asked(other, "theirs")
        await chat.send("/retry")
        await chat.until(lambda: "waiting for another window" in chat.status())
        await other.finish(theirs, "of the other", "", "complete", True, {})
        await chat.until(lambda: "no other reply was asked for" in chat.words())
        assert "of the other" in chat.text()
        await chat.idle()
        assert backend.requests == []


async def test_each_goes_on_with_its_own_version_and_is_told_once(store: Store) -> None:
    one, other = Session(store), Session(store)
    await turn(one, "q", "first try")
    assert one.conversation is not None
    await other.open(one.conversation.id)
    again = await one.retry()
    assert isinstance(again, Turn)
    await one.finish(again, "second try", "", "complete", True, {})
    below = await asked(other, "about the first")
    assert below.news == News(aside=True)
    assert [message.content for message in below.messages] == ["q", "first try", "about the first"]
    await other.finish(below, "a", "", "complete", True, {})
    assert (await asked(one, "about the second")).messages[1].content == "second try"


async def test_a_system_prompt_of_the_other_window_holds_here_too(store: Store) -> None:
    one, other = Session(store), Session(store)
    await turn(one, "first", "1")
    assert one.conversation is not None
    await other.open(one.conversation.id)
    other.system = "Be brief."
    await turn(other, "second", "2")
    assert (await asked(one, "third")).messages[0].content == "Be brief."
    assert one.system == "Be brief."


async def test_a_reply_that_another_window_is_writing_comes_when_it_has_ended(store: Store) -> None:
    one, other = Session(store), Session(store)
    begun = await asked(one, "q")
    await one.save(begun, "half", "")
    assert one.conversation is not None
    await other.open(one.conversation.id)
    assert [node.content for node in other.thread] == ["q"]
    await one.finish(begun, "whole", "", "complete", True, {})
    assert [node.content for node in (await other.look()).nodes] == ["whole"]


async def test_both_windows_show_what_happened(tmp_path: Path, store: Store) -> None:
    other = Session(store)
    await turn(other, "first", "1")
    assert other.conversation is not None
    options = ChatOptions(model=MODEL.path, conversation_id=other.conversation.id)
    backend = FakeBackend()
    async with running(backend, tmp_path, options) as chat:
        await chat.until(lambda: "first" in chat.text())
        await turn(other, "second", "from elsewhere")
        await chat.until(lambda: "from elsewhere" in chat.text())
        assert "Another window has added 2 messages." in chat.text()
        theirs = await asked(other, "third")
        await chat.send("mine")
        await chat.until(lambda: "waiting for another window" in chat.status())
        assert "waits for its reply" in chat.words()
        await other.finish(theirs, "3", "", "complete", True, {})
        await chat.until(lambda: backend.requests)
        await chat.idle()
        sent = [message.content for message in backend.requests[0].messages]
        assert sent == ["first", "1", "second", "from elsewhere", "third", "3", "mine"]
        assert chat.text().index("third") < chat.text().index("mine")
        assert "ready" in chat.status()


async def test_a_message_that_waits_for_another_window_comes_back_at_a_stop(tmp_path: Path, store: Store) -> None:
    other = Session(store)
    theirs = await asked(other, "theirs")
    options = ChatOptions(model=MODEL.path, conversation_id=theirs.conversation_id)
    backend = FakeBackend()
    async with running(backend, tmp_path, options) as chat:
        await chat.until(lambda: "theirs" in chat.text())
        await chat.send("mine")
        await chat.until(lambda: "waiting for another window" in chat.status())
        await chat.pilot.press("escape")
        await chat.idle()
        assert chat.screen.composer.text == "mine"
        assert backend.requests == []


def test_a_claim_ends_with_whoever_has_it(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "name"
    code = "import sys; from pathlib import Path; from chatapp.claim import Claim; c = Claim.take(Path(sys.argv[1]))\n"
    command = [sys.executable, "-c", f"{code}print(c is not None, flush=True); sys.stdin.read()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert Claim.take(path) is None
        assert Claim.taken(path)
        holder.kill()
    claim = Claim.take(path)
    assert claim is not None
    assert Claim.take(path) is None
    claim.release()
    assert not Claim.taken(path)
    assert not path.exists()


def test_where_no_lock_can_be_made_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Claim.take(tmp_path / "file" / "name") is not None


async def test_a_gate_holds_the_other_window_while_this_one_replies(tmp_path: Path, store: Store) -> None:
    gate = Gate()
    async with running(FakeBackend([say("half"), gate]), tmp_path) as chat:
        await chat.send("q")
        await gate.reached.wait()
        [conversation] = store.conversations()
        assert store.claim(conversation.id) is None
        gate.open()
        await chat.idle()
        claim = store.claim(conversation.id)
        assert claim is not None
        claim.release()
