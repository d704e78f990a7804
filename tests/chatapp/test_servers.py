"""Served models in the chat: /server, /model, and conversations that go on where they were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fake_backend
from chat_server import ChatServer, say, serving, stop, streamed, think, usage
from fake_backend import MODEL, FakeBackend
from harness import Chat, here, running

from chatapp.backends import Backends
from chatapp.options import ChatOptions
from chatapp.remote.backend import RemoteBackend
from chatapp.remote.profiles import Profile
from chatapp.settings import Value
from runtime.protocol import Failed, Ready

pytestmark = here("brings servers of its own")


@asynccontextmanager
async def both(
    path: Path, *servers: ChatServer, local: FakeBackend | None = None, kept: list[Any] | None = None, **options: Any
) -> AsyncIterator[Chat]:
    """A chat with a model here, and the servers as s1, s2, … of the settings."""
    profiles = {f"s{number}": Profile(f"s{number}", each.url) for number, each in enumerate(servers, 1)}
    backend = Backends(local or FakeBackend(), lambda: RemoteBackend(profiles, {}))
    chosen = ChatOptions(
        **{"model": MODEL.path, "local_model": MODEL.path, **options},
        servers={name: profile.url for name, profile in profiles.items()},
    )

    def keep(changes: Mapping[str, Value]) -> None:
        if kept is not None:
            kept.append(dict(changes))

    async with running(backend, path, chosen, keep=keep) as chat:
        await chat.until(lambda: backend.model is not None or not chat.screen.turns.status.busy)
        yield chat


def answering(text: str, name: str = "m") -> ChatServer:
    return ChatServer(lambda request: streamed(say(text), stop()), models=(name,))


async def test_a_conversation_goes_from_here_to_a_server_and_back(tmp_path: Path) -> None:
    local = FakeBackend([fake_backend.say("from here")], [fake_backend.say("here again")])
    kept: list[Any] = []
    async with serving(answering("from there")) as server, both(tmp_path, server, local=local, kept=kept) as chat:
        await chat.ask("one")
        await chat.send("/server s1")
        await chat.until(lambda: chat.status().startswith("m @ s1 · "))
        await chat.ask("two")
        assert "from there" in chat.text()
        sent = server.bodies[0]["messages"]
        assert [message["content"] for message in sent] == ["one", "from here", "two"]
        await chat.send("/server local")
        await chat.until(lambda: chat.status().startswith("Tiny 4M"))
        assert len(local.loads) == 1  # it was open all the time
        await chat.send("/server local")
        await chat.until(lambda: "tiny of this machine is in use already: /model PATH opens another." in chat.words())
        assert len(local.loads) == 1
        await chat.ask("three")
        assert [m.content for m in local.requests[1].messages] == ["one", "from here", "two", "from there", "three"]
        sources = [node.meta["source"] for node in chat.thread() if node.role == "assistant"]
        assert sources == [MODEL.path, "server:s1#m", MODEL.path]
        await chat.until(lambda: len(kept) == 2)
        assert kept == [{"model": "server:s1"}, {"model": MODEL.path}]


async def test_the_way_back_leads_to_the_model_that_was_open_not_to_one_that_failed(tmp_path: Path) -> None:
    local = FakeBackend()
    async with serving(answering("from there")) as server, both(tmp_path, server, local=local) as chat:
        await chat.send("/server s1")
        await chat.until(lambda: chat.status().startswith("m @ s1 · "))
        local.loading = [Failed("There is no such file.", "load", model_kept=True)]
        await chat.send("/model /models/gone.gguf")
        await chat.until(lambda: "There is no such file." in chat.text())
        await chat.send("/server local")
        await chat.until(lambda: chat.status().startswith("Tiny 4M"))
        assert [load.path for load in local.loads] == [MODEL.path, "/models/gone.gguf"]


async def test_a_thought_and_the_figures_of_a_server_are_shown(tmp_path: Path) -> None:
    server = ChatServer(
        lambda r: streamed(think("secret"), say("open"), stop(), usage(20, 30)),
        models=({"id": "m", "owned_by": "vllm", "max_model_len": 4096},),
    )
    async with serving(server), both(tmp_path, server, model="server:s1") as chat:
        await chat.ask("q")
        assert "▸ thought" in chat.text()
        assert "secret" not in chat.text()
        assert "50 / 4,096" in chat.status()
        assert "cached" not in chat.status()


async def test_models_of_a_server_are_listed_and_switched(tmp_path: Path) -> None:
    server = ChatServer(models=("maker/first", "maker/second", "maker/third"))
    async with serving(server), both(tmp_path, server, model="server:s1") as chat:
        await chat.until(lambda: "3 models" in chat.words())
        await chat.send("/model")
        await chat.until(lambda: "maker/third" in chat.text())
        await chat.pilot.press("down", "enter")
        await chat.until(lambda: chat.status().startswith("second @ s1"))
        await chat.send("/model third")
        await chat.until(lambda: chat.status().startswith("third @ s1"))
        await chat.ask("q")
        assert server.bodies[0]["model"] == "maker/third"


async def test_servers_are_chosen_from_a_list(tmp_path: Path) -> None:
    async with serving(answering("x")) as server, both(tmp_path, server) as chat:
        await chat.send("/server")
        await chat.until(lambda: "this machine" in chat.text() and server.url in chat.text())
        await chat.pilot.press("down", "enter")
        await chat.until(lambda: chat.status().startswith("m @ s1"))


async def test_without_servers_the_command_says_how_to_have_one(tmp_path: Path) -> None:
    async with both(tmp_path) as chat:
        await chat.send("/server")
        await chat.until(lambda: "[servers.NAME]" in chat.words())
        await chat.send("/server nowhere")
        await chat.until(lambda: "There is no server 'nowhere'" in chat.words())
        await chat.ask("q")


async def test_a_server_that_does_not_answer_leaves_the_model_that_is(tmp_path: Path) -> None:
    kept: list[Any] = []
    async with both(tmp_path, kept=kept) as chat:
        await chat.send("/server http://127.0.0.1:1")
        await chat.until(lambda: "the connection was refused" in chat.words())
        await chat.idle()
        await chat.ask("q")
        assert chat.status().startswith("Tiny 4M")
        assert kept == []


async def test_conversations_go_on_where_they_were(tmp_path: Path) -> None:
    local = FakeBackend([fake_backend.say("here")], [fake_backend.say("again")])
    async with serving(answering("there")) as server, both(tmp_path, server, local=local) as chat:
        await chat.ask("with this machine")
        await chat.send("/new")
        await chat.send("/server s1")
        await chat.until(lambda: chat.status().startswith("m @ s1"))
        await chat.ask("with the server")
        first, second = (each.id for each in reversed(chat.store.conversations()))
        await chat.send(f"/resume {first}")
        await chat.until(lambda: chat.status().startswith("Tiny 4M"))
        assert "goes on on this machine" in chat.words()
        await chat.send(f"/resume {second}")
        await chat.until(lambda: chat.status().startswith("m @ s1"))
        assert "goes on with m @ s1, as before" in chat.words()
        await chat.ask("more")
        assert server.bodies[-1]["messages"][0]["content"] == "with the server"


async def test_a_failure_of_the_server_keeps_the_chat_and_what_came(tmp_path: Path) -> None:
    server = ChatServer(lambda request: streamed(say("half of it"), cut=True), models=("m",))
    async with serving(server), both(tmp_path, server, model="server:s1") as chat:
        await chat.ask("q")
        assert "half of it" in chat.text()
        assert "The connection" in chat.words()
        assert "broke" in chat.words()
        assert (chat.thread()[-1].content, chat.thread()[-1].status) == ("half of it", "failed")
        server.completions = lambda request: streamed(say("whole"), stop())
        await chat.send("/retry")
        await chat.until(lambda: chat.thread()[-1].content == "whole")
        await chat.idle()


async def test_a_reply_that_was_cut_goes_on(tmp_path: Path) -> None:
    server = ChatServer(lambda request: streamed(say("half of"), cut=True), models=("m",))
    async with serving(server), both(tmp_path, server, model="server:s1") as chat:
        await chat.ask("q")
        await chat.until(lambda: "/continue goes on from there" in chat.words())
        server.completions = lambda request: streamed(say(" the whole"), stop())
        await chat.send("/continue")
        await chat.until(lambda: chat.thread()[-1].status == "complete")
        await chat.idle()
        assert chat.thread()[-1].content == "half of the whole"
        assert "half of the whole" in chat.text()
        sent = server.bodies[-1]
        assert sent["messages"][-1]["content"] == "half of"
        assert sent["continue_final_message"] is True


async def test_what_a_server_drafts_and_keeps_is_its_own(tmp_path: Path) -> None:
    async with serving(answering("x")) as server, both(tmp_path, server, model="server:s1") as chat:
        await chat.send("/draft")
        await chat.until(lambda: "the server's choice" in chat.status())
        await chat.send("/cache")
        await chat.until(lambda: "known to the server alone" in chat.words())


class TestBackends:
    async def test_the_engines_end_is_not_told_while_a_server_answers(self) -> None:
        local = FakeBackend()
        heard: list[Any] = []
        async with serving(answering("x")) as server:
            backend = Backends(local, lambda: RemoteBackend({}, {}))
            backend.on_event(heard.append)
            assert [e async for e in backend.load(ChatOptions().load(MODEL.path))][-1] == Ready(MODEL)
            local.tell(Failed("It died.", "worker"))
            assert len(heard) == 1
            async for _ in backend.load(ChatOptions().load(server.url)):
                pass
            local.tell(Failed("It died.", "worker"))
            assert len(heard) == 1
            await backend.close()
        assert local.closed

    async def test_what_this_machine_keeps_is_dropped_whoever_answers(self) -> None:
        local = FakeBackend()
        async with serving(answering("x")) as server:
            backend = Backends(local, lambda: RemoteBackend({}, {}))
            async for _ in backend.load(ChatOptions().load(MODEL.path)):
                pass
            async for _ in backend.load(ChatOptions().load(server.url)):
                pass
            await backend.drop_cache("c")
            assert await backend.cache() is None
            await backend.close()
        assert local.dropped == ["c"]

    async def test_what_this_machine_keeps_is_dropped_though_no_model_of_it_was_opened(self) -> None:
        local = FakeBackend()
        async with serving(answering("x")) as server:
            backend = Backends(local, lambda: RemoteBackend({}, {}))
            async for _ in backend.load(ChatOptions().load(server.url)):
                pass
            assert await backend.drop_cache("c") == local.kept
            await backend.close()
        assert local.dropped == ["c"]
