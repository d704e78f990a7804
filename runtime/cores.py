"""How many threads suit this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def default_threads() -> int:
    """What OMP_NUM_THREADS says, as elsewhere; else one for each core."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else physical_cores()


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads of one core counted once where Linux tells; no more than the
    processor time that a control group, such as a container's, may use.
    """
    return min([_of_machine(), *_of_groups()])


def _of_groups() -> list[int]:
    """The limits of control groups, of which there are two versions, rounded up."""
    found = []
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (_GROUPS / "cpu.max").read_text().split()
        found.append(-(-int(quota) // int(period)))
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = ((_GROUPS / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        found.append(-(-int(quota) // int(period)))
    return [cores for cores in found if cores > 0]


def _of_machine() -> int:
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
