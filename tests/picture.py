"""The pictures in the README, on a screen in memory: a real conversation, the wizard, and screens of the snapshots.

python tests/picture.py FOLDER

The wizard's is of a machine with 16 GB, and of files as large as those on the hub.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "chatapp"))

from fake_backend import FakeBackend
from harness import Chat, running
from test_looks import SHOTS

from chatapp.app import QwenChat
from chatapp.local import LocalBackend
from chatapp.options import ChatOptions
from chatapp.settings import Settings
from chatapp.store import Store
from chatapp.wizard import Wizard
from runtime import fit
from runtime.hub import family, names
from runtime.hub.protocol import Download, Here, LocalModel, Machine, RemoteModel
from runtime.protocol import BUILT_IN_MODEL, Sampling

_WEB_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # a picture that loads nothing from elsewhere
MESSAGES = ("My name is Marigold.", "What is 31 + 46?", "What is my name?")


async def take() -> str:
    """A conversation with the built-in model, as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "conversations.db")
        backend = LocalBackend()
        options = ChatOptions(
            model=str(BUILT_IN_MODEL), thinking=True, sampling=Sampling(temperature=0, presence_penalty=0)
        )
        app = QwenChat(backend, store, Settings(), options)  # type: ignore[arg-type]
        async with app.run_test(size=(92, 35)) as pilot:
            chat = Chat(app, pilot, backend, store)  # type: ignore[arg-type]
            await asyncio.wait_for(_talk(chat), 300)
            picture = app.export_screenshot(title="qwenchat")
        store.close()
    return _WEB_FONT.sub("", picture)


async def _talk(chat: Chat) -> None:
    while chat.backend.model is None:
        await chat.pilot.pause(0.1)
    for message in MESSAGES:
        await chat.send(message)
        while chat.screen.turns.waiting or chat.screen.turns.generating or chat.screen.turns.status.busy:
            await chat.pilot.pause(0.1)
    await chat.pilot.pause(0.5)


MACHINE = Machine("", 8, 16 * 10**9, 12 * 10**9, 310 * 10**9, "", (), 45e9)
FILES = (
    ("unsloth/Qwen3.5-9B-MTP-GGUF", "Qwen3.5-9B-UD-Q4_K_XL", 6_010_000_000, True),
    ("unsloth/Qwen3.5-4B-MTP-GGUF", "Qwen3.5-4B-UD-Q4_K_XL", 2_960_000_000, True),
    ("unsloth/Qwen3.5-2B-GGUF", "Qwen3.5-2B-Q4_K_M", 1_280_835_840, False),
    ("unsloth/Qwen3.5-0.8B-GGUF", "Qwen3.5-0.8B-Q4_K_M", 532_517_120, False),
    ("unsloth/Qwen3.5-27B-GGUF", "Qwen3.5-27B-Q4_K_M", 16_740_812_704, False),
)


class Hub:
    """What `chatapp.hub.Hub` tells of a machine with one model and one download."""

    def __init__(self) -> None:
        self.files = [self._file(*known) for known in FILES]
        self.downloads = {
            self.files[0].key: Download(
                self.files[0].key,
                self.files[0].repo,
                self.files[0].file,
                2_584_000_000,
                6_010_000_000,
                "running",
                48e6,
                71,
            )
        }

    def _file(self, repo: str, name: str, size: int, mtp: bool) -> RemoteModel:
        config = family.known_config(name, mtp)
        assert config is not None
        quant = names.parse(f"{name}.gguf").quant
        fit_ = fit.verdict(config, size, MACHINE)
        return RemoteModel(repo, f"{name}.gguf", name, quant, names.about(quant), size, 1, mtp, (), "", False, fit_)

    def on_progress(self, listener: object) -> Callable[[], None]:
        return lambda: None

    async def look(self, *place: object) -> Here:
        known = self.files[3]
        here = LocalModel(
            f"~/{known.file}",
            known.file,
            "LM Studio",
            "",
            "",
            known.quant,
            known.about,
            known.bytes,
            1,
            False,
            "",
            known.fit,
        )
        return Here(1, MACHINE, (here,), ())

    async def advise(self) -> tuple[RemoteModel, ...]:
        return tuple(file for file in self.files if file.fit and file.fit.place != "no")


