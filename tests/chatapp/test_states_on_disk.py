"""The whole program twice with a real model: the second process goes on where the first has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rewrite import GOLDENS

from runtime.chat_template import ChatTemplate
from runtime.gguf import GGUFFile
from runtime.protocol import Message
from runtime.tokenizer import Tokenizer

MODEL = GOLDENS / "tiny-dense.gguf"
QUESTION = "A long story, if you please, of the sea and the wind."


def answer(home: Path, prompt: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "chatapp", str(MODEL), "--json", "-p", prompt, "--conversation", "story"]
    choices = ["--temperature", "0", "--max-tokens", "12", "--thinking", "off", "--threads", "1"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("QWENCHAT_")}
    done = subprocess.run(
        [*command, *choices],
        env={**kept, "QWENCHAT_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def settled(reply: str) -> int:
    """Tokens of the first turn as any second one shows it."""
    with closing(GGUFFile.open(MODEL)) as file:
        template = ChatTemplate.from_metadata(file.metadata, Tokenizer.from_metadata(file.metadata))
    history = (Message("user", QUESTION), Message("assistant", reply))
    return len(template.stable_prefix(history, thinking=False))


@pytest.mark.slow
def test_the_second_process_reads_only_what_is_new(tmp_path: Path) -> None:
    first = answer(tmp_path, QUESTION)
    assert first["stats"]["cached_tokens"] == 0
    second = answer(tmp_path, "And then?")
    assert second["stats"]["cached_tokens"] >= settled(first["reply"]) > first["stats"]["prompt_tokens"]
    assert (tmp_path / "snapshots").is_dir()
    assert not (tmp_path / "settings.toml").exists()
