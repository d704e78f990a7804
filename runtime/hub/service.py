"""The process that looks after models: requests in, answers and progress out; downloads go on between them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from runtime.hub import downloads, models, remote
from runtime.hub.downloads import Job
from runtime.hub.protocol import (
    Advise,
    Answer,
    Browse,
    Discard,
    Discarded,
    Download,
    Fetch,
    Files,
    Here,
    List,
    Look,
    Pause,
    Progress,
    Refused,
    Remove,
    Removed,
    Repos,
    Request,
    Started,
    Updates,
    decode_request,
)
from runtime.hub.sentences import HubError, explain
from runtime.protocol import ProtocolError, encode

_log = logging.getLogger("qwenchat.hub")
_AT_ONCE = 4  # requests
_LEAVE_SECONDS = 1.0  # to bring the records of downloads to disk


class Service:
    """`handle` may be called at any time; `emit` hears answers from several threads, one at a time."""

    def __init__(self, emit: Callable[[Answer], None]) -> None:
        self._emit_unlocked = emit
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._around = models.Surroundings()
        self._pool = ThreadPoolExecutor(_AT_ONCE, "request")

    def handle(self, request: Request) -> None:
        match request:
            case Pause(key):
                if job := self._jobs.get(key):
                    job.pause()
            case _:
                self._pool.submit(self._answer, request)

    def close(self) -> None:
        """Downloads end as they would if the machine went down, but in order."""
        for job in list(self._jobs.values()):
            job.leave()
        for job in list(self._jobs.values()):
            job.join(_LEAVE_SECONDS)

    def _answer(self, request: Request) -> None:
        assert not isinstance(request, Pause)
        try:
            self._emit(self._work(request))
        except Exception as error:
            if not isinstance(error, HubError):
                _log.exception("a request failed")
            repo, file = getattr(request, "repo", ""), getattr(request, "file", "")
            self._emit(Refused(request.id, str(explain(error, repo, file))))

    def _work(self, request: Request) -> Answer:
        around = self._around
        match request:
            case Look(id, folders, context, kv_type):
                around.context, around.kv_type = context, kv_type
                here = around.machine()
                return Here(id, here, models.local(around, here, folders), tuple(self._downloads()))
            case Browse(id, query):
                return Repos(id, models.searched(query) if query.strip() else models.catalogue())
            case List(id, repo):
                return Files(id, models.listed(remote.listing(repo), around, around.machine()))
            case Advise(id):
                return Files(id, models.advised(around, around.machine()))
            case Updates(id):
                return Files(id, models.updates(around, around.machine()))
            case Fetch(id, repo, file):
                return Started(id, self._fetch(repo, file))
            case Discard(id, key):
                self._discard(key)
                return Discarded(id)
            case Remove(id, path):
                return Removed(id, models.remove(path))
            case _:
                raise AssertionError(request)

    def _downloads(self) -> list[Download]:
        running = {key: job.download for key, job in self._jobs.items() if job.is_alive()}
        return [*running.values(), *(left for left in downloads.unfinished() if left.key not in running)]

    def _fetch(self, repo: str, file: str) -> Download:
        job = Job(downloads.find_item(repo, file), lambda download: self._emit(Progress(download)))
        while True:
            with self._lock:
                known = self._jobs.get(job.download.key)
                if not (known and known.is_alive()):
                    self._jobs[job.download.key] = job
                    job.start()
                    return job.download
                if not known.stopped():
                    return known.download
            known.join()  # it is being paused

    def _discard(self, key: str) -> None:
        job = self._jobs.get(key)
        if job and job.is_alive():
            job.discard()
            job.join()
        for left in downloads.unfinished():
            if left.key == key:
                downloads.discard(left.repo, left.file)

    def _emit(self, answer: Answer) -> None:
        with self._lock:
            self._emit_unlocked(answer)


def main() -> int:
    # A stray print anywhere must not end up between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in the terminal is the chat's to interpret
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    service = Service(lambda answer: _write(answers, encode(answer)))
    for line in sys.stdin.buffer:
        try:
            service.handle(decode_request(line))
        except ProtocolError as error:
            _log.error("%s", error)
    service.close()
    sys.stderr.flush()
    os._exit(0)


def _write(answers: BinaryIO, line: bytes) -> None:
    try:
        view = memoryview(line)
        while view:
            view = view[answers.write(view) :]
    except BrokenPipeError:
        pass  # the chat is gone, which the end of stdin tells as well
