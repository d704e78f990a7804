"""A model's kernels compiled for the card before the first reply needs them, by several processes at once.

Triton compiles a program when it is first launched, and one after the other: a first reply would wait for more than a
hundred. What is compiled here it finds in its cache.

`python -m runtime.compiling FILE TARGET KV SHARE SHARES` is one of the processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import kernels.triton
from kernels.op import OpTable
from kernels.table import FUSED, OPS
from kernels.triton.ahead import TARGETS, Kernel, compile_for, kernels_of
from kernels.triton.card import Card, Launch
from kernels.triton.kept import key
from runtime.errors import UserError
from runtime.fingerprint import fingerprint
from runtime.gguf import GGUFFile
from runtime.kv_cache import KVType
from runtime.machine import memory
from runtime.models.loading import load_model
from runtime.models.slabs import ROWS
from runtime.shapes import Noted
from runtime.trust import moved

_EACH = 600 << 20  # bytes of a process that compiles
_MOST = 8  # processes

# A program is made for one row, for few, for tiles of 16, 32 and 64, and again for multiples of 16; and the MTP block
# reads a row less of what comes first.
_PIECES = (1, 2, 3, 9, 12, 16, 17, 20, 32, 33, 37, 48, 65)


def launches(noted: Noted, kv: KVType = "f16") -> Iterator[Launch]:
    """What a model launches in prompts of any length, and in steps with any number of drafts."""
    config = noted.model.config
    for rows in (*_PIECES, config.prefill_chunk):
        for context in (0, 5):
            yield from noted.prefill(rows, context, kv)
    for drafts in range(ROWS if config.mtp_layers else 1):
        yield from noted.step(drafts, kv=kv)


def needed(path: Path | str, target: str, kv: KVType = "f16") -> list[Kernel]:
    """The programs of a file's model, and those of the cases by which a card is tried. Raises UserError for a file that
    is no model.
    """
    card = Card.notes(target)
    table = OpTable("triton", card=card)
    for op in (*OPS, *FUSED):
        table[op](*moved(next(op.cases()).args, card.device))
    tried = list(card.launches)
    noted = Noted(load_model(path, table).model, card)
    return kernels_of([*tried, *launches(noted, kv)], alignments=True)


def compile_needed(path: Path | str, card: Card, kv: KVType, tell: Callable[[str], None]) -> None:
    """Make what has not been made for this file, and tell the user before. What fails is left to the first use."""
    shares = min(os.cpu_count() or 1, _MOST, memory()[1] // 2 // _EACH)
    if card.way != "compiled" or card.target not in TARGETS or shares < 2:
        return
    with suppress(UserError, OSError):
        mark = _mark(path, card.target, kv)
        if not mark.exists():
            tell("The model's kernels are being compiled for this GPU, once.")
            together(path, card.target, kv, shares)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _mark(path: Path | str, target: str, kv: KVType) -> Path:
    """A file that is there if all has been made: in Triton's cache, so that whoever empties that takes it along."""
    from triton import __version__ as triton
    from triton import knobs

    with GGUFFile.open(Path(path)) as gguf:
        file = fingerprint(gguf.paths)
    sources = [source.read_text() for folder in kernels.triton.__path__ for source in sorted(Path(folder).glob("*.py"))]
    return Path(knobs.cache.dir) / "qwenchat" / key(file, target, kv, triton, sources)


def together(path: Path | str, target: str, kv: KVType, shares: int) -> None:
    """By so many processes; returns when all have ended."""
    begun: list[subprocess.Popen[bytes]] = []
    try:
        for share in range(shares):
            command = [sys.executable, "-m", "runtime.compiling", str(path), target, kv, str(share), str(shares)]
            begun.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        for process in begun:
            process.wait()
    finally:
        for process in begun:
            process.kill()
            process.wait()


def main(path: str, target: str, kv: KVType, share: int, shares: int) -> None:
    """Every `shares`-th program from number `share` on."""
    for kernel in needed(path, target, kv)[share::shares]:
        with suppress(Exception):  # the others are wanted all the same
            compile_for(kernel, target, alone=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], cast(KVType, sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
