"""The chat from the user's side when something fails, and what the next start goes on with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, say
from harness import Chat, here, running

from chatapp.options import ChatOptions
from chatapp.paths import model_path
from chatapp.settings import SettingsError, Value
from chatapp.status import StatusLine
from runtime.protocol import Failed, Failure, Notice, Ready


class TestFaults:
    async def test_a_failure_keeps_what_came_and_the_chat_goes_on(self, tmp_path: Path) -> None:
        backend = FakeBackend([say("some of it"), Failed("The engine died.", "numbers")], [say("back again")])
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            assert "some of it" in chat.text()
            assert "broken off · /continue goes on" in chat.text()
            assert "The engine died." in chat.text()
            assert (chat.thread()[-1].content, chat.thread()[-1].status) == ("some of it", "failed")
            await chat.ask("again")
            assert "back again" in chat.text()

    @pytest.mark.parametrize(
        "script", [[say("x"), RuntimeError("boom")], [RuntimeError("boom")]], ids=["late", "early"]
    )
    async def test_a_fault_of_the_program_is_told_and_the_chat_goes_on(
        self, script: list[object], tmp_path: Path
    ) -> None:
        backend = FakeBackend(script, [say("fine")])  # type: ignore[arg-type]
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            assert "RuntimeError: boom" in chat.text()
            assert chat.thread()[-1].status == "failed"
            await chat.ask("again")
            assert "fine" in chat.text()

    @here("the engine of this machine")
    @pytest.mark.parametrize("kind", ["worker", "memory", "internal"])
    async def test_an_engine_that_ends_while_it_loads_is_started_again_by_a_message(
        self, kind: Failure, tmp_path: Path
    ) -> None:
        backend = FakeBackend(loading=[Failed("The engine was killed.", kind)])
        async with running(backend, tmp_path, ChatOptions(model="/models/good.gguf")) as chat:
            await chat.until(lambda: "The engine was killed. No model is open: the next message" in chat.words())
            await chat.send("first")
            await chat.until(lambda: chat.words().count("The engine was killed.") == 2)  # told again, not kept quiet
            backend.loading = [Ready(MODEL)]
            await chat.send("second")
            await chat.until(lambda: len(backend.requests) == 2)
            await chat.idle()
        assert [load.path for load in backend.loads] == ["/models/good.gguf"] * 3
        assert [request.messages[-1].content for request in backend.requests] == ["first", "second"]

    @here("the engine of this machine")
    async def test_an_engine_that_is_ready_while_the_program_ends_meets_no_screen(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.screen.query_one(StatusLine).remove()
            chat.screen.turns_changed()

    async def test_a_model_that_does_not_load_takes_nothing_from_the_one_that_answers(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            assert "50 / 4,096" in chat.status()
            backend.loading = [Failed("This file is no model.", "load", model_kept=True)]
            await chat.send("/model /models/bad.gguf")
            await chat.until(lambda: "This file is no model." in chat.text())
            await chat.idle()
            assert "50 / 4,096" in chat.status()

    async def test_the_chat_runs_in_a_folder_that_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = FakeBackend([say("fine")])
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        async with running(backend, tmp_path) as chat:
            await chat.ask("see @a.txt and")
            assert "fine" in chat.text()
            for line, told in (
                ("/export", "see-a-txt-and.md cannot be written: No such file or directory."),
                ("/import a.json", "a.json cannot be read: No such file or directory."),
                ("/attach a.txt", "a.txt cannot be read: No such file or directory."),
                ("/attach", "There is no file here that can be sent."),
            ):
                await chat.send(line)
                await chat.until(lambda told=told: told in chat.words())
        assert model_path("a.gguf") == "a.gguf"

    async def test_a_model_that_does_not_load_is_told_and_another_can_be_opened(self, tmp_path: Path) -> None:
        backend = FakeBackend(loading=[Failed("This file is no model.", "load")])
        async with running(backend, tmp_path, ChatOptions(model="/models/bad.gguf")) as chat:
            await chat.until(lambda: "This file is no model." in chat.text())
            await chat.send("waits")
            backend.loading = [Ready(MODEL)]
            await chat.send("/model /models/good.gguf")
            await chat.until(lambda: backend.requests)
            await chat.idle()
            assert [load.path for load in backend.loads] == ["/models/bad.gguf", "/models/good.gguf"]
            assert backend.requests[0].messages[-1].content == "waits"

    @here("the worker is started again")
    async def test_a_dead_engine_is_told_and_so_is_its_return(self, tmp_path: Path) -> None:
        """CASES 48."""
        gate = Gate()
        backend = FakeBackend([say("half"), gate, Failed("The engine was killed.", "worker")])
        async with running(backend, tmp_path) as chat:
            await chat.send("q")
            await gate.reached.wait()
            backend.tell(Notice("The engine is being restarted."))
            gate.open()
            await chat.until(lambda: "restarting" in chat.status())
            await chat.until(lambda: "being restarted" in chat.text())
            assert chat.text().index("was killed") < chat.text().index("being restarted")
            backend.tell(Ready(MODEL))
            await chat.until(lambda: "ready" in chat.status() and "running again" in chat.text())
            await chat.ask("again")
            assert "ok" in chat.text()

    @here("the worker is started again")
    async def test_an_engine_that_does_not_come_back_is_told(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            backend.tell(Failed("It has failed 4 times in a row.", "worker"))
            await chat.until(lambda: "4 times in a row" in chat.text() and "failed" in chat.status())

    @here("the worker is started again")
    async def test_the_next_message_opens_the_model_of_an_engine_that_was_given_up(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            backend.die()
            backend.tell(Failed("It has failed 4 times in a row.", "worker"))
            await chat.ask("q")
            assert [load.path for load in backend.loads] == [MODEL.path, MODEL.path]
            assert backend.requests[0].messages[-1].content == "q"
            assert "ready" in chat.status()

    async def test_a_store_that_cannot_be_written_gives_the_message_back(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            chat.store.close()
            await chat.send("precious words")
            await chat.until(lambda: "cannot be used" in chat.words())
            assert chat.screen.composer.text == "precious words"
            assert backend.requests == []

    @here("a server sends no notices")
    async def test_notices_of_a_reply_are_shown(self, tmp_path: Path) -> None:
        async with running(FakeBackend([Notice("Drafting is off."), say("x")]), tmp_path) as chat:
            await chat.ask("q")
            assert "Drafting is off." in chat.text()

    async def test_a_burst_of_pieces_leaves_the_keyboard_alive(self, tmp_path: Path) -> None:
        gate = Gate()
        async with running(FakeBackend([*[say("word ")] * 2000, gate]), tmp_path) as chat:
            await chat.send("q")
            await chat.write("typed meanwhile")
            assert chat.screen.composer.text == "typed meanwhile"
            await gate.reached.wait()
            gate.open()
            await chat.idle()
            assert chat.thread()[-1].content == "word " * 2000


@here("files are opened")
class TestTheModelOfTheNextStart:
    @asynccontextmanager
    async def kept(
        self, backend: FakeBackend, path: Path, options: ChatOptions
    ) -> AsyncIterator[tuple[Chat, list[Mapping[str, Value]]]]:
        kept: list[Mapping[str, Value]] = []
        async with running(backend, path, options, keep=kept.append) as chat:
            yield chat, kept

    async def test_is_the_one_that_the_command_line_names(self, tmp_path: Path) -> None:
        options = ChatOptions(model="/models/named.gguf", model_named=True)
        async with self.kept(FakeBackend(), tmp_path, options) as (chat, kept):
            await chat.until(lambda: kept)
            assert kept == [{"model": "/models/named.gguf"}]

    async def test_or_the_one_that_the_user_opens(self, tmp_path: Path) -> None:
        async with self.kept(FakeBackend(), tmp_path, ChatOptions(model="/models/saved.gguf")) as (chat, kept):
            await chat.send("/model other.gguf")
            await chat.until(lambda: kept)
            assert kept == [{"model": str(Path.cwd() / "other.gguf")}]

    async def test_but_not_one_that_fails_or_comes_from_elsewhere(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with self.kept(backend, tmp_path, ChatOptions(model="/models/saved.gguf")) as (chat, kept):
            await chat.ask("q")
            backend.loading = [Failed("This file is no model.", "load")]
            await chat.send("/model /models/bad.gguf")
            await chat.until(lambda: "This file is no model." in chat.text())
            await chat.idle()
            assert kept == []

    async def test_settings_that_cannot_be_written_are_a_sentence(self, tmp_path: Path) -> None:
        def keep(changes: Mapping[str, Value]) -> None:
            raise SettingsError("The settings file cannot be written: Read-only file system.")

        options = ChatOptions(model=MODEL.path, model_named=True)
        async with running(FakeBackend(), tmp_path, options, keep=keep) as chat:
            await chat.until(lambda: "Read-only file system." in chat.words())
            await chat.ask("q")


async def test_a_message_that_does_not_fit_is_given_back_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    full = Failed("The conversation needs 9,000 tokens, and the context holds 4,096.", "context")
    backend = FakeBackend([say("one")], [full], [say("three")])
    async with running(backend, tmp_path) as chat:
        await chat.ask("first")
        await chat.ask("far too long")
        await chat.until(lambda: "9,000" in chat.words())
        await chat.pilot.press("escape")
        assert "broken off" not in chat.text()
        assert chat.screen.composer.text == "far too long"
        await chat.ask("short")
        sent = [message.content for message in backend.requests[-1].messages]
        assert sent == ["first", "one", "short"]
        assert [node.content for node in chat.thread()] == ["first", "one", "short", "three"]
