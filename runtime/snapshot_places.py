"""How a place is stored: exactly where the conversation ends, in 16 bits where one of its messages begins.

An earlier message is seldom gone back to, and there are many of them: half the bytes keep twice as many. A row of a
recurrent state becomes int16 with a scale, which is off by less than 2e-4 of the row's norm, and by 3e-5 where its
numbers are normally distributed. The error does not add up from turn to turn, since each goes on from the end.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from kernels.attention_q8 import quantize_rows
from runtime.cache import Checkpoint, RecurrentState, SequenceState
from runtime.snapshot_files import Target, read_tensors, write_tensors

_EXACT, _ROUNDED = "place", "place16"


class PlaceFiles:
    """Writes and reads the places of one model's conversations."""

    def __init__(self, state: SequenceState, hidden: int) -> None:
        """`state`: any of the model; `hidden`: its width."""
        place = Checkpoint(0, tuple(state.recurrent), torch.empty(hidden))
        self._devices = [layer.state.device for layer in state.recurrent]
        self._hidden_device = state.device
        self._shapes = {kind: _meta(_tensors(place, kind)) for kind in (_EXACT, _ROUNDED)}

    @property
    def nbytes(self) -> int:
        """Of a place that is not the end."""
        return sum(tensor.nbytes for tensor in self._shapes[_ROUNDED].values())

    def write(self, to: Target, place: Checkpoint, *, exact: bool) -> str:
        """Returns the name of its file. Raises Interrupted, and OSError."""
        kind = _EXACT if exact else _ROUNDED
        return write_tensors(to, kind, _tensors(place, kind))

    def read(self, folder: Path, name: str, length: int) -> Checkpoint:
        """Raises DamagedError, FileNotFoundError, and OSError."""
        kind = name.partition("-")[0]
        tensors = read_tensors(folder, name, self._shapes.get(kind, {}))
        layers = []
        for layer, device in enumerate(self._devices):
            state = tensors[f"state.{layer}"].to(device)
            if kind == _ROUNDED:
                state = state * tensors[f"scale.{layer}"].to(device)[..., None]
            layers.append(RecurrentState(tensors[f"window.{layer}"].to(device), state))
        return Checkpoint(length, tuple(layers), tensors["hidden"].to(self._hidden_device))


def _tensors(place: Checkpoint, kind: str) -> dict[str, Tensor]:
    assert place.last_hidden is not None  # only the beginning has none, and is not stored
    tensors = {"hidden": place.last_hidden}
    for layer, recurrent in enumerate(place.recurrent):
        tensors[f"window.{layer}"] = recurrent.window
        if kind == _EXACT:
            tensors[f"state.{layer}"] = recurrent.state
        else:
            tensors[f"state.{layer}"], tensors[f"scale.{layer}"] = quantize_rows(recurrent.state, torch.int16)
    return tensors


def _meta(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
