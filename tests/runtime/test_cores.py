"""How many threads suit a machine, or the part of one that a container has."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of control groups, on a machine with 64 cores."""
    monkeypatch.setattr(cores, "_GROUPS", tmp_path)
    monkeypatch.setattr(cores, "_of_machine", lambda: 64)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "threads"),
    [
        ("200000 100000", 2),
        ("250000 100000", 3),
        ("10000 100000", 1),
        ("9900000 100000", 64),
        ("max 100000", 64),
        ("200000 0", 64),
        ("", 64),
        ("nonsense", 64),
    ],
)
def test_a_container_has_as_many_threads_as_it_may_use(groups: Path, said: str, threads: int) -> None:
    (groups / "cpu.max").write_text(said + "\n")
    assert cores.physical_cores() == cores.default_threads() == threads


@pytest.mark.parametrize(("quota", "threads"), [(200_000, 2), (50_001, 1), (350_000, 4), (-1, 64), (0, 64)])
def test_and_with_older_control_groups(groups: Path, quota: int, threads: int) -> None:
    (groups / "cpu").mkdir()
    (groups / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (groups / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cores.default_threads() == threads


def test_without_control_groups_all_cores_count(groups: Path) -> None:
    assert cores.default_threads() == 64


def test_what_the_user_says_counts(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (groups / "cpu.max").write_text("200000 100000\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert cores.default_threads() == 7
