"""The wizard, by keys alone, against a hub on loopback and the real process that looks after models."""

from __future__ import annotations

import asyncio
import filecmp
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fake_backend import FakeBackend
from harness import Chat, here, running
from hub_server import Hub, serving

from chatapp.hub import HubError
from chatapp.options import ChatOptions
from chatapp.wizard import Wizard
from chatapp.wizard_pages import note, remote_row
from runtime import machine
from runtime.cores import default_threads
from runtime.hub.protocol import Fit, Here, LocalModel, Machine, RemoteModel, Repo
from runtime.protocol import BUILT_IN_MODEL

REMOTE = RemoteModel("maker/repo", "m.gguf", "m", "Q4_K_M", "", 10**9, 1, False, (), "", False, None)
LOCAL = LocalModel("/m/own.gguf", "own.gguf", "hf", "maker/repo", "own.gguf", "Q4", "", 10**9, 1, False, "", None)

pytestmark = here("files are found, downloaded and opened")

GOLDENS = Path(__file__).parents[1] / "goldens"
REPO, FILE = "unsloth/Qwen3.5-0.8B-GGUF", "Qwen3.5-0.8B-Q4_K_M.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """With one model of the catalogue; this user's home is empty."""
    for name in [name for name in os.environ if name.startswith(("HF_", "OLLAMA", "LLAMA")) or name.endswith("PROXY")]:
        monkeypatch.delenv(name)
    with serving(tmp_path / "hub") as found:
        for name, value in {"HOME": "home", "HF_HOME": "hf", "XDG_CACHE_HOME": "caches"}.items():
            monkeypatch.setenv(name, str(tmp_path / value))
        kept = {"machine": f"{machine.cpu()} {default_threads()}", "time": time.time(), "bytes_per_s": 2e10}
        (tmp_path / "caches/qwenchat").mkdir(parents=True)
        (tmp_path / "caches/qwenchat/bandwidth.json").write_text(json.dumps(kept))  # which need not be measured then
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        found.put(REPO, FILE, (GOLDENS / "tiny-dense.gguf").read_bytes())
        yield found


@asynccontextmanager
async def chatting(tmp_path: Path, model: str | None = None) -> AsyncIterator[Chat]:
    options = ChatOptions(model=model, model_folders=(str(tmp_path / "mine"),))
    async with running(FakeBackend(), tmp_path, options, size=(110, 36)) as chat:
        yield chat


async def choose(chat: Chat, text: str) -> None:
    """Go down to the row that has the text, and take it."""
    await chat.until(lambda: text in chat.text())
    options = chat.app.screen.query_one("#wizard-list")
    for _ in range(options.option_count):  # type: ignore[attr-defined]
        option = options.highlighted_option  # type: ignore[attr-defined]
        if option and text in str(option.prompt):
            await chat.pilot.press("enter")
            return
        await chat.pilot.press("down")
    raise AssertionError(f"no row {text!r} in\n{chat.text()}")


async def test_from_nothing_to_a_chat_with_a_fetched_model(tmp_path: Path, hub: Hub) -> None:
    async with chatting(tmp_path) as chat:
        assert "/models" in chat.text()
        await chat.send("/models")
        await chat.until(lambda: "★" in chat.text())
        assert "None but the built-in one." in chat.text() and "memory free" in chat.text()
        await chat.until(lambda: "the usual choice" in chat.words())
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.backend.model is not None)
        await chat.until(lambda: "Hugging Face cache" in chat.text())
        await chat.pilot.press("escape")
        await chat.ask("hello")
        [load] = chat.backend.loads
        assert Path(load.path).name == FILE
        assert filecmp.cmp(load.path, hub.folder / REPO / FILE, shallow=False)


async def test_the_way_back_to_the_built_in_model(tmp_path: Path, hub: Hub) -> None:
    async with chatting(tmp_path, model=str(tmp_path / "other.gguf")) as chat:
        await chat.until(lambda: chat.backend.model is not None)
        await chat.send("/models")
        await choose(chat, "The built-in model")
        await chat.until(lambda: len(chat.backend.loads) == 2)
        assert chat.backend.loads[-1].path == str(BUILT_IN_MODEL)


@pytest.mark.parametrize("width", [20, 50, 200])
def test_what_is_to_be_read_only_is_whole_at_any_width(width: int) -> None:
    text = "huggingface.co cannot be reached: check the network and try again."
    shown = note(text).shown(width).plain
    assert " ".join(shown.split()) == text
    assert all(len(line) <= max(width, 22) for line in shown.split("\n"))


