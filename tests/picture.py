"""The picture in the README: a real conversation on a screen in memory.

python tests/picture.py MODEL.gguf .readme/chat.svg
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "chatapp"))

from harness import Chat

from chatapp.app import QwenChat
from chatapp.local import LocalBackend
from chatapp.options import ChatOptions
from chatapp.settings import Settings
from chatapp.store import Store
from runtime.protocol import Sampling

_WEB_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # a picture that loads nothing from elsewhere
MESSAGES = ("My name is Marigold.", "What is 31 + 46?", "What is my name?")


async def take(model: str) -> str:
    """The picture as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "conversations.db")
        backend = LocalBackend()
        options = ChatOptions(model=model, thinking=True, sampling=Sampling(temperature=0, presence_penalty=0))
        app = QwenChat(backend, store, Settings(), options)  # type: ignore[arg-type]
        async with app.run_test(size=(92, 28)) as pilot:
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


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(asyncio.run(take(str(Path(sys.argv[1]).absolute()))))
