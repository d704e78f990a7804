"""Downloads beside each other, in one process and in several: whose a file is, and what pausing and discarding do."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
from hub_fixtures import FILE, QUICK, REPO, SECONDS, Place, place

from runtime.hub import downloads
from runtime.hub.downloads import Job
from runtime.hub.protocol import Answer, Fetch, Progress
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
