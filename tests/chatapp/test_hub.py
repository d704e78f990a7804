"""The chat's side of the process that looks after models."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest
from hub_server import serving

from chatapp.hub import Hub, HubError, has_unfinished
from runtime.hub.protocol import Download
from runtime.hub.ranges import Record

REPO, FILE = "maker/some-GGUF", "some-Q8_0.gguf"
GOLDENS = Path(__file__).parents[1] / "goldens"
SECONDS = 20


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HF_") or name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))


async def test_a_process_that_does_not_start_is_a_sentence() -> None:
    for command, words in (
        (["/nowhere/python"], "does not start: No such file"),
        ([sys.executable, "-c", "raise SystemExit('broken')"], "has ended. The engine stopped: broken"),
    ):
        hub = Hub(command)
        with pytest.raises(HubError, match=words):
            await asyncio.wait_for(hub.browse(), SECONDS)
        await hub.close()
        with pytest.raises(HubError, match="is being closed"):
            await hub.browse()


async def test_a_process_that_dies_is_started_again_and_its_download_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (GOLDENS / "tiny-dense.gguf").read_bytes() + bytes(2_000_000)
    with serving(tmp_path / "hub") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.put(REPO, FILE, data)
        server.faults.rate = 300_000
        hub, told, news = Hub(), list[Download](), asyncio.Event()

        def hear(download: Download) -> None:
            told.append(download)
            news.set()

        async def until(state: str) -> Download:
            while not (told and told[-1].state == state and (told[-1].done or state != "running")):
                news.clear()
                await asyncio.wait_for(news.wait(), SECONDS)
            return told[-1]

        hub.on_progress(hear)
        assert not has_unfinished()
        await hub.fetch(REPO, FILE)
        await until("running")
        assert hub._process is not None
        os.kill(hub._process._transport.get_pid(), signal.SIGKILL)
        failed = await until("failed")
        assert "/models goes on with it" in failed.message and not hub.running
        assert has_unfinished()
        server.faults.rate = None
        await hub.fetch(REPO, FILE)
        assert Path((await until("done")).path).read_bytes() == data  # noqa: ASYNC240
        assert not has_unfinished()
        await hub.close()


async def test_what_another_program_downloads_is_not_cancelled_here(tmp_path: Path) -> None:
    blob = tmp_path / "hf/hub/models--maker--some-GGUF/blobs" / ("e" * 64)
    blob.parent.mkdir(parents=True)
    record = Record(REPO, "c" * 40, FILE, FILE, blob.name, 100, ((0, 100),))
    record.write(blob.with_name(f"{blob.name}.qwenchat.json"))
    with blob.with_name(f"{blob.name}.qwenchat.incomplete").open("ab") as partial:
        fcntl.flock(partial, fcntl.LOCK_EX)
        hub = Hub()
        with pytest.raises(HubError, match="cancel it there"):
            await asyncio.wait_for(hub.discard(f"{REPO}/{FILE}"), SECONDS)
    await hub.discard(f"{REPO}/{FILE}")
    assert not has_unfinished()
    await hub.close()
