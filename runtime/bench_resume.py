"""What a turn of a long conversation reads again: in one session, after a restart, after a kill.

A history is read and settled; then a next turn, a new answer, a fork and edits of several messages are asked for, and
each is compared with an empty chat that gets the same new words. All goes through worker processes, as in the chat.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from runtime.bench_worker import BenchWorker
from runtime.protocol import Generate, Load, Message, Sampling, Stats

MOST_MS = 50.0  # by which the first token may come later than in an empty chat, the model's own work not counted
MOST_MS_PER_GB = 300.0  # to read a state
MEASURABLE = 50_000_000  # bytes of a state, below which it is opening the files that takes the time

_SHORT = Sampling(temperature=0, max_tokens=2)
_WORDS = "the river runs past the old mill and nobody knows how deep the water is below the wheel"
_TURNS = 20  # of the history
_EDITED = (16, 11, 6, 2)  # turns, the last first: an edit leaves those before it
_REPEATS = 3
_ROOM = 2048  # tokens, for what follows the history
_DEFAULT_CONTEXT = 30_000  # tokens, that fit without being asked for


Session = Literal["same", "restarted", "killed"]
Operation = tuple[str, str, tuple[Message, ...]]  # its name, the conversation, and what it asks there


@dataclass(frozen=True)
class Mode:
    thinking: bool
    preserve_thinking: bool

    @property
    def name(self) -> str:
        return f"thinking {'on' if self.thinking else 'off'}, {'preserved' if self.preserve_thinking else 'dropped'}"


@dataclass(frozen=True)
class Row:
    """One operation. `late_ms`: how much later the first token came than in an empty chat, without prefill."""

    mode: str
    session: Session
    operation: str
    prompt_tokens: int
    prefilled_tokens: int
    new_tokens: int  # that an empty chat prefills for the same words
    ttft_ms: float
    late_ms: float

    @property
    def good(self) -> bool:
        return self.prefilled_tokens <= self.new_tokens and self.late_ms <= MOST_MS


@dataclass(frozen=True)
class Report:
    model: str
    history_tokens: int
    rows: tuple[Row, ...]
    state_bytes: int
    read_ms_per_gb: float

    @property
    def read_good(self) -> bool:
        return self.read_ms_per_gb <= MOST_MS_PER_GB or self.state_bytes < MEASURABLE

    @property
    def good(self) -> bool:
        return self.read_good and all(row.good for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "good": self.good}

    def as_text(self) -> str:
        lines = [
            f"{self.model}, {self.history_tokens:,} tokens of history",
            f"{'':32}{'session':>10}{'operation':>16}{'prefilled':>10}{'new':>6}{'TTFT ms':>9}{'late ms':>9}",
        ]
        lines += [
            f"{row.mode:32}{row.session:>10}{row.operation:>16}{row.prefilled_tokens:>10}{row.new_tokens:>6}"
            f"{row.ttft_ms:>9.1f}{row.late_ms:>9.1f}{'' if row.good else '  !'}"
            for row in self.rows
        ]
        lines.append(
            f"state on disk: {self.state_bytes / 1e6:,.1f} MB, read in {self.read_ms_per_gb:,.0f} ms per GB"
            f"{'' if self.read_good else '  !'}"
        )
        return "\n".join(lines)


def measure(
    load: Load,
    tokens: int,
    *,
    thinking: Sequence[bool] = (False, True),
    preserve_thinking: Sequence[bool] = (False, True),
) -> Report:
    """`tokens` of history; `load` says which model and how. Raises WorkerError."""
    modes = [Mode(*choice) for choice in itertools.product(thinking, preserve_thinking)]
    with tempfile.TemporaryDirectory(prefix="qwenchat-bench-") as folder:
        context = load.context_length or (None if tokens < _DEFAULT_CONTEXT else tokens + _ROOM)
        load = dataclasses.replace(load, context_length=context, snapshots=f"{folder}/states")
        rows: list[Row] = []
        for mode in modes:
            shutil.rmtree(f"{folder}/states", ignore_errors=True)
            measured, history, model = _measure_mode(load, mode, tokens, Path(folder))
            rows += measured
        state_bytes, read = _read_speed(load)
    return Report(model, history, tuple(rows), state_bytes, read)


def _measure_mode(load: Load, mode: Mode, tokens: int, folder: Path) -> tuple[list[Row], int, str]:
    states, saved = folder / "states", folder / "saved"
    with BenchWorker(load) as worker:
        # an empty chat, several times: the first one pays for what is slow once
        empty = [_turn(mode, worker, f"empty {i}", (_words(i),))[0] for i in range(2 * _REPEATS)][_REPEATS:]
        row = partial(_row, mode, empty)
        history = _history(worker, mode, tokens)
        stats, reply = _turn(mode, worker, "long", history)
        shutil.copytree(states, saved)
        goings_on, edits = _goings_on(history, reply), _edits(history)
        rows = _asked(row, "same", mode, worker, [*goings_on, *edits])

    for operations in (*([operation] for operation in goings_on), edits):
        with _restarted(load, mode, states, saved) as worker:
            rows += _asked(row, "restarted", mode, worker, operations)

    with _restarted(load, mode, states, saved) as worker:
        history = (*history, reply, _words(7))
        _, reply = _turn(mode, worker, "long", history)
        worker.kill()
    with _restarted(load, mode, states, None) as worker:
        rows += _asked(row, "killed", mode, worker, [*_goings_on(history, reply), *edits])
    shutil.rmtree(saved)
    return rows, stats.context_used, worker.model.name


def _asked(
    row: Callable[[Session, str, Stats], Row], session: Session, mode: Mode, worker: BenchWorker, asked: list[Operation]
) -> list[Row]:
    return [row(session, name, _turn(mode, worker, chat, messages)[0]) for name, chat, messages in asked]


def _restarted(load: Load, mode: Mode, states: Path, saved: Path | None) -> BenchWorker:
    """A worker that finds the states of `saved`, or those that are there, and has answered something else."""
    if saved:
        shutil.rmtree(states)
        shutil.copytree(saved, states)
    worker = BenchWorker(load)
    _turn(mode, worker, "other", (Message("user", "Hello"),))
    return worker


def _words(number: int) -> Message:
    """A user's message; all have the same number of tokens."""
    return Message("user", f"And what would you say to that, {number}?")


