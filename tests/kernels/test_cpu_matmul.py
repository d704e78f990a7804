"""Products with every packed type on every kind of processor, against gguf-py's weights and activations of 15 bits."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels_blocks import random_weights

from kernels.cpu import isa
from kernels.cpu.machine import Machine
from kernels.moe import experts
from kernels.op import OpTable
from kernels.quant_matmul import embedding, projections, quant_matmul
from kernels.quants import QUANTS, QuantTensor

pytest.importorskip("llvmlite")
from kernels.cpu import attend, delta, matmul, pack, plain, threads
from kernels.cpu.formats import FORMATS, UNITS, layout
from kernels.cpu.jit import Compiler

TYPES = list(FORMATS)
LIGHT = ["Q4_0", "Q5_1", "Q8_0", "MXFP4"]  # that between them use all that a kind of processor does its own way


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x as groups of 32 integers with a scale have it."""
    groups = x.double().view(len(x), -1, 32)
    scale = groups.abs().amax(-1, keepdim=True) / (127 * 128 + 63)
    return torch.nan_to_num((groups / scale).round() * scale).view_as(x)


def product(machine: Machine, rows: int, weight: QuantTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The native product, and the exact one of the same rounded activations."""
    x = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(rows))
    exact = rounded(x) if weight.type.name in FORMATS else x.double()
    return OpTable("cpu", machine)[quant_matmul](x, weight), exact @ weight.dequantize().double().T


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """To float32's rounding, of which a few activations fall on the other side of a half."""
    return bool((found - wanted).norm() <= 2e-5 * wanted.norm())


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(2)


def narrowed(threads: int, dot: str) -> Machine:
    """A machine with these products only; the test is skipped where the processor lacks them."""
    try:
        return Machine(threads, isa.narrowed(dot))  # type: ignore[arg-type]
    except ValueError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module", params=[pytest.param("avxvnni", marks=pytest.mark.slow), "avx2"])
def narrow(request: pytest.FixtureRequest) -> Machine:
    return narrowed(2, request.param)


@pytest.mark.parametrize("name", [*TYPES, *plain.PLAIN])
def test_one_row(machine: Machine, name: str) -> None:
    weight = random_weights(name, 37, 2)
    assert close(*product(machine, 1, weight))


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 8, 17])
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "F16", "BF16", "F32"])
def test_more_rows(machine: Machine, name: str, rows: int) -> None:
    assert close(*product(machine, rows, random_weights(name, 33, 3)))


@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_more_rows_of_types_with_groups_in_blocks(machine: Machine, name: str, rows: int) -> None:
    assert close(*product(machine, rows, random_weights(name, 20, 2)))


@pytest.mark.parametrize("name", [*LIGHT, "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "IQ3_S"])
def test_one_row_on_lesser_processors(narrow: Machine, name: str) -> None:
    assert close(*product(narrow, 1, random_weights(name, 37, 2)))


@pytest.mark.parametrize("name", [*LIGHT, pytest.param("Q6_K", marks=pytest.mark.slow)])
def test_more_rows_on_lesser_processors(narrow: Machine, name: str) -> None:
    assert close(*product(narrow, 3, random_weights(name, 37, 2)))
    assert close(*product(narrow, 6, random_weights(name, 37, 2)))


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "MXFP4", pytest.param("IQ3_S", marks=pytest.mark.slow)])
def test_one_row_without_products_of_bytes(name: str) -> None:
    assert close(*product(Machine(1, isa.narrowed("plain")), 1, random_weights(name, 20, 2)))


@pytest.fixture(scope="module")
def sides(narrow: Machine) -> tuple[Machine, Machine]:
    """Machines that read one panel after the other, and four side by side."""
    one, four = (Machine(2, dataclasses.replace(narrow.target, ahead=4096, streams=streams)) for streams in (1, 4))
    return one, four


@pytest.mark.parametrize("panels", [pytest.param(3, marks=pytest.mark.slow), 37])
@pytest.mark.parametrize("name", [pytest.param("Q6_K", marks=pytest.mark.slow), "MXFP4"])
def test_panels_that_are_read_side_by_side_have_the_same_sums(
    sides: tuple[Machine, Machine], name: str, panels: int
) -> None:
    """To the last bit, whatever the number of them, with a last one that is not full."""
    weight = random_weights(name, 16 * panels - 5, 3)
    for rows in (1, 3):
        (one, exact), (four, _) = (product(machine, rows, weight) for machine in sides)
        assert close(four, exact)
        assert four.equal(one)


