"""A tiny GGUF model in transformers: fp32 on the dequantised weights, the MTP block from its own decoder layer."""

from __future__ import annotations

import re
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from tiny_models import TinyModel
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeDecoderLayer

# GGUF name within a block → name within a transformers decoder layer.
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}


class Oracle:
    """Known outputs of one tiny model. Token ids are 1-D; every result is float32 or int64 NumPy."""

    def __init__(self, m: TinyModel, stored: dict[str, tuple[np.ndarray, Q]]) -> None:
        tensors = {
            name: torch.from_numpy(np.array(gguf.quants.dequantize(packed, qtype), np.float32))
            for name, (packed, qtype) in stored.items()
        }
        blocks = [_layer_weights(m, tensors, block) for block in range(m.blocks)]
        config = text_config(m)
        self.model = (Qwen3_5MoeForCausalLM if m.experts else Qwen3_5ForCausalLM)(config).eval()
        weights = {
            "model.embed_tokens.weight": tensors["token_embd.weight"],
            "lm_head.weight": tensors["token_embd.weight" if m.tied else "output.weight"],
            "model.norm.weight": tensors["output_norm.weight"] - 1,
        }
        for number, layer in enumerate(blocks[: m.layers]):
            weights |= {f"model.layers.{number}.{name}": values for name, values in layer.items()}
        self.model.load_state_dict(weights, strict=True)
        self.mtp = MtpBlock(m, tensors, blocks[-1], self.model) if m.mtp else None

    @torch.no_grad()
    def forward(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Hidden states after the output norm [T, H] and logits [T, V]."""
        hidden = self.model.model(torch.tensor([ids])).last_hidden_state[0]
        return hidden, self.model.lm_head(hidden)

    def greedy(self, prompt: list[int], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens, each from one forward over the whole sequence, and how far each led the second best."""
        ids, margins = list(prompt), []
        for _ in range(length):
            best = self.forward(ids)[1][-1].topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
        return np.array(ids[len(prompt) :]), np.array(margins, np.float32)


class MtpBlock:
    """Drafts token t+2 from the trunk's normed hidden state at t and token t+1."""

    def __init__(self, m: TinyModel, tensors: dict[str, Tensor], layer: dict[str, Tensor], model: Any) -> None:
        prefix = f"blk.{m.layers}.nextn."

        def norm(name: str) -> Any:
            module = Qwen3_5RMSNorm(m.hidden)
            module.weight.data = tensors[prefix + name] - 1
            return module

        self.rotary = model.model.rotary_emb
        self.enorm, self.hnorm = norm("enorm.weight"), norm("hnorm.weight")
        self.norm = norm("shared_head_norm.weight") if m.mtp_owns_norm else model.model.norm
        self.eh_proj = tensors[prefix + "eh_proj.weight"]
        self.embed = tensors[prefix + "embed_tokens.weight" if m.mtp_owns_head else "token_embd.weight"]
        self.head = tensors[prefix + "shared_head_head.weight"] if m.mtp_owns_head else model.lm_head.weight
        attention = model.config.layer_types.index("full_attention")
        self.layer = (Qwen3_5MoeDecoderLayer if m.experts else Qwen3_5DecoderLayer)(model.config, attention).eval()
        self.layer.load_state_dict(layer, strict=True)

    @torch.no_grad()
    def forward(self, hidden: Tensor, next_ids: list[int]) -> tuple[Tensor, Tensor]:
        """Normed outputs [T, H] and logits [T, V] for hidden states [T, H] and the token after each."""
        embedded = torch.nn.functional.embedding(torch.tensor(next_ids), self.embed)
        x = torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1)[None] @ self.eh_proj.T
        n = len(next_ids)
        positions = torch.arange(n).expand(3, 1, n)
        mask = torch.full((1, 1, n, n), -torch.inf).triu(1)
        y = self.norm(self.layer(x, self.rotary(x, positions), attention_mask=mask)[0])
        return y, y @ self.head.T

    def chain(self, hidden: Tensor, next_ids: list[int], length: int) -> np.ndarray:
        """A greedy draft: each step feeds the block its own normed output and its own token."""
        ids, draft = list(next_ids), []
        for _ in range(length):
            normed, logits = self.forward(hidden, ids)
            draft.append(int(logits[-1].argmax()))
            ids.append(draft[-1])
            hidden = torch.cat([hidden, normed[-1:]])
        return np.array(draft)


