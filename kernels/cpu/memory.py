"""Memory for what is read from end to end at every token, for what lives long, and for what lives for a layer.

In pages of 4 KiB a processor loses time to finding out where each lies, most of all in a virtual machine: on two cores
of a Xeon, Q4_K came from memory at 17.7 GB/s in small pages and at 21.2 in large ones (2 MiB).

On the C library's heap what lives long comes to lie between what lives for a layer only, and a hole of one size is no
room for the next piece, which is aligned, of another: reading 2,048 tokens with a 0.8B left 213 MB of holes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.pages import LARGE_PAGE, Ahead, large_pages

_CHUNK, _LARGEST_CHUNK = 32 << 20, 1 << 30
_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_LASTING = 32 << 10  # bytes from which memory of its own is worth the call
_PASSING = 256 << 10  # bytes from which the heap's holes matter
_LOOSE = 2  # times the size that is asked for, up to which a room is not too large


class Arena:
    """Cuts memory from large pieces, which live as long as any tensor in them.

    A piece is as large as all before it: each ends somewhere in a large page, whose rest is wasted, which with pieces
    of 32 MB was 2.5 % of a 4B.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)
        self._taken = 0

    def take(self, nbytes: int) -> Tensor:
        """uint8 [nbytes] at the start of a cache line, not set to anything."""
        room = -(-nbytes // 64) * 64
        self._taken += room
        if room > len(self._left):
            fresh = _large_pages(max(room, _CHUNK, min(self._taken, _LARGEST_CHUNK)))
            if len(fresh) - room <= len(self._left):
                return fresh[:nbytes]
            self._left = fresh
        taken, self._left = self._left[:nbytes], self._left[room:]
        return taken

    def begin_with(self, ahead: Ahead) -> None:
        """Cut from this memory first."""
        memory, start = ahead.take()
        self._left = torch.frombuffer(memory, dtype=torch.uint8)[start : start + ahead.nbytes]

    def end(self) -> None:
        """Nothing more is taken for now: what was touched ahead of its use goes back."""
        first = -(-self._left.data_ptr() // LARGE_PAGE) * LARGE_PAGE
        last = (self._left.data_ptr() + len(self._left)) // LARGE_PAGE * LARGE_PAGE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


class Rooms:
    """Memory for tensors that come and go in the same few sizes: what one leaves the next one gets, faults and all."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []  # uint8

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Like torch.empty. Once nobody holds it or a view of it, its room is free."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < _PASSING:
            return torch.empty(tuple(shape), dtype=dtype)
        room = self._take(nbytes)
        held = _held(nbytes).from_address(room.data_ptr())
        held.room, held.free = room, self._leave
        return torch.frombuffer(held, dtype=dtype).view(tuple(shape))

    def _take(self, nbytes: int) -> Tensor:
        """The smallest that is free and large enough, of several the one used last, or a new one."""
        size = _size(nbytes)
        fits = [i for i, room in enumerate(self._free) if nbytes <= len(room) <= _LOOSE * size]
        if not fits:
            return _pages(size)
        return self._free.pop(min(fits, key=lambda i: (len(self._free[i]), -i)))

    def end(self) -> None:
        """Give free rooms to the system."""
        self._free.clear()

    def _leave(self, room: Tensor) -> None:
        self._free.append(room)


@functools.cache
def _size(nbytes: int) -> int:
    """Of a room, one of few, so that rooms of a layer are of use to the next kind of layer: 2ⁿ or 3·2ⁿ, with a
    sixteenth to spare, as what layers need is often 2ⁿ or a little more. What is not touched takes no memory.
    """
    wanted = nbytes + nbytes // 16
    power = 1 << (wanted - 1).bit_length()
    return power * 3 // 4 if wanted <= power * 3 // 4 else power


@functools.cache
def _held(nbytes: int) -> Any:
    """The type of a buffer that says when torch lets go of it."""

    def leave(self: Any) -> None:
        self.free(self.room)

    return type("Held", (ctypes.c_char * nbytes,), {"__del__": leave})


def lasting(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Like torch.empty, for what outlives a forward: the system has its memory back as soon as nobody holds it."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LASTING:
        return torch.empty(tuple(shape), dtype=dtype)
    return _pages(nbytes).view(dtype).view(tuple(shape))


def streamed(numbers: int) -> Tensor:
    """Zeros, in large pages if they fill one: float32, for what is read and written from end to end at every token."""
    if 4 * numbers < LARGE_PAGE:
        return torch.zeros(numbers)
    return _large_pages(4 * numbers)[: 4 * numbers].view(torch.float32)


def trim() -> None:
    """Give the system what is free on the heap, where the C library can, and what libraries have of their files.

    A start goes through far more code than work does: of 134 MB of torch and LLVM, 25 are asked for again.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library, or another system
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        for first, last in untouched(Path("/proc/self/smaps").read_bytes()):
            library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


_LIBRARY = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) r-[-x]p .*\.so[.0-9]*\n((?:[A-Z].*\n)+)", re.MULTILINE)


def untouched(maps: bytes) -> list[tuple[int, int]]:
    """Of libraries, what is read only and as it is in the file: addresses, first and beyond the last.

    So not what the linker wrote before it took the right to write away, which would come back without that.
    """
    found = _LIBRARY.finditer(maps)
    return [(int(m[1], 16), int(m[2], 16)) for m in found if re.search(rb"^Anonymous: +0 kB$", m[3], re.MULTILINE)]


def _pages(nbytes: int) -> Tensor:
    """uint8 [nbytes], in large pages if it fills them."""
    if nbytes % LARGE_PAGE == 0:
        return _large_pages(nbytes)
    return torch.frombuffer(mmap.mmap(-1, nbytes, flags=_OWN), dtype=torch.uint8)


def _large_pages(nbytes: int) -> Tensor:
    """Whole large pages, if the system grants them."""
    memory, start = large_pages(nbytes)
    return torch.frombuffer(memory, dtype=torch.uint8)[start : start + -(-nbytes // LARGE_PAGE) * LARGE_PAGE]


PASSING = Rooms()  # of the ops' outputs
