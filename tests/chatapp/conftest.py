"""What every test of the chat begins with, and where its replies come from."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from workers import Workers


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for settings, themes, personas and presets."""
    folder = tmp_path / "home of the test"
    monkeypatch.setenv("QWENCHAT_HOME", str(folder))
    return folder


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Workers]:
    """Local backends over scripted workers."""
    workers = Workers(tmp_path)
    yield workers
    await workers.close()


@pytest.fixture(autouse=True)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the replies come from: "here", the script is played in this process; "served", by a server over HTTP.

    The rule: every test that opens the chat (`harness.running`) runs with both, for whoever chats must not notice a
    difference; with a server among the slow tests. One about what only this machine does, or that asks for no reply,
    names its reason: `@here("…")` before the test or its class, or `pytestmark` in its module.
    """
    monkeypatch.setattr(harness, "over_http", getattr(request, "param", "here") == "served")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    opens_chat = getattr(metafunc.module, "running", None) is harness.running
    if not opens_chat or not inspect.iscoroutinefunction(metafunc.function):
        return
    mark = metafunc.definition.get_closest_marker("here")
    if mark is None:
        served = pytest.param("served", marks=pytest.mark.slow)  # hundreds, each as long as its twin
        metafunc.parametrize("source", ["here", served], indirect=True)
    elif not (len(mark.args) == 1 and isinstance(mark.args[0], str) and mark.args[0].strip()):
        raise pytest.UsageError(f"{metafunc.definition.nodeid} does not say why it runs with one source alone")


@pytest.fixture(autouse=True, scope="session")
def parsed_styles() -> Iterator[None]:
    """Style sheets are parsed once in a process, and not for each of the hundreds of programs that tests start."""
    parse, known = Stylesheet._parse_rules, dict[object, list[RuleSet]]()

    def parsed(self: Stylesheet, *wanted: Any, **named: Any) -> list[RuleSet]:
        key = (*wanted, *sorted(named.items()), frozenset(self._variables.items()))
        if key not in known:
            known[key] = parse(self, *wanted, **named)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parsed)
        yield
