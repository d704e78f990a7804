"""What every test of the chat begins with."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for settings, themes, personas and presets."""
    folder = tmp_path / "home of the test"
    monkeypatch.setenv("QWENCHAT_HOME", str(folder))
    return folder
