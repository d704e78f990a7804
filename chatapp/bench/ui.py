"""`qwenchat bench ui`: how quick the screen is, as medians of several runs, each against its aim."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from chatapp.bench import program, screen
from chatapp.bench.program import NoMeasureError
from chatapp.words import Parser

GROWTH = 1.5
"""A cost counts as flat when its last quarter is at most this many times its first."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured; good if it is at most its aim."""

    name: str
    value: float
    unit: str
    aim: float
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.value <= self.aim


@dataclass(frozen=True, slots=True)
class Report:
    figures: tuple[Figure, ...]
    torch_imported: bool

    @property
    def good(self) -> bool:
        return all(figure.good for figure in self.figures) and not self.torch_imported

    def as_dict(self) -> dict[str, object]:
        figures = [{**asdict(figure), "good": figure.good} for figure in self.figures]
        return {"good": self.good, "torch_imported": self.torch_imported, "figures": figures}

    def as_text(self) -> str:
        lines = []
        for figure in self.figures:
            value, aim = f"{figure.value:.3g} {figure.unit}".rstrip(), f"{figure.aim:g} {figure.unit}".rstrip()
            detail = f"   ({figure.detail})" if figure.detail else ""
            lines.append(f"{'✓' if figure.good else '✗'} {figure.name:<52} {value:>9}   at most {aim}{detail}")
        lines.append(f"{'✗' if self.torch_imported else '✓'} the screen runs without torch")
        return "\n".join(lines)


def measure(*, quick: bool = False) -> Report:
    """All of it; `quick`: a quarter of each reply, a tenth of the rest, and few repetitions. Raises NoMeasureError."""
    starts, keys = (1, 10) if quick else (9, 100)
    if not quick:
        program.first_paint()  # compiles what is not compiled yet
    starts_ = [program.first_paint() for _ in range(starts)]
    paints, own = [seconds for seconds, _ in starts_], [seconds for _, seconds in starts_ if seconds is not None]
    work = f"; {median(own):.2f} s of the processor" if own else ""
    told = f"median of {starts}, {min(paints):.2f} to {max(paints):.2f}{work}"
    times = [1000 * seconds for seconds in program.key_times(keys)]
    late = sorted(times)[min(round(0.95 * len(times)), len(times) - 1)]
    figures = [
        Figure("first paint", median(paints), "s", 0.5, told),
        Figure(
            "key to screen while 500 tokens/s stream, 95 %",
            late,
            "ms",
            50,
            f"median {median(times):.1f} of {len(times)}",
        ),
        *asyncio.run(screen.on_paper(lambda paper: _drawn(paper, quick))),
    ]
    return Report(tuple(figures), "torch" in sys.modules)


async def _drawn(paper: screen.Screen, quick: bool) -> list[Figure]:
    opens, messages = (1, screen.MESSAGES // 10) if quick else (7, screen.MESSAGES)
    figures = []
    for case, (_, _, length) in screen.CASES.items():
        await paper.frames(case, 2 * screen.PIECE)
        length = length // 4 if quick else length
        times = await paper.frames(case, length)
        name = f"a frame of a {case} of {length / 1000:.2g} kB"
        figures.append(Figure(name, 1000 * median(times), "ms", 16, f"longest {1000 * max(times):.1f}"))
        figures.append(Figure(f"{name}, last against first", screen.growth(times), "", GROWTH))
    name = paper.write_conversation(messages)
    opened = [await paper.open(name, messages) for _ in range(opens)]
    seconds, work = (median(each) for each in zip(*opened, strict=True))
    told = f"median of {opens}; {work:.2f} s of the processor"
    figures.append(Figure(f"opening {messages:,} messages", seconds, "s", 0.5, told))
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if every figure is what it should be, 1 if not, 2 if there are none."""
    parser = Parser(prog="qwenchat bench ui", description="How quick the screen is.")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="few repetitions: for a look, not for a judgement")
    found = parser.parse_args(argv)
    try:
        report = measure(quick=found.quick)
    except NoMeasureError as error:
        print(f"qwenchat: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.as_dict(), indent=2) if found.json else report.as_text())
    return 0 if report.good else 1
