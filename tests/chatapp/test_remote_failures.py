"""Everything that can go wrong with a server is a sentence that says what happened, and shows no key."""

from __future__ import annotations

import asyncio
import email.utils
import json
import re
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, Answer, ChatServer, event, say, serving, stop, streamed, think
from remotes import ask, connected, load, texts

from chatapp.log import Log
from chatapp.remote.backend import RemoteBackend
from chatapp.remote.profiles import Profile
from runtime.protocol import Delta, Failed

KEY = "sk-very-secret-1234"


async def failure(server: ChatServer, *, key: bool = False, silence: float = 5.0) -> Failed:
    """How asking it ends; the log is checked for the key as well."""
    async with serving(server):
        profile = Profile("p", server.url, key_env="KEY" if key else "", timeout=silence)
        backend = RemoteBackend({"p": profile}, {"KEY": KEY})
        events = await load(backend, "server:p")
        if backend.model is not None:
            events = await ask(backend)
        await backend.close()
    failed = events[-1]
    assert isinstance(failed, Failed), events
    return failed


def answering(status: int, body: Any = None, **headers: str) -> ChatServer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ChatServer(lambda request: Answer(status, body, named))


class TestConnections:
    async def test_refused(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        failed = (await load(RemoteBackend({}, {}), f"http://127.0.0.1:{port}/v1"))[-1]
        assert isinstance(failed, Failed)
        assert failed.message == (
            f"Nothing answers at 127.0.0.1:{port}: the connection was refused. Does the server run?"
        )

    async def test_a_server_that_has_gone_since(self) -> None:
        server = ChatServer()
        async with serving(server):
            backend = RemoteBackend({}, {})
            await load(backend, server.url)
        failed = (await ask(backend))[-1]
        assert isinstance(failed, Failed)
        assert failed.kind == "server"
        assert "the connection was refused" in failed.message

    async def test_an_unknown_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("no_proxy", "*")
        failed = (await load(RemoteBackend({}, {}), "http://no-such-host.invalid:8000/v1"))[-1]
        assert isinstance(failed, Failed)
        assert "The host no-such-host.invalid is not known" in failed.message

    async def test_a_certificate_that_nobody_vouches_for(self, tmp_path: Path) -> None:
        async with serving(ChatServer(), certified(tmp_path)) as server:
            failed = (await load(RemoteBackend({}, {}), server.url))[-1]
        assert isinstance(failed, Failed)
        assert failed.message.startswith("No safe connection to 127.0.0.1:")
        assert "self" in failed.message

    async def test_https_to_a_server_without_it(self) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            failed = (await load(RemoteBackend({}, {}), f"https://127.0.0.1:{port}/v1"))[-1]
        assert isinstance(failed, Failed)
        assert "Does it speak https?" in failed.message

    async def test_something_else_that_listens(self) -> None:
        server = ChatServer()
        server.pages["/v1/models"] = Answer(body="<html>hello</html>", headers={"Content-Type": "text/html"})
        failed = await failure(server)
        assert "is no chat API" in failed.message

    @pytest.mark.parametrize("page", [{"data": [{"id": 5}]}, {"data": 3}, {"data": ["a"]}, 7])
    async def test_a_list_of_another_form(self, page: object) -> None:
        server = ChatServer()
        server.pages["/v1/models"] = Answer(body=json.dumps(page), headers={"Content-Type": "application/json"})
        message = (await failure(server)).message
        assert not re.search(r"object|attribute|int|str|instance", message), message

    async def test_a_list_that_never_comes(self) -> None:
        async def never() -> None:
            await asyncio.Event().wait()

        server = ChatServer()
        server.pages["/v1/models"] = streamed(never())
        failed = await failure(server, silence=0.1)
        assert "has said nothing for 0.1 s, the time-out" in failed.message

    async def test_no_model(self) -> None:
        server = ChatServer(models=())
        assert (await failure(server)).message == "The server serves no model."
        server.pages["/v1/models"] = Answer(200, {"object": "list", "data": None})
        assert (await failure(server)).message == "The server serves no model."

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("ALL_PROXY", "socks5h://u:s3cret@h:1", "SOCKS needs a package: pip install 'httpx2[socks]'."),
            ("ALL_PROXY", "ftp://u:s3cret@h:1", "its address begins with http:// or https://."),
            ("ALL_PROXY", "http://u:s3cret@h:abc", "its address begins with http:// or https://."),
            ("SSL_CERT_FILE", "/no/such/file", "cannot be read: No such file or directory."),
        ],
    )
    async def test_an_environment_that_leads_nowhere(
        self, name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, value)
        failed = (await load(RemoteBackend({}, {}), "http://gpu.example:8000/v1"))[-1]
        assert isinstance(failed, Failed)
        assert failed.message.endswith(words)
        assert "s3cret" not in failed.message


