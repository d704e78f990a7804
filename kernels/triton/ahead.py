"""Kernels compiled without a GPU for cards that somebody else has, and what they need of them.

Registers, spills and memory are read from what the assemblers say: `cuobjdump` of Triton's own, and the notes in the
machine code for AMD. Not for a process whose kernels are interpreted.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.triton.card import Launch

# Name, Triton's name of the architecture, threads of a warp, bytes of shared memory that a block may have.
TARGETS: dict[str, tuple[str, int | str, int, int]] = {
    "sm_80": ("cuda", 80, 32, 163 << 10),
    "sm_86": ("cuda", 86, 32, 99 << 10),
    "sm_89": ("cuda", 89, 32, 99 << 10),
    "sm_90": ("cuda", 90, 32, 227 << 10),
    "sm_120": ("cuda", 120, 32, 99 << 10),
    "gfx942": ("hip", "gfx942", 64, 64 << 10),
    "gfx1100": ("hip", "gfx1100", 32, 64 << 10),
}

_TYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "u8",
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """What Triton makes one program of: a kernel with the types and constants of its arguments."""

    function: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]  # arguments that are multiples of 16
    warps: int

    @property
    def name(self) -> str:
        """The kernel and its constants in short."""
        told = " ".join(f"{key}={_short(value)}" for key, value in self.constants)
        return f"{self.function.fn.__name__} {told} warps={self.warps}"


@dataclass(frozen=True)
class Compiled:
    """`registers` of a thread, `spills` in bytes of a thread, `shared` memory in bytes of a block."""

    registers: int
    spills: int
    shared: int


def _short(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value).removeprefix("triton.language.")


def kernels_of(launches: Iterable[Launch]) -> list[Kernel]:
    """The different programs of some launches, specialised as Triton does at run time.

    Of those that differ only in K, which says how often a loop runs, the first.
    """
    found: dict[object, Kernel] = {}
    for launch in launches:
        kernel = _kernel(launch)
        alike = tuple(item for item in kernel.constants if item[0] != "K")
        found.setdefault((kernel.function.fn.__name__, kernel.signature, alike, kernel.warps), kernel)
    return list(found.values())


def _kernel(launch: Launch) -> Kernel:
    signature, constants, aligned = [], dict(launch.constants), []
    for index, (name, value) in enumerate(zip(launch.kernel.arg_names, launch.arguments, strict=False)):
        if isinstance(value, Tensor):
            signature.append((name, "*" + _TYPES[value.dtype]))
            if value.storage_offset() * value.itemsize % 16 == 0:
                aligned.append(index)
        elif isinstance(value, float):
            signature.append((name, "fp32"))
        elif value == 1:
            constants[name] = 1
            signature.append((name, "constexpr"))
        else:
            signature.append((name, "i32" if -(2**31) <= value < 2**31 else "i64"))
            if value % 16 == 0:
                aligned.append(index)
    return Kernel(launch.kernel, tuple(signature), tuple(sorted(constants.items())), tuple(aligned), launch.warps)


def compile_for(kernel: Kernel, target: str) -> Compiled:
    """Raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, architecture, threads, _ = TARGETS[target]
    constants = dict(kernel.constants)
    signature = dict(kernel.signature) | dict.fromkeys(constants, "constexpr")
    names = list(kernel.function.arg_names)
    source = ASTSource(
        kernel.function,
        signature={name: signature[name] for name in names},
        constexprs=constants,
        attrs={(index,): [["tt.divisibility", 16]] for index in kernel.aligned},
    )
    options = {"num_warps": kernel.warps, "num_stages": 1, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget(backend, architecture, threads), options=options)
    if backend == "cuda":
        return _of_cubin(made.asm["cubin"], made.metadata.shared)
    return _of_amd(made.asm["amdgcn"], made.metadata.shared)


def _of_cubin(cubin: bytes, shared: int) -> Compiled:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout)}
    return Compiled(found["REG"], found["STACK"] + found["LOCAL"], shared)


def _of_amd(assembly: str, shared: int) -> Compiled:
    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", assembly)
        if found is None:
            raise ValueError(f"the machine code does not tell its {key}")
        return int(found[1])

    return Compiled(number("vgpr_count"), number("private_segment_fixed_size"), shared)
