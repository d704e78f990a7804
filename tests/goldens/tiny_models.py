"""Four tiny models of the family with random weights: their shapes, their tensors, their GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from tiny_vocabulary import CHAT_TEMPLATE, Vocabulary, vocabulary

Array = np.ndarray

# Byte offsets of a block's float16 scale, and of its float16 minimum where it has one (ggml-common.h).
SCALES: dict[Q, tuple[int, ...]] = {
    Q.Q2_K: (80, 82),
    Q.Q3_K: (108,),
    Q.Q4_K: (0, 2),
    Q.Q5_K: (0, 2),
    Q.Q6_K: (208,),
    Q.IQ4_NL: (0,),
    Q.IQ4_XS: (0,),
    Q.IQ3_S: (0,),
}


@dataclass(frozen=True)
class TinyModel:
    """One file. `types`: tensor name without block and suffix → its type in each block, cycled; the rest is F16."""

    name: str
    seed: int
    arch: str = "qwen35"
    layers: int = 4
    attention_interval: int = 4
    mtp: bool = True
    mtp_owns_head: bool = False  # nextn.embed_tokens and nextn.shared_head_head
    mtp_owns_norm: bool = True  # nextn.shared_head_norm
    tied: bool = False
    vocab: int = 320
    hidden: int = 32
    ff: int = 96
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    rotary_dim: int = 8
    rope_sections: tuple[int, int, int] = (2, 1, 1)
    rope_base: float = 100.0  # low, so that 100 tokens turn every pair of dimensions
    yarn_factor: float | None = None
    context: int = 2048
    original_context: int = 2048
    key_heads: int = 2
    value_heads: int = 4
    delta_dim: int = 16
    conv: int = 4
    experts: int = 0
    experts_used: int = 0
    expert_ff: int = 0
    shared_ff: int = 0
    fused_blocks: tuple[int, ...] = ()  # blocks whose experts have ffn_gate_up_exps
    layer_kinds_in_file: bool = True  # attention.recurrent_layers beside full_attention_interval
    kv_heads_as_array: bool = False
    types: dict[str, tuple[Q, ...]] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        return self.layers + self.mtp

    @property
    def key_dim(self) -> int:
        return self.key_heads * self.delta_dim

    @property
    def value_dim(self) -> int:
        return self.value_heads * self.delta_dim

    def is_attention(self, block: int) -> bool:
        return block >= self.layers or (block + 1) % self.attention_interval == 0


MODELS = (
    TinyModel("tiny-dense", seed=1),
    TinyModel(
        "tiny-moe",
        seed=2,
        arch="qwen35moe",
        layers=3,
        attention_interval=3,
        mtp_owns_norm=False,
        tied=True,
        rotary_dim=16,
        rope_sections=(3, 3, 2),
        value_heads=6,
        experts=5,
        experts_used=2,
        expert_ff=24,
        shared_ff=40,
        fused_blocks=(0, 1),
        layer_kinds_in_file=False,
    ),
    TinyModel(
        "tiny-quants",
        seed=3,
        ff=256,
        mtp_owns_head=True,
        types={
            "token_embd": (Q.Q8_0,),
            "output": (Q.Q5_1,),
            "attn_qkv": (Q.Q8_0, Q.Q4_1, Q.Q5_0),
            "attn_gate": (Q.Q4_0, Q.BF16, Q.IQ4_NL),
            "ssm_out": (Q.Q5_1, Q.IQ4_NL, Q.Q8_0),
            "ssm_alpha": (Q.F32, Q.Q8_0, Q.BF16),
            "ssm_beta": (Q.Q8_0, Q.F32, Q.F16),
            "attn_q": (Q.Q4_0, Q.Q5_0),
            "attn_k": (Q.Q5_1, Q.Q8_0),
            "attn_v": (Q.Q8_0, Q.MXFP4),
            "attn_output": (Q.Q4_1, Q.Q4_0),
            "ffn_gate": (Q.Q4_0, Q.Q5_0, Q.MXFP4, Q.IQ4_NL, Q.Q4_1),
            "ffn_up": (Q.MXFP4, Q.Q4_0, Q.Q5_1, Q.Q4_1, Q.Q8_0),
            "ffn_down": (Q.Q4_K, Q.Q6_K, Q.IQ4_XS, Q.Q3_K, Q.Q5_K),
            "nextn.eh_proj": (Q.Q8_0,),
            "nextn.embed_tokens": (Q.Q4_0,),
            "nextn.shared_head_head": (Q.Q5_0,),
        },
    ),
    TinyModel(
        "tiny-yarn",
        seed=4,
        layers=2,
        attention_interval=2,
        mtp=False,
        tied=True,
        rotary_dim=16,
        rope_sections=(3, 3, 2),
        yarn_factor=4.0,
        context=128,
        original_context=32,
        kv_heads_as_array=True,
    ),
)


def shapes(m: TinyModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    """GGUF tensor names with their shapes, rows first."""
    yield "token_embd.weight", (m.vocab, m.hidden)
    if not m.tied:
        yield "output.weight", (m.vocab, m.hidden)
    yield "output_norm.weight", (m.hidden,)
    for block in range(m.blocks):
        for name, shape in _block_shapes(m, block):
            yield f"blk.{block}.{name}", shape


def _block_shapes(m: TinyModel, block: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "attn_norm.weight", (m.hidden,)
    yield "post_attention_norm.weight", (m.hidden,)
    if m.is_attention(block):
        yield "attn_q.weight", (2 * m.heads * m.head_dim, m.hidden)
        yield "attn_k.weight", (m.kv_heads * m.head_dim, m.hidden)
        yield "attn_v.weight", (m.kv_heads * m.head_dim, m.hidden)
        yield "attn_output.weight", (m.hidden, m.heads * m.head_dim)
        yield "attn_q_norm.weight", (m.head_dim,)
        yield "attn_k_norm.weight", (m.head_dim,)
    else:
        channels = 2 * m.key_dim + m.value_dim
        yield "attn_qkv.weight", (channels, m.hidden)
        yield "attn_gate.weight", (m.value_dim, m.hidden)
        yield "ssm_alpha.weight", (m.value_heads, m.hidden)
        yield "ssm_beta.weight", (m.value_heads, m.hidden)
        yield "ssm_a", (m.value_heads,)
        yield "ssm_dt.bias", (m.value_heads,)
        yield "ssm_conv1d.weight", (channels, m.conv)
        yield "ssm_norm.weight", (m.delta_dim,)
        yield "ssm_out.weight", (m.hidden, m.value_dim)
    if m.experts:
        yield "ffn_gate_inp.weight", (m.experts, m.hidden)
        if block in m.fused_blocks:
            yield "ffn_gate_up_exps.weight", (m.experts, 2 * m.expert_ff, m.hidden)
        else:
            yield "ffn_gate_exps.weight", (m.experts, m.expert_ff, m.hidden)
            yield "ffn_up_exps.weight", (m.experts, m.expert_ff, m.hidden)
        yield "ffn_down_exps.weight", (m.experts, m.hidden, m.expert_ff)
        yield "ffn_gate_inp_shexp.weight", (1, m.hidden)
        yield "ffn_gate_shexp.weight", (m.shared_ff, m.hidden)
        yield "ffn_up_shexp.weight", (m.shared_ff, m.hidden)
        yield "ffn_down_shexp.weight", (m.hidden, m.shared_ff)
    else:
        yield "ffn_gate.weight", (m.ff, m.hidden)
        yield "ffn_up.weight", (m.ff, m.hidden)
        yield "ffn_down.weight", (m.hidden, m.ff)
    if block >= m.layers:
        yield "nextn.eh_proj.weight", (m.hidden, 2 * m.hidden)
        yield "nextn.enorm.weight", (m.hidden,)
        yield "nextn.hnorm.weight", (m.hidden,)
        if m.mtp_owns_norm:
            yield "nextn.shared_head_norm.weight", (m.hidden,)
        if m.mtp_owns_head:
            yield "nextn.embed_tokens.weight", (m.vocab, m.hidden)
            yield "nextn.shared_head_head.weight", (m.vocab, m.hidden)


def stored_tensors(m: TinyModel) -> dict[str, tuple[Array, Q]]:
    """The tensors as the file holds them: packed values and their type."""
    rng = np.random.default_rng(m.seed)
    tensors = {}
    for name, shape in shapes(m):
        qtype = _type_of(m, name, shape)
        if qtype in SCALES:
            tensors[name] = _random_blocks(rng, qtype, shape), qtype
        else:
            tensors[name] = gguf.quants.quantize(_random_values(m, rng, name, shape), qtype), qtype
    return tensors


def _split(name: str) -> tuple[int, str]:
    """Block number, 0 outside the blocks, and the rest of the name without its suffix."""
    block, plain = 0, name.removesuffix(".weight")
    if plain.startswith("blk."):
        _, number, plain = plain.split(".", 2)
        block = int(number)
    return block, plain


def _type_of(m: TinyModel, name: str, shape: tuple[int, ...]) -> Q:
    if len(shape) == 1 or "ssm_conv1d" in name or "ffn_gate_inp" in name:
        return Q.F32
    block, plain = _split(name)
    choices = m.types.get(plain, (Q.F16,))
    # Attention blocks are rare: count them, so that a cycle of two gives the MTP block the second type.
    turn = block // m.attention_interval if m.is_attention(block) and not plain.startswith("ffn") else block
    return choices[turn % len(choices)]


def _random_values(m: TinyModel, rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Values of which each one matters: no norm weight near 1, heads that forget at once beside heads that keep."""
    _, plain = _split(name)
    if plain.endswith("norm"):
        mean = 1.4 if plain in ("attn_q_norm", "attn_k_norm") else 1.0
        values = mean + 0.3 * rng.standard_normal(shape)
    elif plain == "ssm_a":
        values = -rng.permutation(np.geomspace(0.02, 16.0, shape[0]))
    elif plain == "ssm_dt.bias":
        values = rng.uniform(-3.0, 1.5, shape)
    elif plain == "ssm_conv1d":
        values = 0.6 * rng.standard_normal(shape)
    elif plain == "token_embd":
        values = (0.7 if m.tied else 1.0) * rng.standard_normal(shape)
    else:
        values = _gain(m, plain) * shape[-1] ** -0.5 * rng.standard_normal(shape)
    return values.astype(np.float32)


