"""What memory a model takes with its context full, beside what `runtime.fit` says of it before the load.

The child loads the model as the chat does and reads a prompt of 2,048 tokens, or what the context has, by pieces. Then
the recurrent state is there as often as in a conversation: two places to come back to, the live one, and the next. To
read a longer context would take minutes, and its memory can be had at once: before the last piece, that of all keys and
values is taken and written. What it needs is the peak of its anonymous memory: pages of the mapped file are read again
when memory is short. Where native functions had to be made first, which takes memory once in a machine's life, it is
measured again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime import fit, lean_torch
from runtime.bench_worker import WorkerError
from runtime.hub.peek import NotGGUFError
from runtime.machine import native_functions
from runtime.protocol import Load

if TYPE_CHECKING:
    from runtime.cache import SequenceState
    from runtime.models.config import ModelConfig

_POLL = 0.01  # seconds: what is freed the heap keeps for longer
_TOKEN = 9  # any
_READ = 2048  # tokens


@dataclass(frozen=True)
class Report:
    """Bytes."""

    model: str
    context: int
    kv_type: str
    expected: int
    measured: int

    @property
    def difference(self) -> float:
        return self.expected / self.measured - 1

    @property
    def good(self) -> bool:
        return abs(self.difference) <= 0.05

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"difference": self.difference}

    def as_text(self) -> str:
        return (
            f"{Path(self.model).name}, context {self.context:,}, keys and values {self.kv_type}: "
            f"{self.measured / 1e9:.3f} GB at its peak, {self.expected / 1e9:.3f} GB expected ({self.difference:+.1%})"
        )


def measure(load: Load) -> Report:
    """Raises WorkerError, UserError. Linux only, which tells what memory is not the file's."""
    config, weights = _read(Path(load.path))
    context = load.context_length or min(config.trained_context, fit.DEFAULT_CONTEXT)
    expected = fit.memory(config, weights, context, load.kv_type).total
    command = [sys.executable, "-m", "runtime.bench_memory", load.path, str(context), load.kv_type]
    command.append(str(load.threads or 0))
    made = _made()
    measured = peak(command)
    if _made() != made:
        measured = peak(command)
    return Report(load.path, context, load.kv_type, expected, measured)


def _read(path: Path) -> tuple[ModelConfig, int]:
    """Raises UserError."""
    try:
        return fit.read(path)
    except (OSError, NotGGUFError):
        lean_torch.load()
        from runtime.gguf import GGUFFile

        GGUFFile.open(path).close()  # which says in a sentence what is wrong with it
        raise


def _made() -> set[Path]:
    return set(native_functions().glob("*"))


def peak(command: Sequence[str]) -> int:
    """The most bytes of anonymous memory that a program has while it runs. Raises WorkerError with its last words."""
    most = 0
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        status = Path(f"/proc/{child.pid}/status")
        while child.poll() is None:
            try:
                most = max(most, *(int(line.split()[1]) << 10 for line in status.open() if line.startswith("RssAnon")))
            except (OSError, TypeError):
                continue
            time.sleep(_POLL)
        assert child.stderr
        if child.returncode:
            said = child.stderr.read().strip().splitlines()
            raise WorkerError(said[-1] if said else _end(child.returncode))
    return most


def _end(code: int) -> str:
    if code > 0:
        return f"The measured program ended with exit code {code}, without a word."
    name = signal.strsignal(-code) or "unknown"
    return f"The measured program was ended by signal {-code} ({name}), as happens when memory is short."


def fill(load: Load) -> SequenceState:
    """Load, and take all the memory that a conversation of the whole context takes; its last rows are staged."""
    lean_torch.load()
    import torch

    from runtime.loading import open_chat_model

    chat, _, _ = open_chat_model(load, lambda done, total: None)
    model, context = chat.engine.model, chat.engine.context_length
    state = chat.engine.pool.new_state()
    chunk = min(model.config.prefill_chunk, context // 4)
    with torch.inference_mode():
        for piece in range(min(_READ, context) // chunk - 1):
            model.forward([_TOKEN] * chunk, state)
            state.commit()
            if piece < 2:
                state.checkpoint()
        for cache in [state.kv, *([state.mtp_kv] if state.mtp_kv else [])]:
            cache.reserve(state.length, context - state.length)
            for block in cache.blocks:
                for tensor in block.tensors.values():
                    tensor.fill_(0)
        model.logits(model.forward([_TOKEN] * chunk, state)[-1:])
    return state


if __name__ == "__main__":
    path, tokens, kind, count = sys.argv[1:]
    fill(Load(path, int(tokens), kv_type=kind, threads=int(count) or None))  # type: ignore[arg-type]
