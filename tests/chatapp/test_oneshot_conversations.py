"""Answers on stdout that belong to a conversation, and what interruptions leave of them."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from program import SECONDS, Program, wait_for

from chatapp.store import Store


@pytest.fixture
def qwenchat(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_a_named_conversation_begins_and_goes_on(qwenchat: Program) -> None:
    assert qwenchat("-p", "one", "--conversation", "work", "--system", "be brief").returncode == 0
    assert [(n.role, n.content, n.thought, n.status) for n in qwenchat.thread("work")] == [
        ("system", "be brief", "", "complete"),
        ("user", "one", "", "complete"),
        ("assistant", "Hello from the fake worker.", "The user says hello. ", "complete"),
    ]
    result = qwenchat("-p", "two", "--conversation", "work", "--json")
    assert json.loads(result.stdout)["conversation"] == "work"
    assert qwenchat.request()["messages"] == [
        {"role": "system", "content": "be brief", "thought": ""},
        {"role": "user", "content": "one", "thought": ""},
        {"role": "assistant", "content": "Hello from the fake worker.", "thought": "The user says hello. "},
        {"role": "user", "content": "two", "thought": ""},
    ]
    stored = qwenchat.thread("work")
    assert len(stored) == 5
    assert stored[-1].meta["reason"] == "stop"
    assert stored[-1].meta["stats"]["generated_tokens"] == 4


@pytest.mark.parametrize("words", [["--conversation", "work"], ["--resume"]])
def test_its_state_is_kept_on_disk(qwenchat: Program, words: list[str]) -> None:
    qwenchat("-p", "one", *words)
    assert qwenchat.load()["snapshots"] == str(qwenchat.folder / "home" / "snapshots")


def test_another_system_prompt_replaces_that_of_the_conversation(qwenchat: Program) -> None:
    qwenchat("-p", "one", "--conversation", "work", "--system", "be brief")
    qwenchat("-p", "two", "--conversation", "work", "--system", "be long")
    sent = [(message["role"], message["content"]) for message in qwenchat.request()["messages"]]
    assert (sent[0], sent[-1]) == (("system", "be long"), ("user", "two"))
    assert len(sent) == 4


def test_the_system_prompt_of_the_settings_is_for_new_conversations(qwenchat: Program) -> None:
    qwenchat("-p", "one", "--conversation", "work")
    (qwenchat.folder / "home" / "settings.toml").write_text('system = "saved"\n')
    qwenchat("-p", "two", "--conversation", "work")
    assert [message["role"] for message in qwenchat.request()["messages"]] == ["user", "assistant", "user"]
    qwenchat("-p", "one", "--conversation", "other")
    assert qwenchat.request()["messages"][0]["content"] == "saved"


@pytest.mark.parametrize("key", [[], ["work"]], ids=["latest", "named"])
def test_resume_goes_on_with_a_saved_conversation(qwenchat: Program, key: list[str]) -> None:
    qwenchat("-p", "one", "--conversation", "work")
    result = qwenchat("-p", "two", "--resume", *key)
    assert result.returncode == 0
    assert [node.content for node in qwenchat.thread("work")][::2] == ["one", "two"]


def test_what_a_conversation_has_chosen_holds_unless_an_option_is_given(qwenchat: Program) -> None:
    qwenchat("-p", "one", "--conversation", "work")
    with closing(Store(qwenchat.folder / "home" / "conversations.db")) as store:
        conversation = store.by_name("work")
        assert conversation is not None
        store.keep_choices(conversation.id, {"temperature": 0.3, "thinking": False, "thinking_budget": "off"})
    (qwenchat.folder / "home" / "settings.toml").write_text("temperature = 0.9\ntop_k = 7\nthinking_budget = 50\n")
    qwenchat("-p", "two", "--conversation", "work")
    asked = qwenchat.request()
    assert (asked["sampling"]["temperature"], asked["sampling"]["top_k"]) == (0.3, 7)
    assert (asked["thinking"], asked["thinking_budget"]) == (False, None)
    qwenchat("-p", "three", "--resume", "work", "--temperature", "0.5")
    asked = qwenchat.request()
    assert (asked["sampling"]["temperature"], asked["thinking"]) == (0.5, False)


def test_resume_without_a_conversation_begins_one(qwenchat: Program) -> None:
    result = qwenchat("-p", "one", "--resume", "--json")
    assert "this is a new one" in result.stderr
    assert len(json.loads(result.stdout)["conversation"]) == 32


# Interruptions


def started(qwenchat: Program, *words: str) -> subprocess.Popen[Any]:
    """The program, in the middle of its answer, which goes on for a minute."""
    qwenchat.replies({"thinking": "hm"}, {"answer": "begun"}, {"delay": 60})
    process = qwenchat.start("-p", "hi", "--conversation", "work", *words)
    assert process.stdout is not None
    if not words:
        assert process.stdout.read(5) == "begun"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_the_reply_and_keeps_its_beginning(qwenchat: Program, number: int, code: int) -> None:
    process = started(qwenchat)
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (code, "\n", "qwenchat: Stopped.\n")
    reply = qwenchat.thread("work")[-1]
    assert (reply.content, reply.thought, reply.status) == ("begun", "hm", "cancelled")


def test_a_stopped_reply_is_an_object_with_json(qwenchat: Program) -> None:
    process = started(qwenchat, "--json")
    wait_for(lambda: (qwenchat.folder / "received").read_text().count("\n") == 2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert json.loads(out)["finish_reason"] == "cancelled"


def test_a_second_signal_does_not_wait_for_the_engine(qwenchat: Program) -> None:
    qwenchat.replies({"answer": "begun"}, {"delay": 60, "deaf": True})
    process = qwenchat.start("-p", "hi", "--conversation", "work")
    assert process.stdout is not None
    assert process.stdout.read(5) == "begun"
    process.send_signal(signal.SIGINT)
    wait_for(lambda: '"Cancel"' in (qwenchat.folder / "received").read_text())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (130, "")
    assert qwenchat.thread("work")[-1].content == "begun"


def test_a_signal_while_loading_ends_it(qwenchat: Program) -> None:
    qwenchat.script = {"load": [{"delay": 60}]}
    process = qwenchat.start("-p", "hi", "--conversation", "work")
    wait_for((qwenchat.folder / "received").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (130, "", "")


def test_killed_in_the_middle_the_prompt_and_the_answer_so_far_are_kept(qwenchat: Program) -> None:
    process = started(qwenchat)
    wait_for(lambda: qwenchat.thread("work")[-1].content != "")
    process.kill()
    process.communicate()
    prompt, reply = qwenchat.thread("work")
    assert prompt.content == "hi"
    assert (reply.content, reply.thought, reply.status) == ("begun", "hm", "partial")
