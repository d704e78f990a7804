"""The native version of every op against its reference, and programs that are recorded and run again."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from typing import Any

import pytest
import torch
from kernels_cases import case_of, results

from kernels.attention import attention
from kernels.attention_q8 import attention_q8, quantize_rows
from kernels.conv1d import causal_conv1d
from kernels.cpu import isa
from kernels.cpu.machine import Machine
from kernels.cpu.replay import Replay
from kernels.delta_rule import delta_chunk, delta_resume
from kernels.norm import add_rms_norm, rms_norm
from kernels.op import Case, Op, OpTable, random_tensors
from kernels.residual import add
from kernels.sample import UNDECIDED, Rules, sample
from kernels.table import OPS

pytest.importorskip("llvmlite")

NATIVE = [op for op in OPS if op.cpu]
CASES = [pytest.param(op, case.id, id=f"{op.name}-{case.id}") for op in NATIVE for case in op.cases()]


@pytest.fixture(scope="module", params=[1, 2], ids=lambda threads: f"{threads} threads")
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


@pytest.fixture
def nan_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors hold NaN, so that what an op leaves unwritten shows."""
    empty, empty_like = torch.empty, torch.empty_like

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: filled(empty(*args, **kwargs)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: filled(empty_like(*args, **kwargs)))


@pytest.mark.usefixtures("nan_filled")
@pytest.mark.parametrize(("op", "name"), CASES)
def test_the_native_version_is_the_reference(machine: Machine, op: Op[Any, Any], name: str) -> None:
    wanted = results(op.reference, case_of(op, name))
    found = results(OpTable("cpu", machine)[op], case_of(op, name))
    for out, ref in zip(found, wanted, strict=True):
        assert out.shape == ref.shape
        assert torch.equal(out.isnan(), ref.isnan())
        out, ref = out.double().nan_to_num(), ref.double().nan_to_num()
        assert (out - ref).norm() <= op.tolerance * ref.norm() + 1e-12


@pytest.mark.parametrize("count", [0, 2])
def test_a_state_that_goes_past_the_caches_is_the_reference(machine: Machine, count: int) -> None:
    """Of 1 MB, as a layer of the smallest model of the family has it."""
    randn = random_tensors(5)

    def rows(tokens: int) -> tuple[torch.Tensor, ...]:
        gates = -torch.nn.functional.softplus(randn(tokens, 16)), torch.sigmoid(randn(tokens, 16))
        return randn(tokens, 16, 128), randn(tokens, 16, 128), randn(tokens, 16, 128), *gates

    case = Case("", (*rows(1), randn(16, 128, 128), rows(2)[1:], torch.tensor([count]), False))
    found = results(OpTable("cpu", machine)[delta_resume], case)
    for out, wanted in zip(found, results(delta_resume.reference, case), strict=True):
        assert (out - wanted).norm() <= delta_resume.tolerance * wanted.norm()


def test_every_op_of_a_forward_has_a_native_version() -> None:
    assert {op.name for op in OPS} == {op.name for op in NATIVE}


# Tokens, start, heads, kv heads, D, and positions of a block: all kinds of rests and edges, tiles that begin and end
# within a token, splits of the positions, and sizes that tiles do not take.
MANY_ROWS = [
    (6, 0, 2, 1, 16, 8),
    (33, 31, 12, 2, 32, 16),
    (9, 1300, 4, 2, 16, 64),
    (70, 190, 8, 2, 256, 256),
    (130, 500, 3, 1, 64, 256),
    (12, 20, 3, 1, 48, 12),
    (6, 40, 2, 1, 24, 8),
    (7, 9, 2, 1, 320, 8),
]


