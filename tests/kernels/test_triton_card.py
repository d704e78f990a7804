"""What a card does around its kernels, with kernels that only note how they were asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kernels.triton.card import Card


@dataclass
class Program:
    n_spills: int
    run: str = "loaded"


@dataclass
class Kernel:
    """Spills as many bytes of a thread as `spills` says of its limit; 0 is none."""

    spills: dict[int, int]
    runs: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*arguments: Any, maxnreg: int = 0, **options: Any) -> Program:
            assert options == {"BN": 8, "num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}
            self.runs.append(maxnreg)
            return Program(self.spills[maxnreg])

        return start

    def warmup(self, *arguments: Any, grid: tuple[int, ...], maxnreg: int, **options: Any) -> Program:
        self.made.append(maxnreg)
        return Program(self.spills[maxnreg])


@pytest.mark.parametrize(
    ("target", "spills", "made", "then"),
    [
        ("sm_80", {0: 0}, [], 0),
        ("sm_80", {0: 8, 160: 0}, [160], 160),
        ("sm_80", {0: 8, 160: 16, 200: 12, 232: 0}, [160, 200, 232], 232),
        ("sm_80", {0: 8, 160: 16, 200: 12, 232: 4, 255: 4}, [160, 200, 232, 255], 0),
        ("gfx942", {0: 8}, [], 0),
    ],
)
def test_a_program_that_spills_gets_more_registers(
    target: str, spills: dict[int, int], made: list[int], then: int
) -> None:
    """Made at once, before a graph is captured, and once; other constants are another program."""
    card, kernel = Card(torch.device("cpu"), "compiled", target), Kernel(spills)
    for _ in range(3):
        card.launch(kernel, (1,), torch.zeros(4), 5, BN=8)
        assert kernel.made == made
    assert kernel.runs == [0, then, then]


def test_of_several_cards_a_kernel_starts_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton takes the current device and its stream; the only card of a machine is always that."""
    current: list[torch.device | None] = [None]

    @contextmanager
    def device(to: torch.device) -> Iterator[None]:
        current.append(to)
        yield
        current.pop()

    class Where:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **options: started.append(current[-1]) or Program(0)

    monkeypatch.setattr(torch.cuda, "device", device)
    started: list[torch.device | None] = []
    for among_others in (False, True):
        cards = [Card(torch.device("cuda", i), "compiled", among_others=among_others) for i in range(2)]
        for card in (cards[1], cards[0], cards[1]):
            card.launch(Where(), (1,))
    assert started == [None, None, None, torch.device("cuda", 1), torch.device("cuda", 0), torch.device("cuda", 1)]
    assert current == [None]
