"""Downloads that are killed: reads a line with a number of steps, downloads in a child, and kills it at that step.

    python tests/runtime/hub_victim.py REPO FILE

A step is a write of bytes, of which a part is still written, or anything that changes a file's name or forces it to
disk. The answer to each line is "killed" or "done". HF_ENDPOINT and HF_HUB_CACHE are those of the environment.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.hub import downloads
from runtime.hub.transfer import Tuning

TUNING = Tuning(connections=3, smallest=20_000, record_every=0.0)


def sabotage(steps: int) -> None:
    """Every function that changes the disk counts down, and the last one kills the process."""
    lock, left = threading.Lock(), [steps]
    chance = random.Random(steps)

    def count(before_death: Callable[[], Any]) -> None:
        with lock:
            left[0] -= 1
            if left[0] == 0:
                before_death()
                os.kill(os.getpid(), signal.SIGKILL)

    pwrite = os.pwrite

    def torn(fd: int, data: Any, offset: int) -> int:
        count(lambda: pwrite(fd, data[: chance.randrange(len(data))], offset))
        return pwrite(fd, data, offset)

    os.pwrite = torn
    for owner, name in ((os, "fdatasync"), (os, "fsync"), (Path, "replace"), (Path, "symlink_to"), (Path, "unlink")):
        real = getattr(owner, name)

        def counted(*args: Any, real: Any = real, **more: Any) -> Any:
            if chance.random() < 0.5:
                count(lambda: None)
                return real(*args, **more)
            result = real(*args, **more)
            count(lambda: None)
            return result

        setattr(owner, name, counted)


def main(repo: str, file: str) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            job = downloads.Job(downloads.find_item(repo, file), lambda download: None, TUNING)
            sabotage(int(line))
            job.run()
            os._exit(0 if job.download.state == "done" else 1)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print("killed" if killed else "done" if status == 0 else f"failed {status}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
