"""When the context fills up: how full it is, and what could leave it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from chatapp.figures import count, percent, plural
from chatapp.store import Node
from chatapp.thread import kept, messages
from runtime.protocol import Message
from runtime.quick_dataclass import dataclass

NEARLY_FULL = 0.85
"""The share from which on the user is told."""
_ROOM = 0.5
"""The share of the context that is free again, at least, when the oldest exchanges have left it."""
_PER_TOKEN = 3.5
"""Characters of a token, where nothing has been counted."""
SUMMARY_TOKENS = 600
"""The longest summary; what is shorter than that is not worth one."""
_INSTRUCTION = (
    "Summarise our conversation up to here for yourself, so that you can go on without its text. Keep every name, "
    "number, decision, preference and open question; leave out what no longer matters. Write notes, not a dialogue, "
    "and nothing else."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The oldest exchanges that could leave: all before the message `first`."""

    first: int
    exchanges: int
    tokens: int  # about

    @property
    def what(self) -> str:
        return f"the first {plural(self.exchanges, 'exchange')}" if self.exchanges > 1 else "the first exchange"

    def meta(self, *, summary: bool) -> dict[str, Any]:
        """As the marker in the conversation keeps it."""
        return {"cut": {"from": self.first, "exchanges": self.exchanges, "tokens": self.tokens, "summary": summary}}


def used(thread: Sequence[Node], counted: int | None) -> int:
    """Tokens of the conversation: as the engine has counted, else as its text tells, about."""
    if counted:
        return counted
    return round(sum(len(message.content) for message in messages(thread)) / _PER_TOKEN)


def plan(thread: Sequence[Node], tokens: int, length: int) -> Plan | None:
    """Enough of the oldest that there is room again; None if there is one exchange only, which has to stay."""
    turns = [node for node in kept(thread) if node.role != "system"]
    starts = [place for place, node in enumerate(turns) if node.role == "user"]
    if len(starts) < 2:
        return None
    characters = [len(node.content) for node in turns]
    each = tokens / max(sum(characters), 1)
    leaves = 0.0
    exchanges = 0
    for start, end in itertools.pairwise(starts):
        leaves += each * sum(characters[start:end])
        exchanges += 1
        if tokens - leaves <= _ROOM * length:
            break
    return Plan(turns[starts[exchanges]].id, exchanges, round(leaves))


def question(thread: Sequence[Node], what: Plan) -> tuple[Message, ...]:
    """What the model is asked for a summary of what leaves: with the words before it, of which it has the state."""
    before = messages([node for node in thread if node.id < what.first])
    return (*before, Message("user", _INSTRUCTION))


def told(meta: Mapping[str, Any], content: str) -> str:
    """The marker as the transcript shows it, in Markdown."""
    cut = meta["cut"]
    number, tokens = int(cut.get("exchanges", 0)), int(cut.get("tokens", 0))
    which = f"{plural(number, 'exchange')} above, about {plural(tokens, 'token')}," if number else "What stands above"
    verb = "is" if number in (0, 1) else "are"
    if content:
        return f"*{which} {verb} sent to the model as this summary from here on:*\n\n> " + content.replace("\n", "\n> ")
    return f"*{which} {verb} no longer sent to the model.*"


def headline(tokens: int, length: int, cached: int | None) -> str:
    parts = [f"{count(tokens)} of {count(length)} tokens are used ({percent(tokens / length)})"]
    if cached is not None:
        parts.append(f"{count(cached)} of them were kept and not read again")
    parts.append(f"{count(max(length - tokens, 0))} are free")
    return ", ".join(parts) + "."
