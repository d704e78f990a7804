"""The shape of a Qwen3.5/3.6 model, read from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from runtime.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Number = TypeVar("Number", int, float)

_MOST_LAYERS = 1024  # ten times as many as any model of the family has

# What the native functions have room for (`kernels.cpu`); the family has 128 and 4.
_MOST_HEAD_DIM, _MOST_TAPS = 1024, 17


class ModelError(UserError):
    """A file that cannot be run as a model; one sentence for the user."""

    kind = "load"


class UnknownTokenError(UserError):
    """A token that the model does not know; one sentence for the user."""

    def __init__(self, id: int, vocabulary: int) -> None:
        super().__init__(f"The model knows the tokens 0 to {vocabulary - 1:,}, and {id:,} is none of them.")


@dataclass(frozen=True)
class DeltaNetConfig:
    key_heads: int
    value_heads: int
    head_dim: int
    conv_kernel: int

    def __post_init__(self) -> None:
        if min(self.key_heads, self.value_heads, self.head_dim) < 1 or self.conv_kernel < 2:
            raise ModelError("The file's DeltaNet dimensions (ssm.*) are not positive numbers.")
        if self.head_dim > _MOST_HEAD_DIM or self.conv_kernel > _MOST_TAPS:
            raise ModelError(
                f"The file has DeltaNet heads of {self.head_dim:,} dimensions and a convolution kernel of "
                f"{self.conv_kernel:,}; at most {_MOST_HEAD_DIM:,} and {_MOST_TAPS} can be run."
            )
        if self.value_heads % self.key_heads:
            raise ModelError(
                f"The file has {self.value_heads} DeltaNet value heads for {self.key_heads} key heads; "
                "the one must be a multiple of the other."
            )

    @property
    def key_dim(self) -> int:
        return self.key_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        return self.value_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_dim + self.value_dim

    def heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k [T, Hk, D] and v [T, Hv, D] of the convolution's results [T, C], views."""
        q, k, v = mixed.split([self.key_dim, self.key_dim, self.value_dim], dim=-1)
        rows, dim = len(mixed), self.head_dim
        return q.view(rows, -1, dim), k.view(rows, -1, dim), v.view(rows, -1, dim)


@dataclass(frozen=True)
class MoEConfig:
    experts: int
    used: int
    ff: int
    shared_ff: int

    def __post_init__(self) -> None:
        if not 0 < self.used <= self.experts:
            raise ModelError(f"The file uses {self.used} of {self.experts} experts per token, which is impossible.")


@dataclass(frozen=True)
class YarnConfig:
    """`attention_factor` None: 1 + 0.1 ln(factor)."""

    factor: float
    original_context: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class RopeConfig:
    base: float
    dim: int  # rotated dimensions of each head
    sections: tuple[int, int, int]  # frequencies that follow the temporal, height and width position
    yarn: YarnConfig | None = None

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise ModelError(f"The file rotates {self.dim} dimensions of each head; it must be an even number.")


@dataclass(frozen=True)
class ModelConfig:
    architecture: str
    hidden: int
    layers: int  # of the trunk, the MTP block not counted
    recurrent: tuple[bool, ...]  # per trunk layer: Gated DeltaNet, else full attention
    ff: int  # of the dense feed-forward; 0 for MoE
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    trained_context: int
    rope: RopeConfig
    delta: DeltaNetConfig
    moe: MoEConfig | None
    mtp_layers: int

    def __post_init__(self) -> None:
        if len(self.recurrent) != self.layers:
            raise ModelError(f"The file tells the kind of {len(self.recurrent)} layers, but has {self.layers}.")
        if self.heads < 1 or self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ModelError(f"The file has {self.heads} attention heads for {self.kv_heads} key/value heads.")
        if self.rope.dim > self.head_dim:
            raise ModelError(f"The file rotates {self.rope.dim} dimensions of heads that have {self.head_dim}.")

    @property
    def attention_layers(self) -> int:
        return self.recurrent.count(False)

    @property
    def prefill_chunk(self) -> int:
        """Tokens of a prompt that are read at a time. More are no faster, and take memory by the token; but where each
        token chooses experts, those must have rows enough to be worth unpacking.
        """
        return 512 if self.moe else 256

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ModelConfig:
        """Raises ModelError naming the key that is missing, mistyped or impossible."""
        architecture = str(metadata.get("general.architecture", ""))
        keys = _Keys(metadata, architecture + ".")
        mtp_layers = keys.get("nextn_predict_layers", int, 0)
        layers = keys.get("block_count", int) - mtp_layers
        if not 1 <= layers <= _MOST_LAYERS or mtp_layers not in (0, 1):
            raise ModelError(
                f"The file names {layers} layers and {mtp_layers} MTP blocks; "
                f"1 to {_MOST_LAYERS:,} layers and at most one MTP block can be run."
            )
        moe = architecture.endswith("moe")
        head_dim = keys.get("attention.key_length", int)
        if keys.get("attention.value_length", int, head_dim) != head_dim:
            raise ModelError("The file has attention keys and values of different length, which this family has not.")
        return cls(
            architecture=architecture,
            hidden=keys.positive("embedding_length", int),
            layers=layers,
            recurrent=_recurrent_layers(keys, layers),
            ff=0 if moe else keys.positive("feed_forward_length", int),
            heads=keys.per_layer("attention.head_count"),
            kv_heads=keys.per_layer("attention.head_count_kv"),
            head_dim=head_dim,
            eps=keys.positive("attention.layer_norm_rms_epsilon", float),
            trained_context=keys.positive("context_length", int),
            rope=_rope(keys, head_dim),
            delta=_delta(keys),
            moe=_moe(keys) if moe else None,
            mtp_layers=mtp_layers,
        )