def test_speeds_of_any_length_leave_the_columns_aligned() -> None:
    fits = [Fit("cpu", 1, 1, speed, "") for speed in (0.84, 7.9, 9.97, 14.0, 205.3)]
    rows = [remote_row(replace(REMOTE, fit=fit), None, repo=True).shown(90).plain for fit in fits]
    assert {row.index("maker") for row in rows} == {rows[0].index("maker")}
    assert "~10 tok/s" in rows[2]


def test_in_a_narrow_terminal_the_figures_are_there_and_the_name_gives_way() -> None:
    file = RemoteModel("maker/repo", "m", "Qwen3.5-35B-A3B-UD-Q4_K_XL", "Q4", "", 10**9, 1, True, (), "", False, None)
    row = remote_row(replace(file, fit=Fit("cpu", 1, 1, 7.9, "")), None, repo=True)
    assert "~7.9 tok/s" in row.shown(51).plain[:51]
    assert "Qwen3.5-35B-A3B-UD-Q4_K_XL" in row.shown(51).plain
    assert replace(row, best=True).shown(51).plain.startswith("★ Qwen")
    assert len(row.shown(90).plain) <= 90


async def test_a_download_goes_on_while_chatting_is_paused_and_cancelled(tmp_path: Path, hub: Hub) -> None:
    hub.put(REPO, FILE, (GOLDENS / "tiny-dense.gguf").read_bytes() + bytes(3_000_000))
    hub.faults.rate = 40_000  # so slow that the download outlasts what is done meanwhile
    async with chatting(tmp_path, model=str(tmp_path / "other.gguf")) as chat:
        await chat.send("/models")
        await choose(chat, "★")
        await chat.until(lambda: "Downloads" in chat.text())
        await chat.pilot.press("escape")
        await chat.until(
            lambda: "↓ Qwen3.5-0.8B-Q4_K_M.gguf" in chat.text() and "MB/s" in chat.text().replace("kB/s", "MB/s")
        )
        await chat.ask("hello")
        await chat.send("/models")
        await chat.until(lambda: "Downloads" in chat.text())
        for _ in range(2):
            await chat.pilot.press("up")
        await choose(chat, "3.2 MB")
        await choose(chat, "Pause")
        await chat.until(lambda: "paused at" in chat.text())
        assert not [line for line in chat.lines() if line.startswith("  ↓")]
        await choose(chat, "paused at")
        await choose(chat, "Cancel, and delete")
        await chat.until(lambda: "paused at" not in chat.text())
    assert not [path for path in (tmp_path / "hf").rglob("*") if path.is_file()]


async def test_what_was_being_downloaded_goes_on_at_the_next_start(tmp_path: Path, hub: Hub) -> None:
    hub.put(REPO, FILE, (GOLDENS / "tiny-dense.gguf").read_bytes() + bytes(3_000_000))
    hub.faults.rate = 40_000  # so slow that the download outlasts what is done meanwhile
    async with chatting(tmp_path) as chat:
        await chat.send("/models")
        await choose(chat, "★")
        await chat.until(lambda: chat.screen.hub and any(d.done for d in chat.screen.hub.downloads.values()))
    hub.faults.rate = None
    async with chatting(tmp_path) as chat:
        await chat.until(lambda: "goes on, from" in chat.words())
        await chat.until(lambda: chat.backend.model is not None)
        assert Path(chat.backend.loads[0].path).name == FILE


async def test_models_are_searched_listed_refused_and_deleted(tmp_path: Path, hub: Hub) -> None:
    hub.put("some/finetune-GGUF", "fine-Q8_0.gguf", (GOLDENS / "tiny-moe.gguf").read_bytes())
    foreign = (GOLDENS / "tiny-dense.gguf").read_bytes().replace(b"qwen35", b"llama9")
    hub.put("some/llama-GGUF", "llama-Q8_0.gguf", foreign)
    (tmp_path / "mine").mkdir()
    shutil.copy(GOLDENS / "tiny-dense.gguf", tmp_path / "mine" / "own-Q4_0.gguf")
    async with chatting(tmp_path, model="/m/x.gguf") as chat:
        await chat.send("/models")
        await chat.until(lambda: "your folder" in chat.text())
        await chat.write("gguf some")
        await choose(chat, "Search the hub for")
        await choose(chat, "some/llama-GGUF")
        await chat.until(lambda: "architecture llama9; qwenchat runs" in chat.words())
        await chat.pilot.press("escape")
        await choose(chat, "some/finetune-GGUF")
        await choose(chat, "fine-Q8_0")
        await chat.until(lambda: "fine-Q8_0" in chat.text() and "Hugging Face cache" in chat.text())
        await chat.pilot.press("home", "pageup")
        for _ in range(9):
            option = chat.app.screen.query_one("#wizard-list").highlighted_option  # type: ignore[attr-defined]
            if option and "fine-Q8_0" in str(option.prompt):
                break
            await chat.pilot.press("down")
        await chat.pilot.press("delete")
        await choose(chat, "Delete it")
        await chat.until(lambda: "fine-Q8_0" not in chat.text() and "your folder" in chat.text())
        await choose(chat, "own-Q4_0")
        await chat.until(lambda: chat.backend.loads[-1].path == str(tmp_path / "mine" / "own-Q4_0.gguf"))


