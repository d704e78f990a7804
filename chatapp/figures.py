"""Figures as the user reads them."""

from __future__ import annotations

from collections import deque


def count(number: int) -> str:
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def lines(text: str) -> int:
    """As an editor counts them: a newline ends a line and begins none."""
    return text.count("\n") + (not text.endswith("\n"))


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def size(number: int) -> str:
    """Bytes, as `50 MB`, `1.2 GB`: of a thousand each."""
    if number < 1000:
        return f"{number} B"
    thousands = number / 1000
    power = sum(thousands >= 999.5 * 1000**n for n in range(3))
    value, unit = thousands / 1000**power, ("kB", "MB", "GB", "TB")[power]
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:,.0f} {unit}"


def duration(seconds: float) -> str:
    """`0.8 s`, `12 s`, `3 min 5 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def rate(tokens_per_second: float) -> str:
    digits = 0 if tokens_per_second >= 100 else 1
    return f"{tokens_per_second:,.{digits}f} tok/s"


class TokenRate:
    """Tokens per second over the last few seconds of a reply."""

    WINDOW = 3.0  # seconds
    LEAST = 0.5

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, now: float, tokens: int) -> None:
        """`tokens` were generated since the last call; the first call only starts the measure."""
        self._counts.append((now, tokens if self._counts else 0))
        self._total += self._counts[-1][1]
        while now - self._counts[0][0] > self.WINDOW:
            self._counts.popleft()
            self._total -= self._counts[0][1]
            self._counts[0] = (self._counts[0][0], 0)

    def value(self) -> float | None:
        """None before there is enough to tell."""
        if not self._counts:
            return None
        span = self._counts[-1][0] - self._counts[0][0]
        return self._total / span if span >= self.LEAST else None
