"""The tensors of a file, each taken exactly once, checked for shape and for signs of a bad conversion."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from kernels.quants import QuantTensor
from runtime.gguf import GGUFFile
from runtime.models.config import ModelError

# Tensors that the family's files may hold and that text generation does not use.
SKIPPED = ("rope_freqs.weight",)

# What the file of an MTP block alone repeats of its trunk.
SIDECAR_SKIPPED = (*SKIPPED, "token_embd.weight", "output.weight", "output_norm.weight")

_MEMORY = torch.device("cpu")

# A converter that forgets the + 1 leaves a mean near 0, one that adds it twice a mean near 2.
_NORM_MEANS = (0.25, 1.75)


class Weights:
    """Hands out the tensors of a GGUF file by name; `finish` complains of what nobody took."""

    def __init__(
        self,
        gguf: GGUFFile,
        *,
        keep_packed: bool,
        take_in: Callable[[str, QuantTensor], bool] = lambda name, tensor: False,
        progress: Callable[[int, int], None] = lambda done, total: None,
        skipped: Collection[str] = SKIPPED,
        device: Callable[[str], torch.device] = lambda name: _MEMORY,
    ) -> None:
        """`take_in` sees each packed tensor first, with its name, and says whether the file's own bytes are not needed
        after that. `progress(done, total)` hears of the bytes taken; nobody needs to take the `skipped` tensors. Small
        tensors go to the `device` of their name.
        """
        self._gguf = gguf
        self._keep_packed, self._device = keep_packed, device
        self._take_in, self._progress = take_in, progress
        self._done, self._total = 0, sum(info.nbytes for info in gguf.tensors.values())
        self._left = set(gguf.tensors) - set(skipped)
        self._norm_means: list[float] = []

    def has(self, name: str) -> bool:
        return name in self._gguf.tensors

    def rows(self, name: str) -> int:
        """The first dimension of a tensor that is taken later; 0 if there is none such."""
        info = self._gguf.tensors.get(name)
        return info.shape[0] if info else 0

    def take(self, name: str, *shape: int) -> QuantTensor:
        """A matrix or a stack of matrices. Raises ModelError if it is missing or of another shape."""
        return self.split(name, shape[-2:-1], *shape)[0]

    def split(self, name: str, rows: Sequence[int], *shape: int) -> tuple[QuantTensor, ...]:
        """The same, cut into parts of so many rows each."""
        found = self._take(name, shape)
        packed = found if found.shape == shape else found.select(0)
        if not self._keep_packed:
            packed = QuantTensor.from_dense(packed.dequantize())
        parts = packed.split_rows(rows) if len(rows) > 1 else (packed,)
        spare = [self._take_in(name, part) for part in parts]
        self._taken(name, found, keep=not all(spare))
        return parts

    def dense(self, name: str, *shape: int) -> Tensor:
        """A small tensor, in fp32."""
        return self._dense(name, shape).to(self._device(name))

    def norm(self, name: str, size: int) -> Tensor:
        """A norm's weight; in these files it includes the checkpoint's + 1, so its mean is near 1."""
        weight = self._dense(name, (size,))
        if name.endswith(".attn_norm.weight"):
            self._norm_means.append(float(weight.mean()))
        return weight.to(self._device(name))

    def _dense(self, name: str, shape: tuple[int, ...]) -> Tensor:
        packed = self._take(name, shape)
        dense = packed.dequantize().reshape(shape)
        self._taken(name, packed, keep=packed.type.dtype is torch.float32)
        return dense

    @property
    def warnings(self) -> list[str]:
        """Signs that the file was converted wrongly, a sentence each."""
        mean = statistics.median(self._norm_means or [1.0])
        if _NORM_MEANS[0] < mean < _NORM_MEANS[1]:
            return []
        return [
            f"The layers' norms (attn_norm) have mean {mean:.2f} where about 1 is usual: "
            "the file was probably converted wrongly, and its replies may be noise."
        ]

    def finish(self) -> None:
        """Raises ModelError if any tensor was left over."""
        if self._left:
            some = ", ".join(sorted(self._left)[:3])
            raise ModelError(
                f"{self._gguf.path.name} holds {len(self._left)} tensors that this architecture does not have "
                f"(such as {some}): it is no file of the family, or of a newer kind."
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> QuantTensor:
        if name not in self._gguf.tensors:
            raise ModelError(f"{self._gguf.path.name} lacks the tensor {name}: the file is incomplete.")
        self._left.remove(name)
        tensor = self._gguf.tensor(name)
        if tensor.shape not in (shape, (1, *shape)):  # some converters write a vector as one row
            raise ModelError(
                f"{self._gguf.path.name}: {name} has the shape {list(tensor.shape)}, "
                f"but the metadata asks for {list(shape)}."
            )
        return tensor

    def _taken(self, name: str, tensor: QuantTensor, *, keep: bool) -> None:
        if not keep:
            self._gguf.let_go(name)
        self._done += tensor.nbytes
        self._progress(self._done, self._total)
