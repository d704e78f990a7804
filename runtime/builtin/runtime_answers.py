"""Greedy replies of a GGUF file through the runtime, for the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runtime.builtin.generate import Generated, Request
from runtime.errors import UserError
from runtime.loading import open_chat_model
from runtime.protocol import Delta, Failed, Finished, Generate, Load, Message, Sampling

GREEDY = Sampling(temperature=0.0, presence_penalty=0.0, repetition_penalty=1.0, max_tokens=320)


class RuntimeAnswers:
    """Answers one conversation after the other; counts drafts on the way."""

    def __init__(self, path: Path, threads: int | None = None) -> None:
        """Raises UserError."""
        self.model, self.info, self.notices = open_chat_model(
            Load(str(path), threads=threads), lambda done, total: None
        )
        self.drafted = 0
        self.accepted = 0

    def answer(self, requests: Sequence[Request]) -> list[Generated]:
        return [self._answer(f"evaluation {i}", request) for i, request in enumerate(requests)]

    def _answer(self, name: str, request: Request) -> Generated:
        messages = tuple(_message(m) for m in request.messages)
        command = Generate(name, name, messages, GREEDY, thinking=request.thinking)
        text = {"thinking": "", "answer": ""}
        ended = closed = False
        for event in self.model.generate(command, lambda: False):
            if isinstance(event, Delta):
                text[event.channel] += event.text
            elif isinstance(event, Finished):
                ended, closed = event.reason == "stop", event.thought_closed
                self.drafted += event.stats.drafted
                self.accepted += event.stats.accepted
            elif isinstance(event, Failed):
                raise UserError(event.message)
        return Generated(text["thinking"].strip(), text["answer"].strip(), ended, closed)


def _message(message: dict[str, str]) -> Message:
    role = message["role"]
    assert role in ("system", "user", "assistant")
    return Message(role, message["content"], message.get("reasoning_content", ""))  # type: ignore[arg-type]
