"""The backend on a server, against a scripted one: how it connects, and what is asked."""

from __future__ import annotations

from typing import Any

import pytest
from chat_server import MODEL, Answer, ChatServer, Request, say, serving, stop, streamed
from remotes import QUESTION, ask, connected, load, model_of, texts

from chatapp.remote.backend import RemoteBackend
from chatapp.remote.profiles import Profile
from runtime.protocol import (
    Failed,
    Message,
    Notice,
    Ready,
    Sampling,
)


class TestConnecting:
    async def test_the_models_are_listed_and_one_is_chosen(self) -> None:
        async with connected(ChatServer(models=("embedder-embed", "a", "b"))) as backend:
            assert model_of(backend).siblings == ("embedder-embed", "a", "b")
            assert model_of(backend).path.endswith("/v1#a")

    async def test_several_models_are_told(self) -> None:
        async with serving(ChatServer(models=("a", {"id": "b", "status": {"value": "loaded"}}))) as server:
            events = await load(RemoteBackend({}, {}), server.url)
            assert isinstance(events[0], Notice)
            assert "2 models" in events[0].message
            assert isinstance(events[-1], Ready)
            assert events[-1].model.path.endswith("#b")

    async def test_a_named_model_is_taken(self) -> None:
        async with serving(ChatServer(models=("a", "b"))) as server:
            backend = RemoteBackend({}, {})
            await load(backend, f"{server.url}#b")
            assert model_of(backend).name == f"b @ {server.url[7:-3]}"
            await ask(backend)
            assert server.bodies[0]["model"] == "b"

    async def test_a_model_that_is_not_there_is_told_with_those_that_are(self) -> None:
        async with connected(ChatServer(models=("a",))) as backend, serving(ChatServer(models=("x", "y"))) as other:
            failed = (await load(backend, f"{other.url}#b"))[-1]
            assert isinstance(failed, Failed)
            assert failed.model_kept
            assert "no model b. It has x, y." in failed.message
            assert model_of(backend).path.endswith("#a")
            assert texts(await ask(backend)) == ("", "ok")

    async def test_a_server_without_a_list_is_taken_at_its_word(self) -> None:
        server = ChatServer()
        del server.pages["/v1/models"]
        async with serving(server):
            backend = RemoteBackend({}, {})
            assert isinstance((await load(backend, f"{server.url}#m"))[-1], Ready)
            assert texts(await ask(backend)) == ("", "ok")

    @pytest.mark.parametrize(
        ("owner", "entry", "pages", "wanted"),
        [
            ("vllm", {"max_model_len": 32768}, {}, 32768),
            ("sglang", {"max_model_len": 4096}, {}, 4096),
            (
                "llamacpp",
                {"meta": {"n_ctx_train": 262144}},
                {"/props": {"default_generation_settings": {"n_ctx": 8192}}},
                8192,
            ),
            ("library", {}, {"/api/ps": {"models": [{"model": MODEL, "context_length": 16384}]}}, 16384),
            (
                "library",
                {},
                {"/api/ps": {"models": []}, "/api/show": {"parameters": "top_k   20\nnum_ctx   65536"}},
                65536,
            ),
            (
                "organization_owner",
                {},
                {
                    "/api/v0/models": {
                        "data": [{"id": MODEL, "loaded_context_length": 5000, "max_context_length": 262144}]
                    }
                },
                5000,
            ),
            (
                "somebody",
                {},
                {"/api/version": {"version": "0.40"}, "/api/ps": {"models": [{"name": MODEL, "context_length": 7000}]}},
                7000,
            ),
            ("somebody", {}, {"/props": {"default_generation_settings": {"n_ctx": 9000}}}, 9000),
            ("somebody", {"context_length": 131072}, {}, 131072),
            ("vllm", {}, {}, 0),
            ("vllm", {"max_model_len": "many"}, {"/props": "nonsense"}, 0),
        ],
    )
    async def test_the_context_is_asked_from_the_server(
        self, owner: str, entry: dict[str, Any], pages: dict[str, Any], wanted: int
    ) -> None:
        server = ChatServer(models=({"id": MODEL, "owned_by": owner, **entry},))
        server.pages |= pages
        async with connected(server) as backend:
            assert model_of(backend).context_length == wanted

    async def test_what_is_known_only_once_the_model_runs_is_asked_then(self) -> None:
        server = ChatServer(owner="library")
        async with connected(server) as backend:
            assert model_of(backend).context_length == 0
            server.pages["/api/ps"] = {"models": [{"model": MODEL, "context_length": 4096}]}
            await ask(backend)
            assert model_of(backend).context_length == 4096

    async def test_keys_and_headers_are_sent(self) -> None:
        async with serving(ChatServer()) as server:
            profile = Profile("p", server.url, MODEL, key_env="KEY", headers={"X-Team": "nlp"})
            backend = RemoteBackend({"p": profile}, {"KEY": "k-1"})
            events = await load(backend, "server:p")
            assert isinstance(events[-1], Ready)
            assert events[-1].model.path == f"server:p#{MODEL}"
            await ask(backend)
            for request in server.requests:
                assert (request.headers["authorization"], request.headers["x-team"]) == ("Bearer k-1", "nlp")

    @pytest.mark.parametrize("url", ["http://127.0.0.1:1", "socks5h://127.0.0.1:1", "nonsense://x"])
    async def test_no_proxy_stands_before_this_machine(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, url)
        async with connected(ChatServer()) as backend:
            assert texts(await ask(backend)) == ("", "ok")

    async def test_but_elsewhere_the_environments_proxy_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving(ChatServer()) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
            await load(RemoteBackend({}, {}), "http://gpu.example:8000/v1#m")
            assert proxy.requests[0].path == "http://gpu.example:8000/v1/models"

    async def test_only_the_given_address_is_contacted(self) -> None:
        async with serving(ChatServer()) as other, serving(ChatServer()) as server:
            server.pages["/v1/models"] = Answer(307, "", {"Location": f"{other.url}/models"})
            failed = (await load(RemoteBackend({}, {}), server.url))[-1]
            assert isinstance(failed, Failed)
            assert f"sends on to {other.url}/models, which was not contacted" in failed.message
            assert other.requests == []


