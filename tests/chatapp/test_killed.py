"""The program killed in its terminal: what was written by then is there at the next start."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from chatapp.bench import worker
from chatapp.bench.program import Terminal, started
from chatapp.store import Node, Store


def test_killed_while_a_reply_streams_the_prompt_and_the_reply_so_far_are_shown_again(tmp_path: Path) -> None:
    """CASES 47."""
    model = tmp_path / "m.gguf"
    model.touch()
    environment = {
        "QWENCHAT_HOME": str(tmp_path / "home"),
        "QWENCHAT_WORKER": f"{sys.executable} -m {worker.__name__}",
    }
    with started([str(model)], environment) as terminal:
        terminal.until("ready")
        terminal.send("go on then\r")
        before = written(terminal, tmp_path / "home")
        written(terminal, tmp_path / "home", beyond=len(before.content))  # it is written again and again
    store = Store(tmp_path / "home" / "conversations.db")
    [conversation] = store.conversations()
    prompt, reply = store.thread(conversation.id)
    store.close()
    assert (prompt.content, reply.status) == ("go on then", "partial")
    assert len(reply.content) > len(before.content)
    assert "".join(itertools.islice(itertools.cycle(worker.PAGE), len(reply.content))) == reply.content
    with started(["--resume"], environment) as terminal:
        terminal.until("unfinished: the chat ended")


def written(terminal: Terminal, home: Path, beyond: int = 0) -> Node:
    """The reply, as soon as more of it than that is stored."""
    for _ in range(400):
        terminal.drain(0.05)
        if (home / "conversations.db").exists():
            store = Store(home / "conversations.db")
            found = store.latest()
            thread = store.thread(found.id) if found is not None else []  # there before its first message is
            store.close()
            if thread and thread[-1].role == "assistant" and len(thread[-1].content) > beyond:
                return thread[-1]
    raise AssertionError("nothing of the reply was stored")
