"""What drafting with the MTP block brings: speed against the same model without, and how many drafts are accepted.

The same conversations are answered in turn with each number of drafts, round after round in one worker, so that what
else the machine does falls on all alike. Figures are medians over the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from runtime.bench_worker import BenchWorker
from runtime.protocol import Generate, Load, Message, Sampling, Stats

CHOICES: tuple[int | None, ...] = (0, 1, 2, 3, 4, None)  # drafts per step; None: as many as pay
LEAST_SHARE = 0.98  # of the plain speed, that drafting by its own choice must keep

PROMPTS = (
    "Hello!",
    "My name is Marigold.",
    "What is 31 + 46?",
    "Tell me a story.",
    "How do I start a new chat?",
    "What is the capital of Japan?",
    "And what can you do?",
    "Write a short poem about the sea.",
)


class Conversation(NamedTuple):
    """What a user says, turn by turn."""

    users: tuple[str, ...]
    thinking: bool


def held_out(every: int) -> tuple[Conversation, ...]:
    """Every so many-th dialogue that the built-in model was not trained on."""
    from runtime.builtin.corpus.tour import DEFAULT_TOUR, read_tour
    from runtime.builtin.held_out import cases

    return tuple(Conversation(case.users, case.thinking) for case in cases(read_tour(DEFAULT_TOUR))[::every])


@dataclass(frozen=True)
class Row:
    """One choice of drafts. `ratio`: of its speed to that without drafts, the median over the rounds."""

    drafts: int | None
    tok_per_s: float
    ratio: float
    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Report:
    model: str
    ops: str
    rounds: int
    tokens: int  # of one round
    rows: tuple[Row, ...]

    @property
    def good(self) -> bool:
        """Whether drafting by its own choice is never much slower than none."""
        return all(row.ratio >= LEAST_SHARE for row in self.rows if row.drafts is None)

    def as_dict(self) -> dict[str, Any]:
        rows = [{**asdict(row), "acceptance": row.acceptance} for row in self.rows]
        return {**asdict(self), "rows": rows, "good": self.good}

    def as_text(self) -> str:
        lines = [
            f"{self.model}, {self.ops}, {self.tokens:,} tokens a round, median of {self.rounds}",
            f"{'drafts':>8} {'tok/s':>9} {'ratio':>7} {'accepted':>9}",
        ]
        for row in self.rows:
            name = "auto" if row.drafts is None else str(row.drafts)
            accepted = "" if row.acceptance is None else f"{row.acceptance:.3f}"
            lines.append(f"{name:>8} {row.tok_per_s:9.1f} {row.ratio:7.2f} {accepted:>9}")
        return "\n".join(lines)


def measure(rounds: int, max_tokens: int, conversations: Sequence[Conversation], load: Load) -> Report:
    """Raises WorkerError if the model cannot be loaded or fails."""
    speeds: dict[int | None, list[float]] = {choice: [] for choice in CHOICES}
    counts: dict[int | None, list[Stats]] = {choice: [] for choice in CHOICES}
    with BenchWorker(load) as worker:
        _round(worker, None, "warm-up", max_tokens, conversations[:1])
        for number in range(rounds):
            # Each round begins with another choice, so that none is always measured first.
            for choice in CHOICES[number % len(CHOICES) :] + CHOICES[: number % len(CHOICES)]:
                stats = _round(worker, choice, f"{choice}", max_tokens, conversations)
                speeds[choice].append(_speed(stats))
                counts[choice] += stats
        info = worker.model
    tokens = sum(stats.generated_tokens for stats in counts[0]) // rounds
    return Report(
        info.name, info.ops, rounds, tokens, tuple(_row(choice, speeds, counts[choice]) for choice in CHOICES)
    )


def _round(
    worker: BenchWorker, drafts: int | None, name: str, max_tokens: int, conversations: Sequence[Conversation]
) -> list[Stats]:
    """All turns of all conversations."""
    found = []
    for i, conversation in enumerate(conversations):
        messages: list[Message] = []
        for user in conversation.users:
            messages.append(Message("user", user))
            command = Generate(
                "bench",
                f"draft {name} {i}",
                tuple(messages),
                Sampling(temperature=0, presence_penalty=0, max_tokens=max_tokens),
                thinking=conversation.thinking,
                drafts=drafts,
            )
            stats, reply = worker.turn(command)
            messages.append(reply)
            found.append(stats)
    return found


def _speed(stats: Sequence[Stats]) -> float:
    """Tokens after the first of each reply, per second of decoding."""
    timed = [(one.generated_tokens - 1, one.decode_tok_per_s) for one in stats if one.decode_tok_per_s]
    seconds = sum(tokens / speed for tokens, speed in timed)
    return sum(tokens for tokens, _ in timed) / seconds if seconds else 0.0


def _row(choice: int | None, speeds: dict[int | None, list[float]], stats: Sequence[Stats]) -> Row:
    ratios = [own / plain for own, plain in zip(speeds[choice], speeds[0], strict=True) if plain]
    return Row(
        drafts=choice,
        tok_per_s=statistics.median(speeds[choice]),
        ratio=statistics.median(ratios) if ratios else 0.0,
        drafted=sum(one.drafted for one in stats),
        accepted=sum(one.accepted for one in stats),
    )
