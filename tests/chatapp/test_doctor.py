"""`qwenchat doctor`, as a program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from program import Program

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    program = Program(tmp_path)
    program.environment |= {
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(tmp_path / "caches"),
        "QWENCHAT_MODEL_FOLDERS": str(tmp_path / "models"),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    return program


def test_every_part_is_looked_at_and_what_is_wrong_comes_with_advice(program: Program) -> None:
    (program.folder / "models").mkdir()
    shutil.copy(GOLDENS / "tiny-dense.gguf", program.folder / "models" / "tiny-Q8_0.gguf")
    shutil.copy(GOLDENS / "tiny-dense.gguf", program.folder / "models" / "half-Q8_0-00001-of-00002.gguf")
    result = program("doctor", "--json")
    checks = {check["name"]: check for check in map(json.loads, result.stdout.splitlines())}
    assert result.returncode == 0, result.stderr
    named = {
        "Terminal",
        "Colours",
        "Text",
        "Settings",
        "Conversations",
        "Model",
        "Python",
        "torch",
        "Triton",
        "Processor",
    }
    assert named | {"Memory", "Memory speed", "GPU", "Downloads go to", "Hub", "Models"} <= checks.keys()
    assert checks["Colours"]["fact"] == "16 million"
    assert "tiny-Q8_0" in checks["Models"]["fact"]
    assert "HF_HUB_OFFLINE is set" in checks["Hub"]["advice"]
    # the last of that name: both are called so
    assert "half-Q8_0-00002-of-00002.gguf is missing" in result.stdout
    assert all(check["advice"] for check in checks.values() if check["state"] == "bad")


def test_what_is_bad_ends_in_an_exit_code(program: Program) -> None:
    program.environment |= {"QWENCHAT_MODEL": "/nowhere/model.gguf", "TERM": "dumb"}
    result = program("doctor")
    assert result.returncode == 1
    assert "✗ Terminal" in result.stdout and "✗ Model" in result.stdout and "→ /models in the chat" in result.stdout
    assert program("doctor", "what").returncode == 2
