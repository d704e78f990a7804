"""Shared test fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

# Models this small only lose by threads; the processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton decides when it is loaded whether it interprets its kernels.
os.environ.setdefault("TRITON_INTERPRET", "1")

# How long an example takes tells of what else the machine does; tests that mean a time say so themselves.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

SHARED = Path(__file__).parents[2] / "shared" / "fixtures"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of GGUF fixtures with known outputs, which lies beside a checkout of the project."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/fixtures beside this checkout")
    return SHARED
