"""Unpacking of the codebook (IQ) block types: uint8 [n, nbytes] → float32 [n, 256], IQ4_NL [n, 32].

Weights are stored as indices into grids, tables of 4 or 8 weights a row. The grids are constants of the format and come
from the `gguf` package. Notation as in `quants_unpack`.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernels.quants_unpack import bit_fields, bit_flags, float16, uint16, uint32


@functools.cache
def _grid(name: str, device: torch.device) -> Tensor:
    """The grid of a type: float32 [entries, 4 or 8]."""
    from gguf import quants

    traits = getattr(quants, name)
    traits.init_grid()
    return torch.from_numpy(traits.grid).flatten(0, 2).to(device)


@functools.cache
def _nonlinear(device: torch.device) -> Tensor:
    """The 16 values of IQ4: float32."""
    from gguf import quants

    return torch.tensor(quants.IQ4_NL.kvalues, dtype=torch.float32, device=device)


def _signs(flags: Tensor) -> Tensor:
    """Bits → float32: 1 for 0, −1 for 1."""
    return 1 - 2 * flags.float()


def _signs_with_parity(index: Tensor) -> Tensor:
    """7 sign bits [...] → the signs of 8 weights, float32 [..., 8]: the number of minuses is even."""
    seven = torch.stack([(index >> i) & 1 for i in range(7)], dim=-1)
    return _signs(torch.cat([seven, seven.sum(-1, keepdim=True) & 1], dim=-1))


def iq2_xxs(b: Tensor) -> Tensor:
    """d:2, then for each 32 weights index:4 word:4; w = d·(s + ½)/4·sign·grid.

    A word has four 7-bit sign sets, one for each 8 weights, and s in its top 4 bits.
    """
    groups = torch.unflatten(b[:, 2:], 1, (8, 8))
    word = uint32(groups[..., 4:])  # [n, 8, 1]
    d = float16(b[:, :2]).unsqueeze(-1) * (0.5 + (word >> 28).float()) * 0.25
    signs = _signs_with_parity(torch.cat([(word >> 7 * i) & 0x7F for i in range(4)], dim=-1))  # [n, 8, 4, 8]
    grid = _grid("IQ2_XXS", b.device)[groups[..., :4].int()]
    return (d.unsqueeze(-1) * grid * signs).flatten(1)


def iq2_xs(b: Tensor) -> Tensor:
    """d:2 codes:64 as uint16, scales:8; w = d·(s + ½)/4·sign·grid.

    A code serves 8 weights: a grid index of 9 bits, a sign set of 7. The nibbles of `scales`, low first, serve 16 each.
    """
    code = uint16(b[:, 2:66])  # [n, 32]
    scale = bit_fields(b[:, 66:].unsqueeze(-1), 4, 2).flatten(1)  # [n, 16]
    d = (float16(b[:, :2]) * (0.5 + scale.float()) * 0.25).view(-1, 16, 1, 1)
    weights = _grid("IQ2_XS", b.device)[code & 0x1FF].view(-1, 16, 2, 8)
    signs = _signs_with_parity(code >> 9).view(-1, 16, 2, 8)
    return (d * weights * signs).flatten(1)


def iq2_s(b: Tensor) -> Tensor:
    """d:2 index:32 signs:32 high:8 scales:8; w = d·(s + ½)/4·sign·grid.

    One index and one byte of signs for each 8 weights; the 2-bit fields of `high`, lowest first, are the top bits of
    the indices. The nibbles of `scales`, low first, serve 16 weights each.
    """
    high = bit_fields(b[:, 66:74].unsqueeze(-1), 2, 4).flatten(1)
    index = b[:, 2:34].int() | (high.int() << 8)
    scale = bit_fields(b[:, 74:].unsqueeze(-1), 4, 2).flatten(1)
    d = (float16(b[:, :2]) * (0.5 + scale.float()) * 0.25).view(-1, 16, 1, 1)
    weights = _grid("IQ2_S", b.device)[index].view(-1, 16, 2, 8)
    signs = _signs(bit_flags(b[:, 34:66])).view(-1, 16, 2, 8)
    return (d * weights * signs).flatten(1)


def iq3_xxs(b: Tensor) -> Tensor:
    """d:2 index:64 words:32; w = d·(s + ½)/2·sign·grid.

    One index for each 4 weights; one word for each 32, as in IQ2_XXS.
    """
    word = uint32(b[:, 66:]).unsqueeze(-1)  # [n, 8, 1]
    d = float16(b[:, :2]).unsqueeze(-1) * (0.5 + (word >> 28).float()) * 0.5
    signs = _signs_with_parity(torch.cat([(word >> 7 * i) & 0x7F for i in range(4)], dim=-1))  # [n, 8, 4, 8]
    weights = _grid("IQ3_XXS", b.device)[b[:, 2:66].int()].view(-1, 8, 4, 8)
    return (d.unsqueeze(-1) * weights * signs).flatten(1)


def iq3_s(b: Tensor) -> Tensor:
    """d:2 index:64 high:8 signs:32 scales:4; w = d·(2s + 1)·sign·grid.

    One index for each 4 weights, its ninth bit in order in `high`; one sign bit for each weight. The nibbles of
    `scales`, low first, serve 32 weights each.
    """
    index = b[:, 2:66].int() | (bit_flags(b[:, 66:74]).int() << 8)
    scale = bit_fields(b[:, 106:].unsqueeze(-1), 4, 2).flatten(1)
    d = (float16(b[:, :2]) * (1 + 2 * scale.float())).unsqueeze(-1)  # [n, 8, 1]
    weights = _grid("IQ3_S", b.device)[index].view(-1, 8, 32)
    signs = _signs(bit_flags(b[:, 74:106])).view(-1, 8, 32)
    return (d * weights * signs).flatten(1)


def iq1_s(b: Tensor) -> Tensor:
    """d:2 index:32 high:16 as uint16; w = d·(2s + 1)·(grid ± ⅛).

    One index for each 8 weights. A number of `high` serves 32: the top 3 bits of their four indices, lowest first, then
    s in 3 bits, then the sign of the ⅛.
    """
    high = uint16(b[:, 34:]).unsqueeze(-1)  # [n, 8, 1]
    index = b[:, 2:34].int() | (torch.cat([(high >> 3 * i) & 7 for i in range(4)], dim=-1) << 8).flatten(1)
    d = float16(b[:, :2]).unsqueeze(-1) * (2 * ((high >> 12) & 7) + 1)
    shift = _signs(high >> 15) * 0.125
    weights = _grid("IQ1_S", b.device)[index].view(-1, 8, 32)
    return (d * (weights + shift)).flatten(1)


def iq1_m(b: Tensor) -> Tensor:
    """index:32 high:16 scales:8 as uint16; w = d·(2s + 1)·(grid ± ⅛).

    One index for each 8 weights; the nibbles of `high`, low first, are its top 3 bits and the sign of the ⅛. A number
    of `scales` has four s of 3 bits, each serving 16 weights, and on top 4 bits of d, the lowest in the first.
    """
    scales = uint16(b[:, 48:])  # [n, 4]
    parts = scales >> 12
    bits = parts[:, 0] | (parts[:, 1] << 4) | (parts[:, 2] << 8) | (parts[:, 3] << 12)
    d = bits.to(torch.int16).view(torch.float16).float().view(-1, 1)
    scale = torch.stack([(scales >> 3 * i) & 7 for i in range(4)], dim=-1).flatten(1)  # [n, 16]
    d = (d * (2 * scale + 1)).view(-1, 16, 1, 1)
    high = bit_fields(b[:, 32:48].unsqueeze(-1), 4, 2).flatten(1)  # [n, 32]
    index = b[:, :32].int() | ((high & 7).int() << 8)
    shift = (_signs(high >> 3) * 0.125).view(-1, 16, 2, 1)
    weights = _grid("IQ1_M", b.device)[index].view(-1, 16, 2, 8)
    return (d * (weights + shift)).flatten(1)


def iq4_nl(b: Tensor) -> Tensor:
    """d:2 q4:16; w = d·value[q]."""
    q = bit_fields(b[:, 2:], 4, 2).flatten(1)
    return float16(b[:, :2]) * _nonlinear(b.device)[q.int()]


def iq4_xs(b: Tensor) -> Tensor:
    """d:2 high:2 low:4 q4:128; w = d·(s − 32)·value[q] for each 32 weights, a run of 16 bytes.

    s has 6 bits: its low four are the nibbles of `low`, low first, its top two the fields of `high`, lowest first.
    """
    low = bit_fields(b[:, 4:8].unsqueeze(-1), 4, 2).flatten(1)
    high = bit_fields(b[:, 2:4].unsqueeze(-1), 2, 4).flatten(1)
    d = float16(b[:, :2]) * ((low | (high << 4)).view(torch.int8) - 32)
    q = bit_fields(torch.unflatten(b[:, 8:], 1, (8, 16)), 4, 2).flatten(2)  # [n, 8, 32]
    return (d.unsqueeze(-1) * _nonlinear(b.device)[q.int()]).flatten(1)
