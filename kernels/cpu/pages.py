"""Large pages, and memory that is brought in ahead of its use: without torch, which is being imported meanwhile."""

from __future__ import annotations

import contextlib
import mmap
import threading

LARGE_PAGE = 2 << 20
_STEP = 64 << 20  # bytes between two looks at whether to go on: some 20 ms


def large_pages(nbytes: int) -> tuple[mmap.mmap, int]:
    """Memory, and where in it so many bytes begin, in whole large pages, if the system grants them."""
    size = -(-nbytes // LARGE_PAGE) * LARGE_PAGE
    # of which the pages that nobody touches do not exist
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    import numpy as np

    return memory, -int(np.frombuffer(memory, np.uint8).ctypes.data) % LARGE_PAGE


class Ahead:
    """Zeros that a thread touches one page after the other, so that whoever writes there later need not wait for the
    system to find and clear them.

    A virtual machine had 2.9 GB after 0.9 s, while torch was imported; packing the weights of a 4B took 1.8 s after
    that, and 2.9 to 4.7 without it.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory, self._start = large_pages(nbytes)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._touch, daemon=True, name="ahead")
        self._thread.start()

    def take(self) -> tuple[mmap.mmap, int]:
        """The memory, and where in it the bytes begin. Nobody touches it from now on; its end may not have been yet."""
        self._enough.set()
        self._thread.join()
        return self._memory, self._start

    def _touch(self) -> None:
        import numpy as np

        pages = np.frombuffer(self._memory, np.uint8)[self._start : self._start + self.nbytes]
        for first in range(0, self.nbytes, _STEP):
            if self._enough.is_set():
                return
            pages[first : first + _STEP : mmap.PAGESIZE] = 0
