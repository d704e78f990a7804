"""The tensor types of GGUF files, and tensors that stay packed in them.

A type cuts a row into blocks of `block` weights, each `nbytes` bytes. A new type is one entry of `QUANTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from kernels import quants_iq as iq
from kernels import quants_unpack as plain


class QuantError(ValueError):
    """A tensor that does not fit its type."""


@dataclass(frozen=True, slots=True)
class QuantType:
    """`unpack` maps uint8 [n, nbytes] → float32 [n, block] on any device; `ggml_id` is the number in GGUF files.

    `dtype` is set where the bytes are plain numbers that torch knows.
    """

    name: str
    ggml_id: int
    block: int  # weights
    nbytes: int  # per block
    unpack: Callable[[Tensor], Tensor] = field(repr=False)
    dtype: torch.dtype | None = None

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row. Raises QuantError unless it is a whole number of blocks."""
        if columns % self.block:
            raise QuantError(
                f"a row of {columns} weights cannot be of type {self.name}, whose blocks hold {self.block}"
            )
        return columns // self.block * self.nbytes


QUANTS: Mapping[str, QuantType] = MappingProxyType(
    {
        quant.name: quant
        for quant in (
            QuantType("F32", 0, 1, 4, plain.f32, torch.float32),
            QuantType("F16", 1, 1, 2, plain.f16, torch.float16),
            QuantType("BF16", 30, 1, 2, plain.bf16, torch.bfloat16),
            QuantType("Q4_0", 2, 32, 18, plain.q4_0),
            QuantType("Q4_1", 3, 32, 20, plain.q4_1),
            QuantType("Q5_0", 6, 32, 22, plain.q5_0),
            QuantType("Q5_1", 7, 32, 24, plain.q5_1),
            QuantType("Q8_0", 8, 32, 34, plain.q8_0),
            QuantType("Q2_K", 10, 256, 84, plain.q2_k),
            QuantType("Q3_K", 11, 256, 110, plain.q3_k),
            QuantType("Q4_K", 12, 256, 144, plain.q4_k),
            QuantType("Q5_K", 13, 256, 176, plain.q5_k),
            QuantType("Q6_K", 14, 256, 210, plain.q6_k),
            QuantType("IQ2_XXS", 16, 256, 66, iq.iq2_xxs),
            QuantType("IQ2_XS", 17, 256, 74, iq.iq2_xs),
            QuantType("IQ3_XXS", 18, 256, 98, iq.iq3_xxs),
            QuantType("IQ1_S", 19, 256, 50, iq.iq1_s),
            QuantType("IQ4_NL", 20, 32, 18, iq.iq4_nl),
            QuantType("IQ3_S", 21, 256, 110, iq.iq3_s),
            QuantType("IQ2_S", 22, 256, 82, iq.iq2_s),
            QuantType("IQ4_XS", 23, 256, 136, iq.iq4_xs),
            QuantType("IQ1_M", 29, 256, 56, iq.iq1_m),
            QuantType("TQ1_0", 34, 256, 54, plain.tq1_0),
            QuantType("TQ2_0", 35, 256, 66, plain.tq2_0),
            QuantType("MXFP4", 39, 32, 17, plain.mxfp4),
            QuantType("NVFP4", 40, 64, 36, plain.nvfp4),
        )
    }
)

_BY_GGML_ID = {quant.ggml_id: quant for quant in QUANTS.values()}


def by_ggml_id(ggml_id: int) -> QuantType | None:
    """The type with this number in GGUF files; None if there is none here."""
    return _BY_GGML_ID.get(ggml_id)


# Weights unpacked at a time: the temporaries stay in the cache, and small beside any result that matters.
_PIECE = 1 << 18