async def take_models() -> str:
    """The picture as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(FakeBackend(), Path(folder), ChatOptions(), size=(100, 30)) as chat:
            wizard = Wizard(Hub(), None, (), None, "auto")  # type: ignore[arg-type]
            chat.app.push_screen(wizard)
            await chat.until(lambda: "★" in chat.text())
            while "Fits" not in str(wizard.query_one("#wizard-about").render()):
                await chat.pilot.press("down")
                await chat.pilot.pause()
            for _ in range(2):  # from the model that is here, over the download, to the best
                await chat.pilot.press("down")
            await chat.pilot.pause()
            return _WEB_FONT.sub("", chat.app.export_screenshot(title="qwenchat"))


SCREENS = {
    "reading": ("conversation", "paper", (92, 30)),
    "settings": ("settings", "plum", (92, 30)),
    "context": ("context", "harbor", (92, 24)),
    "themes": ("themes", "linen", (92, 26)),
    "narrow": ("thought", "frost", (60, 20)),
}
"""Of each picture the snapshot, the theme and the size."""


async def take_screen(name: str, theme: str, size: tuple[int, int]) -> str:
    """The picture of a snapshot's screen as SVG."""
    shot = SHOTS[name]
    with tempfile.TemporaryDirectory() as folder:
        backend = FakeBackend(*shot.replies)  # type: ignore[arg-type]
        settings = Settings(theme=theme, thinking=True, temperature=0.6, notify="desktop")
        async with running(backend, Path(folder), shot.options, settings=settings, size=size) as chat:
            await shot.show(chat)
            if name == "settings":
                await chat.pilot.press(*["down"] * 15)
            await chat.pilot.pause()
            return _WEB_FONT.sub("", chat.app.export_screenshot(title="qwenchat"))


SAVED = {
    "Sourdough without a scale": ("How wet should a rye dough be?", "Rye drinks: as much water as flour, by weight."),
    "A week in Lisbon": ("What is worth a day trip?", "Sintra, early, and Setúbal for the fish."),
    "Bread for the party": ("Ten people, two loaves?", "One of rye and one of wheat, 900 g each."),
    "SQL: a window over days": ("Sum the last 7 days per row.", "`sum(n) over (order by day rows 6 preceding)`"),
    "Why is the sky blue?": ("In one sentence?", "Air scatters short waves more than long ones."),
}


async def take_sidebar() -> str:
    """The conversations, searched, beside the one that is open."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "conversations.db")
        for title, (question, answer) in reversed(SAVED.items()):
            made = store.create(title=title)
            asked = store.add(made.id, None, "user", question)
            store.add(made.id, asked.id, "assistant", answer)
        store.pin(made.id, True)
        store.tag(made.id, ["baking"])
        options = ChatOptions(model="/m.gguf", conversation_id=made.id)
        store.close()
        settings = Settings(theme="moss")
        async with running(FakeBackend(), Path(folder), options, settings=settings, size=(112, 18)) as chat:
            await chat.until(lambda: "Rye drinks" in chat.text())
            await chat.pilot.press("ctrl+r", *"rye")
            await chat.until(lambda: "Bread for" in chat.text() and "Lisbon" not in chat.text())
            return _WEB_FONT.sub("", chat.app.export_screenshot(title="qwenchat"))


async def main(folder: Path) -> None:
    made = {"chat": take(), "models": take_models(), "sidebar": take_sidebar()}
    made |= {name: take_screen(*shot) for name, shot in SCREENS.items()}
    for name, picture in made.items():
        (folder / f"{name}.svg").write_text(await picture)


if __name__ == "__main__":
    os.environ["QWENCHAT_HOME"] = tempfile.mkdtemp()
    asyncio.run(main(Path(sys.argv[1])))