def _goings_on(history: tuple[Message, ...], reply: Message) -> list[Operation]:
    """From a history that ends in a user's message, which was answered with `reply`."""
    return [
        ("next turn", "long", (*history, reply, _words(1))),
        ("new answer", "long", history),
        ("fork at last", "fork", (*history[:-1], _words(2))),
        ("edit of last", "long", (*history[:-1], _words(3))),
    ]


def _edits(history: tuple[Message, ...]) -> list[Operation]:
    return [(f"edit of {turn}", "long", (*history[: 2 * (turn - 1)], _words(4))) for turn in _EDITED]


def _history(worker: BenchWorker, mode: Mode, tokens: int) -> tuple[Message, ...]:
    """Turns of about `tokens` tokens together, that end in a user's message."""

    def turns(count: int, words: int) -> tuple[Message, ...]:
        text = " ".join(itertools.islice(itertools.cycle(_WORDS.split()), words))
        messages: list[Message] = []
        for i in range(count):
            messages.append(Message("user", f"{i}: {text}"))
            messages.append(Message("assistant", f"{i}. {text}", "Let me see."))
        return tuple(messages[:-1])

    cycle = len(_WORDS.split())
    few, more, longer = (
        _turn(mode, worker, f"sample {count} {words}", turns(count, words))[0].prompt_tokens
        for count, words in ((1, cycle), (3, cycle), (3, 2 * cycle))
    )
    word = (longer - more) / (5 * cycle)  # in each of five messages
    empty = few + (_TURNS - 1) * (more - few) / 2 - (2 * _TURNS - 1) * word * cycle
    return turns(_TURNS, max(1, math.ceil((tokens - empty) / ((2 * _TURNS - 1) * word))))


def _turn(mode: Mode, worker: BenchWorker, conversation: str, messages: tuple[Message, ...]) -> tuple[Stats, Message]:
    return worker.turn(
        Generate("bench", conversation, messages, _SHORT, mode.thinking, preserve_thinking=mode.preserve_thinking)
    )


def _row(mode: Mode, empty: list[Stats], session: Session, operation: str, found: Stats) -> Row:
    return Row(
        mode=mode.name,
        session=session,
        operation=operation,
        prompt_tokens=found.prompt_tokens,
        prefilled_tokens=found.prefilled_tokens,
        new_tokens=max(one.prompt_tokens for one in empty),
        ttft_ms=found.ttft_ms or 0.0,
        late_ms=_overhead(found) - min(map(_overhead, empty)),
    )


def _overhead(stats: Stats) -> float:
    return (stats.ttft_ms or 0.0) - (stats.prefill_ms or 0.0)


def _read_speed(load: Load) -> tuple[int, float]:
    """Bytes of the largest state on disk, and milliseconds per GB to read and check it."""
    from runtime.loading import open_chat_model  # which takes torch in

    chat, _, _ = open_chat_model(load, lambda done, total: None)
    store = chat.engine.pool.snapshots
    snapshot = max(store.all(), key=lambda found: found.manifest.tokens) if store else None
    if store is None or snapshot is None:
        return 0, 0.0
    size = snapshot.state_bytes
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        store.load(snapshot, snapshot.manifest.tokens)
        times.append(time.perf_counter() - began)
    return size, 1000 * min(times) / (size / 1e9)
