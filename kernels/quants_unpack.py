"""Unpacking of the scalar, legacy, K, ternary and FP4 block types: uint8 [n, nbytes] → float32 [n, block].

The layouts are those of ggml. All numbers are little-endian; "d" and "m" are float16 scales and minima. In the
drawings below `name:bytes` lists a block's fields in order. A field of packed w-bit numbers holds, unless said
otherwise, runs of consecutive weights: first the lowest w bits of each byte of the run, then the next w bits.
"""

from __future__ import annotations

import torch
from torch import Tensor


def bit_fields(packed: Tensor, width: int, count: int) -> Tensor:
    """Split bytes [..., b] into their `count` lowest fields of `width` bits: uint8 [..., count, b], lowest first."""
    mask = (1 << width) - 1
    return torch.stack([(packed >> (width * i)) & mask for i in range(count)], dim=-2)


def bit_flags(packed: Tensor) -> Tensor:
    """Bytes [..., b] → their bits in order, uint8 [..., 8·b] of 0 and 1."""
    return bit_fields(packed.unsqueeze(-1), 1, 8).flatten(-3)


def _numbers(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes [..., itemsize·k] → `dtype` [..., k]; copied, since numbers of a block may begin at any address."""
    return raw.clone(memory_format=torch.contiguous_format).view(dtype)


def float16(raw: Tensor) -> Tensor:
    """Bytes [..., 2·k] of float16 → float32 [..., k]."""
    return _numbers(raw, torch.float16).float()


def uint16(raw: Tensor) -> Tensor:
    """Bytes [..., 2·k] of uint16 → int32 [..., k]."""
    return _numbers(raw, torch.int16).int() & 0xFFFF


def uint32(raw: Tensor) -> Tensor:
    """Bytes [..., 4·k] of uint32 → int64 [..., k]."""
    return _numbers(raw, torch.int32).long() & 0xFFFFFFFF


def f32(b: Tensor) -> Tensor:
    return _numbers(b, torch.float32)


def f16(b: Tensor) -> Tensor:
    return float16(b)


def bf16(b: Tensor) -> Tensor:
    return _numbers(b, torch.bfloat16).float()


def q4_0(b: Tensor) -> Tensor:
    """d:2 q4:16; w = d·(q − 8)."""
    q = bit_fields(b[:, 2:], 4, 2).flatten(1).view(torch.int8) - 8
    return float16(b[:, :2]) * q


def q4_1(b: Tensor) -> Tensor:
    """d:2 m:2 q4:16; w = d·q + m."""
    q = bit_fields(b[:, 4:], 4, 2).flatten(1)
    return float16(b[:, :2]) * q + float16(b[:, 2:4])


def _five_bits(high: Tensor, low: Tensor) -> Tensor:
    """The fifth bits [n, 4], in order of the weights, over the nibbles [n, 16]: uint8 [n, 32]."""
    return bit_fields(low, 4, 2).flatten(1) | (bit_flags(high) << 4)


def q5_0(b: Tensor) -> Tensor:
    """d:2 high:4 q4:16; w = d·(q − 16), the fifth bits of q in order in `high`."""
    q = _five_bits(b[:, 2:6], b[:, 6:]).view(torch.int8) - 16
    return float16(b[:, :2]) * q


def q5_1(b: Tensor) -> Tensor:
    """d:2 m:2 high:4 q4:16; w = d·q + m, the fifth bits of q in order in `high`."""
    q = _five_bits(b[:, 4:8], b[:, 8:])
    return float16(b[:, :2]) * q + float16(b[:, 2:4])


def q8_0(b: Tensor) -> Tensor:
    """d:2 q:32 as int8; w = d·q."""
    return float16(b[:, :2]) * b[:, 2:].view(torch.int8)


def q2_k(b: Tensor) -> Tensor:
    """scales:16 q2:64 d:2 dmin:2; w = d·s·q − dmin·m.

    Byte i of `scales` serves weights 16i…16i+15: s its low nibble, m its high one. `q2` has two runs of 128.
    """
    scale, minimum = bit_fields(b[:, :16], 4, 2).unbind(1)
    d = (float16(b[:, 80:82]) * scale).unsqueeze(-1)  # [n, 16, 1]
    m = (float16(b[:, 82:84]) * minimum).unsqueeze(-1)
    q = bit_fields(torch.unflatten(b[:, 16:80], 1, (2, 32)), 2, 4).view(-1, 16, 16)
    return (d * q - m).flatten(1)


def q3_k(b: Tensor) -> Tensor:
    """high:32 q2:64 scales:12 d:2; w = d·(s − 32)·(q − 4).

    The third bit of weight 32i+j is bit i of byte j of `high`; `q2` as in Q2_K. The 16 scales have 6 bits: the low
    four are the nibbles of bytes 0…7, low nibbles first; the high two are the fields of bytes 8…11, lowest first.
    """
    scales = b[:, 96:108]
    scale = bit_fields(scales[:, :8], 4, 2).flatten(1) | (bit_fields(scales[:, 8:], 2, 4).flatten(1) << 4)
    d = (float16(b[:, 108:]) * (scale.view(torch.int8) - 32)).unsqueeze(-1)  # [n, 16, 1]
    low = bit_fields(torch.unflatten(b[:, 32:96], 1, (2, 32)), 2, 4).view(-1, 16, 16)
    high = bit_fields(b[:, :32], 1, 8).view(-1, 16, 16)
    q = (low | (high << 2)).view(torch.int8) - 4
    return (d * q).flatten(1)


def _scales_and_minima(b: Tensor) -> tuple[Tensor, Tensor]:
    """d·s and dmin·m, float32 [n, 8, 1] each, from the head d:2 dmin:2 scales:12 of Q4_K and Q5_K.

    s and m have 6 bits. Bytes 0…3 hold s₀…s₃ and bytes 4…7 m₀…m₃ in their low 6 bits; their top 2 bits are the
    high bits of s₄…s₇ and m₄…m₇, whose low four bits are the low and high nibbles of bytes 8…11.
    """
    s, m, low = torch.unflatten(b[:, 4:16], 1, (3, 4)).unbind(1)
    scale = torch.cat([s & 0x3F, (low & 0x0F) | ((s >> 2) & 0x30)], dim=1)
    minimum = torch.cat([m & 0x3F, (low >> 4) | ((m >> 2) & 0x30)], dim=1)
    d = float16(b[:, :2]) * scale
    dm = float16(b[:, 2:4]) * minimum
    return d.unsqueeze(-1), dm.unsqueeze(-1)


def q4_k(b: Tensor) -> Tensor:
    """d:2 dmin:2 scales:12 q4:128; w = d·s·q − dmin·m for each 32 weights; `q4` has four runs of 64."""
    d, dm = _scales_and_minima(b)
    q = bit_fields(torch.unflatten(b[:, 16:], 1, (4, 32)), 4, 2).view(-1, 8, 32)
    return (d * q - dm).flatten(1)


def q5_k(b: Tensor) -> Tensor:
    """d:2 dmin:2 scales:12 high:32 q4:128; as Q4_K, the fifth bit of weight 32i+j being bit i of byte j of `high`."""
    d, dm = _scales_and_minima(b)
    low = bit_fields(torch.unflatten(b[:, 48:], 1, (4, 32)), 4, 2).view(-1, 8, 32)
    q = low | (bit_fields(b[:, 16:48], 1, 8) << 4)
    return (d * q - dm).flatten(1)


def q6_k(b: Tensor) -> Tensor:
    """low:128 high:64 scales:16 as int8, d:2; w = d·s·(q − 32) for each 16 weights.

    Two runs of 128: the low four bits are nibbles of 64 bytes of `low`, the top two are fields of 32 bytes of `high`.
    """
    d = (float16(b[:, 208:]) * b[:, 192:208].view(torch.int8)).unsqueeze(-1)  # [n, 16, 1]
    low = bit_fields(torch.unflatten(b[:, :128], 1, (2, 64)), 4, 2).view(-1, 256)
    high = bit_fields(torch.unflatten(b[:, 128:192], 1, (2, 32)), 2, 4).view(-1, 256)
    q = (low | (high << 4)).view(torch.int8) - 32
    return (d * q.view(-1, 16, 16)).flatten(1)


def _trits(packed: Tensor, count: int) -> Tensor:
    """Bytes [n, b] holding `count` base-3 digits each as a fixed-point fraction of 256 → uint8 [n, count·b] of 0…2."""
    shifted = torch.stack([packed * 3**i for i in range(count)], dim=1)  # the product wraps: its fraction
    return ((shifted.int() * 3) >> 8).to(torch.uint8).flatten(1)


def tq1_0(b: Tensor) -> Tensor:
    """trits:48 rest:4 d:2; w = d·(t − 1).

    A byte of `trits` holds 5 base-3 digits, one of `rest` 4, the first digit on top. Runs of digits as with bits:
    32 bytes, then 16, then `rest`.
    """
    t = torch.cat([_trits(b[:, :32], 5), _trits(b[:, 32:48], 5), _trits(b[:, 48:52], 4)], dim=1)
    return float16(b[:, 52:]) * (t.view(torch.int8) - 1)


def tq2_0(b: Tensor) -> Tensor:
    """q2:64 d:2; w = d·(q − 1); two runs of 128."""
    q = bit_fields(torch.unflatten(b[:, :64], 1, (2, 32)), 2, 4).flatten(1)
    return float16(b[:, 64:]) * (q.view(torch.int8) - 1)


def _e2m1_doubled(q: Tensor) -> Tensor:
    """Twice the value of 4-bit floats (sign, 2 exponent bits, 1 mantissa bit): int8, exact."""
    values = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int8, device=q.device)
    return values[q.int()]


def mxfp4(b: Tensor) -> Tensor:
    """e:1 q4:16; w = 2^(e − 127)·q, q an E2M1 float (OCP Microscaling Formats 1.0)."""
    e = b[:, :1].int()
    half = torch.where(e < 2, 1 << (21 + e), (e - 1) << 23).view(torch.float32)  # 2^(e − 128), as float32 bits
    return half * _e2m1_doubled(bit_fields(b[:, 1:], 4, 2).flatten(1))


def nvfp4(b: Tensor) -> Tensor:
    """e:4 q4:32; w = e·q for each 16 weights, e an unsigned E4M3 float (0x7F counts as 0), q an E2M1 float.

    Each 16 weights are a run of 8 bytes. The scale of the whole tensor is stored apart from the blocks.
    """
    scale = b[:, :4]
    exponent = (scale.int() >> 3) & 0xF
    mantissa = (scale & 7).float()
    # The smallest step is 2^-9; one factor 1/2 more since the table of E2M1 values is doubled.
    value = torch.where(exponent == 0, mantissa / 8, torch.ldexp(1 + mantissa / 8, exponent - 1)) * 2**-7
    half = torch.where(scale == 0x7F, 0.0, value)
    q = bit_fields(torch.unflatten(b[:, 4:], 1, (4, 8)), 4, 2).flatten(2)
    return (half.unsqueeze(-1) * _e2m1_doubled(q)).flatten(1)
