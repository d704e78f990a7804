"""Dialogues and their text under the chat template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message and its reply. `plain` is the reply without a thought before it, if that one differs.

    `weight`: of its tokens in the loss; 0: context only.
    """

    user: str
    reply: str
    thought: str
    plain: str = ""
    weight: int = 1

    def answer(self, thinking: bool) -> str:
        return self.reply if thinking or not self.plain else self.plain


@dataclass(frozen=True, slots=True)
class Dialogue:
    """`preserve`: earlier thoughts stay in the prompt, as with `preserve_thinking`.

    `brief`: of the last reply only its beginning is to be learnt.
    """

    turns: tuple[Turn, ...]
    thinking: tuple[bool, ...]
    system: str = ""
    preserve: bool = False
    brief: bool = False
    subject: str = field(default="", compare=False)

    def messages(self) -> list[dict[str, str]]:
        """As the chat template takes them."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn, thinking in zip(self.turns, self.thinking, strict=True):
            messages.append({"role": "user", "content": turn.user})
            messages.append(
                {
                    "role": "assistant",
                    "content": turn.answer(thinking),
                    "reasoning_content": turn.thought if thinking else "",
                }
            )
        return messages


class Segment(NamedTuple):
    """Text and the weight of its tokens in the loss; 0: context only."""

    text: str
    weight: int


def segments(dialogue: Dialogue) -> list[Segment]:
    """The dialogue as rendered by the chat template, cut where the loss changes; the last turn keeps its thought.

    Earlier replies are learnt too, where they need no thought that the template dropped.
    """
    parts: list[Segment] = []
    if dialogue.system:
        parts.append(Segment(f"<|im_start|>system\n{dialogue.system}<|im_end|>\n", 0))
    last = len(dialogue.turns) - 1
    for i, (turn, thinking) in enumerate(zip(dialogue.turns, dialogue.thinking, strict=True)):
        reply = turn.answer(thinking)
        head = f"<|im_start|>user\n{turn.user}<|im_end|>\n<|im_start|>assistant\n"
        if i < last and not dialogue.preserve:
            needs_thought = thinking and bool(turn.plain)
            parts += [Segment(head, 0), Segment(f"{reply}<|im_end|>", 0 if needs_thought else turn.weight)]
        elif thinking:
            parts.append(Segment(f"{head}<think>\n", 0))
            parts.append(Segment(f"{turn.thought}\n</think>\n\n{reply}<|im_end|>", turn.weight))
        else:
            parts.append(Segment(f"{head}<think>\n\n</think>\n\n", 0))
            parts.append(Segment(f"{reply}<|im_end|>", turn.weight))
        parts.append(Segment("\n", 0))
    return parts
