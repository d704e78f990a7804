"""A hub on loopback and a cache of its own for tests, and what they ask of a download."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hub_server import Hub, serving
from huggingface_hub import close_session, constants

from runtime.hub import downloads, remote
from runtime.hub.protocol import Download
from runtime.hub.transfer import Tuning

REPO, FILE = "maker/Qwen3.5-4B-GGUF", "Qwen3.5-4B-Q4_K_M.gguf"
QUICK = Tuning(connections=3, smallest=50_000, tries=4, patience=0.01, silence=0.3, record_every=0.0)
SECONDS = 20  # after which a test has hung


def content(size: int = 300_000, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass
class Place:
    """A hub, the cache that downloads go to, and all that downloads have told."""

    hub: Hub
    cache: Path
    told: list[Download] = field(default_factory=list)

    def job(self, repo: str = REPO, file: str = FILE, tuning: Tuning = QUICK) -> downloads.Job:
        return downloads.Job(downloads.find_item(repo, file), self.told.append, tuning)

    def fetch(self, repo: str = REPO, file: str = FILE, tuning: Tuning = QUICK) -> Download:
        """To its end, whatever that is."""
        job = self.job(repo, file, tuning)
        job.start()
        job.join(SECONDS)
        assert not job.is_alive()
        return job.download

    def files(self) -> set[str]:
        """All files of the cache, by their names below it."""
        return {str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if not path.is_dir()}


@contextmanager
def connected(hub: Hub, cache: Path, patch: pytest.MonkeyPatch) -> Iterator[Place]:
    """huggingface_hub in this process has this endpoint and this cache, and nobody is logged in."""
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", remote.HOSTS_VARIABLE):
        patch.delenv(name, raising=False)
        patch.delenv(name.lower(), raising=False)
    close_session()
    remote.beginning.cache_clear()
    yield Place(hub, cache)
    close_session()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """With one repository and one file in it."""
    with serving(tmp_path / "hub") as hub, connected(hub, tmp_path / "cache", monkeypatch) as found:
        hub.put(REPO, FILE, content())
        yield found
