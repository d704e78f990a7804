"""Packed tensor types: their values against gguf-py and by hand, and tensors that stay packed."""

from __future__ import annotations

import struct
import warnings

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from kernels.quants import QUANTS, QuantError, QuantTensor, QuantType, by_ggml_id

EVERY_TYPE = pytest.mark.parametrize("quant", QUANTS.values(), ids=QUANTS)


def expected(raw: NDArray[np.uint8], quant: QuantType) -> NDArray[np.float32]:
    """The weights of packed rows as gguf-py sees them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # random scales may be infinite
        return quants.dequantize(raw, GGMLQuantizationType(quant.ggml_id))


def random_blocks(quant: QuantType, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random bytes [count, nbytes] whose weights are all finite."""
    raw = np.random.default_rng(seed).integers(0, 256, (2 * count + 8, quant.nbytes), dtype=np.uint8)
    finite = np.isfinite(expected(raw, quant)).all(axis=1)
    return raw[finite][:count]


def random_tensor(quant: QuantType, *shape: int, blocks: int = 3) -> QuantTensor:
    """A packed tensor [*shape, blocks·block]."""
    raw = random_blocks(quant, int(np.prod(shape)) * blocks)
    data = torch.from_numpy(raw).reshape(*shape, blocks * quant.nbytes)
    return QuantTensor(data, quant, (*shape, blocks * quant.block))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def half(value: float) -> bytes:
    return struct.pack("<e", value)


def unpacked(name: str, block: bytes) -> list[float]:
    weights: list[float] = QUANTS[name].unpack(torch.tensor([list(block)], dtype=torch.uint8))[0].tolist()
    return weights


# Types


def test_every_type_that_gguf_py_dequantises_is_here() -> None:
    known = {GGMLQuantizationType.F32, GGMLQuantizationType.F16, *quants._type_traits}
    assert {quant.ggml_id for quant in QUANTS.values()} == {int(ggml_type) for ggml_type in known}


@EVERY_TYPE
def test_numbers_and_sizes_are_those_of_ggml(quant: QuantType) -> None:
    ggml_type = GGMLQuantizationType[quant.name]
    assert (quant.ggml_id, quant.block, quant.nbytes) == (int(ggml_type), *GGML_QUANT_SIZES[ggml_type])
    assert by_ggml_id(quant.ggml_id) is quant


def test_an_unknown_number_is_no_type() -> None:
    assert by_ggml_id(4) is None  # Q4_2, removed from ggml
    assert by_ggml_id(999) is None


@EVERY_TYPE
def test_every_bit_of_every_weight_is_as_in_gguf_py(quant: QuantType) -> None:
    raw = random_blocks(quant, 501)
    out = quant.unpack(torch.from_numpy(raw))
    assert out.dtype == torch.float32
    assert same_bits(out, torch.from_numpy(expected(raw, quant)))


@EVERY_TYPE
def test_no_blocks_make_no_weights(quant: QuantType) -> None:
    assert quant.unpack(torch.empty(0, quant.nbytes, dtype=torch.uint8)).shape == (0, quant.block)


@EVERY_TYPE
def test_one_block_at_an_odd_address(quant: QuantType) -> None:
    raw = random_blocks(quant, 1)
    storage = torch.cat([torch.zeros(1, 1, dtype=torch.uint8), torch.from_numpy(raw)], dim=1)
    assert same_bits(quant.unpack(storage[:, 1:]), torch.from_numpy(expected(raw, quant)))


# Blocks worked out by hand


def test_q4_0_by_hand() -> None:
    # Byte j: weight j in the low nibble, weight 16 + j in the high one.
    weights = unpacked("Q4_0", half(0.5) + bytes([0x80, 0xF1, *[0x88] * 14]))
    assert weights[:2] == [-4.0, -3.5]  # 0.5·(0 − 8), 0.5·(1 − 8)
    assert weights[16:18] == [0.0, 3.5]  # 0.5·(8 − 8), 0.5·(15 − 8)
    assert weights[2:16] == weights[18:] == [0.0] * 14


def test_q8_0_by_hand() -> None:
    values = [0, 1, -1, 127, -128, *range(5, 32)]
    assert unpacked("Q8_0", half(0.25) + struct.pack("32b", *values)) == [0.25 * value for value in values]