def _gain(m: TinyModel, plain: str) -> float:
    if plain in ("output", "nextn.shared_head_head"):
        return 4.0
    if plain == "ffn_gate_inp":
        return 3.0
    # A tied model whose blocks add little repeats its input for ever.
    return 3.0 if m.tied and plain.startswith(("attn_output", "ssm_out", "ffn_down")) else 1.0


def _random_blocks(rng: np.random.Generator, qtype: Q, shape: tuple[int, ...]) -> Array:
    """Random bits in every field, under scales that give the weights mean 0 and deviation 1/√cols."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    byte_shape = gguf.quant_shape_to_byte_shape(shape, qtype)
    packed = rng.integers(0, 256, byte_shape, np.uint8)
    blocks = packed.reshape(-1, block_bytes)  # a view

    def unpack(*scales: float) -> Array:
        for offset, scale in zip(SCALES[qtype], scales, strict=True):
            blocks[:, offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
        return gguf.quants.dequantize(packed, qtype)

    scales = [1.0]
    if len(SCALES[qtype]) == 2:
        scales = [1.0, -float(unpack(1.0, 0.0).mean() / unpack(0.0, 1.0).mean())]
    unit = float(unpack(*scales).std()) * shape[-1] ** 0.5
    unpack(*(scale / unit for scale in scales))
    return packed


def write_gguf(m: TinyModel, tensors: dict[str, tuple[Array, Q]], path: Path) -> None:
    out = gguf.GGUFWriter(path, m.arch)
    _add_metadata(out, m)
    _add_vocabulary(out, vocabulary(m.vocab))
    for name, (values, qtype) in tensors.items():
        out.add_tensor(name, values, raw_dtype=qtype)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _add_metadata(out: gguf.GGUFWriter, m: TinyModel) -> None:
    out.add_type("model")
    out.add_name(m.name)
    out.add_block_count(m.blocks)
    out.add_context_length(m.context)
    out.add_embedding_length(m.hidden)
    if not m.experts:
        out.add_feed_forward_length(m.ff)
    out.add_head_count(m.heads)
    kv_by_block = [m.kv_heads if m.is_attention(block) else 0 for block in range(m.blocks)]
    out.add_head_count_kv(kv_by_block if m.kv_heads_as_array else m.kv_heads)
    out.add_key_length(m.head_dim)
    out.add_value_length(m.head_dim)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_freq_base(m.rope_base)
    out.add_rope_dimension_count(m.rotary_dim)
    out.add_rope_dimension_sections([*m.rope_sections, 0])
    if m.yarn_factor:
        out.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        out.add_rope_scaling_factor(m.yarn_factor)
        out.add_rope_scaling_orig_ctx_len(m.original_context)
    if m.mtp:
        out.add_nextn_predict_layers(1)
    out.add_full_attention_interval(m.attention_interval)
    if m.layer_kinds_in_file:
        recurrent = [not m.is_attention(block) for block in range(m.blocks)]
        out.add_array(f"{m.arch}.attention.recurrent_layers", recurrent)
    out.add_ssm_conv_kernel(m.conv)
    out.add_ssm_state_size(m.delta_dim)
    out.add_ssm_group_count(m.key_heads)
    out.add_ssm_time_step_rank(m.value_heads)
    out.add_ssm_inner_size(m.value_dim)
    if m.experts:
        out.add_expert_count(m.experts)
        out.add_expert_used_count(m.experts_used)
        out.add_expert_feed_forward_length(m.expert_ff)
        out.add_expert_shared_feed_forward_length(m.shared_ff)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if m.types else gguf.LlamaFileType.MOSTLY_F16)
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_vocabulary(out: gguf.GGUFWriter, words: Vocabulary) -> None:
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen35")
    out.add_token_list(words.tokens)
    out.add_token_types(words.types)
    out.add_token_merges(words.merges)
    out.add_eos_token_id(words.tokens.index("<|im_end|>"))
    out.add_pad_token_id(words.tokens.index("<|endoftext|>"))
    out.add_add_bos_token(False)
    out.add_chat_template(CHAT_TEMPLATE)
