"""Packed weights of any type, with numbers of ordinary size."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants

from kernels.quants import QUANTS, QuantTensor


def random_weights(name: str, rows: int, blocks: int) -> QuantTensor:
    """[rows, blocks·block] of random bytes whose weights are neither tiny nor huge; plain types: [rows, blocks]."""
    quant = QUANTS[name]
    rng = np.random.default_rng(blocks)
    if quant.dtype is not None:
        dense = torch.from_numpy(rng.standard_normal((rows, blocks), np.float32)).to(quant.dtype)
        return QuantTensor(dense.view(torch.uint8), quant, (rows, blocks))
    raw = rng.integers(0, 256, (300 * rows * blocks, quant.nbytes), np.uint8)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(120, 135, len(raw))
    with np.errstate(all="ignore"):
        largest = np.abs(quants.dequantize(raw, GGMLQuantizationType(quant.ggml_id))).max(-1)
    raw = raw[(largest > 1e-3) & (largest < 1e3)][: rows * blocks]
    assert len(raw) == rows * blocks
    data = torch.from_numpy(raw).view(rows, -1)
    return QuantTensor(data, quant, (rows, blocks * quant.block))
