"""The models of the family, and who offers them as GGUF files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.models.config import ModelConfig

ARCHITECTURES = ("qwen35", "qwen35moe")


@dataclass(frozen=True, slots=True)
class Offer:
    """A repository of the catalogue. `mtp`: its files hold the drafting block."""

    repo: str
    model: str
    mtp: bool = False


# For each model the repositories that are worth knowing, the first to be recommended first.
CATALOGUE = (
    Offer("unsloth/Qwen3.5-0.8B-GGUF", "Qwen3.5-0.8B"),
    Offer("unsloth/Qwen3.5-2B-GGUF", "Qwen3.5-2B"),
    Offer("unsloth/Qwen3.5-4B-MTP-GGUF", "Qwen3.5-4B", mtp=True),
    Offer("unsloth/Qwen3.5-4B-GGUF", "Qwen3.5-4B"),
    Offer("bartowski/Qwen_Qwen3.5-4B-GGUF", "Qwen3.5-4B"),
    Offer("unsloth/Qwen3.5-9B-MTP-GGUF", "Qwen3.5-9B", mtp=True),
    Offer("unsloth/Qwen3.5-9B-GGUF", "Qwen3.5-9B"),
    Offer("bartowski/Qwen_Qwen3.5-9B-GGUF", "Qwen3.5-9B", mtp=True),
    Offer("lmstudio-community/Qwen3.5-9B-GGUF", "Qwen3.5-9B"),
    Offer("unsloth/Qwen3.6-35B-A3B-MTP-GGUF", "Qwen3.6-35B-A3B", mtp=True),
    Offer("unsloth/Qwen3.6-35B-A3B-GGUF", "Qwen3.6-35B-A3B"),
    Offer("ggml-org/Qwen3.6-35B-A3B-GGUF", "Qwen3.6-35B-A3B"),
    Offer("lmstudio-community/Qwen3.5-35B-A3B-GGUF", "Qwen3.5-35B-A3B"),
    Offer("unsloth/Qwen3.8-27B-GGUF", "Qwen3.8-27B", mtp=True),
    Offer("ggml-org/Qwen3.8-27B-GGUF", "Qwen3.8-27B", mtp=True),
    Offer("unsloth/Qwen3.6-27B-MTP-GGUF", "Qwen3.6-27B", mtp=True),
    Offer("unsloth/Qwen3.6-27B-GGUF", "Qwen3.6-27B"),
    Offer("ggml-org/Qwen3.6-27B-GGUF", "Qwen3.6-27B"),
    Offer("unsloth/Qwen3.5-27B-GGUF", "Qwen3.5-27B"),
    Offer("bartowski/Qwen_Qwen3.5-27B-GGUF", "Qwen3.5-27B"),
)

# Of models of about equal size, and of a size that serves: the later the better.
QUALITY = (
    "Qwen3.5-0.8B",
    "Qwen3.5-2B",
    "Qwen3.5-4B",
    "Qwen3.5-9B",
    "Qwen3.5-35B-A3B",
    "Qwen3.5-27B",
    "Qwen3.6-35B-A3B",
    "Qwen3.6-27B",
    "Qwen3.8-27B",
)

# hidden, ff, layers, heads, kv heads, DeltaNet value heads
_DENSE: Mapping[str, tuple[int, int, int, int, int, int]] = {
    "0.8B": (1024, 3584, 24, 8, 2, 16),
    "2B": (2048, 6144, 24, 8, 2, 16),
    "4B": (2560, 9216, 32, 16, 4, 32),
    "9B": (4096, 12288, 32, 16, 4, 32),
    "27B": (5120, 17408, 64, 24, 4, 48),
    "35B-A3B": (2048, 512, 40, 16, 2, 32),
}
_SIZE = re.compile(r"Qwen3\.[568]-(0\.8B|2B|4B|9B|27B|35B-A3B)(?![\w.])", re.IGNORECASE)


def offer(repo: str) -> Offer | None:
    return next((known for known in CATALOGUE if known.repo.lower() == repo.lower()), None)


def known_config(name: str, mtp: bool) -> ModelConfig | None:
    """The shape of the model that a repository or file is named after; None if it is not one of the family's."""
    found = _SIZE.search(name)
    if found is None:
        return None
    size = found[1].upper()
    hidden, ff, layers, heads, kv_heads, value_heads = _DENSE[size]
    arch = "qwen35moe" if size == "35B-A3B" else "qwen35"
    values = {
        "embedding_length": hidden,
        "block_count": layers + mtp,
        "nextn_predict_layers": int(mtp),
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "context_length": 262_144,
        "rope.dimension_count": 64,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": 128 * value_heads,
    }
    if arch == "qwen35moe":
        values |= {"expert_count": 256, "expert_used_count": 8, "expert_feed_forward_length": ff}
    else:
        values |= {"feed_forward_length": ff}
    metadata: dict[str, Any] = {f"{arch}.{key}": value for key, value in values.items()}
    return ModelConfig.from_metadata({"general.architecture": arch, **metadata})
