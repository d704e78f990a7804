"""What this machine has: memory, disk, GPUs, and how fast its memory is. Without torch unless there is a GPU."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import platformdirs

from runtime.cores import default_threads
from runtime.hub.protocol import Gpu

_BLOCK = 128 << 20  # bytes for each thread: more than any cache holds
_GROUPS = Path("/sys/fs/cgroup")
_NEW = 30 * 86400  # seconds for which a measured bandwidth holds


def native_functions() -> Path:
    """The folder that holds those made for this processor."""
    return platformdirs.user_cache_path("qwenchat") / "native"


def memory() -> tuple[int, int]:
    """Bytes of memory that this process may have, and those that are free or can be made so."""
    total, available = _meminfo() if sys.platform == "linux" else _sysctl()
    for limit, used in _limits():
        total, available = min(total, limit), min(available, limit - used)
    return total, max(available, 0)


def _meminfo() -> tuple[int, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(lines[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    return total, available


def _sysctl() -> tuple[int, int]:
    """Of macOS, where half of what is not free can be made so, as a rule."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return pages * size, pages * size * 2 // 3


def _limits() -> list[tuple[int, int]]:
    """Of control groups, such as a container's, with what is used of each and does not give way."""
    found = []
    for limit, used, stat, kept in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):
            most, taken = (int((_GROUPS / name).read_text()) for name in (limit, used))
            found.append((most, taken - _entry(_GROUPS / stat, kept)))
    return found


def _entry(stat: Path, name: str) -> int:
    """Of a group's list of what its memory is used for; 0 if it is not there."""
    with suppress(OSError, ValueError):
        for line in stat.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def cpu() -> str:
    """The processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return platform.machine()


def gpu_driver() -> bool:
    """Whether there may be a GPU."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/kfd").exists() or bool(shutil.which("nvidia-smi"))


def gpus() -> tuple[Gpu, ...]:
    """Through torch, which is asked only where a driver is."""
    if not gpu_driver():
        return ()
    with suppress(Exception):  # whatever a broken driver does, models run on the processor
        import torch

        found = []
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            found.append(Gpu(torch.cuda.get_device_name(index), total, free, used=gpu_kernels()))
        return tuple(found)
    return ()


def gpu_kernels() -> bool:
    """Whether the op table has a column for GPUs."""
    from kernels.quant_matmul import quant_matmul

    return quant_matmul.triton is not None


def bandwidth(cache: Path, seconds: float = 2.0, *, anew: bool = False) -> float:
    """Bytes per second that all threads together read from memory: measured once a month, and kept in `cache`."""
    key = f"{cpu()} {default_threads()}"
    file = cache / "bandwidth.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        if not anew and kept["machine"] == key and time.time() - kept["time"] < _NEW:
            return float(kept["bytes_per_s"])
    measured = measure_bandwidth(seconds)
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"machine": key, "time": time.time(), "bytes_per_s": measured}))
    return measured


def measure_bandwidth(seconds: float) -> float:
    """The best of as many passes as fit in the time."""
    import numpy as np

    threads = default_threads()
    blocks = [np.ones(_BLOCK // 8, np.int64) for _ in range(threads)]
    together = threading.Barrier(threads)
    best = 0.0

    def read(block: np.ndarray) -> tuple[float, float]:
        together.wait()
        start = time.perf_counter()
        np.bitwise_or.reduce(block)  # which reads as fast as the products of packed weights do
        return start, time.perf_counter()

    end = time.monotonic() + seconds
    with ThreadPoolExecutor(threads) as pool:
        while time.monotonic() < end or not best:
            times = list(pool.map(read, blocks))
            took = max(end for _, end in times) - min(start for start, _ in times)
            best = max(best, threads * _BLOCK / took)
    return best
