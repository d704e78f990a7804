"""What stands at the top of a new conversation."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from chatapp.block import Block
from chatapp.key_names import key_of
from chatapp.plain_container import PlainContainer
from runtime.protocol import BUILT_IN_MODEL

_KEYS = (
    ("", "Enter", "send"),
    ("", "Shift+Enter", "new line"),
    ("chat.stop", "Esc", "stop"),
    ("chat.thinking", "Ctrl+T", "thinking"),
    ("chat.resume", "Ctrl+R", "conversations"),
    ("", "/help", "everything else"),
)

_BUILT_IN = (
    "The model that answers now is built in: a tiny demonstration that knows qwenchat, small sums and some facts, "
    "and remembers what you tell it. /models finds and downloads a real one that suits this machine."
)


class Welcome(Vertical, PlainContainer, Block):
    def __init__(self, model: str | None) -> None:
        """`model`: the path of the one that is open or opens; None for none."""
        super().__init__(classes="block")
        self._model = model

    def compose(self) -> ComposeResult:
        yield Static("qwenchat", classes="welcome--name", markup=False)
        yield Static("A chat with a model that lives in your own machine.", classes="welcome--text", markup=False)
        if self._model == str(BUILT_IN_MODEL):
            yield Static(_BUILT_IN, classes="welcome--text -built-in", markup=False)
        if self._model is None:
            yield Static(
                "No model is open yet. qwenchat runs Qwen3.5 and Qwen3.6 models from GGUF files:",
                classes="welcome--text -no-model",
                markup=False,
            )
            yield Static(
                "/models                   find one, download it, open it\n"
                "/model PATH               open a file that you have\n"
                "qwenchat MODEL.gguf       the next time you start",
                classes="welcome--how -no-model",
                markup=False,
            )
        yield FirstKeys(classes="welcome--keys")

    def model_opens(self, path: str) -> None:
        """How to open a model needs no telling any more."""
        self._model = path
        self.query(".-no-model, .-built-in").remove()

    def fresh(self) -> Welcome:
        return Welcome(self._model)


class FirstKeys(Static):
    """The keys to know first, each on one line with what it does."""

    _width = 0

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width != self._width:
            self._width = event.size.width
            self.refresh(layout=True)

    def render(self) -> Content:
        dot = Content.styled("  ·  ", "$text-disabled")
        lines: list[Content] = []
        for id, usual, what in _KEYS:
            told = Content.assemble((key_of(self, id, usual), "bold"), f" {what}")
            if lines and lines[-1].cell_length + dot.cell_length + told.cell_length <= (self._width or 80):
                lines[-1] = Content("").join([lines[-1], dot, told])
            else:
                lines.append(told)
        return Content("\n").join(lines)
