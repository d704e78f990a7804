"""Copies of GGUF files with something changed, through gguf-py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

GOLDENS = Path(__file__).parent / "goldens"


def rewrite(
    source: Path,
    target: Path,
    *,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | tuple[np.ndarray, GGMLQuantizationType] | None] | None = None,
    names: Mapping[str, str] | None = None,
) -> Path:
    """Write `target` as `source` with other metadata values, tensors and tensor names.

    None leaves a value or a tensor out; bytes [rows, row bytes] with a type are a packed tensor.
    """
    reader = GGUFReader(source)
    metadata, tensors, names = dict(metadata or {}), dict(tensors or {}), names or {}
    architecture = metadata.pop("general.architecture", reader.fields["general.architecture"].contents())
    writer = GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = metadata.pop(key, field.contents())
        if value is not None:
            sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, value, field.types[0], sub_type)
    for key, value in metadata.items():
        writer.add_key_value(key, value, GGUFValueType.get_type(value))
    for tensor in reader.tensors:
        if tensor.name in tensors:
            _add(writer, names.get(tensor.name, tensor.name), tensors.pop(tensor.name))
            continue
        writer.add_tensor(names.get(tensor.name, tensor.name), tensor.data, raw_dtype=tensor.tensor_type)
    for name, data in tensors.items():
        _add(writer, name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add(writer: GGUFWriter, name: str, data: np.ndarray | tuple[np.ndarray, GGMLQuantizationType] | None) -> None:
    if isinstance(data, tuple):
        writer.add_tensor(name, data[0], raw_dtype=data[1])
    elif data is not None:
        writer.add_tensor(name, data)


def tensor_names(source: Path) -> list[str]:
    return [tensor.name for tensor in GGUFReader(source).tensors]


def tensor_values(source: Path, name: str) -> np.ndarray:
    """A float tensor's values, in the order that torch sees."""
    [tensor] = [tensor for tensor in GGUFReader(source).tensors if tensor.name == name]
    return np.array(tensor.data)
