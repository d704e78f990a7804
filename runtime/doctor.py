"""Whether this machine is fit for models, as `qwenchat doctor` shows it: `python -m runtime.doctor` prints JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

State = Literal["good", "warning", "bad"]
_LEAST_MEMORY = 4e9  # bytes, for a small model and what else runs
_SLOW = 15e9  # bytes per second


@dataclass(frozen=True, slots=True)
class Check:
    """`advice`: what to do, "" if there is nothing to do."""

    name: str
    state: State
    fact: str
    advice: str = ""


def checks() -> Iterator[Check]:
    """One after the other, as they are done. None of them raises."""
    from runtime.hub.models import Surroundings

    yield Check("Python", "good", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield from _packages()
    around = Surroundings()
    here = around.machine(anew=True)
    yield _processor(here.cpu, here.cores)
    short = here.memory < _LEAST_MEMORY
    yield Check(
        "Memory",
        "warning" if short else "good",
        f"{here.memory / 1e9:.1f} GB, {here.available / 1e9:.1f} GB of it free",
        "Choose Qwen3.5-0.8B: larger models will not fit." if short else "",
    )
    speed = here.bandwidth or 0.0
    yield Check(
        "Memory speed",
        "warning" if speed < _SLOW else "good",
        f"{speed / 1e9:.1f} GB/s with {here.cores} threads: a file of 1 GB makes about {speed / 1e9:.0f} tokens/s",
        "Models of 2 GB or less reply faster than one reads." if speed < _SLOW else "",
    )
    yield from _gpus(len(here.gpus))
    yield from _hub(Path(here.cache), here.disk_free)
    yield from _models(around)


def _packages() -> Iterator[Check]:
    for name, purpose in (("torch", "runs models"), ("llvmlite", "makes them fast on the processor")):
        try:
            yield Check(name, "good", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "bad", f"missing; it {purpose}", f"Install it: {sys.executable} -m pip install {name}")
    try:
        yield Check("Triton", "good", importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        yield Check("Triton", "good", "not installed, which is no loss without a GPU")


def _processor(name: str, cores: int) -> Check:
    try:
        from kernels.cpu import isa

        target = isa.host()
    except Exception as error:
        return Check("Processor", "warning", f"{name}, {cores} threads; native functions cannot be made ({error})")
    if target.dot == "plain":
        return Check(
            "Processor",
            "warning",
            f"{name}, {cores} threads, without products of bytes",
            "Models run on slow paths here: choose the smallest.",
        )
    return Check("Processor", "good", f"{name}, {cores} threads, {target.dot}")


def _gpus(seen: int) -> Iterator[Check]:
    driver = Path("/proc/driver/nvidia/version")
    with suppress(OSError):
        yield Check("NVIDIA driver", "good", driver.read_text().splitlines()[0].removeprefix("NVRM version:").strip())
    if driver.exists() and not seen:
        yield Check(
            "GPU",
            "warning",
            "there is a driver, but torch sees no GPU",
            "Install torch with CUDA (https://pytorch.org/get-started/locally), and look at CUDA_VISIBLE_DEVICES.",
        )
        return
    from runtime.machine import gpu_kernels, gpus

    for gpu in gpus():
        fact = f"{gpu.name}, {gpu.free / 1e9:.1f} of {gpu.memory / 1e9:.1f} GB free"
        if gpu_kernels():
            yield Check("GPU", "good", fact)
        else:
            yield Check("GPU", "warning", fact, "This version does not use it yet: models run on the processor.")
    if not seen:
        yield Check("GPU", "good", "none: models run on the processor")


def _hub(cache: Path, free: int) -> Iterator[Check]:
    from huggingface_hub import constants, get_token

    from runtime.hub import remote
    from runtime.hub.sentences import explain

    there = cache
    while not there.exists():
        there = there.parent
    writable = os.access(there, os.W_OK)
    full = free < 2e9
    yield Check(
        "Downloads go to",
        "bad" if not writable else "warning" if full else "good",
        f"{cache}, {free / 1e9:.1f} GB free",
        "Set HF_HOME to a folder of yours." if not writable else "Make room: `qwenchat models rm`." if full else "",
    )
    login = "logged in" if get_token() else "not logged in, which only gated models need"
    try:
        list(remote.search("qwen3.5"))
    except Exception as error:
        yield Check("Hub", "warning", f"{constants.ENDPOINT}, {login}", str(explain(error)))
    else:
        yield Check("Hub", "good", f"{constants.ENDPOINT} answers, {login}")


def _models(around: object) -> Iterator[Check]:
    from runtime.hub import downloads, models, shell

    assert isinstance(around, models.Surroundings)
    here = models.local(around, around.machine(), shell.folders())
    good = [model for model in here if not model.problem]
    names = ", ".join(model.name for model in good[:5]) + (" …" if len(good) > 5 else "")
    if good:
        yield Check("Models", "good", f"{len(good)} here: {names}")
    else:
        yield Check("Models", "warning", "none here yet", "`qwenchat models advise` says which suit this machine.")
    for model in here:
        if model.problem:
            yield Check("Model", "warning", model.path, f"{model.problem}.")
    for left in downloads.unfinished():
        if left.state != "running":
            how = f"`qwenchat models get {left.repo} {left.file}` goes on with it, `qwenchat models rm` deletes it."
            yield Check("Download", "warning", f"{left.key} has stopped", how)


if __name__ == "__main__":
    for each in checks():
        print(json.dumps(asdict(each)), flush=True)
