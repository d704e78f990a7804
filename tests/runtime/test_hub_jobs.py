"""Downloads beside each other, in one process and in several: whose a file is, and what pausing and discarding do."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
from hub_fixtures import FILE, QUICK, REPO, SECONDS, Place, place

from runtime.hub import downloads, models, shell
from runtime.hub.downloads import Job
from runtime.hub.protocol import Answer, Discard, Discarded, Fetch, Progress, Refused
from runtime.hub.sentences import HubError
from runtime.hub.service import Service

__all__ = ["place"]

KEY = f"{REPO}/{FILE}"
PATIENT = replace(QUICK, silence=600)
"""A silent connection keeps such a download for as long as a test takes."""


def begun(job: Job) -> Job:
    """Start it, and return when something has arrived."""
    job.start()
    while not job.download.done:
        assert job.is_alive()
    return job


def test_a_download_that_is_silent_is_paused_at_once(place: Place) -> None:
    place.hub.faults.stall = 50_000
    job = begun(place.job(tuning=PATIENT))
    job.pause()
    job.join(SECONDS)
    assert job.download.state == "paused"
    [left] = downloads.unfinished()
    assert left.state == "paused" and left.done >= 50_000


def test_a_server_that_has_not_answered_yet_holds_up_no_pause(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place.hub.faults.elsewhere = f"127.0.0.1:{silent.getsockname()[1]}"
        job = place.job(tuning=PATIENT)
        job.start()
        connection, _ = silent.accept()
        job.pause()
        job.join(SECONDS)
        assert [left.state for left in downloads.unfinished()] == [job.download.state] == ["paused"]
        connection.close()


def test_what_another_window_downloads_is_not_discarded(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "local", lambda *rest: ())
    monkeypatch.setattr(models.Surroundings, "machine", lambda self: None)
    place.hub.faults.stall = 50_000
    job = begun(place.job(tuning=PATIENT))
    before = place.files()
    with pytest.raises(HubError, match="is downloading this: cancel it there"):
        downloads.discard(REPO, FILE)
    assert shell.run(["rm", "--yes", KEY]) == 1
    assert "is downloading this: cancel it there" in capsys.readouterr().err
    answers: list[Answer] = []
    Service(answers.append)._answer(Discard(7, KEY))
    [refused] = answers
    assert isinstance(refused, Refused) and refused.id == 7 and "cancel it there" in refused.message
    assert shell.run(["list"]) == 0
    listed = capsys.readouterr()
    assert f"downloading  {KEY}" in listed.out and not listed.err
    assert place.files() >= before
    job.pause()
    job.join(SECONDS)
    assert shell.run(["list"]) == 0
    listed = capsys.readouterr()
    assert f"paused  {KEY}" in listed.out and "goes on with a download" in listed.err
    assert shell.run(["rm", "--yes", KEY]) == 0 and not place.files()


def test_a_download_is_gone_when_the_answer_says_so(place: Place) -> None:
    answers: list[Answer] = []
    service = Service(answers.append)
    place.hub.faults.stall = 50_000
    service._jobs[KEY] = job = begun(place.job(tuning=PATIENT))
    service._answer(Discard(7, KEY))
    assert answers == [Discarded(7)] and not place.files() and job.download.message == "discarded"


def test_what_goes_on_while_it_is_being_paused_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Answer] = []
    service = Service(answers.append)
    place.hub.faults.stall = 50_000
    service._jobs[KEY] = job = begun(place.job(tuning=PATIENT))
    place.hub.faults.stall = None
    job.pause()
    service._answer(Fetch(7, REPO, FILE))
    assert service._jobs[KEY] is not job
    service._jobs[KEY].join(SECONDS)
    assert isinstance(answers[-1], Progress) and answers[-1].download.state == "done"
