"""The cases of an op by name, and what an op makes of one, for the tests of every column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kernels.op import Case, Op


def case_of(op: Op[Any, Any], name: str) -> Case:
    [case] = [case for case in op.cases() if case.id == name]
    return case


def flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from flat(item)


def results(function: Any, case: Case) -> list[torch.Tensor]:
    """What comes back, or for an op that only writes into its arguments, those."""
    found = function(*case.args)
    return list(flat(case.args if found is None else found))
