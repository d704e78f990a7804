"""How many threads suit this machine."""

from __future__ import annotations

import os
from pathlib import Path


def default_threads() -> int:
    """What OMP_NUM_THREADS says, as elsewhere; else one for each core."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else physical_cores()


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads of one core counted once where Linux tells."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
    cores = set()
    for cpu in allowed:
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            return len(allowed)
    return len(cores)
