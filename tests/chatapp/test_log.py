"""The log of the worker stays small and never stands in the way."""

from __future__ import annotations

from pathlib import Path

from chatapp.log import Log


def test_what_is_written_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "worker.log"
    Log(path).write("one\ntwo\n")
    Log(path).write("three \ud800")
    assert path.read_text() == "one\ntwo\nthree ?\n"


def test_a_note_has_its_time(tmp_path: Path) -> None:
    Log(tmp_path / "log").note("It ended.")
    assert (tmp_path / "log").read_text().endswith(" chat: It ended.\n")


def test_a_full_log_becomes_the_old_one(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", limit=1000)
    for number in range(300):
        log.write(f"line {number:03}")
    kept = (tmp_path / "log.1").read_text() + (tmp_path / "log").read_text()
    assert kept.endswith("line 298\nline 299\n")
    assert len(kept) <= 2 * (1000 + len("line 000\n"))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_log_that_cannot_be_written_is_silent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Log(tmp_path / "file" / "log").write("lost")
    Log(None).write("lost")
