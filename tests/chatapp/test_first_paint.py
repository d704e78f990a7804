"""The first paint is early because little is done before it: counted, since a clock tells of the machine as well."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend
from harness import running
from textual.dom import DOMNode

from chatapp.block import Block
from chatapp.welcome import Welcome

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
    "argparse",
    "rich.markdown",
    "rich.syntax",
    "rich.progress",
    "textual.command",
    "textual.widgets._input",
    "textual.widgets._markdown",
    "textual.widgets._option_list",
    "textual.widgets._select",
    "textual.widgets._tree",
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
    "chatapp.row_styles",
    "chatapp.rows_view",
    "chatapp.search",
    "chatapp.search_bar",
    "chatapp.sidebar",
    "chatapp.stream",
    "chatapp.thought",
    "chatapp.titles",
    "chatapp.wizard",
    "chatapp.words",
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
    assert len(painted["parsed"]) <= 13  # those of the widgets that are there; one stands at two places
    assert painted["parsed"].count(1) >= len(painted["parsed"]) - 2
    assert painted["characters"] <= 7_500  # all styles of the chat are more than twice that


def test_each_widget_gets_its_styles_once(painted: dict[str, Any]) -> None:
    twice = Counter({"HiddenMarker": 2, "Composer": 2})  # there are two of these, and this one gets the focus
    assert painted["styled"]
    assert all(number <= max(twice[name], 1) for name, number in Counter(painted["styled"]).items())


def test_few_classes_have_methods_compiled_for_them(painted: dict[str, Any]) -> None:
    own = [name for name in painted["compiled"] if name.startswith(("chatapp.", "runtime."))]
    assert own == []
    assert len(painted["compiled"]) <= 16 or not hasattr(dataclasses, "_create_fn")  # there they are compiled at once


def test_few_widgets_are_made_and_no_conversation_is_read(painted: dict[str, Any]) -> None:
    assert painted["widgets"] <= 13
    assert not painted["opened"]


async def test_the_styles_that_come_later_change_nothing_on_the_first_screen(tmp_path: Path) -> None:
    async with running(FakeBackend(), tmp_path) as chat:
        sheet = chat.app.stylesheet
        later = {key: source for key, source in sheet.source.items() if key[0].endswith("later.tcss")}
        assert later
        first = [each for each in chat.screen.walk_children(with_self=True) if not is_later(each)]
        styles = {each: dict(each.styles.get_rules()) for each in first}
        for key in later:
            del sheet.source[key]
        sheet.parse()
        sheet.update_nodes(first)
        assert {each: dict(each.styles.get_rules()) for each in first} == styles


def is_later(node: DOMNode) -> bool:
    """Whether it came with the conversation."""
    return any(isinstance(each, Welcome | Block) for each in node.ancestors_with_self)