@dataclass(frozen=True, eq=False)
class QuantTensor:
    """A tensor of `shape` (last dimension: columns) whose rows are packed in blocks of `type`.

    `data` is uint8 [*shape[:-1], row bytes], possibly a view of a memory-mapped file. Raises QuantError if they
    disagree.
    """

    data: Tensor = field(repr=False)
    type: QuantType
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.shape:
            raise QuantError("a tensor without dimensions cannot be packed in blocks")
        packed = (*self.shape[:-1], self.type.row_bytes(self.shape[-1]))
        if self.data.dtype != torch.uint8 or tuple(self.data.shape) != packed:
            raise QuantError(
                f"a {self.type.name} tensor of shape {list(self.shape)} is {list(packed)} in bytes, "
                f"not {self.data.dtype} {list(self.data.shape)}"
            )

    @classmethod
    def from_dense(cls, tensor: Tensor) -> QuantTensor:
        """`tensor` as type F32; shares its memory if it is float32 and contiguous."""
        dense = tensor.detach().to(torch.float32).contiguous()
        return cls(dense.view(torch.uint8), QUANTS["F32"], tuple(dense.shape))

    @property
    def nbytes(self) -> int:
        return self.data.numel()

    @property
    def device(self) -> torch.device:
        return self.data.device

    def to(self, device: torch.device | str) -> QuantTensor:
        """The same tensor on `device`, still packed."""
        return QuantTensor(self.data.to(device), self.type, self.shape)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights as `dtype` [*shape]; shares memory with `data` where that is plain numbers of `dtype`."""
        if self.type.dtype is not None:
            return self._plain(self.type.dtype).to(dtype)
        out = torch.empty(self.shape, dtype=dtype, device=self.device)
        self._unpack_into(out)
        return out

    def _plain(self, dtype: torch.dtype) -> Tensor:
        # A file of small alignment may hold numbers where no tensor of them can begin.
        aligned = self.data.storage_offset() % dtype.itemsize == 0 and self.data.data_ptr() % dtype.itemsize == 0
        return (self.data if aligned else self.data.clone()).view(dtype)

    def _unpack_into(self, out: Tensor) -> None:
        if self.data.dim() > 2 and not self.data.is_contiguous():
            for index in range(self.shape[0]):
                self.select(index)._unpack_into(out[index])
            return
        blocks = self.data.reshape(-1, self.type.nbytes)
        weights = out.view(-1, self.type.block)
        step = _PIECE // self.type.block
        for start in range(0, len(blocks), step):
            weights[start : start + step] = self.type.unpack(blocks[start : start + step])

    def rows(self, start: int, stop: int) -> QuantTensor:
        """Entries start … stop−1 of the first dimension, sharing memory."""
        self._check_leading()
        if not 0 <= start <= stop <= self.shape[0]:
            raise QuantError(f"rows {start} to {stop} are not in a tensor of shape {list(self.shape)}")
        return QuantTensor(self.data[start:stop], self.type, (stop - start, *self.shape[1:]))

    def select(self, index: int) -> QuantTensor:
        """Entry `index` of the first dimension (an expert of [E, rows, columns]), sharing memory."""
        self._check_leading()
        return QuantTensor(self.data[index], self.type, self.shape[1:])

    def split_rows(self, sizes: Sequence[int]) -> tuple[QuantTensor, ...]:
        """Cut the rows, the dimension before the columns, into runs of `sizes`, sharing memory.

        [rows, columns] → [size, columns] each; [E, rows, columns] → [E, size, columns] each.
        """
        self._check_leading()
        if min(sizes, default=0) < 0 or sum(sizes) != self.shape[-2]:
            raise QuantError(f"{self.shape[-2]} rows cannot be split into {list(sizes)}")
        parts = torch.split(self.data, list(sizes), dim=-2)
        return tuple(
            QuantTensor(part, self.type, (*self.shape[:-2], size, self.shape[-1]))
            for part, size in zip(parts, sizes, strict=True)
        )

    def take(self, ids: Tensor) -> Tensor:
        """Entries `ids` (integers, any shape) of the first dimension: float32 [*ids.shape, *shape[1:]].

        Unpacks these entries only: an embedding.
        """
        self._check_leading()
        picked = self.data[ids.to(self.device)]
        return QuantTensor(picked, self.type, (*ids.shape, *self.shape[1:])).dequantize()

    def _check_leading(self) -> None:
        if len(self.shape) < 2:
            raise QuantError("a tensor of one dimension has no rows to choose from")