def test_q4_k_by_hand() -> None:
    scales = [1, 2, 3, 63, 5, 18, 33, 63]
    minima = [0, 1, 2, 62, 4, 17, 34, 60]
    packed = [
        *(scales[i] | (scales[i + 4] >> 4) << 6 for i in range(4)),
        *(minima[i] | (minima[i + 4] >> 4) << 6 for i in range(4)),
        *(scales[i + 4] & 15 | (minima[i + 4] & 15) << 4 for i in range(4)),
    ]
    # Sub-blocks 2i and 2i + 1 are the low and high nibbles of 32 bytes; all weights of a sub-block alike.
    nibbles = [3, 14, 0, 15, 7, 8, 1, 9]
    qs = [nibbles[2 * i] | nibbles[2 * i + 1] << 4 for i in range(4) for _ in range(32)]
    weights = unpacked("Q4_K", half(0.5) + half(2.0) + bytes(packed) + bytes(qs))
    for i in range(8):
        assert weights[32 * i : 32 * i + 32] == [0.5 * scales[i] * nibbles[i] - 2.0 * minima[i]] * 32


def test_q6_k_by_hand() -> None:
    q = [(7 * i) % 64 for i in range(256)]
    scales = [1, -2, 3, 127, -128, *range(11)]
    low, high = bytearray(128), bytearray(64)
    for half_index in (0, 1):
        for quarter in range(4):
            for j in range(32):
                value = q[128 * half_index + 32 * quarter + j]
                low[64 * half_index + 32 * (quarter % 2) + j] |= (value & 15) << 4 * (quarter // 2)
                high[32 * half_index + j] |= (value >> 4) << 2 * quarter
    weights = unpacked("Q6_K", bytes(low) + bytes(high) + struct.pack("16b", *scales) + half(0.25))
    assert weights == [0.25 * scales[i // 16] * (q[i] - 32) for i in range(256)]


def test_mxfp4_by_hand() -> None:
    # 2^(128 − 127) times ±{0, ½, 1, 1½, 2, 3, 4, 6}.
    weights = unpacked("MXFP4", bytes([128, *(i | (15 - i) << 4 for i in range(16))]))
    e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = [2 * v for v in e2m1] + [-2 * v for v in e2m1]
    assert weights == values + values[::-1]


# Tensors


@EVERY_TYPE
@pytest.mark.parametrize("shape", [(7,), (3, 5)], ids=["7 rows", "3 experts of 5 rows"])
def test_dequantize(quant: QuantType, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(quant, *shape)
    assert same_bits(tensor.dequantize(), torch.from_numpy(expected(tensor.data.numpy(), quant)))


@EVERY_TYPE
def test_take_unpacks_the_chosen_rows_only(quant: QuantType) -> None:
    table = random_tensor(quant, 9)
    ids = torch.tensor([[8, 0, 3], [3, 7, 8]])
    assert same_bits(table.take(ids), table.dequantize()[ids])


@pytest.mark.parametrize("name", ["F32", "Q4_K"])
def test_take_of_nothing(name: str) -> None:
    table = random_tensor(QUANTS[name], 9)
    assert table.take(torch.empty(0, dtype=torch.long)).shape == (0, table.shape[1])


def test_take_outside_the_table_is_an_error() -> None:
    with pytest.raises(IndexError):
        random_tensor(QUANTS["Q8_0"], 9).take(torch.tensor([9]))


@pytest.mark.parametrize("name", ["F32", "BF16", "Q6_K"])
def test_a_vector(name: str) -> None:
    quant = QUANTS[name]
    row = random_tensor(quant, 1)
    vector = QuantTensor(row.data[0], quant, row.shape[1:])
    assert same_bits(vector.dequantize(), row.dequantize()[0])
    for choose in (lambda: vector.rows(0, 1), lambda: vector.select(0), lambda: vector.split_rows([1])):
        with pytest.raises(QuantError, match="one dimension"):
            choose()


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "IQ3_S"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_are_rounded_from_float32(name: str, dtype: torch.dtype) -> None:
    tensor = random_tensor(QUANTS[name], 5)
    out = tensor.dequantize(dtype)
    assert out.dtype == dtype
    assert torch.equal(out, tensor.dequantize().to(dtype))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_numbers_are_not_copied(name: str) -> None:
    tensor = random_tensor(QUANTS[name], 5)
    dense = tensor.dequantize(QUANTS[name].dtype or torch.float32)
    assert dense.data_ptr() == tensor.data.data_ptr()


def test_plain_numbers_at_an_odd_address() -> None:
    values = torch.arange(12, dtype=torch.float32)
    storage = torch.cat([torch.zeros(1, dtype=torch.uint8), values.view(torch.uint8)])
    tensor = QuantTensor(storage[1:].view(3, 16), QUANTS["F32"], (3, 4))
    assert torch.equal(tensor.dequantize(), values.view(3, 4))


def test_more_weights_than_are_unpacked_at_a_time() -> None:
    quant = QUANTS["Q4_0"]
    tensor = random_tensor(quant, 1, blocks=1)
    rows, columns = 2100, 256
    tall = QuantTensor(tensor.data.repeat(rows, columns // quant.block), quant, (rows, columns))
    assert same_bits(tall.dequantize(), tensor.dequantize().repeat(rows, columns // quant.block))


def test_from_dense() -> None:
    dense = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    tensor = QuantTensor.from_dense(dense)
    assert (tensor.type.name, tensor.shape, tensor.nbytes) == ("F32", (3, 5), 60)
    assert tensor.dequantize().data_ptr() == dense.data_ptr()
    assert torch.equal(QuantTensor.from_dense(dense.T).dequantize(), dense.T)
    assert torch.equal(QuantTensor.from_dense(dense[0]).dequantize(), dense[0])


@pytest.mark.parametrize("name", ["F32", "Q5_K"])
def test_parts_share_memory_and_values(name: str) -> None:
    experts = random_tensor(QUANTS[name], 4, 6)
    dense = experts.dequantize()

    def check(part: QuantTensor, values: torch.Tensor) -> None:
        assert part.data.untyped_storage().data_ptr() == experts.data.untyped_storage().data_ptr()
        assert part.shape == tuple(values.shape)
        assert same_bits(part.dequantize(), values)

    check(experts.rows(1, 3), dense[1:3])
    check(experts.rows(2, 2), dense[2:2])
    check(experts.select(3), dense[3])
    check(experts.select(3).rows(1, 6), dense[3, 1:])
    for part, values in zip(experts.split_rows([1, 5]), dense.split([1, 5], dim=1), strict=True):
        check(part, values)
        check(part.select(2), values[2])
    for part, values in zip(experts.select(0).split_rows([2, 0, 4]), dense[0].split([2, 0, 4]), strict=True):
        check(part, values)


def test_nbytes_is_what_the_blocks_take() -> None:
    assert random_tensor(QUANTS["Q4_K"], 4, 6).nbytes == 4 * 6 * 3 * 144


@pytest.mark.parametrize("sizes", [[3, 4], [6, -1, 1], []], ids=str)
def test_a_split_takes_all_rows(sizes: list[int]) -> None:
    with pytest.raises(QuantError, match="6 rows cannot be split"):
        random_tensor(QUANTS["Q8_0"], 6).split_rows(sizes)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 7)])
def test_rows_outside_the_tensor(start: int, stop: int) -> None:
    with pytest.raises(QuantError, match="not in a tensor of shape"):
        random_tensor(QUANTS["Q8_0"], 6).rows(start, stop)


def test_columns_that_are_no_whole_blocks() -> None:
    with pytest.raises(QuantError, match="a row of 40 weights cannot be of type Q8_0, whose blocks hold 32"):
        QuantTensor(torch.zeros(2, 42, dtype=torch.uint8), QUANTS["Q8_0"], (2, 40))


@pytest.mark.parametrize(
    "data",
    [torch.zeros(2, 33, dtype=torch.uint8), torch.zeros(3, 34, dtype=torch.uint8), torch.zeros(2, 34)],
    ids=["row bytes", "rows", "dtype"],
)
def test_data_that_does_not_fit_the_shape(data: torch.Tensor) -> None:
    with pytest.raises(QuantError, match="Q8_0 tensor of shape"):
        QuantTensor(data, QUANTS["Q8_0"], (2, 32))


def test_a_tensor_without_dimensions() -> None:
    with pytest.raises(QuantError, match="without dimensions"):
        QuantTensor(torch.zeros(4, dtype=torch.uint8), QUANTS["F32"], ())