@dataclass(frozen=True)
class _Keys:
    """Typed look-ups below the architecture's prefix."""

    metadata: Mapping[str, Any]
    prefix: str

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.metadata.get(self.prefix + key, default)
        if value is None:
            raise ModelError(f"The file lacks {self.prefix}{key}, without which the model's shape is not known.")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelError(f"The file's {self.prefix}{key} is {value!r:.60}, not of type {kind.__name__}.")
        return value

    def positive(self, key: str, kind: type[Number], default: Number | None = None) -> Number:
        value = self.get(key, kind, default)
        if not 0 < value < math.inf:  # nor NaN
            raise ModelError(f"The file's {self.prefix}{key} is {value}; it must be a positive number.")
        return value

    def given(self, key: str) -> bool:
        return self.prefix + key in self.metadata

    def per_layer(self, key: str) -> int:
        """A number, or an array with one for each layer and 0 where it does not apply."""
        if not isinstance(self.metadata.get(self.prefix + key), list):
            return self.get(key, int)
        counts = [count for count in self.get(key, list) if count]
        if not counts or any(type(count) is not int or count != counts[0] for count in counts):
            raise ModelError(f"The file's {self.prefix}{key} differs between layers, which this family has not.")
        return cast(int, counts[0])


def _recurrent_layers(keys: _Keys, layers: int) -> tuple[bool, ...]:
    if keys.given("attention.recurrent_layers"):
        return tuple(bool(kind) for kind in keys.get("attention.recurrent_layers", list)[:layers])
    interval = keys.get("full_attention_interval", int, 4)
    if interval < 1:
        raise ModelError(f"The file's {keys.prefix}full_attention_interval is {interval}; it must be at least 1.")
    return tuple((i + 1) % interval != 0 for i in range(layers))


def _rope(keys: _Keys, head_dim: int) -> RopeConfig:
    dim = keys.get("rope.dimension_count", int, head_dim)
    sections = keys.get("rope.dimension_sections", list, [])[:3]
    if not all(type(section) is int and section >= 0 for section in sections):
        raise ModelError(f"The file's {keys.prefix}rope.dimension_sections are {sections!r:.60}, not counts.")
    yarn = None
    scaling, attention = keys.get("rope.scaling.type", str, "none"), "rope.scaling.attn_factor"
    if scaling == "yarn":
        yarn = YarnConfig(
            factor=keys.positive("rope.scaling.factor", float),
            original_context=keys.positive("rope.scaling.original_context_length", int),
            attention_factor=keys.positive(attention, float) if keys.given(attention) else None,
            beta_fast=keys.positive("rope.scaling.yarn_beta_fast", float, 32.0),
            beta_slow=keys.positive("rope.scaling.yarn_beta_slow", float, 1.0),
        )
    elif scaling != "none":
        raise ModelError(f"The file scales its positions by {scaling!r:.40}; only yarn is known for this family.")
    base = keys.positive("rope.freq_base", float, 1e7)
    if base <= 1:
        raise ModelError(f"The file's {keys.prefix}rope.freq_base is {base}; positions need one above 1.")
    return RopeConfig(
        base=base,
        dim=dim,
        sections=(sections[0], sections[1], sections[2]) if len(sections) == 3 else (dim // 2, 0, 0),
        yarn=yarn,
    )


def _delta(keys: _Keys) -> DeltaNetConfig:
    config = DeltaNetConfig(
        key_heads=keys.get("ssm.group_count", int),
        value_heads=keys.get("ssm.time_step_rank", int),
        head_dim=keys.get("ssm.state_size", int),
        conv_kernel=keys.get("ssm.conv_kernel", int),
    )
    inner = keys.get("ssm.inner_size", int, config.value_dim)
    if inner != config.value_dim:
        raise ModelError(
            f"The file's {keys.prefix}ssm.inner_size is {inner}, "
            f"but {config.value_heads} value heads of {config.head_dim} make {config.value_dim}."
        )
    return config


def _moe(keys: _Keys) -> MoEConfig:
    ff = keys.positive("expert_feed_forward_length", int)
    return MoEConfig(
        experts=keys.get("expert_count", int),
        used=keys.get("expert_used_count", int),
        ff=ff,
        shared_ff=keys.positive("expert_shared_feed_forward_length", int, ff),
    )
