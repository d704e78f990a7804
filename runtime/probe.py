"""How a model's numbers are checked from outside.

    python -m runtime.probe MODEL.gguf --ids 1,2,3 --out out.npz [--ops reference|cpu|triton] [--greedy N] [--chunk C]

writes `logits` [T, V], `hidden` [T, H] (after output_norm), `mtp_logits` [T − 1, V] (if the file has an MTP block;
row i sees the hidden state i and the token i + 1) and `greedy` [N] (the tokens that follow the ids).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.op import Column
from runtime.cache import SequenceState
from runtime.errors import UserError
from runtime.kv_cache import KVType
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35


def probe(
    path: Path,
    ids: Sequence[int],
    *,
    ops: Column = "reference",
    greedy: int = 0,
    chunk: int | None = None,
    kv: KVType | None = None,
) -> dict[str, NDArray[Any]]:
    """The arrays named above; `chunk` prefills that many tokens at a time (None: all at once); `kv`: type of keys and
    values (None: as the ops take them).

    Raises UserError, for ids that the model has not too.
    """
    model = load_model(path, ops).model
    if not ids or not all(0 <= i < model.vocabulary for i in ids):
        raise ValueError(f"--ids needs at least one id, each from 0 to {model.vocabulary - 1}")
    state = model.new_state(kv)
    parts = []
    for start in range(0, len(ids), chunk or len(ids)):
        parts.append(model.forward(ids[start : start + (chunk or len(ids))], state))
        state.commit()
    hidden = torch.cat(parts)
    found = {"logits": model.logits(hidden).cpu().numpy(), "hidden": hidden.cpu().numpy()}
    if model.mtp and len(ids) > 1:
        found["mtp_logits"] = _mtp_logits(model, ids, hidden, chunk, kv).cpu().numpy()
    if greedy:
        found["greedy"] = np.array(_greedy(model, state, hidden[-1:], greedy))
    return found


def _mtp_logits(
    model: Qwen35, ids: Sequence[int], hidden: torch.Tensor, chunk: int | None, kv: KVType | None
) -> torch.Tensor:
    """Through a cache of its own, in the same chunks as the trunk."""
    state, parts = model.new_state(kv), []
    for start in range(0, len(ids) - 1, chunk or len(ids)):
        stop = min(start + (chunk or len(ids)), len(ids) - 1)
        parts.append(model.draft(ids[start + 1 : stop + 1], hidden[start:stop], state, start))
    return model.draft_logits(torch.cat(parts))


def _greedy(model: Qwen35, state: SequenceState, hidden: torch.Tensor, count: int) -> list[int]:
    tokens: list[int] = []
    while True:
        tokens.append(int(model.logits(hidden).argmax()))
        if len(tokens) == count:
            return tokens
        hidden = model.forward(tokens[-1:], state)
        state.commit()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.probe", description="Write a model's outputs as arrays.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--ids", required=True, type=_ids, help="token ids, separated by commas")
    parser.add_argument("--out", required=True, type=Path, help="the .npz file to write")
    parser.add_argument("--ops", choices=get_args(Column), default="reference")
    parser.add_argument("--kv", choices=get_args(KVType), help="type of keys and values (default: that of the ops)")
    parser.add_argument("--greedy", type=_count, default=0, metavar="N", help="go on greedily for N tokens")
    parser.add_argument("--chunk", type=_count, metavar="C", help="prefill C tokens at a time")
    options = parser.parse_args()
    try:
        asked = {"ops": options.ops, "greedy": options.greedy, "chunk": options.chunk or None, "kv": options.kv}
        found = probe(options.model, options.ids, **asked)
        with options.out.open("wb") as file:
            np.savez(file, allow_pickle=False, **found)
    except (UserError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _count(text: str) -> int:
    if (count := int(text)) < 0:
        raise ValueError
    return count


if __name__ == "__main__":
    sys.exit(main())
