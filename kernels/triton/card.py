"""A GPU as the op table's `triton` column sees it; where there is none, Triton's interpreter, or nothing but notes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.quants import QuantTensor
from kernels.triton.layouts import LAYOUTS, Packed, pack
from kernels.triton.tiles import Tiles, more_registers, tiles_of

Number = int | float | bool | str


@dataclass(frozen=True)
class Launch:
    """One start of a kernel: its arguments in order, its constants, and the bytes it reads and writes."""

    kernel: Any
    arguments: tuple[Tensor | int | float, ...]
    constants: dict[str, Any]
    grid: tuple[int, ...]
    warps: int
    nbytes: int

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


@dataclass
class Card:
    """`way`: kernels are compiled and run on a GPU, interpreted on the processor, or only noted in `launches`.

    Tensors live on `device`; with `noted` that is meta, where they have shapes but no numbers.
    """

    device: torch.device
    way: Literal["compiled", "interpreted", "noted"]
    target: str = "sm_90"  # the architecture, as `ahead.TARGETS` names it
    among_others: bool = False  # whether the machine has more than one, so that another may be the current device
    launches: list[Launch] = field(default_factory=list)
    _packed: dict[tuple[int, str, tuple[int, ...], tuple[int, ...]], tuple[QuantTensor, Packed]] = field(
        default_factory=dict
    )
    _options: dict[tuple[int, int, tuple[Any, ...]], dict[str, int]] = field(default_factory=dict)  # of programs

    @classmethod
    def here(cls, index: int = 0) -> Card:
        """One of this machine's GPUs, or the interpreter. Raises ImportError where Triton is missing."""
        if torch.cuda.is_available():
            several = torch.cuda.device_count() > 1
            return cls(torch.device("cuda", index), "compiled", _architecture(index), several)
        return cls.interpreter()

    @classmethod
    def interpreter(cls, target: str = "sm_90") -> Card:
        """`target`: which cards' way of doing things. Raises ImportError where Triton is missing, or was loaded for a
        GPU before.
        """
        import importlib.util

        if importlib.util.find_spec("triton") is None:
            raise ImportError("triton is not installed")
        # Triton decides when it is loaded, once for all kernels of a process.
        if "triton" not in sys.modules:
            os.environ["TRITON_INTERPRET"] = "1"
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise ImportError("triton was loaded without its interpreter")
        return cls(torch.device("cpu"), "interpreted", target)

    @classmethod
    def notes(cls, target: str = "sm_90") -> Card:
        """Runs nothing: to count launches and bytes, and to learn which kernels a model needs on a card."""
        return cls(torch.device("meta"), "noted", target)

    @cached_property
    def tiles(self) -> Tiles:
        return tiles_of(self.target)

    def free(self) -> int | None:
        """Bytes that are free on it, what torch keeps for later included; None: there is no end to them."""
        if self.way != "compiled":
            return None
        return torch.cuda.mem_get_info(self.device)[0] + (
            torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        )

    def current(self) -> AbstractContextManager[Any]:
        """Within it this card is the one on which Triton starts kernels, and on which torch captures graphs.

        Torch's own operations need none: they run where their tensors are.
        """
        return torch.cuda.device(self.device) if self.among_others else nullcontext()

    def launch(
        self,
        kernel: Any,
        grid: Sequence[int],
        *arguments: Tensor | int | float,
        warps: int = 4,
        nbytes: int | None = None,
        **constants: Any,
    ) -> None:
        """`nbytes`: what is read and written, where that is not each tensor once."""
        if self.way == "noted":
            if nbytes is None:
                found = {id(a): a.numel() * a.itemsize for a in arguments if isinstance(a, Tensor)}
                nbytes = sum(found.values())
            self.launches.append(Launch(kernel, arguments, constants, tuple(grid), warps, nbytes))
        elif self.among_others:
            with self.current():
                self._run(kernel, tuple(grid), arguments, constants, warps)
        elif self.way == "compiled":
            self._run(kernel, tuple(grid), arguments, constants, warps)
        else:
            kernel[tuple(grid)](*arguments, **constants)

    def _run(
        self, kernel: Any, grid: tuple[int, ...], arguments: Sequence[Any], constants: dict[str, Any], warps: int
    ) -> None:
        """With more registers from the second time on, where the assembler spared some and spilled."""
        key = id(kernel), warps, tuple(constants.values())
        told = {**constants, "num_warps": warps, "num_stages": 1, "enable_fp_fusion": True}
        if (more := self._options.get(key)) is not None:
            kernel[grid](*arguments, **told, **more)
            return
        self._options[key] = {}
        if not kernel[grid](*arguments, **told).n_spills:
            return
        for registers in more_registers(self.target):
            again = kernel.warmup(*arguments, grid=grid, **told, maxnreg=registers)
            _ = again.run  # which loads it
            if not again.n_spills:
                self._options[key] = {"maxnreg": registers}
                return

    def packed(self, weight: QuantTensor) -> Packed:
        """The weight as kernels read it, brought to the card when it is first asked for."""
        key = _key(weight)
        if key not in self._packed:
            self.hold(weight, pack(weight, self.device))
        return self._packed[key][1]

    def hold(self, weight: QuantTensor, packed: Packed) -> None:
        """From now on `packed` is what kernels read of the weight, which is kept too: its address stands for it."""
        self._packed[_key(weight)] = weight, packed

    def take_in(self, weight: QuantTensor) -> bool:
        """Bring the weight to the card now; its own bytes are not read any more."""
        self.packed(weight)
        return True

    def precision(self, wanted: Literal["exact", "fp16"]) -> str:
        """How the matrix units multiply, as `matmul.product` knows it."""
        if self.way == "interpreted":
            return "ieee" if wanted == "exact" else "rounded"
        return self.tiles.exact if wanted == "exact" else "fp16"

    def tile(self, wanted: int, size: int, least: int = 1) -> int:
        """The side of a tile: `wanted`, or where a program costs more than its work, as much as there is."""
        if self.way == "interpreted":
            wanted = 256
        return max(least, min(wanted, power_of_two(size)))


def _architecture(index: int) -> str:
    found = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        return str(found.gcnArchName).split(":")[0]
    return f"sm_{found.major}{found.minor}"


def _key(weight: QuantTensor) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
    place = id(weight.data) if weight.data.is_meta else weight.data.data_ptr()
    return place, weight.type.name, weight.shape, weight.data.stride()


def power_of_two(size: int) -> int:
    """The least one that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


__all__ = ["LAYOUTS", "Card", "Launch", "power_of_two"]
