"""One answer on stdout, without the screen."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from program import SECONDS, Program

from chatapp.oneshot import FIGURES
from chatapp.store import Store


@pytest.fixture
def qwenchat(tmp_path: Path) -> Program:
    return Program(tmp_path)


# What goes in


def test_the_answer_alone_is_on_stdout(qwenchat: Program) -> None:
    result = qwenchat("-p", "hello")
    assert (result.returncode, result.stdout, result.stderr) == (0, "Hello from the fake worker.\n", "")
    assert qwenchat.request()["messages"] == [{"role": "user", "content": "hello", "thought": ""}]
    assert not (qwenchat.folder / "home" / "conversations.db").exists()


@pytest.mark.parametrize(
    ("words", "text", "prompt"),
    [
        (["-p", "summarise"], "line 1\nline 2\n", "summarise\n\nline 1\nline 2"),
        (["summarise", "this"], "text", "summarise this\n\ntext"),
        ([], "  indented\n", "  indented"),
        (["-p", "hi"], "", "hi"),
        (["-p", "hi"], " \n", "hi"),
        (["-p", "größer 世"], "👩‍👩‍👧\x00", "größer 世\n\n👩‍👩‍👧\x00"),
    ],
)
def test_a_piped_text_stands_below_the_question(qwenchat: Program, words: list[str], text: str, prompt: str) -> None:
    assert qwenchat(*words, text=text).returncode == 0
    assert qwenchat.prompt() == prompt


@pytest.mark.parametrize(
    ("data", "prompt", "notices"),
    [(b"\xef\xbb\xbfwith a mark", "with a mark", 0), (b"caf\xe9", "caf\ufffd", 1)],
    ids=["byte order mark", "latin-1"],
)
def test_bytes_that_are_not_utf8_are_replaced_with_a_notice(
    qwenchat: Program, data: bytes, prompt: str, notices: int
) -> None:
    process = qwenchat.start(stdin=subprocess.PIPE, text=False)
    _, err = process.communicate(data, timeout=SECONDS)
    assert qwenchat.prompt() == prompt
    assert err.decode().count("not UTF-8") == notices


def test_a_closed_stdin_is_an_empty_one(qwenchat: Program) -> None:
    process = qwenchat.start("-p", "hello", stdin=None, preexec_fn=lambda: os.close(0))
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (0, "Hello from the fake worker.\n", "")


def test_options_reach_the_engine(qwenchat: Program) -> None:
    qwenchat("-p", "hi", "--system", "be brief", "--temperature", "0", "--seed", "7", "--thinking", "off")
    request = qwenchat.request()
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert request["messages"][0]["content"] == "be brief"
    assert (request["sampling"]["temperature"], request["sampling"]["seed"], request["thinking"]) == (0.0, 7, False)


def test_drafts_and_8_bit_keys_and_values_are_asked_for(qwenchat: Program) -> None:
    qwenchat("-p", "hi", "--draft", "off", "--kv", "q8")
    assert (qwenchat.request()["drafts"], qwenchat.load()["kv_type"]) == (0, "q8")
    assert qwenchat.load()["snapshots"] is None


def test_settings_are_used_and_wrong_ones_named(qwenchat: Program) -> None:
    home = qwenchat.folder / "home"
    home.mkdir()
    (home / "settings.toml").write_text('temperature = 0.25\nsystem = "saved"\ntop_p = 7\n')
    result = qwenchat("-p", "hi")
    assert result.returncode == 0
    assert "top_p takes a number above 0 and up to 1, not 7" in result.stderr
    request = qwenchat.request()
    assert (request["sampling"]["temperature"], request["messages"][0]["content"]) == (0.25, "saved")


# What cannot be done


@pytest.mark.parametrize("words", [[], ["-p", ""], ["-p", " \n"]])
def test_without_a_prompt_there_is_a_sentence(qwenchat: Program, words: list[str]) -> None:
    result = qwenchat(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "qwenchat: There is no prompt: give one with -p, as a word, or on stdin.\n"


def test_without_a_model_the_built_in_one_answers_and_is_named(qwenchat: Program) -> None:
    qwenchat.environment["QWENCHAT_MODEL"] = ""
    result = qwenchat("-p", "hi")
    assert result.returncode == 0
    assert result.stderr.startswith("qwenchat: The built-in model answers")


def test_a_model_of_the_environment_that_is_gone_is_a_sentence(qwenchat: Program) -> None:
    qwenchat.environment["QWENCHAT_MODEL"] = "/gone.gguf"
    result = qwenchat("-p", "hi")
    assert (result.returncode, result.stderr) == (2, "qwenchat: There is no file /gone.gguf.\n")


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--temperature", "hot"], 2, "--temperature takes a number"),
        (["missing.gguf"], 2, "There is no file"),
        (["--resume", "lost"], 2, "There is no conversation 'lost'."),
        (["--resume", "--conversation", "x"], 2, "exclude each other"),
    ],
)
def test_with_json_an_error_is_an_object_as_well(qwenchat: Program, words: list[str], code: int, error: str) -> None:
    result = qwenchat("--json", "-p", "hi", *words)
    assert result.returncode == code
    assert error in result.stderr
    assert error in json.loads(result.stdout)["error"]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_model_that_cannot_be_loaded_is_a_sentence(qwenchat: Program, words: list[str]) -> None:
    qwenchat.script = {"load": [{"fail": "This file is no model.", "kind": "load"}]}
    result = qwenchat("-p", "hi", *words)
    assert (result.returncode, result.stderr) == (1, "qwenchat: This file is no model.\n")
    assert result.stdout == ('{\n  "error": "This file is no model."\n}\n' if words else "")


def test_a_failed_load_stores_no_prompt(qwenchat: Program) -> None:
    qwenchat.script = {"load": [{"fail": "No."}]}
    assert qwenchat("-p", "hi", "--conversation", "work").returncode == 1
    with closing(Store(qwenchat.folder / "home" / "conversations.db")) as store:
        assert store.conversations() == []


def test_a_reply_that_fails_keeps_its_beginning(qwenchat: Program) -> None:
    qwenchat.replies({"answer": "half an"}, {"fail": "The numbers are not finite.", "kind": "numbers"})
    result = qwenchat("-p", "hi", "--conversation", "work")
    assert (result.returncode, result.stdout) == (1, "half an\n")
    assert result.stderr == "qwenchat: The numbers are not finite.\n"
    reply = qwenchat.thread("work")[-1]
    assert (reply.content, reply.status, reply.meta["failure"]) == ("half an", "failed", "numbers")


def test_an_engine_that_dies_is_a_sentence(qwenchat: Program) -> None:
    qwenchat.replies({"answer": "half"}, {"signal": signal.SIGKILL})
    result = qwenchat("-p", "hi", "--json")
    assert result.returncode == 1
    assert "The engine was killed" in result.stderr
    assert "The engine was killed" in json.loads(result.stdout)["error"]


def test_a_damaged_conversations_file_is_said_and_a_newer_one_refused(qwenchat: Program) -> None:
    home = qwenchat.folder / "home"
    home.mkdir()
    (home / "conversations.db").write_bytes(b"damaged" * 1000)
    result = qwenchat("-p", "hi", "--conversation", "work")
    assert (result.returncode, result.stdout) == (0, "Hello from the fake worker.\n")
    assert "was damaged" in result.stderr
    with closing(sqlite3.connect(home / "conversations.db")) as raw:
        raw.execute("PRAGMA user_version = 99")
    result = qwenchat("-p", "hi", "--conversation", "work")
    assert (result.returncode, result.stdout) == (1, "")
    assert "newer qwenchat" in result.stderr


# What comes out


def test_json_is_one_object_with_the_figures(qwenchat: Program) -> None:
    stats = {"prompt_tokens": 9, "cached_tokens": 4, "prefilled_tokens": 5, "drafted": 8, "accepted": 6}
    qwenchat.replies({"thinking": "hm"}, {"answer": "世\x1b[31m"}, {"finish": "length", "stats": stats})
    result = qwenchat("-p", "hi", "--json")
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert json.loads(result.stdout) == {
        "reply": "世\x1b[31m",
        "thought": "hm",
        "finish_reason": "length",
        "model": "q",
        "conversation": None,
        "stats": {**stats, "generated_tokens": 2, "ttft_ms": 12.5, "decode_tok_per_s": 100.0},
    }
    assert set(json.loads(result.stdout)["stats"]) == set(FIGURES)


@pytest.mark.parametrize(
    ("steps", "out", "remark"),
    [
        ([{"finish": "stop", "thought_closed": True}], "", "ended its reply at once: there is no answer"),
        ([{"thinking": "hm"}, {"finish": "length"}], "", "There is no answer: the limit of tokens was reached in its"),
        ([{"thinking": "hm"}, {"finish": "stop"}], "", "There is no answer: the model stopped in its thought"),
        ([{"answer": "a b"}, {"finish": "length"}], "a b\n", "The answer is cut: it reached the limit of tokens"),
        ([{"answer": "done\n"}], "done\n", ""),
        ([{"notice": "no MTP"}, {"answer": "x"}], "x\n", "no MTP"),
    ],
    ids=["empty", "limit in thought", "stopped in thought", "cut", "newline", "notice"],
)
def test_what_the_answer_does_not_show_is_said_on_stderr(
    qwenchat: Program, steps: list[dict[str, Any]], out: str, remark: str
) -> None:
    qwenchat.replies(*steps)
    result = qwenchat("-p", "hi")
    assert (result.returncode, result.stdout) == (0 if out else 1, out)
    assert (remark in result.stderr) if remark else (result.stderr == "")


def test_the_answer_streams(qwenchat: Program) -> None:
    qwenchat.replies({"answer": "first"}, {"delay": 60})
    process = qwenchat.start("-p", "hi")
    assert process.stdout is not None
    assert process.stdout.read(5) == "first"
    process.kill()
    process.communicate()


EVIL = "\x1b]52;c;ZXZpbA==\x07 \x9b31m \u202e"


def test_a_pipe_gets_the_answer_as_it_is(qwenchat: Program) -> None:
    qwenchat.replies({"answer": EVIL})
    assert qwenchat("-p", "hi").stdout == EVIL + "\n"


def on_a_terminal(qwenchat: Program, *words: str) -> str:
    """All that a terminal gets, on stdout and stderr."""
    leader, follower = pty.openpty()
    process = qwenchat.start(*words, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    with closing(os.fdopen(leader, "rb", buffering=0)) as terminal:
        try:
            while piece := terminal.read(1024):
                shown += piece
        except OSError:  # how a terminal ends
            pass
    assert process.wait(SECONDS) == 0
    return shown.decode()


def test_the_screen_is_drawn_on_the_terminal_wherever_stderr_goes(qwenchat: Program, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with (tmp_path / "log").open("w") as log:
        process = qwenchat.start(stdin=follower, stdout=follower, stderr=log, start_new_session=True)
    os.close(follower)
    shown = b""
    with closing(os.fdopen(leader, "r+b", buffering=0)) as terminal:
        while "essage…" not in shown.decode("utf-8", "replace") and select.select([terminal], [], [], SECONDS)[0]:
            shown += terminal.read(4096)
        process.terminate()
        with suppress(OSError):  # how a terminal ends
            while terminal.read(4096):
                pass
    process.wait(SECONDS)
    assert "essage…" in shown.decode("utf-8", "replace")
    assert (tmp_path / "log").read_text() == ""


def test_a_terminal_gets_nothing_that_it_would_obey(qwenchat: Program) -> None:
    half = len(EVIL) // 2
    qwenchat.replies(
        {"progress": [1, 2, 0]}, {"thinking": "hm"}, {"notice": EVIL}, {"answer": EVIL[:half]}, {"answer": EVIL[half:]}
    )
    text = on_a_terminal(qwenchat, "-p", "hi").replace("\r\x1b[K", "")  # the line of the state, which is ours
    assert "ZXZpbA==" in text
    assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(text)


def test_the_line_of_the_state_is_gone_before_the_json(qwenchat: Program) -> None:
    qwenchat.replies({"progress": [1, 2, 0]}, {"thinking": "hm"}, {"answer": "yes"})
    shown = on_a_terminal(qwenchat, "-p", "hi", "--json")
    last_state, wiped, rest = shown.rpartition("\r\x1b[K")
    assert last_state.endswith("thinking 1 token")
    assert wiped
    assert json.loads(rest)["reply"] == "yes"


def test_the_state_is_not_told_where_nobody_watches(qwenchat: Program) -> None:
    qwenchat.replies({"progress": [1, 2, 0]}, {"thinking": "hm"}, {"answer": "yes"})
    assert qwenchat("-p", "hi", "--json").stderr == ""


def test_figures_have_no_digits_that_mean_nothing(qwenchat: Program) -> None:
    qwenchat.replies({"answer": "a"}, {"finish": "stop", "stats": {"ttft_ms": 1906.858177671932}})
    assert json.loads(qwenchat("-p", "hi", "--json").stdout)["stats"]["ttft_ms"] == 1906.9


def test_an_encoding_without_the_characters_replaces_them(qwenchat: Program) -> None:
    qwenchat.environment["PYTHONIOENCODING"] = "ascii"
    qwenchat.replies({"answer": "a世\ud83d b"})
    result = qwenchat("-p", "hi")
    assert (result.returncode, result.stdout) == (0, "a?? b\n")


def test_a_reader_that_leaves_ends_it_quietly(qwenchat: Program) -> None:
    qwenchat.replies({"answer": "line\n"}, {"answer": "more\n", "repeat": 10_000, "delay": 0.001})
    process = qwenchat.start("-p", "hi", "--conversation", "work")
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(SECONDS) == 128 + signal.SIGPIPE
    reply = qwenchat.thread("work")[-1]
    assert reply.content.startswith("line\n")
    assert reply.status == "cancelled"


def test_a_closed_stdout_is_no_traceback(qwenchat: Program) -> None:
    process = qwenchat.start("-p", "hi", preexec_fn=lambda: os.close(1))
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize("full", [False, True])
def test_a_stderr_that_takes_nothing_does_not_cost_the_answer(qwenchat: Program, full: bool) -> None:
    qwenchat.replies({"notice": "no MTP"}, {"answer": "x"})
    with Path("/dev/full").open("w") as nowhere:
        closed = {} if full else {"preexec_fn": lambda: os.close(2)}
        process = qwenchat.start("-p", "hi", stderr=nowhere, **closed)
        out, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (0, "x\n")


@pytest.mark.parametrize("words", [["-p", "hi"], ["-p", "hi", "--json"]])
def test_a_disk_that_is_full_is_said(qwenchat: Program, words: list[str]) -> None:
    qwenchat.replies({"answer": "x"})
    with Path("/dev/full").open("w") as nowhere:
        process = qwenchat.start(*words, stdout=nowhere)
        _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (1, "qwenchat: The answer cannot be written: No space left on device.\n")


# What is not loaded


def test_one_answer_needs_neither_the_screen_nor_the_tensors(qwenchat: Program) -> None:
    code = (
        "import sys; from chatapp.__main__ import main; assert main(sys.argv[1:]) == 0;"
        "print(sorted({'textual', 'rich', 'torch', 'numpy', 'gguf', 'kernels'} & set(sys.modules)))"
    )
    qwenchat.start().communicate()  # writes the script
    result = subprocess.run(
        [sys.executable, "-c", code, str(qwenchat.folder / "q.gguf"), "-p", "hi"],
        env=qwenchat.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (result.stderr, result.stdout) == ("", "Hello from the fake worker.\n[]\n")


def test_the_chat_needs_no_tensors() -> None:
    code = "import sys, chatapp.app; print(sorted({'torch', 'numpy', 'gguf', 'kernels', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