class TestAsking:
    async def test_the_whole_conversation_and_the_choices_go_to_the_server(self) -> None:
        messages = (Message("system", "Be brief."), Message("user", "a"), Message("assistant", "b", "t"), *QUESTION)
        server = ChatServer(models=({"id": "other", "owned_by": "vllm"},))
        async with connected(server) as backend:
            await ask(backend, messages=messages, sampling=Sampling(temperature=0.5, top_k=7, seed=3, max_tokens=9))
        body = server.bodies[0]
        assert body["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "q"},
        ]
        assert {name: body.get(name) for name in ("temperature", "top_k", "seed", "max_tokens", "top_p")} == {
            "temperature": 0.5,
            "top_k": 7,
            "seed": 3,
            "max_tokens": 9,
            "top_p": None,
        }
        assert body["stream"] is True
        assert "chat_template_kwargs" not in body

    async def test_thoughts_go_along_where_they_stay_in_the_prompt(self) -> None:
        messages = (Message("user", "a"), Message("assistant", "b", "t"), *QUESTION)
        server = ChatServer()
        async with connected(server) as backend:
            await ask(backend, messages=messages, preserve_thinking=True)
        assert server.bodies[0]["messages"][1] == {"role": "assistant", "content": "b", "reasoning_content": "t"}
        assert server.bodies[0]["chat_template_kwargs"] == {"preserve_thinking": True}

    async def test_an_answer_about_the_tags_keeps_its_text(self) -> None:
        messages = (Message("user", "a"), Message("assistant", "Use `<think>` and `</think>`."), *QUESTION)
        server = ChatServer()
        async with connected(server) as backend:
            await ask(backend, messages=messages)
        assert server.bodies[0]["messages"][1]["reasoning_content"] == ""

    @pytest.mark.parametrize("thinking", [True, False])
    async def test_the_values_of_the_makers_are_sent_for_their_models(self, thinking: bool) -> None:
        server = ChatServer()
        async with connected(server) as backend:
            await ask(backend, thinking=thinking, sampling=Sampling(top_k=5))
        body = server.bodies[0]
        assert (body["temperature"], body["top_p"]) == ((1.0, 0.95) if thinking else (0.7, 0.8))
        assert body["top_k"] == 5

    @pytest.mark.parametrize(
        ("owner", "on", "off"),
        [
            (
                "vllm",
                {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 64},
                {"chat_template_kwargs": {"enable_thinking": False}},
            ),
            (
                "sglang",
                {
                    "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 64},
                    "custom_params": {"thinking_budget": 64},
                },
                {"chat_template_kwargs": {"enable_thinking": False}},
            ),
            (
                "llamacpp",
                {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget_tokens": 64},
                {"chat_template_kwargs": {"enable_thinking": False}},
            ),
            ("library", {}, {"reasoning_effort": "none"}),
            (
                "organization_owner",
                {"chat_template_kwargs": {"enable_thinking": True}},
                {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "none"},
            ),
            (
                "somebody",
                {"chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 64}},
                {"chat_template_kwargs": {"enable_thinking": False}},
            ),
        ],
    )
    async def test_thinking_and_its_budget_in_the_words_of_each_server(
        self, owner: str, on: dict[str, Any], off: dict[str, Any]
    ) -> None:
        server = ChatServer(owner=owner)
        async with connected(server) as backend:
            await ask(backend, thinking=True, thinking_budget=64)
            await ask(backend, thinking=False, thinking_budget=64)
        names = {
            "chat_template_kwargs",
            "reasoning_effort",
            "thinking_token_budget",
            "thinking_budget_tokens",
            "custom_params",
        }
        sent = [{name: value for name, value in body.items() if name in names} for body in server.bodies]
        assert sent == [on, off]

    async def test_a_reply_that_goes_on_is_not_a_new_one(self) -> None:
        server = ChatServer()
        async with connected(server) as backend:
            events = await ask(backend, messages=(*QUESTION, Message("assistant", "Once upon", "t")), thinking=True)
            assert texts(events) == ("", "ok")
        body = server.bodies[0]
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert body["messages"][-1] == {"role": "assistant", "content": "Once upon", "reasoning_content": "t"}
        assert body["chat_template_kwargs"] == {"enable_thinking": False}

    async def test_but_not_from_inside_its_thought(self) -> None:
        server = ChatServer()
        async with connected(server) as backend:
            failed = (await ask(backend, messages=(*QUESTION, Message("assistant", "", "half a thou"))))[-1]
            assert isinstance(failed, Failed)
            assert "/retry" in failed.message
        assert server.bodies == []


class TestRefusedFields:
    def refusing(self, *names: str, status: int = 422, named: bool = True) -> ChatServer:
        """As transformers refuses what it does not know."""

        def answer(request: Request) -> Answer:
            unexpected = sorted(request.body.keys() & set(names))
            if unexpected:
                words = f"Unexpected fields in the request: {set(unexpected)}" if named else "Bad request"
                return Answer(status, {"detail": words})
            return streamed(say("ok"), stop())

        return ChatServer(answer)

    async def test_are_left_out_told_and_remembered(self) -> None:
        server = self.refusing("top_k", "min_p", "repetition_penalty")
        async with connected(server) as backend:
            events = await ask(backend)
            assert texts(events) == ("", "ok")
            notices = [event.message for event in events if isinstance(event, Notice)]
            assert len(notices) == 1
            assert "does not take top_k, min_p and repetition_penalty" in notices[0]
            assert len(server.bodies) == 2
            assert server.bodies[1]["temperature"] == 1.0
            assert not any(isinstance(event, Notice) for event in await ask(backend))
            assert len(server.bodies) == 3

    async def test_thinking_among_them_is_told(self) -> None:
        async with connected(self.refusing("chat_template_kwargs", status=400)) as backend:
            events = await ask(backend, thinking=False)
            assert texts(events) == ("", "ok")
            assert any(
                isinstance(event, Notice) and "Thinking is as the server has it." in event.message for event in events
            )

    async def test_a_part_of_a_field_blames_the_field(self) -> None:
        def answer(request: Request) -> Answer:
            if "chat_template_kwargs" in request.body:
                return Answer(400, {"error": {"message": "enable_thinking is not supported"}})
            return streamed(say("ok"), stop())

        async with connected(ChatServer(answer)) as backend:
            assert texts(await ask(backend, thinking=True)) == ("", "ok")

    async def test_without_a_name_all_that_openai_does_not_have_is_left_out(self) -> None:
        server = self.refusing("min_p", status=400, named=False)
        async with connected(server) as backend:
            assert texts(await ask(backend)) == ("", "ok")
            assert {"top_k", "min_p"}.isdisjoint(server.bodies[1])
            assert "temperature" in server.bodies[1]

    async def test_another_value_is_tried_again(self) -> None:
        def answer(request: Request) -> Answer:
            if request.body.get("temperature", 0) > 2:
                return Answer(400, {"error": {"message": "temperature must be at most 2"}})
            return streamed(say("ok"), stop())

        server = ChatServer(answer)
        async with connected(server) as backend:
            await ask(backend, sampling=Sampling(temperature=3.0))
            assert "temperature" not in server.bodies[-1]
            await ask(backend, sampling=Sampling(temperature=1.5))
            assert server.bodies[-1]["temperature"] == 1.5

    async def test_a_refusal_of_everything_is_a_failure_and_nothing_is_remembered(self) -> None:
        server = ChatServer(lambda request: Answer(400, {"error": "no"}))
        async with connected(server) as backend:
            failed = (await ask(backend))[-1]
            assert isinstance(failed, Failed)
            assert "400" in failed.message
            server.completions = lambda request: streamed(say("ok"), stop())
            await ask(backend)
            assert server.bodies[-1]["top_k"] == 20
