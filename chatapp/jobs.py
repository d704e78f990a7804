"""What the chat was asked for and has not begun: models to open, messages to send, replies to make again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from chatapp.choices import Chosen
from runtime.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Open:
    path: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """`instead`: of this message of the conversation. `chosen`: how it was to be replied to when it was sent."""

    text: str
    instead: int | None = None
    chosen: Chosen | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """None: of the last reply."""

    reply: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Between:
    """What no reply may run beside. `asks`: it needs a model. It is `done` with what `work` raises."""

    work: Callable[[], Awaitable[None]]
    asks: bool
    done: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class GoOn:
    """With the last reply."""


Job = Open | Ask | Retry | GoOn | Between


class Jobs:
    """In their order. Messages can be put on hold: they stay until they are let go, or taken back."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._held: list[Ask] = []

    @property
    def texts(self) -> list[str]:
        """The messages that wait, those on hold last."""
        return [job.text for job in self._asks()]

    @property
    def held(self) -> int:
        """How many of them are on hold."""
        return len(self._held)

    def first(self) -> Job | None:
        """The one that is next."""
        return self._jobs[0] if self._jobs else None

    def pop(self) -> Job:
        return self._jobs.popleft()

    def add(self, job: Job) -> None:
        """After all others that are not on hold."""
        self._jobs.append(job)

    def put_first(self, job: Job) -> None:
        self._jobs.appendleft(job)

    def hold(self, texts: Iterable[str] = ()) -> None:
        """Put all messages on hold, and behind them these."""
        self._held = [*(job for job in self._jobs if isinstance(job, Ask)), *self._held, *map(Ask, texts)]
        self._jobs = deque(job for job in self._jobs if not isinstance(job, Ask))

    def let_go(self, chosen: Chosen) -> None:
        """Nothing is on hold any more: all that was is sent now."""
        self._jobs.extend(replace(job, chosen=chosen) for job in self._held)
        self._held = []

    def take(self, number: int) -> str | None:
        """Withdraw a message by its place in `texts`; None if there is none of that number."""
        asks = self._asks()
        if not -len(asks) <= number < len(asks):
            return None
        taken = asks[number]
        self._jobs = deque(job for job in self._jobs if job is not taken)
        self._held = [job for job in self._held if job is not taken]
        return taken.text

    def clear(self) -> None:
        """Forget all but the models that are to be opened."""
        for job in self._jobs:
            if isinstance(job, Between):
                job.done.cancel()
        self._jobs = deque(job for job in self._jobs if isinstance(job, Open))
        self._held = []

    def _asks(self) -> list[Ask]:
        return [*(job for job in self._jobs if isinstance(job, Ask)), *self._held]
