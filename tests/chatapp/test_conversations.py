"""Conversations from the user's side: new ones, saved ones, versions."""

from __future__ import annotations

import time
from pathlib import Path

from fake_backend import MODEL, FakeBackend, Gate, say
from harness import here, running

from chatapp.options import ChatOptions
from chatapp.parts.conversations import KEPT_SECONDS
from chatapp.store import Store
from runtime.protocol import Failed, LoadProgress, Message, Ready


class TestDeletedLongAgo:
    def deleted(self, folder: Path) -> str:
        then = time.time() - KEPT_SECONDS - 1
        store = Store(folder / "conversations.db", lambda: then)
        made = store.create()
        store.add(made.id, None, "user", "a secret")
        store.delete(made.id)
        store.close()
        return made.id

    async def test_it_goes_for_good_after_its_states(self, tmp_path: Path) -> None:
        key, backend = self.deleted(tmp_path), FakeBackend()
        async with running(backend, tmp_path, ChatOptions()) as chat:
            await chat.until(lambda: not chat.store.deleted())
        assert backend.dropped == [key]

    async def test_it_is_tried_again_at_the_next_start_if_its_states_stay(self, tmp_path: Path) -> None:
        key, backend = self.deleted(tmp_path), FakeBackend()
        backend.kept = Failed("The engine crashed.", "worker")
        async with running(backend, tmp_path, ChatOptions()) as chat:
            await chat.until(lambda: bool(backend.dropped))
            await chat.pilot.pause()
            assert [each.id for each in chat.store.deleted()] == [key]


class TestConversations:
    async def test_a_new_one_begins_empty(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("one")], [say("two")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("first")
            await chat.pilot.press("ctrl+n")
            await chat.until(lambda: "first" not in chat.text())
            await chat.ask("second")
            assert backend.requests[1].messages == (Message("user", "second"),)
            assert backend.requests[0].conversation_id != backend.requests[1].conversation_id
            assert len(chat.store.conversations()) == 2

    async def test_a_new_one_stops_the_reply_that_runs(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([say("old"), gate]), tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            await chat.send("/new")
            await chat.until(lambda: "old" not in chat.text())
            assert chat.thread()[-1].status == "cancelled"

    async def test_a_new_one_while_the_model_loads_keeps_the_progress(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend(loading=[LoadProgress(45, 100, "weights"), gate, Ready(MODEL)])
        async with running(backend, tmp_path, ChatOptions(model=MODEL.path)) as chat:
            await gate.reached.wait()
            await chat.send("/new")
            await chat.pilot.pause()
            assert "loading 45 %" in chat.status()
            gate.open()
            await chat.until(lambda: "ready" in chat.status())

    async def test_a_saved_one_is_shown_whole_and_goes_on(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "conversations.db")
        saved = store.create(name="trip")
        user = store.add(saved.id, None, "user", "where to?")
        store.add(
            saved.id,
            user.id,
            "assistant",
            "To **Oslo**.",
            "cold places",
            meta={"reason": "stop", "stats": {"thinking_ms": 2000.0, "thinking_tokens": 9}},
        )
        store.close()
        backend = FakeBackend([say("By train.")])
        async with running(backend, tmp_path, ChatOptions(model=MODEL.path, conversation_id=saved.id)) as chat:
            await chat.until(lambda: "To Oslo." in chat.text())
            assert "where to?" in chat.text()
            assert "thought 2.0 s · 9 tokens" in chat.text()
            await chat.ask("how?")
            assert backend.requests[0].messages == (
                Message("user", "where to?"),
                Message("assistant", "To **Oslo**.", "cold places"),
                Message("user", "how?"),
            )

    @here("it asks for no reply")
    async def test_one_is_opened_by_its_name_and_an_unknown_name_is_told(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "conversations.db")
        store.add(store.create(name="trip").id, None, "user", "where to?")
        store.close()
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send("/resume nothing")
            await chat.until(lambda: "no saved conversation 'nothing'" in chat.text())
            await chat.send("/resume trip")
            await chat.until(lambda: "where to?" in chat.text())

    @here("it asks for no reply")
    async def test_one_is_opened_by_its_title_and_several_are_told(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "conversations.db")
        for title, asked in (("Name a river", "which?"), ("Seas", "one"), ("Seas", "two")):
            store.add(store.create(title).id, None, "user", asked)
        store.close()
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send("/resume seas")
            await chat.until(lambda: "'seas' fits 2 conversations" in chat.words())
            await chat.send("/resume name a river")
            await chat.until(lambda: "which?" in chat.text())

    async def test_a_reply_whose_writer_died_is_marked(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "conversations.db")
        saved = store.create()
        user = store.add(saved.id, None, "user", "q")
        store.add(saved.id, user.id, "assistant", "half an ans", status="partial")
        store.close()
        async with running(FakeBackend(), tmp_path, ChatOptions(conversation_id=saved.id)) as chat:
            await chat.until(lambda: "half an ans" in chat.text())
            assert "unfinished" in chat.text()

    async def test_another_reply_takes_the_place_of_the_last(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("first try")], [say("second try")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/retry")
            await chat.until(lambda: "second try" in chat.text())
            await chat.idle()
            assert "first try" not in chat.text()
            assert backend.requests[1].messages == backend.requests[0].messages
            user = chat.thread()[0]
            versions = chat.store.children(user.conversation_id, user.id)
            assert [node.content for node in versions] == ["first try", "second try"]

    async def test_a_system_prompt_holds_from_the_next_message_on(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.ask("one")
            await chat.send("/system Speak like a pirate.")
            await chat.until(lambda: "Speak like a pirate." in chat.text())
            await chat.ask("two")
            assert backend.requests[1].messages[0] == Message("system", "Speak like a pirate.")
            assert [message.role for message in backend.requests[1].messages] == [
                "system",
                "user",
                "assistant",
                "user",
            ]
            await chat.send("/system -")
            await chat.pilot.pause()
            await chat.ask("three")
            assert backend.requests[2].messages[0].role == "user"
