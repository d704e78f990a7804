"""Memory for a model's weights, brought in while torch is imported: a start has cores that have nothing else to do."""

from __future__ import annotations

from pathlib import Path

from kernels.cpu.pages import Ahead
from runtime.hub import peek
from runtime.machine import gpu_driver, memory
from runtime.protocol import Load

_LEAST = 256 << 20  # bytes of a file from which it is worth a thread
_SHARE = 0.97  # of a file: what is left over goes back, but was found for nothing
_AS_THEY_ARE = (0, 1, 32)  # `general.file_type` of F32, F16 and BF16, whose weights are not packed anew


def bring_in(command: Load) -> Ahead | None:
    """Where the model will run on the processor, its weights are packed, and half of the free memory suffices."""
    if command.ops not in ("auto", "cpu") or (command.ops == "auto" and gpu_driver()):
        return None
    try:
        size = Path(command.path).stat().st_size
        kind = peek.read(Path(command.path)).get("general.file_type")
    except (OSError, ValueError):
        return None  # which the load will say
    if kind in _AS_THEY_ARE or not _LEAST <= size <= memory()[1] // 2:
        return None
    return Ahead(int(_SHARE * size))
