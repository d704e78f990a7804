"""Which parts of a reply were drafted and accepted, kept as the reply comes."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from chatapp.figures import count, percent
from runtime.protocol import Channel, Delta, Stats

Span = tuple[str, str]
"""A text and its mark."""
MARK = "drafted"


class DraftRecord:
    """The text of a reply in pieces, drafted and not."""

    def __init__(self) -> None:
        self.stats = Stats()  # of the whole reply, once it has ended
        self._pieces: dict[Channel, list[Span]] = {"thinking": [], "answer": []}

    def add(self, delta: Delta) -> None:
        pieces = self._pieces[delta.channel]
        at = 0
        for start, end in delta.drafted:
            pieces += [(delta.text[at:start], ""), (delta.text[start:end], MARK)]
            at = end
        pieces.append((delta.text[at:], ""))

    def was_thought(self) -> None:
        """All of the answer so far belongs to the thought."""
        self._pieces = {"thinking": self._pieces["thinking"] + self._pieces["answer"], "answer": []}

    def pieces(self, channel: Channel) -> list[Span]:
        """The text of a channel; neighbours differ in their marks."""
        pieces = [piece for piece in self._pieces[channel] if piece[0]]
        return [("".join(text for text, _ in group), mark) for mark, group in groupby(pieces, key=itemgetter(1))]

    def summary(self) -> str:
        """How many drafts were right, and what that made of a step."""
        stats = self.stats
        share = percent(stats.accepted / stats.drafted)
        steps = max(stats.generated_tokens - stats.accepted, 1)
        return (
            f"{count(stats.accepted)} of {count(stats.drafted)} drafted tokens accepted ({share}) · "
            f"{stats.generated_tokens / steps:.1f} tokens per step"
        )
