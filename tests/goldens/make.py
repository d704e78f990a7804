"""Writes the tiny GGUF files and their known outputs: `python make.py [FOLDER]`. README.md says more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle import Oracle
from tiny_models import MODELS, TinyModel, stored_tensors, write_gguf
from transformers import Qwen3_5TextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding, apply_rotary_pos_emb

LENGTHS = (1, 2, 3, 5, 17, 64, 65, 100)
ROWS = 4
USED_IDS = 302  # bytes, merges and special tokens; the rest is padding
MARGIN = 0.1  # of greedy decoding: far above the rounding of any fp32 implementation

Outputs = dict[str, Any]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    torch.set_num_threads(1)
    for m in MODELS:
        tensors = stored_tensors(m)
        write_gguf(m, tensors, folder / f"{m.name}.gguf")
        save(folder / f"{m.name}.npz", model_outputs(m, Oracle(m, tensors)))
    save(folder / "ops.npz", mrope_outputs() | yarn_outputs())


def save(path: Path, outputs: Outputs) -> None:
    np.savez_compressed(path, allow_pickle=False, **outputs)


def model_outputs(m: TinyModel, oracle: Oracle) -> Outputs:
    rng = np.random.default_rng(m.seed + 100)
    out: Outputs = {}
    for length in LENGTHS:
        ids = rng.integers(0, USED_IDS, length)
        hidden, logits = oracle.forward(ids.tolist())
        out[f"ids_{length}"] = ids
        out[f"logits_{length}"] = logits[-ROWS:].numpy()
        out[f"hidden_{length}"] = hidden[-1].numpy()
    out |= greedy_outputs(oracle, rng)
    if oracle.mtp:
        ids = rng.integers(0, USED_IDS, 40)
        hidden, _ = oracle.forward(ids.tolist())
        following = ids[1:].tolist()
        out["mtp_ids"] = ids
        out["mtp_logits"] = oracle.mtp.forward(hidden[:-1], following)[1][-ROWS:].numpy()
        out["mtp_chain3"] = oracle.mtp.chain(hidden[:-1], following, 3)
    return out


def greedy_outputs(oracle: Oracle, rng: np.random.Generator) -> Outputs:
    """The first prompt whose 32 greedy tokens are varied and each lead by a clear margin."""
    while True:
        prompt = rng.integers(0, USED_IDS, 24)
        tokens, margin = oracle.greedy(prompt.tolist(), 32)
        if margin.min() > MARGIN and len(set(tokens.tolist())) >= 16:
            return {"greedy_prompt": prompt, "greedy_tokens": tokens, "greedy_margin": margin}


def mrope_outputs() -> Outputs:
    """Interleaved M-RoPE at the family's real sizes: three different positions per token, heads longer than the
    rotary part.
    """
    base, dim, head_dim, sections = 1e7, 64, 96, [11, 11, 10]
    rope = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": dim / head_dim}
    config = Qwen3_5TextConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        rope_parameters={**rope, "mrope_section": sections, "mrope_interleaved": True},
    )
    rng = np.random.default_rng(7)
    positions = rng.integers(0, 500, (3, 9))
    q = torch.from_numpy(rng.standard_normal((1, 2, 9, head_dim)).astype(np.float32))
    cos, sin = Qwen3_5TextRotaryEmbedding(config)(q, torch.from_numpy(positions)[:, None])
    rotated, _ = apply_rotary_pos_emb(q, q, cos, sin)
    return {
        "mrope_base": np.float64(base),
        "mrope_dim": np.int64(dim),
        "mrope_sections": np.array(sections),
        "mrope_positions": positions,
        "mrope_cos": cos[0].numpy(),
        "mrope_sin": sin[0].numpy(),
        "mrope_q": q[0].transpose(0, 1).contiguous().numpy(),
        "mrope_q_rotated": rotated[0].transpose(0, 1).contiguous().numpy(),
    }


def yarn_outputs() -> Outputs:
    """YaRN at the family's real sizes, 262,144 tokens stretched four times."""
    base, dim, factor, original = 1e7, 64, 4.0, 262144
    rope = {"rope_type": "yarn", "rope_theta": base, "factor": factor, "original_max_position_embeddings": original}
    config = Qwen3_5TextConfig(
        hidden_size=4 * dim,
        num_attention_heads=1,
        head_dim=4 * dim,
        max_position_embeddings=int(factor) * original,
        rope_parameters={**rope, "partial_rotary_factor": 0.25},
    )
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    return {
        "yarn_base": np.float64(base),
        "yarn_dim": np.int64(dim),
        "yarn_factor": np.float64(factor),
        "yarn_original_context": np.int64(original),
        "yarn_inv_freq": inv_freq.numpy(),
        "yarn_attention_factor": np.float64(attention_factor),
    }


if __name__ == "__main__":
    main()
