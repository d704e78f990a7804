"""A GPU whose results are wrong is found out before it replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.delta_rule import delta_recurrent
from kernels.norm import rms_norm
from kernels.op import Op, OpTable
from kernels.residual import add
from kernels.table import FUSED, OPS
from runtime.trust import wrong_ops


class Broken:
    """The references, but for some ops."""

    device = torch.device("cpu")

    def __init__(self, broken: dict[str, Callable[..., Any]]) -> None:
        self._broken = broken

    def __getitem__(self, op: Op[Any, Any]) -> Callable[..., Any]:
        return self._broken.get(op.name, op.reference)


def fails(*arguments: Any) -> Any:
    raise RuntimeError("no such instruction")


def test_the_references_are_right() -> None:
    assert wrong_ops(OpTable("reference")) == []


def test_wrong_numbers_missing_ones_and_failures_are_named() -> None:
    broken = {
        rms_norm.name: lambda *args: 1.1 * rms_norm.reference(*args),
        add.name: lambda x, y: torch.full_like(x, torch.nan),
        delta_recurrent.name: fails,
    }
    assert set(wrong_ops(Broken(broken))) == set(broken)  # type: ignore[arg-type]


def test_every_op_is_asked() -> None:
    everything = {op.name: fails for op in (*OPS, *FUSED)}
    assert len(wrong_ops(Broken(everything))) == len(OPS) + len(FUSED)  # type: ignore[arg-type]
