"""The process that looks after models, as the chat sees it: questions, answers, and downloads that go on meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from chatapp.local import environment
from chatapp.log import Log
from chatapp.paths import expanded
from chatapp.process import Exit, WorkerProcess
from runtime.hub import protocol
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
    LocalModel,
    Look,
    Pause,
    Progress,
    Refused,
    RemoteModel,
    Remove,
    Removed,
    Repo,
    Repos,
    Request,
    Started,
    Updates,
)
from runtime.protocol import ProtocolError, encode

RECORDS = "models--*/blobs/*.qwenchat.json"
"""Below the Hugging Face cache: what downloads that have not ended leave there."""
COMMAND = (sys.executable, "-P", "-m", "runtime.hub", "serve")
A = TypeVar("A", bound=Answer)


class HubError(Exception):
    """It cannot be done; the message is a sentence for the user."""


class Hub:
    """Starts its process with the first question. `downloads` are those of this session, by their key."""

    def __init__(self, command: Sequence[str] = COMMAND, log: Path | None = None) -> None:
        self.downloads: dict[str, Download] = {}
        self._command = tuple(command)
        self._log = Log(log)
        self._listeners: list[Callable[[Download], None]] = []
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)
        self._process: WorkerProcess | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    def on_progress(self, listener: Callable[[Download], None]) -> Callable[[], None]:
        """Hear of every change of a download, until what this returns is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def look(self, folders: Sequence[str], context_length: int | None, kv_type: str) -> Here:
        """The machine, the models that are on it, and downloads that run or have stopped. All raise HubError."""
        return await self._ask(Look(next(self._numbers), tuple(folders), context_length, kv_type), Here)  # type: ignore[arg-type]

    async def advise(self) -> tuple[RemoteModel, ...]:
        return (await self._ask(Advise(next(self._numbers)), Files)).files

    async def browse(self, query: str = "") -> tuple[Repo, ...]:
        return (await self._ask(Browse(next(self._numbers), query), Repos)).repos

    async def files(self, repo: str) -> tuple[RemoteModel, ...]:
        return (await self._ask(List(next(self._numbers), repo), Files)).files

    async def updates(self) -> tuple[RemoteModel, ...]:
        return (await self._ask(Updates(next(self._numbers)), Files)).files

    async def fetch(self, repo: str, file: str) -> Download:
        """Begin a download, or go on with it."""
        download = (await self._ask(Fetch(next(self._numbers), repo, file), Started)).download
        return self.downloads.setdefault(download.key, download)

    async def remove(self, model: LocalModel) -> int:
        """The bytes that are free again."""
        return (await self._ask(Remove(next(self._numbers), model.path), Removed)).freed

    async def pause(self, key: str) -> None:
        await self._send(Pause(key))

    async def discard(self, key: str) -> None:
        """Unless it is downloaded by another program, which the error tells."""
        await self._ask(Discard(next(self._numbers), key), Discarded)
        self.downloads.pop(key, None)

    async def close(self) -> None:
        """Downloads end, to go on at the next start."""
        self._closed = True
        async with self._starting:
            process = self._process
        if process is not None:
            await process.stop()

    @property
    def running(self) -> list[Download]:
        return [each for each in self.downloads.values() if each.state in ("running", "waiting", "checking")]

    async def _ask(self, request: Request, kind: type[A]) -> A:
        assert not isinstance(request, Pause)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[request.id] = future
        try:
            await self._send(request)
            answer = await future
        finally:
            self._open.pop(request.id, None)
        if isinstance(answer, Refused):
            raise HubError(answer.message)
        if not isinstance(answer, kind):
            raise HubError(f"The answer to {type(request).__name__} makes no sense ({type(answer).__name__}).")
        return answer

    async def _send(self, request: Request) -> None:
        async with self._starting:
            if self._closed:
                raise HubError("qwenchat is being closed.")
            if self._process is None:
                try:
                    self._process = await WorkerProcess.start(self._command, environment(), self._receive, self._log)
                except OSError as error:
                    raise HubError(f"The program that looks after models does not start: {error.strerror}.") from error
                self._process.exit.add_done_callback(lambda future: self._died(future.result()))
            self._process.send(encode(request))

    def _receive(self, line: bytes) -> None:
        try:
            answer = protocol.decode_answer(line)
        except ProtocolError as error:
            self._log.note(str(error))
            return
        if isinstance(answer, Progress):
            self._tell(answer.download)
        elif (future := self._open.get(answer.id)) and not future.done():
            future.set_result(answer)

    def _tell(self, download: Download) -> None:
        self.downloads[download.key] = download
        for listener in list(self._listeners):
            listener(download)

    def _died(self, exit_: Exit) -> None:
        self._process = None
        for number, future in self._open.items():
            if not future.done():
                future.set_result(Refused(number, f"The program that looks after models has ended. {exit_.sentence()}"))
        if self._closed:
            return
        for download in self.running:
            message = "The program that downloads has ended; /models goes on with it."
            self._tell(
                Download(
                    download.key, download.repo, download.file, download.done, download.total, "failed", message=message
                )
            )


def has_unfinished() -> bool:
    """Whether downloads have stopped, found out without the process that knows more of them."""
    home = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    hub = expanded(os.environ.get("HF_HOME") or home) / "hub"
    cache = expanded(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or hub)
    return next(cache.glob(RECORDS), None) is not None