async def test_without_the_hub_what_is_here_can_be_opened(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "mine").mkdir()
    shutil.copy(GOLDENS / "tiny-dense.gguf", tmp_path / "mine" / "own-Q4_0.gguf")
    async with chatting(tmp_path) as chat:
        await chat.send("/models")
        await chat.until(lambda: "HF_HUB_OFFLINE is set" in chat.text())
        await choose(chat, "own-Q4_0")
        await chat.until(lambda: chat.backend.model is not None)
    assert not hub.requests


class Slow:
    """A hub whose answers wait until a test lets them come, in the place of `chatapp.hub.Hub`."""

    def __init__(self, *local: LocalModel) -> None:
        self.downloads: dict[str, object] = {}
        self.local = local
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def _wait(self) -> None:
        self.asked.set()
        await self.answer.wait()

    def on_progress(self, listener: object) -> Callable[[], None]:
        return lambda: None

    async def look(self, *place: object) -> Here:
        return Here(1, Machine("c", 2, 10**10, 10**10, 10**9, "/c", (), None), self.local, ())

    async def advise(self) -> tuple[RemoteModel, ...]:
        return (REMOTE,)

    async def fetch(self, repo: str, file: str) -> None:
        await self._wait()
        raise HubError("There is no room on the disk.")

    async def browse(self, query: str = "") -> tuple[Repo, ...]:
        await self._wait()
        raise HubError("The hub cannot be reached.")

    async def remove(self, model: LocalModel) -> None:
        await self._wait()
        self.local = ()

    async def close(self) -> None: ...


@asynccontextmanager
async def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *local: LocalModel) -> AsyncIterator[tuple[Chat, Slow]]:
    hub = Slow(*local)
    monkeypatch.setattr("chatapp.hub.Hub", lambda **options: hub)
    async with running(FakeBackend(), tmp_path, ChatOptions(), size=(110, 36)) as chat:
        await chat.send("/models")
        await chat.until(lambda: "★" in chat.text())
        yield chat, hub


async def test_what_is_refused_leaves_the_page_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow(tmp_path, monkeypatch) as (chat, hub):
        hub.answer.set()
        await choose(chat, "maker")
        await chat.until(lambda: "There is no room on the disk." in chat.text())
        assert "Suits this machine" in chat.text() and "All models of the family" in chat.text()


async def test_a_page_that_cannot_be_filled_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow(tmp_path, monkeypatch) as (chat, hub):
        await choose(chat, "All models of the family")
        await hub.asked.wait()
        assert "One moment" in chat.text()
        hub.answer.set()
        await chat.until(lambda: chat.text().count("The hub cannot be reached.") == 2)
        assert "One moment" not in chat.text()


async def test_a_page_that_was_left_before_it_was_filled_changes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow(tmp_path, monkeypatch) as (chat, hub):
        await choose(chat, "All models of the family")
        await hub.asked.wait()
        await chat.pilot.press("escape")
        hub.answer.set()
        await chat.until(lambda: "The hub cannot be reached." in chat.text())
        assert "Suits this machine" in chat.text()


async def test_what_ends_after_its_page_was_left_closes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow(tmp_path, monkeypatch, LOCAL) as (chat, hub):
        await chat.pilot.press("delete")
        await choose(chat, "Delete it")
        await hub.asked.wait()
        await chat.pilot.press("escape")
        await chat.until(lambda: "Suits this machine" in chat.text())
        hub.answer.set()
        await chat.until(lambda: "None but the built-in one." in chat.text())
        assert isinstance(chat.app.screen, Wizard)
