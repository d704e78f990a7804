"""Titles that the model gives conversations while nobody waits for it."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Sequence

from chatapp.backend import Backend
from chatapp.sanitize import clean_line
from chatapp.store import Node
from chatapp.thread import messages
from runtime.protocol import Delta, Finished, Generate, Message, Sampling

IDLE_SECONDS = 2.0
"""How long nothing happens before the model is asked."""
LEAST_PARAMETERS = 300_000_000
"""Of a model whose titles say more than the first words do."""
_LENGTH = 60  # characters
_ASKED = Message(
    "user",
    "Give this conversation a title of at most six words, in its own language. Answer with the title only.",
)
_SAMPLING = Sampling(temperature=0.0, presence_penalty=0.0, max_tokens=24)
_AROUND = re.compile(r"^(title\s*:)?[\s\"'“”„«»*_#`]+|[\s\"'“”«»*_#`.:]+$|^title\s*:\s*", re.IGNORECASE)


class Titler:
    """Asks below the conversation as it stands, so that nothing of it is read again, and leaves no trace there.

    `stop` at once ends what runs: whoever asks for something else need not wait.
    """

    def __init__(self, backend: Backend, idle: float = IDLE_SECONDS) -> None:
        self.idle = idle
        self._backend = backend
        self._task: asyncio.Task[None] | None = None
        self._request: str | None = None

    def begin(self, conversation_id: str, thread: Sequence[Node], done: Callable[[str], None]) -> None:
        """Ask after a while, if nothing comes between; `done` hears of the title, if one comes."""
        self._end()
        self._task = asyncio.create_task(self._run(conversation_id, thread, done))

    async def stop(self) -> None:
        """Something else is to be done."""
        request, self._request = self._request, None
        self._end()
        if request is not None:
            await self._backend.cancel(request)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, conversation_id: str, thread: Sequence[Node], done: Callable[[str], None]) -> None:
        await asyncio.sleep(self.idle)
        model = self._backend.model
        if model is None or 0 < model.parameters < LEAST_PARAMETERS:
            return
        request = Generate(
            uuid.uuid4().hex,
            conversation_id,
            (*messages(thread), _ASKED),
            _SAMPLING,
            thinking=False,
            drafts=0,
            aside=True,
            awaited=False,
        )
        self._request = request.request_id
        answer, ended = "", False
        async for event in self._backend.generate(request):
            if isinstance(event, Delta) and event.channel == "answer":
                answer += event.text
            ended = isinstance(event, Finished) and event.reason in ("stop", "length")
        self._request = None
        if ended and (title := tidy(answer)):
            done(title)


def tidy(answer: str) -> str:
    """The title in what a model says; "" if that is none."""
    line = next((line for line in answer.splitlines() if line.strip()), "")
    title = clean_line(line, 200)
    while (shorter := _AROUND.sub("", title)) != title:
        title = shorter
    return title if 0 < len(title) <= _LENGTH and len(title.split()) <= 10 else ""
