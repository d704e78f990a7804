"""Whether a GPU is to be trusted with a model: what it makes of one case of each op, against the op's reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.op import Case, Op, OpTable
from kernels.quants import QuantTensor
from kernels.table import FUSED, OPS

# Of operands rounded to half precision, as those of products of many rows are.
HALF = 0.005


def wrong_ops(table: OpTable) -> list[str]:
    """Those that are further from their references than rounding explains, or fail."""
    found = []
    for op in (*OPS, *FUSED):
        first, again = next(op.cases()), next(op.cases())  # some write into their arguments
        try:
            if distance(table, op, first, again) > 1:
                found.append(op.name)
        except Exception:  # of Triton, of the driver, of torch
            found.append(op.name)
    return found


def distance(table: OpTable, op: Op[Any, Any], case: Case, again: Case) -> float:
    """Of an op's results from its reference's, in parts of what is allowed. `again`: the same case, made anew."""
    arguments = moved(again.args, table.device)
    wanted, found = op.reference(*case.args), table[op](*arguments)
    worst = 0.0
    results = _flat(case.args if wanted is None else wanted), _flat(arguments if found is None else found)
    for ref, out in zip(*results, strict=True):
        if not torch.equal(ref.isnan(), out.isnan()):
            return float("inf")
        ref, out = ref.double().nan_to_num(), out.double().nan_to_num()
        off = float((out - ref).norm()) / (max(op.tolerance, HALF) * float(ref.norm()) + 1e-12)
        worst = max(worst, off)
    return worst


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, (Tensor, QuantTensor)):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        return tuple(moved(item, device) for item in value)
    return value


def _flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value.cpu()
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
