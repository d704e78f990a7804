"""Telling a thought that turns in circles from one that goes on."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_PERIOD = 128  # tokens
_LEAST_TOKENS = 192
_LEAST_TURNS = 4


def ends_in_loop(ids: Sequence[int]) -> bool:
    """Whether the last tokens repeat one run of at most 128 over and over: 4 times and for 192 tokens at least.

    Looked at every 32 tokens, so that the cost per token is small.
    """
    if len(ids) < _LEAST_TOKENS or len(ids) % 32:
        return False
    for period in range(1, _LONGEST_PERIOD + 1):
        span = max(_LEAST_TOKENS, _LEAST_TURNS * period)
        if span > len(ids):
            return False
        tail = ids[-span:]
        if tail[period:] == tail[:-period]:
            return True
    return False