class TestAnswers:
    async def test_401_without_a_key(self) -> None:
        failed = await failure(answering(401, {"error": {"message": "Missing bearer token"}}))
        assert failed.message.startswith("The server wants a key (401)")
        assert "key_env" in failed.message
        assert "Missing bearer token." in failed.message

    @pytest.mark.parametrize("page", ["models", "chat"])
    async def test_401_with_a_key_that_the_server_repeats(self, page: str) -> None:
        words = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
        server = answering(401, words)
        if page == "models":
            server.pages["/v1/models"] = Answer(401, words)
        failed = await failure(server, key=True)
        assert "does not take the key from the variable KEY (401)" in failed.message
        assert "Incorrect API key provided: ***." in failed.message

    async def test_403(self) -> None:
        failed = await failure(answering(403, {"detail": "Only for staff"}))
        assert failed.message == "The server does not allow this (403). It says: Only for staff."

    async def test_404_of_a_model(self) -> None:
        words = {"object": "error", "message": f"The model `{MODEL}` does not exist.", "code": 404}
        failed = await failure(answering(404, words))
        assert failed.message.startswith(f"The server has no model {MODEL} (404): /model shows those it has.")

    async def test_404_of_the_api(self) -> None:
        server = ChatServer()
        server.pages["/v1/models"] = Answer(404, "nothing here", {"Content-Type": "text/plain"})
        failed = await failure(server)
        assert "There is no chat API at http://" in failed.message
        assert "/v1" in failed.message

    async def test_429_with_its_wait(self) -> None:
        failed = await failure(answering(429, {"error": "slow down"}, Retry_After="20"))
        assert (
            failed.message
            == "The server is asked too much (429): it asks to wait 20 s, then /retry. It says: slow down."
        )

    async def test_429_until_a_date(self) -> None:
        date = email.utils.formatdate(time.time() + 185, usegmt=True)
        failed = await failure(answering(429, None, Retry_After=date))
        assert "it asks to wait 3 min" in failed.message

    @pytest.mark.parametrize("wait", ["", "soon"])
    async def test_429_without_a_wait(self, wait: str) -> None:
        failed = await failure(answering(429, "null", **({"Retry_After": wait} if wait else {})))
        assert "does not say for how long; /retry asks again." in failed.message

    @pytest.mark.parametrize("status", [500, 502, 503])
    async def test_5xx(self, status: int) -> None:
        failed = await failure(answering(status, "<html>Bad Gateway</html>", Content_Type="text/html"))
        assert failed.message == f"The server has failed ({status} Told); /retry asks again."

    async def test_a_full_context(self) -> None:
        words = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
        failed = await failure(answering(400, {"error": {"message": words}}))
        assert failed.kind == "context"
        assert "4096" in failed.message

    async def test_a_full_context_of_llama_server(self) -> None:
        error = {
            "code": 400,
            "message": "request (5000) is too large",
            "type": "exceed_context_size_error",
            "n_ctx": 4096,
        }
        assert (await failure(answering(400, {"error": error}))).kind == "context"

    async def test_a_context_that_ends_in_the_middle_of_a_reply(self) -> None:
        error = {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}
        failed = await failure(ChatServer(lambda request: streamed(say("two thousand"), error)))
        assert failed.kind == "context"
        assert "What came is kept: /continue goes on from there" in failed.message

    async def test_words_of_any_size_and_with_escapes_are_one_harmless_line(self) -> None:
        failed = await failure(answering(500, {"error": "\x1b[31m" + "x\n" * 5000}))
        assert len(failed.message) < 600
        assert failed.message.isprintable()

    async def test_a_page_instead_of_a_stream(self) -> None:
        failed = await failure(answering(200, "<html></html>", Content_Type="text/html"))
        assert "it sends text/html" in failed.message


