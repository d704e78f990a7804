"""What the chat and the process that looks after models say to each other: one JSON object per line.

Each request has a number and is answered by one message of that number, which is a `Refused` if it cannot be done.
`Progress` comes unasked. Standard library only, as `runtime.protocol`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from runtime import protocol

Place = Literal["gpu", "split", "cpu", "no"]
State = Literal["running", "waiting", "checking", "paused", "failed", "done"]


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether and where a model runs on this machine: `need` and `room` in bytes of memory.

    `sentence` says the verdict; `tok_per_s`, None if not known, what to expect of decoding.
    """

    place: Place
    need: int
    room: int
    tok_per_s: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """`used`: whether this version of qwenchat runs models on it. Memory in bytes."""

    name: str
    memory: int
    free: int
    used: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory, free disk in bytes; `bandwidth` of memory in bytes per second; `cache`: where downloads go."""

    cpu: str
    cores: int
    memory: int
    available: int
    disk_free: int
    cache: str
    gpus: tuple[Gpu, ...]
    bandwidth: float | None


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file on this machine. `problem` "": it can be opened; else why it cannot.

    `about`: a clause on its quantisation; `mtp`: it holds the drafting block; `sidecar`: the file with one that lies
    beside it, or "".
    """

    path: str
    name: str
    source: str
    repo: str
    file: str  # below the repository; "" if it is of none
    quant: str
    about: str
    bytes: int
    parts: int
    mtp: bool
    sidecar: str
    fit: Fit | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model file of a repository, all its parts and sidecars counted. `local`: its path if it is here, else "".

    `update`: an earlier version of it is here.
    """

    repo: str
    file: str
    name: str
    quant: str
    about: str
    bytes: int
    parts: int
    mtp: bool
    sidecars: tuple[str, ...]
    local: str
    update: bool
    fit: Fit | None
    problem: str = ""

    @property
    def key(self) -> str:
        return f"{self.repo}/{self.file}"


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository. `model`: of the catalogue's models, or ""."""

    repo: str
    model: str
    mtp: bool
    downloads: int | None
    gated: bool


@dataclass(frozen=True, slots=True)
class Download:
    """How far one is. `rate` in bytes per second; `message`: a sentence on what goes wrong, or why it starts over."""

    key: str
    repo: str
    file: str
    done: int
    total: int
    state: State
    rate: float | None = None
    seconds_left: float | None = None
    message: str = ""
    path: str = ""


# Requests


@dataclass(frozen=True, slots=True)
class Look:
    """What is here: one `Here`. `folders`: more places to look in. None: the runtime's default context and KV."""

    id: int
    folders: tuple[str, ...] = ()
    context_length: int | None = None
    kv_type: protocol.KvType = "auto"


@dataclass(frozen=True, slots=True)
class Browse:
    """The catalogue, or for a query what the hub finds: one `Repos`."""

    id: int
    query: str = ""


@dataclass(frozen=True, slots=True)
class List:
    """The models of a repository: one `Files`."""

    id: int
    repo: str


@dataclass(frozen=True, slots=True)
class Advise:
    """The best choices of the catalogue for this machine, live from the hub: one `Files`, the best first."""

    id: int


@dataclass(frozen=True, slots=True)
class Updates:
    """Of what was downloaded, what the hub has newer: one `Files`."""

    id: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Download, or go on with it: one `Started`, then `Progress` until its state is paused, failed or done."""

    id: int
    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class Pause:
    key: str


@dataclass(frozen=True, slots=True)
class Discard:
    """End a download and delete what has arrived: one `Discarded`."""

    id: int
    key: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a downloaded model: one `Removed`."""

    id: int
    path: str


# Answers


@dataclass(frozen=True, slots=True)
class Here:
    id: int
    machine: Machine
    models: tuple[LocalModel, ...]
    downloads: tuple[Download, ...]


@dataclass(frozen=True, slots=True)
class Repos:
    id: int
    repos: tuple[Repo, ...]


@dataclass(frozen=True, slots=True)
class Files:
    id: int
    files: tuple[RemoteModel, ...]


@dataclass(frozen=True, slots=True)
class Started:
    id: int
    download: Download


@dataclass(frozen=True, slots=True)
class Discarded:
    id: int


@dataclass(frozen=True, slots=True)
class Removed:
    id: int
    freed: int  # bytes


@dataclass(frozen=True, slots=True)
class Refused:
    id: int
    message: str


@dataclass(frozen=True, slots=True)
class Progress:
    download: Download


Request = Look | Browse | List | Advise | Updates | Fetch | Pause | Discard | Remove
Answer = Here | Repos | Files | Started | Discarded | Removed | Refused | Progress

_REQUESTS: dict[str, type[Any]] = {
    c.__name__: c for c in (Look, Browse, List, Advise, Updates, Fetch, Pause, Discard, Remove)
}
_ANSWERS: dict[str, type[Any]] = {
    c.__name__: c for c in (Here, Repos, Files, Started, Discarded, Removed, Refused, Progress)
}


def decode_request(line: bytes | str) -> Request:
    """Raises `runtime.protocol.ProtocolError`."""
    return cast(Request, protocol.decode(line, _REQUESTS))


def decode_answer(line: bytes | str) -> Answer:
    """Raises `runtime.protocol.ProtocolError`."""
    return cast(Answer, protocol.decode(line, _ANSWERS))
