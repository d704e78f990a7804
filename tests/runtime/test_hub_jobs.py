"""Downloads beside each other, in one process and in several: whose a file is, and what pausing and discarding do."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hub_fixtures import FILE, QUICK, REPO, SECONDS, Place, content, place

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
    assert {name for name in before if not name.endswith(".tmp")} <= place.files()  # a record that is just written
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


def test_parts_that_have_arrived_go_with_what_is_discarded(place: Place) -> None:
    first, second = (f"Big-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2))
    place.hub.put(REPO, first, content(20_000))
    place.hub.put(REPO, second, content(90_000, 2))
    place.hub.faults.stall = 30_000
    job = place.job(REPO, first, PATIENT)
    job.start()
    while job.download.done < 50_000:
        assert job.is_alive()
    job.discard()
    job.join(SECONDS)
    assert not place.files()


OTHER, SIDECAR = "Qwen3.5-4B-Q8_0.gguf", "mtp-Qwen3.5-4B.gguf"


def sharing(place: Place) -> tuple[Job, Job]:
    """Two models with one sidecar, which the first fetches from a server that falls silent; the second waits for it."""
    for file, data in ((FILE, content(20_000)), (OTHER, content(20_000, 2)), (SIDECAR, content(90_000, 3))):
        place.hub.put(REPO, file, data)
    place.hub.faults.stall = 30_000
    first, second = place.job(tuning=PATIENT), place.job(REPO, OTHER, PATIENT)
    first.start()
    while first.download.done < 50_000:
        assert first.is_alive()
    second.start()
    while "fetches it" not in second.download.message:
        assert second.is_alive()
    return first, second


def test_a_sidecar_that_another_download_fetches_is_waited_for(place: Place) -> None:
    first, second = sharing(place)
    assert second.download.done >= 20_000
    place.hub.faults.stall = None
    place.hub.requests.clear()
    first.pause()
    second.join(SECONDS)
    assert (second.download.state, second.download.message) == ("done", "")
    assert Path(second.download.path).with_name(SIDECAR).read_bytes() == content(90_000, 3)
    asked = [span for _, path, span in place.hub.requests if path.startswith("/lfs/")]
    assert asked and "bytes=0-" not in " ".join(asked)  # from where the other has left it
    assert [(left.file, left.state) for left in downloads.unfinished()] == [(FILE, "paused")]
    assert place.fetch().state == "done" and not downloads.unfinished()


def test_what_another_download_fetches_is_not_discarded_with_this_one(place: Place) -> None:
    first, second = sharing(place)
    second.discard()
    second.join(SECONDS)
    assert [(left.file, left.state) for left in downloads.unfinished()] == [(FILE, "running")]
    assert not [name for name in place.files() if hashlib.sha256(content(20_000, 2)).hexdigest() in name]
    first.pause()
    first.join(SECONDS)
    [left] = downloads.unfinished()
    assert (left.state, left.done) == ("paused", first.download.done) and left.done >= 50_000
    downloads.discard(REPO, FILE)
    assert not place.files()
