"""From written functions to addresses: LLVM's optimiser, and objects kept on disk so that a start need not compile."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir

from kernels.cpu.isa import Target

# Writes one function of the given name into the module. The parameters are numbers and names.
Writer = Callable[..., None]


class Compiler:
    """Native functions for one target; a function is compiled when it is first asked for."""

    def __init__(self, target: Target, cache: Path | None = None) -> None:
        """`cache`: the folder of objects compiled before; None keeps none."""
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self.target, self._cache = target, cache
        self._machine = _target_machine(target)
        self._linker: llvm.LLJIT | None = None
        self._loaded: dict[tuple[Any, ...], llvm.ResourceTracker] = {}

    def address(self, writer: Writer, *parameters: int | str) -> int:
        key = (writer, *parameters)
        name = "_".join([writer.__name__, *map(str, parameters)])
        if key not in self._loaded:
            if self._linker is None:
                self._linker = llvm.create_lljit_compiler(_target_machine(self.target))
            library = llvm.JITLibraryBuilder().add_object_img(self._object(writer, name, parameters))
            library.add_current_process().export_symbol(name)
            self._loaded[key] = library.link(self._linker, name)
        address: int = self._loaded[key][name]
        return address

    def _object(self, writer: Writer, name: str, parameters: tuple[int | str, ...]) -> bytes:
        if self._cache is None:
            return self.compile(writer, name, parameters)
        made_of = repr((_sources(), self.target, llvm.llvm_version_info, writer.__module__, name))
        path = self._cache / f"{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.o"
        with contextlib.suppress(OSError):
            kept = path.read_bytes()
            if kept[:_SEAL] == _seal(kept[_SEAL:]):  # a damaged one would fail at every start, or do something else
                return kept[_SEAL:]
        code = self.compile(writer, name, parameters)
        with contextlib.suppress(OSError):  # then it is compiled again next time
            self._cache.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._cache, delete=False) as file:
                file.write(_seal(code) + code)
            Path(file.name).replace(path)
        return code

    def compile(self, writer: Writer, name: str, parameters: tuple[int | str, ...]) -> bytes:
        """An object file that holds the function."""
        module = ir.Module()
        module.triple = self.target.triple
        module.data_layout = str(self._machine.target_data)
        writer(module, self.target, name, *parameters)
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        options = llvm.create_pipeline_tuning_options(3)
        options.loop_unrolling = options.slp_vectorization = False  # what should be wide or unrolled is written so
        llvm.create_pass_builder(self._machine, options).getModulePassManager().run(
            parsed, llvm.create_pass_builder(self._machine, options)
        )
        code: bytes = self._machine.emit_object(parsed)
        return code


def _target_machine(target: Target) -> llvm.TargetMachine:
    made: llvm.TargetMachine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, jit=True, reloc="pic"
    )
    return made


_SEAL = hashlib.sha256().digest_size


def _seal(code: bytes) -> bytes:
    """What a kept object begins with."""
    return hashlib.sha256(code).digest()


@functools.cache
def _sources() -> str:
    """A hash of this folder's code: other code writes other functions."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
