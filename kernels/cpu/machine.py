"""Calls of native functions on tensors: at once, or recorded as a program that is run again without Python."""

from __future__ import annotations

import bisect
import ctypes
import itertools
import math
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu import isa
from kernels.cpu.memory import Arena
from kernels.quants import QUANTS, QuantTensor

if TYPE_CHECKING:
    from kernels.cpu.jit import Writer


@dataclass(frozen=True)
class Position:
    """A number of a call that moves with the sequence's length, such as the row to write to."""

    value: int


@dataclass(frozen=True)
class Blocks:
    """Tensors of one layer in the blocks of a cache: two words, a table of addresses and an offset into each."""

    tensors: Sequence[Tensor]


_PIECE_BYTES = 1 << 17  # of weights: some 10 µs

_ALONE_BYTES = 1 << 23  # a model of 5 MB is faster on one core than on two, with drafts by a fifth

Word = Tensor | int | float | Position | Blocks


@dataclass
class Call:
    function: int  # address
    pieces: int
    words: tuple[Word, ...]
    group: int = 1


class _Pool:
    """Native threads beside the calling one. They sleep while there is nothing to do, and end with the pool."""

    def __init__(self, target: isa.Target, threads: int, cache: Path | None) -> None:
        from kernels.cpu import threads as native
        from kernels.cpu.jit import Compiler

        self.compiler = Compiler(target, cache)
        self.seconds = 0.0
        self.idle = False  # whether programs are laid out but not run
        self._memory = torch.zeros(native.POOL + 64, dtype=torch.uint8)
        self._pool = -(-self._memory.data_ptr() // 64) * 64
        pointer = ctypes.c_size_t
        address = self.compiler.address
        self._run = ctypes.CFUNCTYPE(None, pointer, pointer, pointer)(address(native.run))
        self._run_alone = ctypes.CFUNCTYPE(None, pointer, pointer)(address(native.run_alone))
        start = ctypes.CFUNCTYPE(ctypes.c_int, pointer)(address(native.pool_start))
        stop = ctypes.CFUNCTYPE(None, pointer)(address(native.pool_stop))
        work = ctypes.CFUNCTYPE(None, pointer)(address(native.work))
        if start(self._pool):
            raise OSError("the system has no memory for a lock")
        workers = [
            # each holds the memory and the code for as long as it may use them
            threading.Thread(target=_live, args=(work, self._pool, self._memory, self.compiler), daemon=True)
            for _ in range(threads - 1)
        ]
        for worker in workers:
            worker.start()
        weakref.finalize(self, _end, stop, self._pool, workers, self._memory, self.compiler)

    def run(self, steps: int, count: int, *, alone: bool) -> None:
        if self.idle:
            return
        started = time.perf_counter()
        if alone:
            self._run_alone(steps, count)
        else:
            self._run(self._pool, steps, count)
        self.seconds += time.perf_counter() - started

    @property
    def sleeping(self) -> int:
        from kernels.cpu import threads as native

        return ctypes.c_int64.from_address(self._pool + native.SLEEPERS).value


def _live(work: object, pool: int, *kept: object) -> None:
    assert callable(work)
    work(pool)


def _end(stop: object, pool: int, workers: list[threading.Thread], *kept: object) -> None:
    assert callable(stop)
    stop(pool)
    for worker in workers:
        worker.join()


@dataclass
class Program:
    """Recorded calls. `inputs` and `tables` are what may lie elsewhere in each run."""

    inputs: list[Tensor]  # the memory that was recorded; calls refer to places in it
    tables: list[list[Tensor]]
    position: int
    calls: list[Call] = field(default_factory=list)
    parts: list[tuple[Tensor, int, int]] = field(default_factory=list)  # recorded apart: memory, of which input, where

    def regions(self) -> list[tuple[int, int, int, int]]:
        """In order of memory: first and last address, of which input they are a part, and where in it."""
        whole = ((tensor, index, 0) for index, tensor in enumerate(self.inputs))
        return sorted(
            (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes - 1, index, start)
            for tensor, index, start in itertools.chain(whole, self.parts)
        )


class Machine:
    """The processor as the op table's `cpu` column sees it.

    A call is done at once; within `record` it is kept instead. Not for use by several threads at a time.
    """

    def __init__(self, threads: int = 1, target: isa.Target | None = None, cache: Path | None = None) -> None:
        """Raises ImportError where llvmlite is missing."""
        self.target = target or isa.host()
        self.threads = threads
        self._pool = _Pool(self.target, threads, cache)
        self.arena = Arena()  # of the packed weights
        self._program: Program | None = None
        self._calls: list[Call] = []
        self._packed: dict[tuple[int, str, tuple[int, ...]], tuple[Tensor | None, QuantTensor]] = {}

    @property
    def native_seconds(self) -> float:
        """Time spent in native functions so far."""
        return self._pool.seconds

    @property
    def sleeping(self) -> int:
        """How many of the threads beside the calling one wait without using any time."""
        return self._pool.sleeping

    @property
    def recording(self) -> bool:
        return self._program is not None

    def call(self, writer: Writer, parameters: Sequence[int | str], pieces: int, *words: Word, group: int = 1) -> None:
        """Queue a native function over `pieces`; `group`: how many calls, this one the last, end before the next.

        With 0 the next runs beside this one, which brought nothing measurable on two threads.
        """
        address = self._pool.compiler.address(writer, *parameters)
        self._calls.append(Call(address, pieces, words, group))

    def share(self, count: int, nbytes: int, step: int) -> int:
        """How many of `count` rows or panels of `nbytes` each make a piece: a multiple of `step`.

        Large enough that handing it out costs nothing, small enough that all threads end together.
        """
        by_size = _PIECE_BYTES // max(nbytes, 1)
        by_threads = -(-count // (4 * self.threads))
        return max(step, min(by_size, by_threads) // step * step)

    def panel_share(self, count: int, nbytes: int) -> int:
        """The same of panels, so many of which are read side by side that fewer at the end of a piece cost time."""
        share, side = self.share(count, nbytes, 1), self.target.streams
        return max(share // side * side, side) if count >= 4 * self.threads * side else share

    def packed(self, weight: QuantTensor) -> tuple[Tensor | None, QuantTensor]:
        """The weight's panels, packed when they are first asked for; or None where it is used as it is.

        [N, K] → uint8 [bytes]; a stack [E, N, K] → uint8 [E, bytes].
        """
        key = weight.data.data_ptr(), weight.type.name, weight.shape
        if key not in self._packed:
            self._packed[key] = self._pack(weight)
        return self._packed[key]

    def take_in(self, weight: QuantTensor) -> bool:
        """Pack the weight now; whether it is not read any more where it lies."""
        panels, kept = self.packed(weight)
        return panels is not None or kept is not weight

    def whole(self, tensor: Tensor) -> Tensor:
        """The tensor without gaps, copied if need be: at once, so not while recording."""
        if tensor.is_contiguous():
            return tensor
        if self.recording:
            raise ValueError("a tensor with gaps cannot be recorded")
        self.flush()
        return tensor.contiguous()

    def _pack(self, weight: QuantTensor) -> tuple[Tensor | None, QuantTensor]:
        from kernels.cpu.formats import FORMATS, panel_bytes
        from kernels.cpu.pack import pack
        from kernels.cpu.plain import PLAIN

        if weight.type.name in PLAIN:
            return None, weight
        form = FORMATS.get(weight.type.name)
        if form is None:
            half = weight.dequantize(torch.float16).view(torch.uint8)
            return None, QuantTensor(half, QUANTS["F16"], weight.shape)
        rows, columns = weight.shape[-2:]
        stack = weight.data[None] if weight.data.dim() == 2 else weight.data
        size = -(-rows // 16) * panel_bytes(weight.type.name, columns)
        panels = self.arena.take(len(stack) * size).view(len(stack), size)
        pending, self._calls = self._calls, []
        for index, (source, to) in enumerate(zip(stack, panels, strict=True)):
            share = self.share(-(-rows // 16), panel_bytes(weight.type.name, columns), 1)
            words = source.contiguous(), to, rows, columns // form.block, share
            self.call(pack, (weight.type.name,), -(-rows // (16 * share)), *words, group=index + 1)
        calls, self._calls = self._calls, pending
        idle, self._pool.idle = self._pool.idle, False
        Runnable(self._pool, Program([], [], 0, calls)).run([], [], 0)
        self._pool.idle = idle
        return panels[0] if weight.data.dim() == 2 else panels, weight

    def flush(self) -> None:
        """Do what is queued, unless it is being recorded."""
        if self._program is None and self._calls:
            calls, self._calls = self._calls, []
            Runnable(self._pool, Program([], [], 0, calls)).run([], [], 0)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Calls of the block are made ready, compiled and recorded, but not done: their results mean nothing."""
        self._pool.idle = True
        try:
            yield
        finally:
            self._pool.idle = False

    @contextmanager
    def record(self, inputs: list[Tensor], tables: list[list[Tensor]], position: int) -> Iterator[Program]:
        """Keep the calls of the block in a program, whose memory it owns."""
        if self._program is not None:
            raise RuntimeError("a recording is going on")
        self._program = program = Program(inputs, tables, position)
        try:
            yield program
            program.calls = self._calls
        finally:
            self._program, self._calls = None, []

    def prepare(self, program: Program) -> Runnable:
        """A small program runs on the calling thread alone: to meet after each call takes longer than it saves."""
        runnable = Runnable(self._pool, program)
        runnable.alone = runnable.nbytes < _ALONE_BYTES
        return runnable


class Runnable:
    """A program laid out for the native threads."""

    def __init__(self, pool: _Pool, program: Program) -> None:
        from kernels.cpu import threads as native

        self._pool, self.alone = pool, False
        self._count = len(program.calls)
        self._kept: list[Tensor] = []  # what the words point to, but for inputs and tables: those come with each run
        regions = program.regions() or [(0, -1, 0, 0)]
        words: list[int] = []
        patches: list[tuple[int, int, int]] = []  # word, input, offset
        self._tables = [np.zeros(len(tensors) + 8, np.int64) for tensors in program.tables]
        self._table_uses: list[tuple[int, int]] = []  # word, table
        self._own_tables: list[NDArray[np.int64]] = []
        starts = []
        for call in program.calls:
            starts.append(len(words))
            for word in call.words:
                self._append(word, words, patches, program, regions)
        self._words = np.array(words or [0], np.int64)
        self._where = np.array([patch[0] for patch in patches], np.intp)
        self._which = np.array([patch[1] for patch in patches], np.intp)
        self._offset = np.array([patch[2] for patch in patches], np.int64)
        self._point_to_tables()

        memory = np.zeros((self._count + 1) * native.STEP // 8 + 8, np.int64)
        self._memory, self._steps = memory, -(-memory.ctypes.data // 64) * 64
        first = (self._steps - memory.ctypes.data) // 8
        for index, (call, start) in enumerate(zip(program.calls, starts, strict=True)):
            at = first + index * native.STEP // 8
            memory[at + native.FUNCTION // 8] = call.function
            memory[at + native.WORDS // 8] = self._words.ctypes.data + 8 * start
            memory[at + native.PIECES // 8] = call.pieces
            memory[at + native.GROUP // 8] = call.group

    def run(self, inputs: Sequence[Tensor], tables: Sequence[Sequence[Tensor]], position: int) -> None:
        """Once, with these tensors in place of the recorded ones; `position` is the sequence's length."""
        addresses = [tensor.data_ptr() for tensor in inputs]
        self.run_at(addresses, [[tensor.data_ptr() for tensor in table] for table in tables], position)

    def run_at(self, inputs: Sequence[int], tables: Sequence[Sequence[int]], position: int) -> None:
        """As `run`, with the tensors' addresses."""
        if len(self._where):
            bases = np.array([*inputs, position], np.int64)
            self._words[self._where] = bases[self._which] + self._offset
        for index, table in enumerate(tables):
            if len(table) > len(self._tables[index]):
                self._tables[index] = np.zeros(2 * len(table), np.int64)
                self._point_to_tables()
            self._tables[index][: len(table)] = table
        self._pool.run(self._steps, self._count, alone=self.alone)

    @property
    def nbytes(self) -> int:
        """Of what its calls read and write beside the inputs, weights above all."""
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in self._kept}.values())

    def _append(
        self, word: Word, words: list[int], patches: list[tuple[int, int, int]], program: Program,
        regions: list[tuple[int, int, int, int]],
    ) -> None:  # fmt: skip
        if isinstance(word, Position):
            patches.append((len(words), len(program.inputs), word.value - program.position))
            words.append(word.value)
        elif isinstance(word, Tensor):
            address = word.data_ptr()
            first, last, index, start = regions[bisect.bisect_right(regions, (address, math.inf)) - 1]
            if first <= address <= last:
                patches.append((len(words), index, start + address - first))
            else:
                self._kept.append(word)
            words.append(address)
        elif isinstance(word, Blocks):
            first = word.tensors[0].data_ptr()
            for index, tensors in enumerate(program.tables):
                if 0 <= first - tensors[0].data_ptr() < tensors[0].nbytes:
                    self._table_uses.append((len(words), index))
                    words += [0, first - tensors[0].data_ptr()]
                    return
            own = np.array([tensor.data_ptr() for tensor in word.tensors], np.int64)
            self._own_tables.append(own)
            self._kept += word.tensors
            words += [own.ctypes.data, 0]
        elif isinstance(word, float):
            words.append(struct.unpack("I", struct.pack("f", word))[0])
        else:
            words.append(word)

    def _point_to_tables(self) -> None:
        for word, index in self._table_uses:
            self._words[word] = self._tables[index].ctypes.data
