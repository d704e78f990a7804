"""A hub on loopback: what huggingface_hub and the downloader ask of huggingface.co, and what can go wrong with it.

    python tests/hub_server.py FOLDER [PORT]

FOLDER holds OWNER/NAME/FILE. It answers the list of repositories, one repository with its files, sizes and hashes
(`/api/models`), and HEAD and GET of files with etags, commits and ranges, by a redirect to a path of the same server as
large files have it. Each fault is a field of `Faults`, which a test may change at any time.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_CHUNK = 16_384


@dataclass
class Faults:
    """`stall`: bytes of an answer after which nothing more comes; `cut`: after which the connection closes."""

    status: int = 0  # of every file
    error: str = ""  # X-Error-Code that goes with it
    api_status: int = 0
    stall: int | None = None
    cut: int | None = None
    quota: int | None = None  # bytes of all answers together, after which every file is a 503
    once: bool = False  # a stall or cut happens to one answer only
    no_ranges: bool = False
    claim: int | None = None  # the size that answers with a file claim the file to have
    surplus: int = 0  # bytes sent beyond what was asked
    flip: int | None = None  # this byte of every file arrives wrong
    rate: float | None = None  # bytes per second and connection
    page: bool = False  # a web page in place of files
    elsewhere: str = ""  # host:port that files redirect to
    redirect: bool = True


@dataclass
class Hub:
    """A folder of repositories and a record of the requests."""

    folder: Path
    faults: Faults = field(default_factory=Faults)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_right"
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range
    hosts: set[str] = field(default_factory=set)
    listed: dict[str, dict[str, int]] = field(default_factory=dict)  # by repository: files that it only tells of, bytes
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, repo: str, file: str, data: bytes) -> str:
        """Add or change a file; its sha256."""
        path = self.folder / repo / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def commit(self, repo: str) -> str:
        """Names the content of a repository."""
        parts = [f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in self._files(repo)]
        return hashlib.sha1("\n".join(parts).encode()).hexdigest()

    def repos(self) -> list[str]:
        return sorted({*(str(path.relative_to(self.folder)) for path in self.folder.glob("*/*")), *self.listed})

    def info(self, repo: str) -> dict[str, object]:
        siblings = []
        for path in self._files(repo):
            data = path.read_bytes()
            siblings.append(
                {
                    "rfilename": path.relative_to(self.folder / repo).as_posix(),
                    "size": len(data),
                    "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
                    "lfs": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130},
                }
            )
        for name, size in self.listed.get(repo, {}).items():
            lfs = {"size": size, "sha256": hashlib.sha256(name.encode()).hexdigest(), "pointerSize": 130}
            siblings.append({"rfilename": name, "size": size, "blobId": "0" * 40, "lfs": lfs})
        return {
            "_id": "0",
            "id": repo,
            "modelId": repo,
            "sha": self.commit(repo),
            "gated": "manual" if repo in self.gated else False,
            "private": False,
            "downloads": 1000 + len(repo),
            "likes": 1,
            "tags": ["gguf"],
            "siblings": siblings,
        }

    def _files(self, repo: str) -> list[Path]:
        return sorted(path for path in (self.folder / repo).rglob("*") if path.is_file())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = self.server.hub
        hub.requests.append((self.command, self.path, self.headers.get("Range", "")))
        hub.hosts.add(self.headers.get("Host", ""))
        parts = urlsplit(self.path)
        path = unquote(parts.path).strip("/")
        try:
            if path.startswith("api/models"):
                self._api(path.removeprefix("api/models").strip("/"), parse_qs(parts.query))
            elif "/resolve/" in path:
                repo, _, rest = path.partition("/resolve/")
                self._resolve(repo, rest.partition("/")[2], body=body)
            elif path.startswith("lfs/"):
                self._file(hub.folder / path.removeprefix("lfs/"), body=body)
            else:
                self._error(404)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _api(self, repo: str, query: dict[str, list[str]]) -> None:
        hub = self.server.hub
        if hub.faults.api_status:
            self._error(hub.faults.api_status)
        elif not repo:
            words = query.get("search", [""])[0].lower().split()
            found = [each for each in hub.repos() if all(word in each.lower() for word in words)]
            self._json([hub.info(each) for each in found])
        elif repo in hub.repos():
            self._json(hub.info(repo))
        else:
            self._error(404 if self.headers.get("Authorization") else 401, "RepoNotFound")

    def _resolve(self, repo: str, file: str, *, body: bool) -> None:
        hub, faults = self.server.hub, self.server.hub.faults
        path = hub.folder / repo / file
        if repo in hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._error(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        elif faults.status:
            self._error(faults.status, faults.error)
        elif faults.quota is not None and faults.quota <= 0:
            self._error(503)
        elif not path.is_file():
            self._error(404, "EntryNotFound")
        elif faults.redirect:
            data = path.read_bytes()
            self.send_response(302)
            host = f"http://{faults.elsewhere}" if faults.elsewhere else ""
            self.send_header("Location", f"{host}/lfs/{path.relative_to(hub.folder).as_posix()}?signed=1")
            self.send_header("X-Repo-Commit", hub.commit(repo))
            self.send_header("X-Linked-Size", str(len(data)))
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._file(path, body=body)

    def _file(self, path: Path, *, body: bool) -> None:
        faults = self.server.hub.faults
        if faults.page:
            self._send(200, b"<!doctype html><p>Log in to the network first.", "text/html; charset=utf-8", body=body)
            return
        data = bytearray(path.read_bytes())
        if faults.flip is not None:
            data[faults.flip] ^= 1
        size = len(data) if faults.claim is None else faults.claim
        first, last = 0, len(data) - 1
        asked = self.headers.get("Range", "")
        partial = asked.startswith("bytes=") and not faults.no_ranges
        if partial:
            start, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or last), last)
            if first > last:
                self._error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            length = last - first + 1 + faults.surplus
        else:
            self.send_response(200)
            length = size
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"of-the-storage"')
        self.end_headers()
        if body:
            self._pour(bytes(data[first : last + 1]) + b"?" * (faults.surplus if partial else 0))

    def _pour(self, data: bytes) -> None:
        faults = self.server.hub.faults
        for at in range(0, len(data), _CHUNK):
            chunk = data[at : at + _CHUNK]
            for limit, stall in ((faults.stall, True), (faults.cut, False)):
                if limit is not None and at + len(chunk) > limit:
                    if faults.once:
                        faults.stall = faults.cut = None
                    self.wfile.write(chunk[: limit - at])
                    self.wfile.flush()
                    self.close_connection = True
                    if stall:
                        self.server.ending.wait(60)
                    return
            if faults.quota is not None:
                faults.quota -= len(chunk)
                if faults.quota <= 0:
                    self.close_connection = True
                    return
            self.wfile.write(chunk)
            if faults.rate:
                self.server.ending.wait(len(chunk) / faults.rate)

    def _error(self, status: int, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, body: object) -> None:
        self._send(200, json.dumps(body).encode(), "application/json", body=True)

    def _send(self, status: int, data: bytes, kind: str, *, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.hub = hub
        self.ending = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what many tests are about."""


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[Hub]:
    """A hub of the repositories in a folder, for as long as the block runs."""
    hub = Hub(folder)
    server = _Server(hub, port)
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.ending.set()
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    with serving(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0) as running:
        print(running.url, flush=True)
        while True:
            time.sleep(3600)