class TestStreams:
    async def test_cut_in_the_middle_what_came_is_kept_and_going_on_is_offered(self) -> None:
        server = ChatServer(lambda request: streamed(think("why"), say("half of "), say("it"), cut=True))
        async with connected(server) as backend:
            events = await ask(backend)
            failed = events[-1]
            assert isinstance(failed, Failed)
            assert texts(events) == ("why", "half of it")
            assert failed.kind == "server"
            assert "broke" in failed.message
            assert "What came is kept: /continue goes on from there, /retry begins anew." in failed.message
            server.completions = lambda request: streamed(say("ok"), stop())
            assert texts(await ask(backend)) == ("", "ok")

    async def test_cut_inside_the_thought_nothing_is_offered_that_cannot_be(self) -> None:
        server = ChatServer(lambda request: streamed(think("why"), cut=True))
        async with connected(server) as backend:
            failed = (await ask(backend))[-1]
            assert isinstance(failed, Failed)
            assert failed.message.endswith("What came is kept: /retry begins anew.")

    async def test_ended_without_an_end(self) -> None:
        server = ChatServer(lambda request: streamed(say("half"), done=False))
        async with connected(server) as backend:
            failed = (await ask(backend))[-1]
            assert isinstance(failed, Failed)
            assert "The connection broke in the middle of the reply." in failed.message

    @pytest.mark.parametrize(("last", "done"), [((stop(),), False), ((), True)], ids=["reason", "done"])
    async def test_an_end_is_told_by_a_reason_or_by_the_word_done(self, last: tuple[Any, ...], done: bool) -> None:
        server = ChatServer(lambda request: streamed(say("all"), *last, done=done))
        async with connected(server) as backend:
            assert not isinstance((await ask(backend))[-1], Failed)

    async def test_an_error_that_is_told_in_it(self) -> None:
        error = {"error": {"message": "CUDA out of memory", "code": 500}}
        server = ChatServer(lambda request: streamed(say("half"), error))
        async with connected(server) as backend:
            events = await ask(backend)
            assert texts(events) == ("", "half")
            assert isinstance(events[-1], Failed)
            assert "CUDA out of memory." in events[-1].message

    async def test_a_chunk_that_is_no_json(self) -> None:
        server = ChatServer(lambda request: streamed('data: {"error": "a "quoted" word"}\n\n'))
        async with connected(server) as backend:
            failed = (await ask(backend))[-1]
            assert isinstance(failed, Failed)
            assert 'a "quoted" word' in failed.message

    async def test_a_fault_of_the_program_ends_the_reply_and_its_trace_is_in_the_log(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serving(ChatServer()) as server:
            backend = RemoteBackend({}, {}, Log(tmp_path / "log"))
            await load(backend, server.url)
            monkeypatch.setattr("chatapp.remote.stream.Reply.take", lambda self, chunk: 1 // 0)
            assert isinstance((await ask(backend))[-1], Failed)
            await backend.close()
        assert "ZeroDivisionError" in (tmp_path / "log").read_text()

    @pytest.mark.parametrize(
        "chunk",
        [
            [],
            3,
            None,
            {"choices": 3},
            {"choices": [3]},
            {"choices": [{"delta": 3}]},
            {"choices": [{"delta": {"content": 3}}]},
        ],
    )
    async def test_chunks_of_another_form_break_nothing(self, chunk: Any) -> None:
        server = ChatServer(lambda request: streamed(say("a"), event(chunk), say("b"), stop()))
        async with connected(server) as backend:
            events = await ask(backend)
            told = isinstance(events[-1], Failed)
            assert texts(events)[1] == ("a" if told else "ab"), json.dumps(chunk)
            assert told == (not isinstance(chunk, dict))

    async def test_a_stall_tells_its_time_out(self) -> None:
        never = asyncio.Event()
        server = ChatServer(lambda request: streamed(say("half"), never.wait(), stop()))
        failed = await failure(server, silence=0.1)
        assert "has said nothing for 0.1 s, the time-out" in failed.message
        assert "/continue" in failed.message

    async def test_a_stall_before_the_first_word(self) -> None:
        never = asyncio.Event()

        async def answer(request: object) -> Answer:
            await never.wait()
            return Answer()

        failed = await failure(ChatServer(answer), silence=0.1)
        assert "the time-out" in failed.message
        assert "/continue" not in failed.message


async def test_no_key_gets_into_the_log(tmp_path: Path) -> None:
    server = answering(500, {"error": f"upstream refused Bearer {KEY}"})
    async with serving(server):
        backend = RemoteBackend({"p": Profile("p", server.url, key_env="KEY")}, {"KEY": KEY}, Log(tmp_path / "log"))
        await load(backend, "server:p")
        events = await ask(backend)
        await backend.close()
    log = (tmp_path / "log").read_text()
    assert "upstream refused Bearer ***" in log
    assert KEY not in log
    assert KEY not in repr([event for event in events if not isinstance(event, Delta)])


def certified(folder: Path) -> ssl.SSLContext:
    """TLS with a certificate that this machine signed itself."""
    names = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1", *names)
    try:
        subprocess.run(made, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