def text_config(m: TinyModel) -> Qwen3_5TextConfig | Qwen3_5MoeTextConfig:
    rope = {
        "rope_type": "yarn" if m.yarn_factor else "default",
        "rope_theta": m.rope_base,
        "partial_rotary_factor": m.rotary_dim / m.head_dim,
        "mrope_section": list(m.rope_sections),
        "mrope_interleaved": True,
    }
    if m.yarn_factor:
        rope |= {"factor": m.yarn_factor, "original_max_position_embeddings": m.original_context}
    common = {
        "vocab_size": m.vocab,
        "hidden_size": m.hidden,
        "num_hidden_layers": m.layers,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.head_dim,
        "max_position_embeddings": m.context,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": m.tied,
        "rope_parameters": rope,
        "linear_conv_kernel_dim": m.conv,
        "linear_key_head_dim": m.delta_dim,
        "linear_value_head_dim": m.delta_dim,
        "linear_num_key_heads": m.key_heads,
        "linear_num_value_heads": m.value_heads,
        "layer_types": ["full_attention" if m.is_attention(n) else "linear_attention" for n in range(m.layers)],
        "attn_implementation": "eager",
    }
    if m.experts:
        return Qwen3_5MoeTextConfig(
            **common,
            num_experts=m.experts,
            num_experts_per_tok=m.experts_used,
            moe_intermediate_size=m.expert_ff,
            shared_expert_intermediate_size=m.shared_ff,
        )
    return Qwen3_5TextConfig(**common, intermediate_size=m.ff)


def _layer_weights(m: TinyModel, tensors: dict[str, Tensor], block: int) -> dict[str, Tensor]:
    """One block under its transformers names."""
    found = {}
    for name, values in tensors.items():
        if (part := name.removeprefix(f"blk.{block}.")) != name and not part.startswith("nextn."):
            found[part] = values
    if "ffn_gate_exps.weight" in found:
        gate, up = found.pop("ffn_gate_exps.weight"), found.pop("ffn_up_exps.weight")
        found["ffn_gate_up_exps.weight"] = torch.cat([gate, up], 1)
    return {LAYER_NAMES[name]: _converted(m, name, values) for name, values in found.items()}


def _converted(m: TinyModel, name: str, x: Tensor) -> Tensor:
    """Undoes what the conversion to GGUF does to one tensor."""
    if re.search(r"(attn|attention|attn_q|attn_k)_norm\.weight", name):
        return x - 1
    qk = 2 * m.key_dim
    match name.removesuffix(".weight"):
        case "attn_qkv":
            return torch.cat([x[:qk], _grouped(m, x[qk:])])
        case "ssm_conv1d":
            return torch.cat([x[:qk], _grouped(m, x[qk:])])[:, None]
        case "attn_gate" | "ssm_alpha" | "ssm_beta" | "ssm_dt.bias":
            return _grouped(m, x)
        case "ssm_a":
            return torch.log(-_grouped(m, x))
        case "ssm_out":
            return _grouped(m, x.T).T
    return x


def _grouped(m: TinyModel, x: Tensor) -> Tensor:
    """Value heads along the first axis, from the file's order, where head p reads key head p mod key_heads, to
    transformers' order, where the heads of one key head are neighbours.
    """
    ratio = m.value_heads // m.key_heads
    return x.reshape(ratio, m.key_heads, -1, *x.shape[1:]).transpose(0, 1).reshape(x.shape)