def test_experts_panels_that_are_read_side_by_side_have_the_same_sums(sides: tuple[Machine, Machine]) -> None:
    def stack(rows: int, columns: int) -> QuantTensor:
        parts = [random_weights("Q4_0", rows, columns // 32 + seed).data[:, : columns // 32 * 18] for seed in range(3)]
        return QuantTensor(torch.stack(parts), QUANTS["Q4_0"], (3, rows, columns))

    stacks = stack(96, 64), stack(96, 64), stack(64, 96)
    x, ids = torch.randn(2, 64, generator=torch.Generator().manual_seed(3)), torch.tensor([[2, 0], [1, 2]])
    one, four = (OpTable("cpu", machine)[experts](x, torch.full((2, 2), 0.5), ids, *stacks) for machine in sides)
    assert four.equal(one)


@pytest.mark.parametrize("dot", ["avxvnni", "avx2"])
def test_the_largest_products_do_not_saturate(machine: Machine, dot: str) -> None:
    """Pairs of −128·127 in Q8_0 are the most that 16 bits must hold."""
    narrow = narrowed(1, dot)
    block = torch.tensor([0, 60, *([128] * 32)], dtype=torch.uint8)  # d = 1, all q = −128
    weight = QuantTensor(block.repeat(16, 1), QUANTS["Q8_0"], (16, 32))
    for sign in (1, -1):
        x = torch.full((1, 32), sign * 16319 / 128)  # which makes the scale a power of two, and all a = ±127
        for each in (machine, narrow):
            assert OpTable("cpu", each)[quant_matmul](x, weight).eq(-sign * 16319 * 32).all()


# Of each type the bytes of a block whose codes are all as large as they can be, with scales of 1.
LARGEST_CODES = {
    "Q4_0": [0, 60, *[255] * 16],
    "Q5_0": [0, 60, *[255] * 20],
    "Q2_K": [*[1] * 16, *[255] * 64, 0, 60, 0, 0],
    "Q4_K": [0, 60, 0, 0, *[1] * 8, *[1] * 4, *[255] * 128],
    "Q5_K": [0, 60, 0, 0, *[1] * 8, *[1] * 4, *[255] * 160],
    "Q6_K": [*[255] * 192, *[1] * 16, 0, 60],
}


@pytest.mark.parametrize("low", [63, -64])
@pytest.mark.parametrize("name", list(LARGEST_CODES))
def test_the_largest_sums_of_one_row_fit(name: str, low: int) -> None:
    """With all of 128·a + b as large as they can be, what is summed in 16 bits is as large as it can be."""
    narrow = narrowed(1, "avx2")
    block = torch.tensor(LARGEST_CODES[name], dtype=torch.uint8)
    columns = QUANTS[name].block
    weight = QuantTensor(block.repeat(16, 1), QUANTS[name], (16, columns))
    q = torch.full((1, columns), 127.0 * 128 + low)
    q[:, ::32] = 16319  # the largest of a group makes its scale
    for sign in (1, -1):
        x = sign * q / 128
        exact = x.double() @ weight.dequantize().double().T
        assert close(OpTable("cpu", narrow)[quant_matmul](x, weight), exact)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_experts_find_the_rows_of_their_tokens_on_lesser_processors(narrow: Machine, name: str) -> None:
    def stack(rows: int, columns: int) -> QuantTensor:
        return QuantTensor(
            torch.stack(
                [
                    random_weights(name, rows, columns // 32 + e).data[:, : columns // 32 * QUANTS[name].nbytes]
                    for e in range(3)
                ]
            ),
            QUANTS[name],
            (3, rows, columns),
        )

    gate, up, down = stack(32, 64), stack(32, 64), stack(64, 32)
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(3))
    weights, ids = torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([[2, 0], [1, 2]])
    found = OpTable("cpu", narrow)[experts](x, weights, ids, gate, up, down)
    wanted = OpTable("reference")[experts](x, weights, ids, gate, up, down)
    assert (found - wanted).norm() <= 1e-3 * wanted.norm()


@pytest.mark.parametrize("rows", [1, 12])
def test_activations_lose_next_to_nothing(machine: Machine, rows: int) -> None:
    """Rounding to 1/16,319 of a group's largest, evenly spread: 1/√12 of that, of numbers that are 2 to 3 times smaller
    than their largest.
    """
    weight = random_weights("Q8_0", 48, 32)
    x = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(3))
    wanted = x.double() @ weight.dequantize().double().T
    error = (OpTable("cpu", machine)[quant_matmul](x, weight) - wanted).norm() / wanted.norm()
    assert error <= 3 / 16319 / 12**0.5


@pytest.mark.parametrize("columns", [32, 480, 512, 544, 1504])
@pytest.mark.parametrize("rows", [6, 8, 19])
def test_many_rows_of_any_width(machine: Machine, rows: int, columns: int) -> None:
    """Weights for many rows are unpacked in pieces, of which the last may be short."""
    for name, panel_rows in (("Q4_1", 21), ("Q8_0", 32)):
        assert close(*product(machine, rows, random_weights(name, panel_rows, columns // 32)))


@pytest.mark.parametrize("name", TYPES)
def test_many_rows(machine: Machine, name: str) -> None:
    assert close(*product(machine, 9, random_weights(name, 37, 3)))


@pytest.mark.parametrize("name", [*TYPES, *plain.PLAIN])
def test_rows_of_an_embedding_are_exact(machine: Machine, name: str) -> None:
    weight = random_weights(name, 5, 2)
    ids = torch.tensor([4, 0, 4])
    torch.testing.assert_close(OpTable("cpu", machine)[embedding](ids, weight), weight.take(ids), rtol=1e-6, atol=0)


def test_a_type_that_is_not_known_here_becomes_float16(machine: Machine) -> None:
    weight = random_weights("TQ2_0", 20, 1)
    x = torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(0))
    found = OpTable("cpu", machine)[quant_matmul](x, weight)
    wanted = x.double() @ weight.dequantize().double().T
    assert (found - wanted).norm() <= 1e-3 * wanted.norm()


def test_weights_of_several_types_side_by_side(machine: Machine) -> None:
    weights = tuple(random_weights(name, n, 8) for name, n in (("Q4_0", 40), ("F32", 5), ("Q8_0", 16)))
    weights = tuple(w if w.shape[1] == 256 else random_weights("F32", 5, 256) for w in weights)
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    for found, weight in zip(OpTable("cpu", machine)[projections](x, weights), weights, strict=True):
        exact = rounded(x) if weight.type.name in FORMATS else x.double()
        assert close(found, exact @ weight.dequantize().double().T)


def test_zeros_and_nan(machine: Machine) -> None:
    weight = random_weights("Q4_0", 16, 2)
    x = torch.zeros(2, 64)
    x[1, 40] = torch.nan
    found = OpTable("cpu", machine)[quant_matmul](x, weight)
    assert found[0].eq(0).all()
    assert found[1].isnan().all()


@pytest.mark.parametrize("name", TYPES)
def test_a_panel_holds_every_byte_of_its_rows_once(name: str) -> None:
    form, place = FORMATS[name], layout(name)
    covered = sorted(offset + byte for offset, kind in place.places for byte in range(UNITS[kind]))
    assert covered == list(range(QUANTS[name].nbytes))
    assert (form.block, form.nbytes) == (QUANTS[name].block, QUANTS[name].nbytes)
    assert place.nbytes <= 1.02 * 16 * form.nbytes


@pytest.mark.parametrize(
    ("writer", "parameters"),
    [
        *((matmul.matmul, (name, 1)) for name in ("Q4_K", "Q8_0", "IQ4_NL", "MXFP4", "IQ3_S")),
        (plain.matmul_plain, ("F16",)),
        (delta.delta_rule, ()),
        (delta.delta_resume, (1,)),
        (pack.pack, ("Q4_K",)),
        (attend.attend, ("F32", 2)),
        (attend.attend, ("I8", 2)),
        (threads.run, ()),
        (threads.work, ()),
    ],
)
def test_arm_code_is_made_from_anywhere(writer: object, parameters: tuple[int | str, ...]) -> None:
    code = Compiler(isa.NEON).compile(writer, "function", parameters)  # type: ignore[arg-type]
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == 183  # AArch64


def test_objects_are_kept_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_weights("Q4_0", 16, 1)
    first = product(Machine(1, cache=tmp_path), 1, weight)[0]
    assert list(tmp_path.glob("*.o"))
    monkeypatch.setattr(Compiler, "compile", None)
    assert torch.equal(product(Machine(1, cache=tmp_path), 1, weight)[0], first)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_object_is_made_anew(tmp_path: Path, damage: str) -> None:
    def address() -> int:
        return Compiler(isa.host(), tmp_path).address(threads.pool_stop)

    assert address()
    [path] = tmp_path.iterdir()
    good = path.read_bytes()
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    path.write_bytes({"cut": good[:middle], "flipped": flipped, "empty": b""}[damage])
    assert address()
    assert [path] == list(tmp_path.iterdir())
    assert path.read_bytes() == good


def test_two_at_once_keep_one_whole_object(tmp_path: Path) -> None:
    """Each that makes the same puts it in place in one step: whoever looks meanwhile finds none, or a whole one."""
    compilers = [Compiler(isa.host(), tmp_path) for _ in range(2)]
    met = threading.Barrier(2)
    compile_ = Compiler.compile

    def together(self: Compiler, *what: Any) -> bytes:
        code = compile_(self, *what)
        met.wait(60)  # both have found nothing, and write now
        return code

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(Compiler, "compile", together)
        assert all(pool.map(lambda compiler: compiler.address(threads.pool_stop), compilers))
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiler, "compile", None)
        assert Compiler(isa.host(), tmp_path).address(threads.pool_stop)


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert close(*product(Machine(1, cache=tmp_path / "file" / "below"), 1, random_weights("Q4_0", 16, 1)))


def test_what_is_first_asked_for_while_idle_is_packed_all_the_same() -> None:
    machine, weight = Machine(2), random_weights("Q4_K", 37, 2)
    x = torch.ones(1, weight.shape[1])
    with machine.idle():
        product(machine, 1, weight)
        assert machine.native_seconds > 0  # of packing
        before = machine.native_seconds
        OpTable("cpu", machine)[quant_matmul](x, weight)
        assert machine.native_seconds == before
    assert close(*product(machine, 1, weight))
