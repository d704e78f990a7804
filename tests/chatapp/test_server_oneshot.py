"""`qwenchat --server` without the screen: the same object as from this machine, and no key in anything it writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from chat_server import Answer, ChatServer, say, serving, stop, streamed, think, usage
from program import Program, Result

from chatapp.oneshot import FIGURES
from chatapp.thread import source_of

KEY = "sk-very-secret-1234"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


async def run(program: Program, *words: str, text: str | None = None) -> Result:
    """The program, beside the server of this loop."""
    return await asyncio.to_thread(lambda: program(*words, text=text))


async def test_the_object_is_the_same_and_what_is_not_known_is_null(program: Program) -> None:
    server = ChatServer(lambda r: streamed(think("why"), say("because"), stop(), usage(20, 30)), models=("maker/m",))
    local = json.loads((await run(program, "-p", "q", "--json")).stdout)
    async with serving(server):
        result = await run(program, "-p", "q", "--json", "--server", server.url)
    found = json.loads(result.stdout)
    assert result.returncode == 0
    assert found.keys() == local.keys()
    assert found["stats"].keys() == local["stats"].keys() == set(FIGURES)
    assert (found["reply"], found["thought"], found["finish_reason"]) == ("because", "why", "stop")
    assert found["model"] == f"m @ {server.url[7:-3]}"
    known = {"prompt_tokens", "generated_tokens", "ttft_ms"}
    assert {name for name, value in found["stats"].items() if value is not None} - {"decode_tok_per_s"} == known
    assert (found["stats"]["prompt_tokens"], found["stats"]["generated_tokens"]) == (20, 30)


async def test_a_bare_thought_does_not_get_into_the_answer(program: Program) -> None:
    server = ChatServer(lambda r: streamed(say("why\n</think>\n\nbecause"), stop()))
    async with serving(server):
        assert (await run(program, "-p", "q", "--server", server.url)).stdout == "because\n"


async def test_a_model_of_the_server_and_the_options_are_asked_for(program: Program) -> None:
    server = ChatServer(models=("a", "b"))
    async with serving(server):
        result = await run(
            program, "--server", server.url, "--model", "b", "--temperature", "0.5", "--thinking", "off", "q"
        )
    assert result.stdout == "ok\n"
    body = server.bodies[0]
    assert (body["model"], body["temperature"]) == ("b", 0.5)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


async def test_a_conversation_is_kept_and_goes_on_there(program: Program) -> None:
    server = ChatServer(models=("m",))
    async with serving(server):
        await run(program, "--server", server.url, "--conversation", "notes", "-p", "one")
        second = await run(program, "--conversation", "notes", "-p", "two", "--json")
        assert json.loads(second.stdout)["model"].startswith("m @ ")
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["one", "ok", "two"]
    assert source_of(program.thread("notes")) == f"{server.url}#m"


async def test_a_server_of_the_settings_with_its_key_shows_it_nowhere(program: Program) -> None:
    server = ChatServer(lambda r: Answer(401, {"error": {"message": f"bad key {KEY}"}}), models=("m",))
    home = program.folder / "home"
    home.mkdir()
    program.environment["CLUSTER_KEY"] = KEY
    async with serving(server):
        (home / "settings.toml").write_text(f'[servers.cluster]\nurl = "{server.url}"\nkey_env = "CLUSTER_KEY"\n')
        result = await run(program, "--server", "cluster", "-p", "q", "--json", "--conversation", "c")
    assert result.returncode == 1
    assert "does not take the key from the variable CLUSTER_KEY (401)" in json.loads(result.stdout)["error"]
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in result.stdout + result.stderr
    written = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert written
    assert not any(KEY.encode() in data for data in written)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--server", "nowhere"], "There is no server 'nowhere' in the settings"),
        (["--server", "http://user:pw@host"], "An address may not hold a key"),
        (["--server", "http://127.0.0.1:1"], "the connection was refused"),
        (["-m", "server:gone"], "There is no server 'gone' in the settings."),
    ],
)
async def test_a_server_that_cannot_be_had_is_a_sentence(program: Program, words: list[str], sentence: str) -> None:
    result = await run(program, *words, "-p", "q")
    assert result.returncode != 0
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert "pw" not in result.stderr
