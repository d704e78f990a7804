"""The first paint is early because little is done before it: counted, since a clock tells of the machine as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# What only later screens, replies, files and servers need.
LATER = {
    "numpy",
    "torch",
    "gguf",
    "tokenizers",
    "markdown_it",
    "pygments",
    "tomlkit",
    "pathspec",
    "httpx2",
    "huggingface_hub",
    "jinja2",
    "keyring",
    "importlib.metadata",
    "rich.markdown",
    "rich.syntax",
    "rich.progress",
    "textual.widgets._markdown",
    "textual.widgets._data_table",
    "chatapp.blocks",
    "chatapp.cache",
    "chatapp.doctor",
    "chatapp.drafts",
    "chatapp.editor",
    "chatapp.exchange",
    "chatapp.form",
    "chatapp.highlight",
    "chatapp.history",
    "chatapp.hub",
    "chatapp.keys",
    "chatapp.lookup",
    "chatapp.markdown",
    "chatapp.markdown_view",
    "chatapp.oneshot",
    "chatapp.parse",
    "chatapp.picker",
    "chatapp.remote.backend",
    "chatapp.rows_view",
    "chatapp.search",
    "chatapp.search_bar",
    "chatapp.sidebar",
    "chatapp.stream",
    "chatapp.thought",
    "chatapp.titles",
    "chatapp.wizard",
    "chatapp.writing_screen",
}


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was done when the composer was drawn for the first time."""
    script = Path(__file__).with_name("first_paint.py")
    command = [sys.executable, str(script), str(tmp_path_factory.mktemp("paint"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


def test_what_the_first_screen_does_not_show_is_not_imported(painted: dict[str, Any]) -> None:
    assert LATER & set(painted["modules"]) == set()
    assert sum(name.startswith("chatapp.") for name in painted["modules"]) <= 80


def test_the_style_sheets_are_read_once(painted: dict[str, Any]) -> None:
    assert painted["parsed_ours"] == 1
    assert len(painted["parsed"]) <= 18  # those of the widgets that are there; one stands at two places
    assert painted["parsed"].count(1) >= len(painted["parsed"]) - 2


def test_few_widgets_are_made_and_no_conversation_is_read(painted: dict[str, Any]) -> None:
    assert painted["widgets"] <= 20
    assert not painted["opened"]