def attention_arguments(
    kind: str, tokens: int, start: int, heads: int, kv: int, dim: int, block: int
) -> tuple[Op[..., torch.Tensor], tuple[Any, ...]]:
    """Whose cache holds NaN beyond the last position."""
    randn, end, q8 = random_tensors(21), start + tokens, kind == "q8"
    room = -(-end // block) * block + block
    q, gate, cache = (
        randn(tokens, heads, dim),
        randn(tokens, heads, dim),
        list(randn(2, kv, room, dim).half() if kind == "f16" else randn(2, kv, room, dim)),
    )
    parts = [part for half in cache for part in quantize_rows(half)] if q8 else cache
    if q8:  # keys and values, then the scales of both
        parts = parts[::2] + parts[1::2]
    for part in parts:
        if part.is_floating_point():
            part[:, end:] = torch.nan
    blocks = [part.split(block, dim=1) for part in parts]
    return attention_q8 if q8 else attention, (q, *blocks, gate, start)


@pytest.mark.usefixtures("nan_filled")
@pytest.mark.parametrize("shape", MANY_ROWS, ids=str)
@pytest.mark.parametrize("kind", ["f32", "f16", "q8"])
def test_attention_of_many_rows_is_the_reference(machine: Machine, kind: str, shape: tuple[int, ...]) -> None:
    op, args = attention_arguments(kind, *shape)
    found, wanted = OpTable("cpu", machine)[op](*args), op.reference(*args)
    assert (found - wanted).norm() <= op.tolerance * wanted.norm()


@pytest.mark.parametrize("dot", ["avx2", "neon"])
def test_attention_of_many_rows_on_other_processors(dot: isa.Dot) -> None:
    try:
        narrow = OpTable("cpu", Machine(2, isa.narrowed(dot)))
    except ValueError as error:
        pytest.skip(str(error))
    for kind, shape in (("f32", MANY_ROWS[1]), ("q8", MANY_ROWS[2]), ("f16", MANY_ROWS[3])):
        op, args = attention_arguments(kind, *shape)
        found, wanted = narrow[op](*args), op.reference(*args)
        assert (found - wanted).norm() <= op.tolerance * wanted.norm()


@pytest.mark.parametrize("kind", ["f32", "f16", "q8"])
def test_a_row_of_a_tile_does_not_feel_the_keys_after_it(machine: Machine, kind: str) -> None:
    """Not even their NaN."""
    op, (q, *cache, gate, start) = attention_arguments(kind, 33, 31, 12, 2, 32, 16)
    poisoned = [[block.clone() for block in blocks] for blocks in cache]
    blocks = poisoned[2 if kind == "q8" else 0]  # keys, or their scales
    blocks[(start + 20) // 16].select(1, (start + 20) % 16).fill_(torch.nan)
    table = OpTable("cpu", machine)
    found, clean = table[op](q, *poisoned, gate, start), table[op](q, *cache, gate, start)
    assert torch.equal(found[:20], clean[:20])
    assert found[20:].isnan().all()


def test_nan_comes_through(machine: Machine) -> None:
    """A damaged weight must not end as a plausible number."""
    table = OpTable("cpu", machine)
    x = torch.ones(1, 64)
    x[0, 3] = torch.nan
    assert table[rms_norm](x, torch.ones(64), 1e-6).isnan().all()


def test_recorded_work_runs_again_on_other_tensors(machine: Machine) -> None:
    table, replay = OpTable("cpu", machine), Replay(machine)
    weight = torch.rand(48)

    def work(inputs: Any) -> list[torch.Tensor]:
        x, y = inputs
        total, normed = table[add_rms_norm](x, y, weight, 1e-6)
        return [table[add](total, normed), total]

    kept = []
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(3, 48, generator=generator) for _ in range(2))
        found = replay("sum", work, [x, y], [], 0)
        total, normed = add_rms_norm.reference(x, y, weight, 1e-6)
        kept.append((found, [total + normed, total]))
    for found, wanted in kept:  # results that are still held were not written over
        torch.testing.assert_close(found, wanted)


def test_memory_of_results_that_nobody_holds_is_used_again(machine: Machine) -> None:
    table, replay = OpTable("cpu", machine), Replay(machine)
    places = set()
    for _ in range(10):
        [out] = replay("sum", lambda inputs: [table[add](inputs[0], inputs[0])], [torch.ones(1, 64)], [], 0)
        places.add(out.data_ptr())
        del out
    assert len(places) == 1


def test_one_tensor_may_stand_for_several_inputs_when_recording(machine: Machine) -> None:
    table, replay = OpTable("cpu", machine), Replay(machine)
    same = torch.ones(1, 16)

    def work(inputs: Any) -> list[torch.Tensor]:
        return [table[add](inputs[0], inputs[1])]

    replay("sum", work, [same, same], [], 0)
    [out] = replay("sum", work, [same, 5 * same], [], 0)
    assert out.eq(6).all()


def test_a_failed_recording_leaves_the_machine_usable(machine: Machine) -> None:
    table, replay = OpTable("cpu", machine), Replay(machine)

    def broken(inputs: Any) -> list[torch.Tensor]:
        table[add](inputs[0], inputs[0])
        raise KeyError

    with pytest.raises(KeyError):
        replay("broken", broken, [torch.ones(1, 16)], [], 0)
    assert table[add](torch.ones(1, 16), torch.ones(1, 16)).eq(2).all()


@pytest.mark.parametrize("alone", [False, True])
def test_a_program_gives_the_same_on_one_thread_and_on_all(machine: Machine, alone: bool) -> None:
    table = OpTable("cpu", machine)
    x, weight = torch.randn(300, 48, generator=torch.Generator().manual_seed(1)), torch.rand(48)
    with machine.record([x], [], 0) as program:
        total, normed = table[add_rms_norm](x, x, weight, 1e-6)
        out = table[add](total, normed)
    runnable = machine.prepare(program)
    assert runnable.alone  # it is small
    runnable.alone = alone
    runnable.run([x], [], 0)
    torch.testing.assert_close(out, 2 * x + rms_norm.reference(2 * x, weight, 1e-6))


def test_too_many_candidates_leave_the_choice_open(machine: Machine) -> None:
    choose: Any = OpTable("cpu", machine)[sample]
    marks, none = torch.zeros(300, dtype=torch.bool), torch.empty(0, dtype=torch.long)
    out = torch.empty(1, dtype=torch.long)
    rules = Rules(top_k=3).packed()
    for draft, wanted in ((False, UNDECIDED), (True, 0)):
        choose(torch.ones(300), rules, torch.tensor([1, 0]), marks, marks, none, out, draft)
        assert int(out) == wanted
    choose(torch.full((300,), torch.nan), rules, torch.tensor([1, 0]), marks, marks, none, out, True)
    assert int(out) == 0


@pytest.mark.parametrize(
    "rules", [Rules(), Rules(temperature=0.3), Rules(temperature=1.4, top_p=0.95), Rules(top_p=0.4)]
)
def test_a_choice_among_all_tokens_is_decided(machine: Machine, rules: Rules) -> None:
    """At several places of a reply, that win at many kinds of tokens."""
    logits = 3 * torch.randn(30_000, generator=torch.Generator().manual_seed(4))
    marks, none = torch.zeros(len(logits), dtype=torch.bool), torch.empty(0, dtype=torch.long)
    for place in range(20):
        found, wanted = torch.empty(1, dtype=torch.long), torch.empty(1, dtype=torch.long)
        where = torch.tensor([3, place]), marks, marks, none
        OpTable("cpu", machine)[sample](logits, rules.packed(), *where, found, False)
        sample.reference(logits, rules.packed(), *where, wanted, False)
        assert torch.equal(found, wanted)


def test_ties_in_the_cut_go_by_id_or_leave_the_choice_open(machine: Machine) -> None:
    choose: Any = OpTable("cpu", machine)[sample]
    rules, none, out = Rules(top_p=0.5).packed(), torch.empty(0, dtype=torch.long), torch.empty(1, dtype=torch.long)
    for size, decided in ((100, True), (1000, False)):
        marks = torch.zeros(size, dtype=torch.bool)
        for place in range(20):
            choose(torch.ones(size), rules, torch.tensor([8, place]), marks, marks, none, out, False)
            assert (0 <= int(out) < 50) if decided else int(out) == UNDECIDED


def test_many_short_steps_on_more_threads_than_cores() -> None:
    """Steps depend on each other, so a piece that ran too early or twice would show."""
    machine = Machine(8)
    table, replay = OpTable("cpu", machine), Replay(machine)

    def work(inputs: Any) -> list[torch.Tensor]:
        [x] = inputs
        for _ in range(200):
            x = table[add](x, x)
            x = table[rms_norm](x, torch.ones(64), 0.0)
        return [x]

    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    wanted = x / x.pow(2).mean(-1, keepdim=True).sqrt()
    for _ in range(20):
        torch.testing.assert_close(replay("chain", work, [x], [], 0)[0], wanted, rtol=1e-4, atol=1e-4)


def test_workers_use_no_time_while_idle() -> None:
    machine = Machine(4)
    OpTable("cpu", machine)[add](torch.ones(1, 16), torch.ones(1, 16))
    _asleep(machine)
    before = time.process_time()
    ctypes.CDLL(None).usleep(200_000)
    assert time.process_time() - before < 0.02


def _asleep(machine: Machine) -> None:
    deadline = time.monotonic() + 10
    while machine.sleeping < machine.threads - 1:
        assert time.monotonic() < deadline


@pytest.mark.slow
def test_workers_end_with_their_machine() -> None:
    # by name, not by number: threads of earlier tests may end in between
    before = set(threading.enumerate())
    machine = Machine(3)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    del machine
    gc.collect()
    assert not any(worker.is_alive() for worker in workers)


def test_sizes_that_native_functions_have_no_room_for_are_refused(machine: Machine) -> None:
    randn, table = random_tensors(31), OpTable("cpu", machine)

    def taps(width: int) -> tuple[torch.Tensor, ...]:
        return randn(40, 16), randn(width - 1, 16), randn(16, width)

    def rows(dim: int) -> tuple[torch.Tensor, ...]:
        return randn(1, 1, dim), randn(1, 1, dim), randn(1, 1, dim), -randn(1, 1).abs(), randn(1, 1).sigmoid()

    most = taps(17)
    torch.testing.assert_close(table[causal_conv1d](*most)[0], causal_conv1d.reference(*most)[0])
    with pytest.raises(ValueError, match="18 taps"):
        table[causal_conv1d](*taps(18))
    wide = *rows(1024), randn(1, 1024, 1024)
    torch.testing.assert_close(table[delta_chunk](*wide)[0], delta_chunk.reference(*wide)[0], rtol=1e-3, atol=1e-4)
    wider = *rows(1040), randn(1, 1040, 1040)
    with pytest.raises(ValueError, match="1040 dimensions"):
        table[delta_chunk](*wider)
    with pytest.raises(ValueError, match="1040 dimensions"):
        table[delta_resume](*wider, rows(1040)[1:], torch.tensor([1]), False)
