"""What every test of the chat begins with, and where its replies come from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import harness
import pytest
from workers import Workers


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for settings, themes, personas and presets."""
    folder = tmp_path / "home of the test"
    monkeypatch.setenv("QWENCHAT_HOME", str(folder))
    return folder


@pytest.fixture(params=["here", "served"])
def either_source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs twice: its script is played in this process, and by a server that the chat talks to."""
    monkeypatch.setattr(harness, "over_http", request.param == "served")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Workers]:
    """Local backends over scripted workers."""
    workers = Workers(tmp_path)
    yield workers
    await workers.close()
