"""The chat with a server that is not ours: `transformers serve`, with a tiny random Qwen3.5 of the goldens.

It needs an environment of its own: `.serve` in the checkout, made as `.ci/run` does, or `TEST_TRANSFORMERS`, the path
of the program `transformers` in another.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import here, running
from program import Program, wait_for
from remotes import ask, ended, load, texts

from chatapp.backends import Backends
from chatapp.local import LocalBackend
from chatapp.options import ChatOptions
from chatapp.remote.backend import RemoteBackend
from runtime.protocol import Delta, Event, Generate, Message, Notice, Ready, Sampling

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("TEST_TRANSFORMERS") or ROOT / ".serve" / "bin" / "transformers")
MODEL = f"{ROOT / 'tests' / 'goldens'}:tiny-dense.gguf"
SHORT = Sampling(temperature=0.0, max_tokens=12)

pytestmark = [
    here("brings a server of its own"),
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAM.is_file(), reason="no transformers[serving]: neither .serve nor TEST_TRANSFORMERS"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server, listening on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    words = ["serve", MODEL, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with log.open("wb") as file:
        server = subprocess.Popen(
            [PROGRAM, *words], stdout=file, stderr=file, env={**os.environ, "HF_HUB_OFFLINE": "1"}, cwd=log.parent
        )
    try:
        wait_for(lambda: connects(port), seconds=120)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(20)


def connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
async def test_list_stream_think_cancel_and_go_on(url: str, tmp_path: Path) -> None:
    """In one test, as each worker of the test run would start a server of its own."""
    backend = RemoteBackend({}, {})
    ready = (await load(backend, url))[-1]
    assert isinstance(ready, Ready)
    assert ready.model.siblings == (MODEL,)

    thought = await ask(backend, thinking=True, sampling=SHORT)
    assert texts(thought)[0]
    assert texts(thought)[1] == ""
    assert (ended(thought).reason, ended(thought).thought_closed) == ("length", False)
    assert ended(thought).stats.generated_tokens == 12
    assert sum(isinstance(event, Delta) for event in thought) > 3

    answer = await ask(backend, thinking=False, sampling=Sampling(temperature=0.0, max_tokens=12, top_k=5))
    assert texts(answer)[0] == ""
    assert texts(answer)[1]
    notices = [event.message for event in answer if isinstance(event, Notice)]
    assert len(notices) == 1
    assert "does not take top_k" in notices[0]

    events: list[Event] = []
    async for event in backend.generate(Generate("long", "c", (Message("user", "q"),), Sampling(max_tokens=1000))):
        events.append(event)
        if isinstance(event, Delta):
            await backend.cancel("long")
    assert ended(events).reason == "cancelled"
    assert any(texts(events))

    talk = (Message("user", "q"), Message("assistant", texts(answer)[1]), Message("user", "and?"))
    again = await ask(backend, messages=talk, thinking=False, sampling=SHORT)
    assert texts(again)[1]
    await backend.close()

    await in_the_chat(url, tmp_path)
    await on_the_command_line(url, tmp_path)


async def in_the_chat(url: str, path: Path) -> None:
    backend = Backends(LocalBackend(), lambda: RemoteBackend({}, {}))
    options = ChatOptions(model=url, sampling=SHORT, thinking=False)
    async with running(backend, path, options) as chat:  # type: ignore[arg-type]
        await chat.until(lambda: re.match(r"goldens:tiny-\S*\.gguf @ 127\.0\.0\.1:.* ready", chat.status()) is not None)
        await chat.ask("hello")
        node = chat.thread()[-1]
        assert (node.status, bool(node.content)) == ("complete", True)
        await chat.ask("go on")
        assert chat.thread()[-1].content
        assert chat.thread()[-1].meta["source"] == f"{url}#{MODEL}"


async def on_the_command_line(url: str, path: Path) -> None:
    program = Program(path)
    words = ("-p", "hello", "--server", url, "--json", "--max-tokens", "12", "--thinking", "off")
    found = json.loads((await asyncio.to_thread(program, *words)).stdout)
    assert found["reply"]
    assert (found["finish_reason"], found["stats"]["generated_tokens"]) == ("length", 12)
    assert found["stats"]["drafted"] is None
