"""Memory for what is read from end to end at every token.

In pages of 4 KiB a processor loses time to finding out where each lies, most of all in a virtual machine: on two cores
of a Xeon, Q4_K came from memory at 17.7 GB/s in small pages and at 21.2 in large ones (2 MiB).
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

_LARGE_PAGE = 2 << 20
_CHUNK = 32 << 20


class Arena:
    """Cuts memory from large pieces, which live as long as any tensor in them."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, nbytes: int) -> Tensor:
        """uint8 [nbytes] at the start of a cache line, not set to anything."""
        room = -(-nbytes // 64) * 64
        if room > len(self._left):
            fresh = _large_pages(max(room, _CHUNK))
            if len(fresh) - room <= len(self._left):
                return fresh[:nbytes]
            self._left = fresh
        taken, self._left = self._left[:nbytes], self._left[room:]
        return taken


def _large_pages(nbytes: int) -> Tensor:
    """Whole large pages, if the system grants them."""
    size = -(-nbytes // _LARGE_PAGE) * _LARGE_PAGE
    # of which the pages that nobody touches do not exist
    memory = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _LARGE_PAGE
    return whole[start : start + size]
