"""Kernels compiled without a GPU for cards that somebody else has, and what they need of them.

Registers, spills and memory are read from what the assemblers say: `cuobjdump` of Triton's own, and the notes in the
machine code for AMD. Not for a process whose kernels are interpreted.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.triton.card import Launch
from kernels.triton.kept import Compiled, key, sources
from kernels.triton.tiles import more_registers

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

# Cards for which Triton takes the same steps as for another, up to a stage whose text differs by the card's name alone:
# there is no need to take them again. (For floats of 8 bits it would, which no kernel here has.)
_LIKE = {"sm_86": ("sm_80", "ttgir"), "sm_89": ("sm_86", "ptx")}

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

    @property
    def family(self) -> str:
        name = self.function.fn.__name__
        if name in _FEW and dict(self.constants)["PRECISION"] == "fp16":
            return "products of many rows"
        return next((family for family, names in _FAMILIES.items() if name in names), "the rest")

    @property
    def key(self) -> str:
        """Of what its program depends on, but for the card and for Triton."""
        return key(sources(self.function), self.signature, self.constants, self.aligned, self.warps)


_FEW = ("matmul", "matmul_swiglu", "few_up", "few_down")
_FAMILIES = {
    "products of one row": ("gemv", "gemv_swiglu", "one_up", "one_down"),
    "products of 2 to 8 rows": _FEW,
    "products of many rows": ("many",),
    "attention": ("attend", "combine", "prepare"),
    "delta rule": ("step", "recurrent", "chunk_errors", "chunk_scan"),
    "choice of a token": ("shortlist", "pick"),
}


def _short(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value).removeprefix("triton.language.")


def kernels_of(launches: Iterable[Launch], *, alignments: bool = False) -> list[Kernel]:
    """The different programs of some launches, specialised as Triton does at run time. `alignments`: also those that
    differ by nothing but which arguments are multiples of 16, of which there is one otherwise.
    """
    found: dict[object, Kernel] = {}
    for launch in launches:
        kernel = _kernel(launch)
        aligned = kernel.aligned if alignments else ()
        same = kernel.function.fn.__name__, kernel.signature, kernel.constants, kernel.warps, aligned
        found.setdefault(same, kernel)
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


def table(found: Iterable[tuple[str, Kernel, Compiled]]) -> Iterator[str]:
    """By family and card: the most registers of a thread, the most shared memory of a block, and bytes spilled."""
    cells: dict[str, dict[str, list[Compiled]]] = {}
    for target, kernel, compiled in found:
        cells.setdefault(kernel.family, {}).setdefault(target, []).append(compiled)
    targets = list(dict.fromkeys(target for row in cells.values() for target in row))
    yield "| | " + " | ".join(targets) + " |"
    yield "|---" * (len(targets) + 1) + "|"
    for family in (*_FAMILIES, "the rest"):
        if row := cells.get(family):
            yield f"| {family} | " + " | ".join(_cell(row.get(target, [])) for target in targets) + " |"


def _cell(found: list[Compiled]) -> str:
    if not found:
        return ""
    spills = sum(compiled.spills for compiled in found)
    most = f"{max(c.registers for c in found)}, {max(c.shared for c in found) / 1024:.0f} kB"
    return f"{len(found)}: {most}" + (f", spills {spills}" if spills else "")


def compile_for(kernel: Kernel, target: str, *, alone: bool = False) -> Compiled:
    """As `Card` does, with more registers where some are spilled. `alone`: without the work that was done for another
    card. Raises what Triton raises.
    """
    found = _compiled(kernel, target, alone, {})
    for registers in more_registers(target):
        if not found.spills:
            break
        found = _compiled(kernel, target, alone, {"maxnreg": registers})
    return found


def _compiled(kernel: Kernel, target: str, alone: bool, more: dict[str, int]) -> Compiled:
    made, shared = _made(kernel, target, alone, more)
    if TARGETS[target][0] == "cuda":
        return _of_cubin(made["cubin"], shared)
    return _of_amd(made["amdgcn"], shared)


def _made(kernel: Kernel, target: str, alone: bool, more: dict[str, int]) -> tuple[Any, int]:
    """What the stages made, and bytes of shared memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    backend, architecture, threads, _ = TARGETS[target]
    card = GPUTarget(backend, architecture, threads)
    options = {"num_warps": kernel.warps, "num_stages": 1, "enable_fp_fusion": True, **more}
    if alone or target not in _LIKE:
        made = triton.compile(_source(kernel), target=card, options=options)
        return made.asm, made.metadata.shared
    other, stage = _LIKE[target]
    begun, shared = _made(kernel, other, alone, more)
    number = TARGETS[other][1]
    if stage == "ptx":
        text = re.sub(rf"^\.target sm_{number}$", f".target sm_{architecture}", begun["ptx"], flags=re.MULTILINE)
        maker = make_backend(card)
        return {"cubin": maker.make_cubin(text, {}, maker.parse_options(options), architecture)}, shared
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{kernel.function.fn.__name__}.{stage}")
        file.write_text(begun[stage].replace(f'"cuda:{number}"', f'"cuda:{architecture}"'))
        made = triton.compile(str(file), target=card, options=options)
    return made.asm, made.metadata.shared


def _source(kernel: Kernel) -> Any:
    """Told just as at run time, so that what is compiled here is found there in Triton's cache."""
    from triton.compiler import ASTSource

    constants = dict(kernel.constants)
    signature = dict(kernel.signature) | dict.fromkeys(constants, "constexpr")
    names = list(kernel.function.arg_names)
    return ASTSource(
        kernel.function,
        signature={name: signature[name] for name in names},
        constexprs=constants,
        attrs={
            (index,): [["tt.divisibility", 16]] if index in kernel.aligned else []
            for index, name in enumerate(names)
            if signature[name] != "fp32"
        },
    )


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
