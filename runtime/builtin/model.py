"""The training form of the built-in model: architecture qwen35, whole sequences, plain PyTorch.

Parameters carry the names and layouts of the GGUF file, so `export` is a loop: norm weights as they multiply, value
heads tiled over key heads, queries and gates interleaved per head. Only `ssm_a_log` differs: the file holds −e^x of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from runtime.builtin.delta import chunked_delta_rule, delta_step

EPS = 1e-6
RESET = -40.0  # a decay exponent that empties the state where a document begins


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Widths are multiples of 32, the block of Q8_0; every `interval`-th layer is full attention."""

    vocabulary: int = 3072
    hidden: int = 224
    ff: int = 608
    layers: int = 8
    interval: int = 4
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 64
    rope_dim: int = 16
    rope_base: float = 10_000.0
    key_heads: int = 3
    value_heads: int = 6
    state_dim: int = 32
    conv: int = 4
    chunk: int = 32

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads or self.heads % self.kv_heads:
            raise ValueError("value heads must be a multiple of key heads, and heads of kv heads")
        if self.vocabulary % 32 or self.hidden % 32 or self.ff % 32:
            raise ValueError("vocabulary, hidden and ff must be multiples of 32")

    @property
    def key_width(self) -> int:
        return self.key_heads * self.state_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.state_dim

    def recurrent(self, layer: int) -> bool:
        """Whether trunk layer `layer` is a Gated DeltaNet."""
        return (layer + 1) % self.interval != 0


@dataclass(frozen=True, slots=True)
class Packed:
    """What the layers need to know of a batch of packed documents.

    `same` [conv − 1, B, T, 1] says whether the token j + 1 before belongs to the same document, `reset` [B, T, 1] is
    added to the decay, `cos` and `sin` [B, 1, T, rope_dim], `mask` [B, 1, T, T] is added to attention scores.
    """

    same: Tensor
    reset: Tensor
    cos: Tensor
    sin: Tensor
    mask: Tensor


@dataclass(slots=True)
class LayerState:
    """What one layer carries from token to token: conv window and state, or keys and values."""

    window: Tensor | None = None  # [B, conv − 1, width]
    memory: Tensor | None = None  # [B, value_heads, state_dim, state_dim]
    keys: Tensor | None = None  # [B, kv_heads, T, head_dim]
    values: Tensor | None = None


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.weight


class Bias(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))


