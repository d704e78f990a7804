"""What the hub has: repositories, their files with sizes and hashes, and how a file begins."""

from __future__ import annotations

import functools
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from runtime.hub import names, peek
from runtime.hub.sentences import ForeignHostError, HubError, host

HOSTS_VARIABLE = "QWENCHAT_HUB_HOSTS"
TIMEOUT = 20.0  # seconds of silence
_PUBLIC = "https://huggingface.co"
_FOUND = 40  # repositories
_PROXY = "The proxy that the environment names cannot be used:"
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_OWNED = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_REPO = re.compile(r"(?:https?://[^/]+/)?([\w.-]+/[\w.-]+?)(?:/(?:tree|blob|resolve)/.*)?/?$")


@dataclass(frozen=True, slots=True)
class HubFile:
    """`etag` names the content: its sha256, or for small files the hash that git gives it."""

    path: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Item:
    """A model to download: `files` are its parts, and behind them its sidecar if it has one."""

    repo: str
    commit: str
    file: str
    name: names.Name
    parts: tuple[HubFile, ...]
    sidecars: tuple[HubFile, ...]
    missing: bool = False  # parts

    @property
    def files(self) -> tuple[HubFile, ...]:
        return (*self.parts, *self.sidecars)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Listing:
    repo: str
    commit: str
    gated: bool
    downloads: int | None
    items: tuple[Item, ...]


def repo_of(query: str) -> str | None:
    """The repository that a text names, as `owner/name` or by its address."""
    found = _REPO.fullmatch(query.strip())
    return found[1] if found else None


def session() -> httpx2.Client:
    """The client that huggingface_hub uses too: offline mode, proxies and certificates are its matter."""
    try:
        client = get_session()
    except ImportError:
        raise HubError(f"{_PROXY} SOCKS needs a package: pip install 'httpx2[socks]'.") from None
    except (ValueError, httpx2.InvalidURL):  # which may hold a password
        raise HubError(f"{_PROXY} its address begins with http:// or https://.") from None
    if _allow not in client.event_hooks["request"]:
        client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], _allow]}
        client.timeout = httpx2.Timeout(TIMEOUT)
    return client


def _allow(request: httpx2.Request) -> None:
    """With an endpoint of the user's choice no other host is contacted, wherever it sends us."""
    if constants.ENDPOINT == _PUBLIC:
        return
    endpoint, name = host(constants.ENDPOINT), request.url.host
    allowed = [endpoint, *os.environ.get(HOSTS_VARIABLE, "").replace(",", " ").split()]
    if not any(name == known or name.endswith("." + known) for known in allowed):
        raise ForeignHostError(
            f"{endpoint}, which HF_ENDPOINT names, sends to {name}; no other host is contacted. "
            f"If that is right, allow it: {HOSTS_VARIABLE}={name}"
        )


def _api() -> HfApi:
    session()
    return HfApi(constants.ENDPOINT, library_name="qwenchat")


def listing(repo: str) -> Listing:
    """Raises what huggingface_hub and httpx2 raise."""
    info = _api().model_info(repo, files_metadata=True, timeout=TIMEOUT)
    files = [
        HubFile(each.rfilename, each.lfs.size, each.lfs.sha256)
        if each.lfs
        else HubFile(each.rfilename, each.size or 0, each.blob_id or "")
        for each in info.siblings or ()
        if each.rfilename.lower().endswith(".gguf")
    ]
    repo, commit = info.id or repo, info.sha or ""
    if not (_OWNED.fullmatch(repo) and _HASH.fullmatch(commit)):
        raise HubError(f"{host(constants.ENDPOINT)} does not answer as a hub does: check HF_ENDPOINT.")
    files = [file for file in files if _harmless(file)]
    return Listing(repo, commit, bool(info.gated), info.downloads, tuple(_items(repo, commit, files)))


def _harmless(file: HubFile) -> bool:
    """Whether the names that a server gives can be names on this disk, below the folder that is meant."""
    parts = file.path.split("/")
    plain = all(part not in ("", ".", "..") and part.isprintable() and "\\" not in part for part in parts)
    return plain and bool(_HASH.fullmatch(file.etag)) and file.size >= 0


def _items(repo: str, commit: str, files: Iterable[HubFile]) -> list[Item]:
    """One for each model: the parts of a split one together, a sidecar with those that lie beside it."""
    groups: dict[tuple[str, str], dict[int, HubFile]] = defaultdict(dict)
    sidecars: dict[str, list[HubFile]] = defaultdict(list)
    parsed: dict[str, names.Name] = {}
    for file in files:
        name, where = names.parse(file.path), file.path.rpartition("/")[0]
        if name.kind == "sidecar":
            sidecars[where].append(file)
        elif name.kind == "model":
            groups[where, f"{name.stem}/{name.count}"][name.number] = file
            parsed[file.path] = name
    found = []
    for (where, _), parts in groups.items():
        ordered = tuple(parts[number] for number in sorted(parts))
        name = parsed[ordered[0].path]
        complete = sorted(parts) == list(range(1, name.count + 1))
        beside = sidecars[where]
        found.append(
            # which of several sidecars the model would draft with is for the user to say
            Item(repo, commit, ordered[0].path, name, ordered, tuple(beside) if len(beside) == 1 else (), not complete)
        )
    return sorted(found, key=lambda item: sum(file.size for file in item.parts))


def search(query: str) -> list[Any]:
    """`huggingface_hub.ModelInfo` of repositories with GGUF files, the most downloaded first."""
    return list(_api().list_models(search=query, filter="gguf", sort="downloads", limit=_FOUND))


@functools.lru_cache(maxsize=256)
def beginning(repo: str, commit: str, file: str) -> dict[str, Any]:
    """The first keys of a file's metadata. Raises what httpx2 raises, and NotGGUFError."""
    asked = {**headers(), "Range": f"bytes=0-{peek.ENOUGH - 1}"}
    data = bytearray()
    with session().stream("GET", address(repo, commit, file), headers=asked) as response:
        check(response)
        for chunk in response.iter_raw():
            data += chunk
            if len(data) >= peek.ENOUGH:
                break
    return peek.beginning(bytes(data))


def address(repo: str, commit: str, file: str) -> str:
    return hf_hub_url(repo, file, revision=commit, endpoint=constants.ENDPOINT)


def headers() -> dict[str, str]:
    """With the user's token, which httpx2 keeps from other hosts; never compressed, since lengths are counted."""
    return {**build_hf_headers(library_name="qwenchat"), "Accept-Encoding": "identity"}


def check(response: httpx2.Response) -> None:
    """Raises what huggingface_hub raises for this status."""
    if response.status_code >= 400:
        response.read()
        hf_raise_for_status(response)
