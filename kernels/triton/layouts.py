"""Packed weights as GPUs read them: every bit of a file's blocks, put so that whole words serve many lanes.

A block becomes `words` words of `fields` codes: field i of word j is weight words·i + j of the block. So field i of
neighbouring words are neighbouring weights, and where a scale serves as many weights as a block has words, it serves
one field. What a code does not hold in its word lies in further planes, each an array over all blocks of the tensor:

    words    int32, the codes' low bits
    high     uint8 or int16 per word, one or two bits for each field, lowest first
    scales   int32 words per block, see `_PACKERS`
    last     float16, int32 or uint8 per block

One tensor is one piece of memory, its planes in this order, each beginning at a multiple of 16 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quants import QUANTS, QuantTensor
from kernels.quants_unpack import bit_fields

_PIECE = 1 << 24  # bytes that are rearranged at a time: the temporaries stay small beside any model
_ALIGNED = 16  # blocks, so that every plane begins at a multiple of 16 bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """`kind` is what kernels know it by; sizes are in bytes per block."""

    kind: int
    block: int  # weights
    words: int
    high: int = 0
    scales: int = 0
    last: int = 0

    @property
    def fields(self) -> int:
        return self.block // self.words

    @property
    def planes(self) -> tuple[int, int, int, int]:
        word = 4 if self.block > 1 else _PLAIN_BYTES[self.kind]
        return word * self.words, self.high, self.scales, self.last

    @property
    def nbytes(self) -> int:
        """Of a block, which is as many as in the file."""
        return sum(self.planes)


F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 = range(16)
_PLAIN_BYTES = {F32: 4, F16: 2, BF16: 2}

LAYOUTS: dict[str, Layout] = {
    "F32": Layout(F32, 1, 1),
    "F16": Layout(F16, 1, 1),
    "BF16": Layout(BF16, 1, 1),
    "Q4_0": Layout(Q4_0, 32, 4, last=2),
    "Q4_1": Layout(Q4_1, 32, 4, last=4),
    "Q5_0": Layout(Q5_0, 32, 4, high=4, last=2),
    "Q5_1": Layout(Q5_1, 32, 4, high=4, last=4),
    "Q8_0": Layout(Q8_0, 32, 8, last=2),
    "Q2_K": Layout(Q2_K, 256, 16, scales=16, last=4),
    "Q3_K": Layout(Q3_K, 256, 16, high=32, scales=12, last=2),
    "Q4_K": Layout(Q4_K, 256, 32, scales=12, last=4),
    "Q5_K": Layout(Q5_K, 256, 32, high=32, scales=12, last=4),
    "Q6_K": Layout(Q6_K, 256, 32, high=64, scales=16, last=2),
    "IQ4_NL": Layout(IQ4_NL, 32, 4, last=2),
    "IQ4_XS": Layout(IQ4_XS, 256, 32, scales=4, last=4),
    "MXFP4": Layout(MXFP4, 32, 4, last=1),
}


def layout_of(weight: QuantTensor) -> Layout:
    return LAYOUTS.get(weight.type.name, LAYOUTS["F16"])


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows of packed weights [rows, columns] or stacks of them [experts, rows, columns] in one piece of memory."""

    data: Tensor  # uint8
    layout: Layout
    shape: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """Of the whole tensor, rounded up: what the planes' places follow from."""
        return _rounded(math.prod(self.shape) // self.layout.block)

    def __post_init__(self) -> None:
        assert self.data.numel() == self.blocks * sum(self.layout.planes)


def pack(weight: QuantTensor, device: torch.device) -> Packed:
    """`weight` on `device`; types without a layout here in half precision.

    It goes there piece by piece and is rearranged there, so that no second copy of it ever stands in memory.
    """
    layout = layout_of(weight)
    count = math.prod(weight.shape) // layout.block
    blocks = _rounded(count)
    data = torch.empty(blocks * sum(layout.planes), dtype=torch.uint8, device=device)
    planes = data.split([blocks * size for size in layout.planes])
    if data.is_meta:
        return Packed(data, layout, weight.shape)
    for start, rows in _pieces(weight):
        if weight.type.name not in LAYOUTS:
            rows = QuantTensor(rows.dequantize(torch.float16).view(torch.uint8), QUANTS["F16"], rows.shape)
        raw = rows.data.to(device).reshape(-1, layout.nbytes)
        parts = _PACKERS[rows.type.name](raw) if layout.block > 1 else (raw, None, None, None)
        for plane, size, part in zip(planes, layout.planes, parts, strict=True):
            if part is not None:
                plane[start * size :][: part.numel()] = part.reshape(-1)
    for plane, size in zip(planes, layout.planes, strict=True):
        plane[count * size :] = 0  # never used, but read along where a load is wide
    return Packed(data, layout, weight.shape)


def stack_for(stack: QuantTensor, count: int, device: torch.device) -> Packed:
    """Room for `count` entries of a stack [E, rows, columns]."""
    layout, shape = layout_of(stack), (count, *stack.shape[1:])
    blocks = _rounded(math.prod(shape) // layout.block)
    return Packed(torch.zeros(blocks * sum(layout.planes), dtype=torch.uint8, device=device), layout, shape)


def pack_into(stack: Packed, index: int, weight: QuantTensor) -> None:
    """`weight` as entry `index` of a packed stack."""
    part = pack(weight, stack.data.device)
    count, sizes = math.prod(weight.shape) // stack.layout.block, stack.layout.planes
    sources, targets = (packed.data.split([packed.blocks * size for size in sizes]) for packed in (part, stack))
    for source, target, size in zip(sources, targets, sizes, strict=True):
        target[index * count * size :][: count * size] = source[: count * size]


def _rounded(blocks: int) -> int:
    return -(-blocks // _ALIGNED) * _ALIGNED


def _pieces(weight: QuantTensor) -> Iterator[tuple[int, QuantTensor]]:
    """Runs of rows, and how many blocks come before each."""
    done = 0
    if len(weight.shape) == 3:
        for index in range(weight.shape[0]):
            for before, piece in _pieces(weight.select(index)):
                yield done + before, piece
            done += math.prod(weight.shape[1:]) // layout_of(weight).block
        return
    rows, columns = weight.shape
    step = max(1, _PIECE // max(weight.type.row_bytes(columns), 1))
    blocks = columns // layout_of(weight).block
    for start in range(0, rows, step):
        yield start * blocks, weight.rows(start, min(start + step, rows))


def _fields(codes: Tensor, words: int, width: int) -> Tensor:
    """Codes [n, fields·words] of `width` bits, in order of the weights → uint8 [n, bytes], word by word."""
    n, in_byte = len(codes), 8 // width
    codes = codes.view(n, -1, in_byte, words)  # [n, byte of a word, part of it, word]
    packed = codes[:, :, 0]
    for part in range(1, in_byte):
        packed = packed | (codes[:, :, part] << (width * part))
    return packed.transpose(1, 2).reshape(n, -1)


Planes = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def _nibbles(b: Tensor, runs: int = 1) -> Tensor:
    """Bytes [n, b] whose low and high nibbles make `runs` runs of weights: uint8 [n, 2·b]."""
    return bit_fields(torch.unflatten(b, 1, (runs, -1)), 4, 2).flatten(1)


def _of_32(b: Tensor, head: int, high: int = 0) -> Planes:
    """The types of 32 weights: `head` bytes of scales, `high` bytes of fifth bits, nibbles."""
    codes = _nibbles(b[:, head + high :])
    fifth = _fields(bit_fields(b[:, head : head + high].unsqueeze(-1), 1, 8).flatten(1), 4, 1) if high else None
    return _fields(codes, 4, 4), fifth, None, b[:, :head]


def _q8_0(b: Tensor) -> Planes:
    return _fields(b[:, 2:], 8, 8), None, None, b[:, :2]


def _q2_k(b: Tensor) -> Planes:
    codes = bit_fields(torch.unflatten(b[:, 16:80], 1, (2, 32)), 2, 4).flatten(1)
    return _fields(codes, 16, 2), None, b[:, :16], b[:, 80:]


def _q3_k(b: Tensor) -> Planes:
    """Scales: their low four bits, two words; their high two, a word."""
    codes = bit_fields(torch.unflatten(b[:, 32:96], 1, (2, 32)), 2, 4).flatten(1)
    third = bit_fields(b[:, :32], 1, 8).flatten(1)
    low = _fields(_nibbles(b[:, 96:104]), 1, 4)
    scales = torch.cat([low, _fields(bit_fields(b[:, 104:108], 2, 4).flatten(1), 1, 2)], dim=1)
    return _fields(codes, 16, 2), _fields(third, 16, 1), scales, b[:, 108:]


def _scales_of_k(b: Tensor) -> Tensor:
    """A word of the scales' low four bits, one of the minima's, and one of the high two bits of both."""
    s, m, low = torch.unflatten(b[:, 4:16], 1, (3, 4)).unbind(1)
    scale = torch.cat([s & 0x3F, (low & 0x0F) | ((s >> 2) & 0x30)], dim=1)
    minimum = torch.cat([m & 0x3F, (low >> 4) | ((m >> 2) & 0x30)], dim=1)
    parts = [_fields(part & 15, 1, 4) for part in (scale, minimum)]
    return torch.cat(parts + [_fields(part >> 4, 1, 2) for part in (scale, minimum)], dim=1)


def _q4_k(b: Tensor) -> Planes:
    return _fields(_nibbles(b[:, 16:], 4), 32, 4), None, _scales_of_k(b), b[:, :4]


def _q5_k(b: Tensor) -> Planes:
    fifth = bit_fields(b[:, 16:48], 1, 8).flatten(1)
    return _fields(_nibbles(b[:, 48:], 4), 32, 4), _fields(fifth, 32, 1), _scales_of_k(b), b[:, :4]


def _q6_k(b: Tensor) -> Planes:
    """Scales: those of the first 16 words' fields in order, then those of the last 16 words'."""
    high = bit_fields(torch.unflatten(b[:, 128:192], 1, (2, 32)), 2, 4).flatten(1)
    scales = b[:, 192:208].reshape(-1, 8, 2).transpose(1, 2).flatten(1)
    return _fields(_nibbles(b[:, :128], 2), 32, 4), _fields(high, 32, 2), scales, b[:, 208:]


def _iq4_xs(b: Tensor) -> Planes:
    """Scales: their low four bits; their high two follow d."""
    return _fields(_nibbles(b[:, 8:], 8), 32, 4), None, b[:, 4:8], b[:, :4]


_PACKERS: dict[str, Callable[[Tensor], Planes]] = {
    "Q4_0": lambda b: _of_32(b, 2),
    "Q4_1": lambda b: _of_32(b, 4),
    "Q5_0": lambda b: _of_32(b, 2, 4),
    "Q5_1": lambda b: _of_32(b, 4, 4),
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": lambda b: _of_32(b, 2),
    "IQ4_XS": _iq4_xs,
    "MXFP4": lambda b: _of_32(b, 1),
}