class DepthwiseConv(nn.Module):
    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, taps).uniform_(-(taps**-0.5), taps**-0.5))


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    """A mixer and a SwiGLU, each behind its norm, each added to the stream [B, T, hidden]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.attn_norm = RMSNorm(config.hidden)
        self.post_attention_norm = RMSNorm(config.hidden)
        self.ffn_gate = linear(config.hidden, config.ff)
        self.ffn_up = linear(config.hidden, config.ff)
        self.ffn_down = linear(config.ff, config.hidden)

    def feed_forward(self, x: Tensor) -> Tensor:
        h = self.post_attention_norm(x)
        gate, up = functional.linear(h, torch.cat([self.ffn_gate.weight, self.ffn_up.weight])).chunk(2, -1)
        out: Tensor = x + self.ffn_down(functional.silu(gate) * up)
        return out


class DeltaBlock(Block):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        width = 2 * config.key_width + config.value_width
        self.attn_qkv = linear(config.hidden, width)
        self.attn_gate = linear(config.hidden, config.value_width)
        self.ssm_alpha = linear(config.hidden, config.value_heads)
        self.ssm_beta = linear(config.hidden, config.value_heads)
        self.ssm_a_log = nn.Parameter(torch.empty(config.value_heads).uniform_(1, 8).log())
        self.ssm_dt = Bias(config.value_heads)
        self.ssm_conv1d = DepthwiseConv(width, config.conv)
        self.ssm_norm = RMSNorm(config.state_dim)
        self.ssm_out = linear(config.value_width, config.hidden)
        with torch.no_grad():  # time constants log-uniform: the usual start forgets nearly everything at each token
            dt = torch.empty(config.value_heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
            self.ssm_dt.bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        c = self.config
        mixed, z, alpha, beta = self._project(self.attn_norm(x))
        w = self.ssm_conv1d.weight  # [width, taps], the last tap is the present
        T = x.shape[1]
        conv = mixed * w[:, -1]
        for j in range(1, c.conv):
            conv = conv + functional.pad(mixed[:, : T - j], (0, 0, j, 0)) * packed.same[j - 1] * w[:, -1 - j]
        with torch.autocast(x.device.type, enabled=False):
            q, k, v = self._heads(functional.silu(conv.float()))
            g = self._decay(alpha) + packed.reset
            o = chunked_delta_rule(q, k, v, g, beta.float().sigmoid(), c.chunk)
        return self.feed_forward(x + self._output(o, z))

    def step(self, x: Tensor, state: LayerState) -> Tensor:
        """One token x [B, hidden], advancing `state`."""
        c = self.config
        mixed, z, alpha, beta = self._project(self.attn_norm(x))
        if state.window is None or state.memory is None:
            state.window = mixed.new_zeros(x.shape[0], c.conv - 1, mixed.shape[-1])
            state.memory = mixed.new_zeros(x.shape[0], c.value_heads, c.state_dim, c.state_dim)
        window = torch.cat([state.window, mixed.unsqueeze(1)], 1)
        state.window = window[:, 1:]
        q, k, v = self._heads(functional.silu((window * self.ssm_conv1d.weight.T).sum(1)))
        o, state.memory = delta_step(state.memory, q, k, v, self._decay(alpha), beta.sigmoid())
        return self.feed_forward(x + self._output(o, z))

    def _project(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        c = self.config
        weight = torch.cat([self.attn_qkv.weight, self.attn_gate.weight, self.ssm_alpha.weight, self.ssm_beta.weight])
        parts = functional.linear(h, weight).split(
            [2 * c.key_width + c.value_width, c.value_width, c.value_heads, c.value_heads], -1
        )
        return parts[0], parts[1], parts[2], parts[3]

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        q, k, v = mixed.split([c.key_width, c.key_width, c.value_width], -1)
        q = q.unflatten(-1, (c.key_heads, c.state_dim))
        k = k.unflatten(-1, (c.key_heads, c.state_dim))
        q = q * (torch.rsqrt(q.square().sum(-1, keepdim=True) + EPS) * c.state_dim**-0.5)
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + EPS)
        return q, k, v.unflatten(-1, (c.value_heads, c.state_dim))

    def _decay(self, alpha: Tensor) -> Tensor:
        return -self.ssm_a_log.exp() * functional.softplus(alpha.float() + self.ssm_dt.bias)

    def _output(self, o: Tensor, z: Tensor) -> Tensor:
        gated = self.ssm_norm(o) * functional.silu(z.float()).unflatten(
            -1, (self.config.value_heads, self.config.state_dim)
        )
        out: Tensor = self.ssm_out(gated.flatten(-2))
        return out


class AttentionBlock(Block):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.attn_q = linear(config.hidden, config.heads * 2 * config.head_dim)
        self.attn_k = linear(config.hidden, config.kv_heads * config.head_dim)
        self.attn_v = linear(config.hidden, config.kv_heads * config.head_dim)
        self.attn_q_norm = RMSNorm(config.head_dim)
        self.attn_k_norm = RMSNorm(config.head_dim)
        self.attn_output = linear(config.heads * config.head_dim, config.hidden)

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        q, k, v, gate = self.qkv(self.attn_norm(x), packed.cos, packed.sin)
        return self.attend(x, q, k, v, gate, packed.mask)

    def qkv(self, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """h [B, T, hidden] → q [B, heads, T, d], k and v [B, kv_heads, T, d], gate [B, T, heads·d]."""
        c = self.config
        width = c.kv_heads * c.head_dim
        weight = torch.cat([self.attn_q.weight, self.attn_k.weight, self.attn_v.weight])
        qg, k, v = functional.linear(h, weight).split([c.heads * 2 * c.head_dim, width, width], -1)
        q, gate = qg.unflatten(-1, (c.heads, 2 * c.head_dim)).chunk(2, -1)
        q = rope(self.attn_q_norm(q).transpose(1, 2), cos, sin)
        k = rope(self.attn_k_norm(k.unflatten(-1, (c.kv_heads, c.head_dim))).transpose(1, 2), cos, sin)
        return q, k, v.unflatten(-1, (c.kv_heads, c.head_dim)).transpose(1, 2), gate.flatten(-2)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, mask: Tensor | None) -> Tensor:
        ratio = self.config.heads // self.config.kv_heads
        k, v = k.repeat_interleave(ratio, 1), v.repeat_interleave(ratio, 1)
        o = functional.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
        o = o.transpose(1, 2).flatten(-2) * gate.sigmoid()
        return self.feed_forward(x + self.attn_output(o))

    def step(self, x: Tensor, state: LayerState, cos: Tensor, sin: Tensor) -> Tensor:
        """One token x [B, hidden] at the angles cos, sin [rope_dim], advancing `state`."""
        q, k, v, gate = self.qkv(self.attn_norm(x).unsqueeze(1), cos, sin)
        state.keys = k if state.keys is None else torch.cat([state.keys, k], 2)
        state.values = v if state.values is None else torch.cat([state.values, v], 2)
        return self.attend(x.unsqueeze(1), q, state.keys, state.values, gate, None).squeeze(1)


class NextN(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eh_proj = linear(2 * config.hidden, config.hidden)
        self.enorm = RMSNorm(config.hidden)
        self.hnorm = RMSNorm(config.hidden)
        self.shared_head_norm = RMSNorm(config.hidden)


class MTPBlock(AttentionBlock):
    """Predicts token t + 2 from the normed hidden state at t and token t + 1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.nextn = NextN(config)

    def join(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        joined = torch.cat([self.nextn.enorm(embedded), self.nextn.hnorm(hidden)], -1)
        out: Tensor = self.nextn.eh_proj(joined)
        return out


class LanguageModel(nn.Module):
    """Trunk, tied head, and an MTP block behind them; `hidden` and `drafts` are what training needs."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocabulary, config.hidden)
        trunk: list[Block] = [
            DeltaBlock(config) if config.recurrent(i) else AttentionBlock(config) for i in range(config.layers)
        ]
        self.blk = nn.ModuleList([*trunk, MTPBlock(config)])
        self.output_norm = RMSNorm(config.hidden)
        self.frequencies: Tensor
        turns = torch.arange(0, config.rope_dim, 2).float() / config.rope_dim
        self.register_buffer("frequencies", config.rope_base**-turns, persistent=False)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                std = 0.6 * module.in_features**-0.5
                if name.endswith(("attn_output", "ssm_out", "ffn_down")):
                    std /= math.sqrt(2 * self.config.layers)
                nn.init.normal_(module.weight, std=std)

    @property
    def trunk(self) -> list[nn.Module]:
        return list(self.blk)[:-1]

    @property
    def mtp(self) -> MTPBlock:
        block = self.blk[-1]
        assert isinstance(block, MTPBlock)
        return block

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [..., rope_dim] of positions [...]."""
        angle = positions.unsqueeze(-1).float() * self.frequencies
        angle = torch.cat([angle, angle], -1)
        return angle.cos(), angle.sin()

    def packed(self, document: Tensor, position: Tensor) -> Packed:
        """Masks of a batch: `document` [B, T] numbers the documents of a row, `position` [B, T] is for RoPE."""
        T = document.shape[1]
        before = [functional.pad(document[:, : T - j], (j, 0), value=-1) for j in range(1, self.config.conv)]
        same = torch.stack([b == document for b in before]).float().unsqueeze(-1)
        cos, sin = self.angles(position.unsqueeze(1))
        visible = (document.unsqueeze(2) == document.unsqueeze(1)).tril().unsqueeze(1)
        mask = torch.where(visible, 0.0, -1e9)
        return Packed(same, torch.where(same[0] > 0, 0.0, RESET), cos, sin, mask)

    def hidden(self, ids: Tensor, packed: Packed) -> Tensor:
        """[B, T] → [B, T, hidden] after output_norm. T is a multiple of the chunk."""
        x = self.token_embd(ids)
        for block in self.trunk:
            x = block(x, packed)
        out: Tensor = self.output_norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.token_embd.weight)

    def drafts(self, hidden: Tensor, ids: Tensor, packed: Packed, depth: int) -> list[Tensor]:
        """What the MTP block makes of each position, for `depth` drafts in a row: normed states [B, T, hidden].

        `ids` [B, T + depth]: result j at position t predicts token t + 2 + j, from tokens up to t + 1 + j. As in
        decoding, the first draft sees the trunk's states, and each further one the block's own output at the drafts
        before it: its keys are those of the trunk's states up to t and one of each earlier draft on the diagonal.
        """
        T = hidden.shape[1]
        block = self.mtp
        diagonal = torch.where(torch.eye(T, dtype=torch.bool, device=ids.device), 0.0, -1e9).expand_as(packed.mask)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        masks: list[Tensor] = []
        results: list[Tensor] = []
        cos, sin = packed.cos, packed.sin
        one_cos, one_sin = self.angles(torch.ones(1, device=ids.device))
        state = hidden
        for j in range(depth):
            x = block.join(self.token_embd(ids[:, j + 1 : j + 1 + T]), state)
            q, k, v, gate = block.qkv(block.attn_norm(x), cos, sin)
            keys.append(k)
            values.append(v)
            masks.append(packed.mask if j == 0 else diagonal)
            x = block.attend(x, q, torch.cat(keys, 2), torch.cat(values, 2), gate, torch.cat(masks, -1))
            state = block.nextn.shared_head_norm(x)
            results.append(state)
            cos, sin = cos * one_cos - sin * one_sin, sin * one_cos + cos * one_sin
        return results


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first cos.shape[-1] dims of x, dim i with dim i + half."""
    width = cos.shape[-1]
    turned, plain = x[..., :width], x[..., width:]
    a, b = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-b, a], -1) * sin, plain], -1)
