"""What a thread of messages means to the model: what it is sent of it, and who answered."""

from __future__ import annotations

from collections.abc import Sequence

from chatapp.records import Node
from runtime.protocol import Message

SUMMARY = "What was said before, in short:"


def last_cut(thread: Sequence[Node]) -> Node | None:
    """The marker from which on older messages are not sent; its content is their summary, if there is one."""
    return next((node for node in reversed(thread) if "cut" in node.meta), None)


def system_prompt(thread: Sequence[Node]) -> str:
    """The last one."""
    return next((node.content for node in reversed(thread) if node.role == "system" and "cut" not in node.meta), "")


def kept(thread: Sequence[Node]) -> list[Node]:
    """What has not been left out of the context, without markers."""
    cut = last_cut(thread)
    first = cut.meta["cut"].get("from", 0) if cut is not None else 0
    return [node for node in thread if "cut" not in node.meta and (node.role == "system" or node.id >= first)]


def messages(thread: Sequence[Node]) -> tuple[Message, ...]:
    """What the model is sent of a thread: the last system prompt first, then all that was asked and answered.

    A reply that never came to its answer is left out, and so is what the last cut has left out: its summary stands
    below the system prompt.
    """
    cut, text = last_cut(thread), system_prompt(thread)
    if cut is not None and cut.content:
        text = "\n\n".join(part for part in (text, f"{SUMMARY}\n{cut.content}") if part)
    system = (Message("system", text),) if text else ()
    thread = kept(thread)
    turns = [node for node in thread if node.role == "user" or (node.role == "assistant" and node.content.strip())]
    return (*system, *(Message(node.role, node.content, node.thought) for node in turns if node.content))


def held(thread: Sequence[Node], source: str | None) -> int | None:
    """Tokens of the context that the thread takes, as counted after its last reply by the model of `source`.

    None if anything has come after that reply, if another model made it, or if nothing was counted.
    """
    last = thread[-1] if thread else None
    if last is None or last.role != "assistant" or source is None or last.meta.get("source") != source:
        return None
    stats = last.meta.get("stats")
    used = stats.get("context_used") if isinstance(stats, dict) else None
    return used if isinstance(used, int) and used > 0 else None


def source_of(thread: Sequence[Node]) -> str | None:
    """The path or the address of the model that answered last in a thread; None if that is not known."""
    sources = (node.meta.get("source") for node in reversed(thread) if node.role == "assistant")
    return next((source for source in sources if isinstance(source, str)), None)
