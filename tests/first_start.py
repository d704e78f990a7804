"""The pictures of the first start in the README: by keys alone, from nothing to a chat with a model of the hub.

python tests/first_start.py .readme

The real program, worker and process that looks after models, on a screen in memory; only the hub is one on loopback. It
lists files as large as the real ones, but holds one alone, the built-in model, under the name of the smallest.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "chatapp"))

import harness
from harness import Chat
from hub_server import Hub, serving
from picture import _WEB_FONT, FILES
from rewrite import rewrite
from textual.widgets import OptionList

from chatapp.app import QwenChat
from chatapp.local import LocalBackend
from chatapp.options import ChatOptions
from chatapp.settings import Settings
from chatapp.store import Store
from runtime.protocol import BUILT_IN_MODEL, Sampling

REPO, NAME = "unsloth/Qwen3.5-0.8B-GGUF", "Qwen3.5-0.8B-Q4_K_M"
SIZE = (92, 28)


def fill(hub: Hub, folder: Path) -> None:
    for repo, name, size, _ in FILES:
        if name != NAME:
            hub.listed[repo] = {f"{name}.gguf": size}
    file = rewrite(BUILT_IN_MODEL, folder / "named.gguf", metadata={"general.name": "Qwen3.5 0.8B"})
    hub.put(REPO, f"{NAME}.gguf", file.read_bytes())
    hub.faults.rate = 40_000


async def take(hub: Hub, folder: Path) -> dict[str, str]:
    """The pictures as SVG, by their names."""
    store = Store(folder / "conversations.db")
    options = ChatOptions(model=str(BUILT_IN_MODEL), sampling=Sampling(temperature=0, presence_penalty=0))
    backend = LocalBackend()
    app = QwenChat(backend, store, Settings(), options)
    pictures: dict[str, str] = {}

    async with app.run_test(size=SIZE) as pilot:
        chat = Chat(app, pilot, backend, store)  # type: ignore[arg-type]

        async def shot(name: str) -> None:
            await pilot.pause(0.3)
            pictures[name] = _WEB_FONT.sub("", app.export_screenshot(title="qwenchat"))

        await chat.until(lambda: "ready" in chat.status())
        await shot("first")

        await chat.write("/models")
        await pilot.press("enter")
        await chat.until(lambda: "★" in chat.text())
        await shot("found")

        rows = app.screen.query_one(OptionList)
        while not (rows.highlighted_option and NAME in str(rows.highlighted_option.prompt)):
            await pilot.press("down")
        await pilot.press("enter")
        await chat.until(lambda: "Downloads" in chat.text())
        await pilot.press("escape")
        await chat.write("What can I ask you?")
        await pilot.press("enter")
        await chat.idle()
        await shot("download")

        hub.faults.rate = None
        await chat.until(lambda: chat.status().startswith("Qwen3.5 0.8B") and "ready" in chat.status())
        for text in ("My name is Ada.", "What is my name?"):
            await chat.write(text)
            await pilot.press("enter")
            await chat.idle()
        await shot("fetched")
    store.close()
    return pictures


def main(target: Path) -> None:
    harness.PATIENCE = 300
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "hub") as hub:
        here = Path(folder)
        os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # with native functions of before
        os.environ |= {name: str(here / name) for name in ("HOME", "HF_HOME", "QWENCHAT_HOME")}
        os.environ["HF_ENDPOINT"] = hub.url
        fill(hub, here)
        for name, picture in asyncio.run(take(hub, here)).items():
            (target / f"{name}.svg").write_text(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
