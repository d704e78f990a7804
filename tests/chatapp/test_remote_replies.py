"""The backend on a server, against a scripted one: what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from chat_server import Answer, ChatServer, Request, say, stop, streamed, think, usage
from remotes import QUESTION, ask, connected, ended, texts

from runtime.protocol import (
    Delta,
    Event,
    Generate,
    Notice,
    PromptProgress,
    WasThought,
)


class TestReplies:
    @pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
    async def test_a_thought_in_the_servers_own_field(self, name: str) -> None:
        server = ChatServer(
            lambda r: streamed(think("why ", name), think("so", name), say("\n\n"), say("because"), stop())
        )
        async with connected(server) as backend:
            events = await ask(backend)
            assert texts(events) == ("why so", "because")
            assert ended(events).thought_closed

    async def test_a_thought_without_its_first_tag_is_known_the_second_time(self) -> None:
        server = ChatServer(lambda r: streamed(say("why "), say("so\n</th"), say("ink>\n\nbecause"), stop()))
        async with connected(server) as backend:
            first, second = await ask(backend), await ask(backend)
            assert texts(first) == texts(second) == ("why so", "because")
            assert any(isinstance(event, WasThought) for event in first)
            assert not any(isinstance(event, WasThought) for event in second)

    async def test_where_nothing_can_be_taken_back_it_is_held(self) -> None:
        server = ChatServer(lambda r: streamed(say("why "), say("so\n</think>\n\nbecause"), stop()))
        async with connected(server, hold=True) as backend:
            events = await ask(backend)
            assert texts(events) == ("why so", "because")
            assert not any(isinstance(event, WasThought) for event in events)

    async def test_without_thinking_nothing_is_held_or_guessed(self) -> None:
        server = ChatServer(lambda r: streamed(say("a\n</think>\n"), stop()))
        async with connected(server, hold=True) as backend:
            assert texts(await ask(backend, thinking=False)) == ("", "a\n</think>\n")

    async def test_a_limit_of_tokens_is_told(self) -> None:
        async with connected(ChatServer(lambda r: streamed(think("why"), stop("length")))) as backend:
            end = ended(await ask(backend))
            assert (end.reason, end.thought_closed) == ("length", False)

    async def test_an_answer_in_one_piece_is_taken_too(self) -> None:
        message = {"role": "assistant", "content": "whole", "reasoning_content": "why"}
        body = {
            "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        }
        async with connected(ChatServer(lambda r: Answer(body=body))) as backend:
            events = await ask(backend)
            assert texts(events) == ("why", "whole")
            assert ended(events).stats.generated_tokens == 4

    async def test_comments_and_empty_chunks_are_nothing(self) -> None:
        server = ChatServer(lambda r: streamed(": still working\n\n", {"choices": []}, say("ok"), stop()))
        async with connected(server) as backend:
            assert texts(await ask(backend)) == ("", "ok")

    async def test_a_cancelled_one_closes_the_stream_and_the_next_goes_on(self) -> None:
        never, said = asyncio.Event(), asyncio.Event()
        seen: list[Request] = []

        def answer(request: Request) -> Answer:
            seen.append(request)
            return streamed(say("part"), never.wait(), stop()) if len(seen) == 1 else streamed(say("next"), stop())

        async with connected(ChatServer(answer)) as backend:
            events: list[Event] = []

            async def play() -> None:
                async for event in backend.generate(Generate("r", "c", QUESTION)):
                    events.append(event)
                    said.set()

            task = asyncio.create_task(play())
            await asyncio.wait_for(said.wait(), 5)
            await backend.cancel("r")
            await asyncio.wait_for(task, 5)
            assert texts(events) == ("", "part")
            assert ended(events).reason == "cancelled"
            await asyncio.wait_for(seen[0].gone.wait(), 5)
            assert texts(await ask(backend)) == ("", "next")

    async def test_silence_is_told_with_its_end(self) -> None:
        never = asyncio.Event()

        async def answer(request: Request) -> Answer:
            await never.wait()
            return Answer()

        async with connected(ChatServer(answer), remind=0.01) as backend:
            events = backend.generate(Generate("r", "c", QUESTION))
            first = await anext(events)
            assert first == Notice("Nothing has come from the server for 0.0 s; its time-out is 5 min.")
            await events.aclose()


class TestTheBudgetOfThoughts:
    def thinking(self, tokens: int, owner: str) -> ChatServer:
        details = {"completion_tokens_details": {"reasoning_tokens": tokens}}

        async def later() -> None:
            await asyncio.sleep(0.002)

        return ChatServer(
            lambda r: streamed(think("a"), later(), think("b"), say("c"), stop(), usage(20, 200, **details)),
            owner=owner,
        )

    @pytest.mark.parametrize(
        ("owner", "tokens", "words"),
        [
            ("vllm", 64, None),
            ("vllm", 150, "does not keep to the budget of 64 tokens"),
            ("library", 150, "Ollama takes no budget"),
        ],
    )
    async def test_that_is_not_kept_is_told_once(self, owner: str, tokens: int, words: str | None) -> None:
        async with connected(self.thinking(tokens, owner)) as backend:
            first = [e.message for e in await ask(backend, thinking_budget=64) if isinstance(e, Notice)]
            second = [e.message for e in await ask(backend, thinking_budget=64) if isinstance(e, Notice)]
        assert len(first) == (words is not None)
        assert not words or words in first[0]
        assert second == []


class TestFigures:
    async def test_what_the_server_tells_is_told_and_the_rest_is_unknown(self) -> None:
        details = {"prompt_tokens_details": {"cached_tokens": 12}, "completion_tokens_details": {"reasoning_tokens": 5}}
        server = ChatServer(lambda r: streamed(think("a"), say("b"), stop(), usage(20, 30, **details)))
        async with connected(server) as backend:
            told = ended(await ask(backend)).stats.told()
        assert told["ttft_ms"] > 0
        wanted: Mapping[str, int | None] = {
            "prompt_tokens": 20,
            "cached_tokens": 12,
            "prefilled_tokens": 8,
            "generated_tokens": 30,
            "thinking_tokens": 5,
            "context_used": 50,
            "drafted": None,
            "accepted": None,
            "context_length": None,
        }
        assert {name: told[name] for name in wanted} == wanted

    async def test_a_server_that_tells_nothing_leaves_all_unknown(self) -> None:
        async with connected(ChatServer()) as backend:
            told = ended(await ask(backend)).stats.told()
        assert {name for name, value in told.items() if value is not None} == {"ttft_ms", "thinking_tokens"}

    async def test_the_timings_and_the_progress_of_llama_server(self) -> None:
        timings = {
            "cache_n": 236,
            "prompt_n": 1,
            "prompt_ms": 30.9,
            "predicted_n": 35,
            "predicted_ms": 661.0,
            "predicted_per_second": 52.9,
            "draft_n": 20,
            "draft_n_accepted": 15,
        }
        progress = {"choices": [], "prompt_progress": {"total": 237, "cache": 236, "processed": 237, "time_ms": 5}}
        chunks = (progress, say("a", timings={"predicted_n": 2}), say("b", timings={"predicted_n": 5}))
        server = ChatServer(lambda r: streamed(*chunks, stop(timings=timings)), owner="llamacpp")
        async with connected(server) as backend:
            events = await ask(backend)
        assert events[0] == PromptProgress("r", 237, 237, 236)
        assert [event.n_tokens for event in events if isinstance(event, Delta)] == [2, 3]
        stats = ended(events).stats
        assert (stats.prompt_tokens, stats.cached_tokens, stats.prefilled_tokens) == (237, 236, 1)
        assert (stats.generated_tokens, stats.drafted, stats.accepted) == (35, 20, 15)
        assert (stats.decode_tok_per_s, stats.prefill_ms) == (52.9, 30.9)

    async def test_the_counts_of_each_chunk(self) -> None:
        chunks = [think("a", usage={"completion_tokens": 3}), say("b", usage={"completion_tokens": 4}), stop()]
        async with connected(ChatServer(lambda r: streamed(*chunks))) as backend:
            events = await ask(backend)
        assert [event.n_tokens for event in events if isinstance(event, Delta)] == [3, 1]
        assert ended(events).stats.thinking_tokens == 3
