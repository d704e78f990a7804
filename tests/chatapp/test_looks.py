"""Every screen in two themes and two sizes, as it was when somebody last looked at it and found it good."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import snapshot
from fake_backend import FakeBackend, Gate, end, prefill, say, think
from harness import Chat, Clock, here, running
from textual.screen import Screen
from textual.widgets import Input, TextArea

from chatapp import keys
from chatapp.commands import COMMANDS
from chatapp.options import ChatOptions
from chatapp.store import Store
from chatapp.wizard import Wizard
from runtime.hub.protocol import Fit, LocalModel, Machine, RemoteModel
from runtime.protocol import Delta, Failed, Notice

pytestmark = here("a picture of what the other tests run with both")

SIZES = ((60, 20), (110, 32))
REPLY = [
    prefill(20, 20, 12),
    think("The user wants a table, and a program. ", 40),
    say("Three rivers, the longest first:\n\n"),
    say(
        "| river | length | sea |\n|:--|--:|:--|\n| Danube | 2,850 km | Black Sea |\n| Rhine | 1,233 km | North Sea |\n"
    ),
    say(
        "| Loire | 1,006 km | **Atlantic** |\n\n1. All rise in *mountains*.\n2. See [a map](https://maps.example).\n\n"
    ),
    say('```python\ndef longest(rivers: dict[str, int]) -> str:\n    """The name."""\n'),
    say("    return max(rivers, key=rivers.get)  # ties: the first\n```\n\n> Water runs downhill.\n"),
    end(thinking_ms=1840.0, thinking_tokens=40, drafted=40, accepted=31, context_used=640),
]
DRAFTED = [Delta("", "answer", "Nantes lies on the Loire.", 6, drafted=((0, 6), (12, 19))), end(drafted=4, accepted=3)]


@dataclass(frozen=True)
class Shot:
    """How to come to a screen: `show` brings it up, on a backend that plays `replies`."""

    screen: str
    show: Callable[[Chat], Awaitable[None]]
    replies: tuple[list[object], ...] = ()
    options: ChatOptions | None = None


def command(text: str) -> Callable[[Chat], Awaitable[None]]:
    """What a command opens, over a conversation."""

    async def show(chat: Chat) -> None:
        await chat.ask("Name three rivers, as a table.")
        await chat.send(text)
        await chat.until(lambda: chat.app.screen is not chat.screen)

    return show


async def nothing(chat: Chat) -> None:
    await chat.pilot.pause()


async def conversation(chat: Chat) -> None:
    await chat.ask("Name three rivers, as a table.")
    await chat.pilot.press("ctrl+home")


async def running_thought(chat: Chat) -> None:
    await chat.send("Which of them is the longest, and why do rivers meander?")
    await chat.until(lambda: "thinking…" in chat.text())
    await chat.send("And then one more thing.")


async def troubles(chat: Chat) -> None:
    await chat.send("/colour")
    await chat.until(lambda: "no command" in chat.text())
    await chat.ask("Hello?")


async def help_page(chat: Chat) -> None:
    await chat.send("/help")
    await chat.until(lambda: "Show the commands and keys" in chat.text())


async def typed(chat: Chat) -> None:
    await chat.write("/t")
    await chat.pilot.pause()


async def wrong_value(chat: Chat) -> None:
    await command("/set")(chat)
    await chat.pilot.press(*"top_p", "enter")
    await chat.until(lambda: chat.app.screen.query_one("#form-value", Input).has_focus)
    await chat.pilot.press("2")
    await chat.until(lambda: "not '2'" in chat.text())


async def palette(chat: Chat) -> None:
    await chat.pilot.press("ctrl+p")
    await chat.until(lambda: chat.app.screen is not chat.screen)


async def found(chat: Chat) -> None:
    await chat.ask("Name three rivers, as a table.")
    await chat.pilot.press("ctrl+f", *"river")
    await chat.until(lambda: " of " in chat.text().split("find river")[-1])


async def marked(chat: Chat) -> None:
    await chat.ask("Name three rivers, as a table.")
    await chat.pilot.press("ctrl+up")
    await chat.until(lambda: "C copy" in chat.text())


async def attached(chat: Chat) -> None:
    folder = chat.screen.composer.chips.folder = chat.store.path.parent
    (folder / "notes.md").write_text("A line.\n" * 40)
    chat.screen.composer.insert_typed("\n".join(f"line {number}" for number in range(300)))
    chat.screen.composer.insert_typed(" and @notes.md ")
    await chat.until(lambda: "▤ notes.md" in chat.text())


async def saved(chat: Chat) -> None:
    await chat.pilot.press("ctrl+r")
    await chat.until(lambda: "Sourdough" in chat.text())


class ThisMachine:
    """A hub that knows one model here, and advises another."""

    downloads: ClassVar[dict[str, object]] = {}

    def on_progress(self, listener: object) -> Callable[[], None]:
        return lambda: None

    async def look(self, *place: object) -> SimpleNamespace:
        machine = Machine("Some CPU", 8, 32 * 10**9, 20 * 10**9, 200 * 10**9, "/caches/hub", (), 40e9)
        fit = Fit("cpu", 4 * 10**9, 20 * 10**9, 12.0, "It fits with room to spare.")
        here = LocalModel(
            "/m/q.gguf", "Qwen3.5 4B", "Hugging Face cache", "unsloth/Qwen3.5-4B-GGUF", "q.gguf", "Q4_K_M",
            "the usual choice", 2_770_000_000, 1, True, "", fit,
        )  # fmt: skip
        return SimpleNamespace(models=(here,), downloads=(), machine=machine)

    async def advise(self) -> tuple[RemoteModel, ...]:
        fit = Fit("no", 22 * 10**9, 20 * 10**9, None, "It needs more memory than is free.")
        return (
            RemoteModel(
                "unsloth/Qwen3.6-35B-A3B-GGUF", "big.gguf", "Qwen3.6 35B A3B", "Q4_K_M", "the usual choice",
                21_000_000_000, 1, True, (), "", False, fit,
            ),
        )  # fmt: skip


async def wizard(chat: Chat) -> None:
    chat.app.push_screen(Wizard(ThisMachine(), None, (), None, "auto"))  # type: ignore[arg-type]
    await chat.until(lambda: "Qwen3.6 35B A3B" in chat.text())


SHOTS = {
    "welcome": Shot("ChatScreen", nothing),
    "no-model": Shot("ChatScreen", nothing, options=ChatOptions()),
    "conversation": Shot("ChatScreen", conversation, (REPLY,)),
    "thought": Shot("ChatScreen", running_thought, ([think("Rivers erode their outer banks. " * 12, 96), Gate()],)),
    "found": Shot("ChatScreen", found, (REPLY,)),
    "marked": Shot("ChatScreen", marked, (REPLY,)),
    "attached": Shot("ChatScreen", attached),
    "troubles": Shot("ChatScreen", troubles, ([Notice("The file is odd."), Failed("No memory.", "memory")],)),
    "help": Shot("ChatScreen", help_page),
    "typed": Shot("ChatScreen", typed),
    "palette": Shot("Picker", palette),
    "themes": Shot("Picker", command("/theme")),
    "presets": Shot("Picker", command("/preset")),
    "personas": Shot("Picker", command("/persona")),
    "context": Shot("Picker", command("/context"), (REPLY,)),
    "sidebar": Shot("ChatScreen", saved),
    "settings": Shot("Form", command("/settings")),
    "parameters": Shot("Form", command("/set")),
    "wrong-value": Shot("Form", wrong_value),
    "persona": Shot("WritingScreen", command("/persona edit tutor")),
    "wizard": Shot("Wizard", wizard),
    "drafts": Shot("DraftsScreen", command("/drafts"), (DRAFTED,)),
}


@pytest.mark.parametrize("name", SHOTS)
async def test_it_looks_as_it_did(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    store = Store(tmp_path / "conversations.db", clock=lambda: 1_760_000_000.0)
    for title in ("Sourdough without a scale", "Why is the sky blue?", "Übersetzung · 翻訳"):
        store.add(store.create(title=title, model="tiny").id, None, "user", title)
    store.close()
    shot = SHOTS[name]
    backend = FakeBackend(*shot.replies)  # type: ignore[arg-type]
    async with running(backend, tmp_path, shot.options, size=SIZES[1], clock=Clock()) as chat:
        chat.screen.keep_still(True)
        await shot.show(chat)
        assert type(chat.app.screen).__name__ == shot.screen
        for field in (*chat.app.screen.query(Input), *chat.app.screen.query(TextArea)):
            field.cursor_blink = False
        for size in SIZES:
            await chat.pilot.resize_terminal(*size)
            await chat.until(lambda size=size: len(chat.lines()) == size[1] and chat.app.screen.size.width == size[0])
            await chat.pilot.pause()
            snapshot.check(f"{name}-{size[0]}x{size[1]}", await snapshot.take(chat))
        for gate in (step for reply in shot.replies for step in reply):
            if isinstance(gate, Gate):
                gate.open()


def test_no_screen_is_left_out() -> None:
    keys.declared()
    screens = {node.__name__ for node in keys._nodes() if issubclass(node, Screen) and not node.__subclasses__()}
    assert screens == {shot.screen for shot in SHOTS.values()}


def test_no_file_is_left_over_and_all_are_small() -> None:
    wanted = {f"{name}-{width}x{height}.txt" for name in SHOTS for width, height in SIZES}
    files = list(snapshot.FOLDER.iterdir())
    assert {path.name for path in files} == wanted
    assert sum(path.stat().st_size for path in files) < 1_500_000


def test_every_command_is_tried_in_the_running_chat() -> None:
    """By a test that sends it, or presses its key."""
    sources = [path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    pilots = "\n".join(source for source in sources if "running(" in source)
    pressed = {known.action: known.keys for known in keys.declared().values()}
    missing = [
        name
        for name in COMMANDS
        if not re.search(rf"""["'(]/{name}\b""", pilots)
        and not any(f'press("{key}"' in pilots for key in pressed.get(f"command('{name}')", ()))
    ]
    assert missing == []
