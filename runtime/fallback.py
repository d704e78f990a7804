"""When a card's memory ends in the middle of a reply: what is kept of the reply, and what is let go on the card."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runtime.protocol import Delta, Event, Generate, Message, Notice

if TYPE_CHECKING:
    from runtime.turn import ChatModel

FREED = Notice("The GPU's memory was full: the states kept of conversations were let go, and the reply goes on.")
TO_PROCESSOR = Notice("The GPU's memory does not suffice: the model runs on the processor from now on.")


@dataclass
class Said:
    """What a request has brought so far."""

    thought: str = ""
    answer: str = ""
    tokens: int = 0

    def follow(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.tokens += event.n_tokens
            if event.channel == "thinking":
                self.thought += event.text
            else:
                self.answer += event.text

    def rest(self, command: Generate) -> Generate:
        """The request for what is still to come."""
        if not self.thought and not self.answer:
            return command
        messages, begun = command.messages, Message("assistant", "")
        if messages[-1].role == "assistant":
            *others, begun = messages
            messages = tuple(others)
        begun = replace(begun, content=begun.content + self.answer, thought=begun.thought + self.thought)
        sampling, most = command.sampling, command.sampling.max_tokens
        if most is not None:
            sampling = replace(sampling, max_tokens=max(most - self.tokens, 1))
        return replace(command, messages=(*messages, begun), sampling=sampling)


def is_of_a_card(error: Exception, chat: ChatModel) -> bool:
    """Whether an error says that a card's memory is full."""
    from torch import OutOfMemoryError

    return isinstance(error, OutOfMemoryError) and chat.engine.model.ops.card is not None


def free(chat: ChatModel) -> None:
    """Let everything on the cards go that can be made again, states that can be saved being saved first."""
    with suppress(Exception):  # which may need memory itself
        chat.engine.pool.save(lambda: False)
    chat.engine.pool.clear()
    chat.engine.model.free()
    empty()


def empty() -> None:
    """Give the cards, all of them, back what nothing holds any more."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
