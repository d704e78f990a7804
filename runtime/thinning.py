"""Which of a sequence's checkpoints to keep when not all can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

FLOORS = (16, 4)  # checkpoints left to each sequence in the first and in the second round of thinning
_LATEST = 3  # checkpoints that always stay: a new answer and an edit of the last message come back to them


def least_useful(lengths: Sequence[int], end: int) -> int | None:
    """The index of the checkpoint whose loss costs the least prefill, or None if only those are left that stay.

    `lengths` in ascending order, the first of which is the beginning and stays; `end`: tokens of the sequence. The
    cost of one at p, between o and q, is the tokens that are read again, p − o, times the chance that a prompt turns
    off between p and q, taken as falling with the distance from the end: ∫ dx / (end − x) from p to q.
    """
    inner = range(1, len(lengths) - _LATEST)
    return min(inner, key=lambda i: _cost(lengths[i - 1], lengths[i], lengths[i + 1], end), default=None)


def most_useful(lengths: Sequence[int], end: int, count: int) -> list[int]:
    """`lengths` without the least useful, until at most `count` are left, or only those that stay."""
    return thinned(dict.fromkeys(lengths, 1), end, len(lengths) - count, 0)


def thinned(sizes: Mapping[int, int], end: int, excess: int, floor: int) -> list[int]:
    """The lengths that stay when the least useful go, until `excess` bytes are free or `floor` are left.

    `sizes`: length → bytes, in ascending order as in `least_useful`.
    """
    kept = list(sizes)
    while excess > 0 and len(kept) > floor and (index := least_useful(kept, end)) is not None:
        excess -= sizes[kept.pop(index)]
    return kept


def _cost(before: int, place: int, after: int, end: int) -> float:
    return (place - before) * math.log((end - place + 1) / (end - after + 1))
