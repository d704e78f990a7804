"""The op table: each op has a torch reference, fast versions where they exist, and cases to hold them together.

A backend is a column of the table. `OpTable(column)[op]` is the op's version for that column, or its reference
where the column has none, so a machine without a GPU runs everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from kernels.cpu import isa
from kernels.cpu.machine import Machine
from kernels.triton.card import Card

P = ParamSpec("P")
R = TypeVar("R")

Column = Literal["reference", "cpu", "triton"]


@dataclass(frozen=True)
class Case:
    """Arguments for one check of an op; `id` names shape and peculiarity."""

    id: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Op(Generic[P, R]):
    """One operation of the table.

    `reference` is its meaning, in fp32; `tolerance` is what ‖out − ref‖ / ‖ref‖ a fast version may reach
    on any of its `cases`.
    """

    reference: Callable[P, R]
    cases: Callable[[], Iterator[Case]]
    tolerance: float
    cpu: Callable[Concatenate[Machine, P], R] | None = None
    triton: Callable[Concatenate[Card, P], R] | None = None

    @property
    def name(self) -> str:
        return self.reference.__name__.lstrip("_")


@dataclass(frozen=True)
class OpTable:
    """One column of the table, completed by the references. `cpu` needs a machine, and `triton` a card."""

    column: Column
    machine: Machine | None = None
    card: Card | None = None

    @property
    def device(self) -> torch.device:
        """Where the tensors of ops are."""
        return self.card.device if self.card else torch.device("cpu")

    @cached_property
    def zero(self) -> Tensor:
        """int64 [1], on that device."""
        return torch.zeros(1, dtype=torch.long, device=self.device)

    def __getitem__(self, op: Op[P, R]) -> Callable[P, R]:
        if self.machine and op.cpu:
            return partial(_on_machine, op.cpu, self.machine)
        if self.card and op.triton:
            return partial(op.triton, self.card)
        return op.reference


def op_table(column: Column, threads: int = 1, cache: Path | None = None) -> OpTable:
    """A column of the table; the references where what it needs is missing: llvmlite or the processor's products of
    bytes for `cpu`, Triton for `triton`.

    `cache`: the folder in which native functions are kept, so that they are compiled once.
    """
    if column == "triton":
        try:
            return OpTable(column, card=Card.here())
        except ImportError:
            return OpTable("reference")
    if column != "cpu":
        return OpTable(column)
    try:
        plain = isa.host().dot == "plain"
    except ImportError:
        return OpTable("reference")
    return OpTable("reference") if plain else OpTable(column, Machine(threads, cache=cache))


def _on_machine(
    function: Callable[Concatenate[Machine, P], R], machine: Machine, *args: P.args, **kwargs: P.kwargs
) -> R:
    result = function(machine, *args, **kwargs)
    machine.flush()
    return result


def random_tensors(seed: int) -> Callable[..., Tensor]:
    """`randn(*shape)` of a seeded generator, for cases."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return randn
