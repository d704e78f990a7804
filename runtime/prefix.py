"""How far two token sequences agree."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences share from the start."""
    low, high = 0, min(len(a), len(b))
    a, b = (ids if isinstance(ids, list) else list(ids[:high]) for ids in (a, b))
    while low < high:  # halving, since comparing slices is far quicker than a loop
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
