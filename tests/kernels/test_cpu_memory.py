"""Memory for packed weights."""

from __future__ import annotations

import torch

from kernels.cpu.memory import Arena


def test_tensors_of_an_arena_begin_at_cache_lines_and_share_nothing() -> None:
    arena = Arena()
    sizes = [1, 64, 65, 100_000, 40 << 20, 3, 31 << 20, 20 << 20, 7]
    taken = [arena.take(size) for size in sizes]
    assert [len(tensor) for tensor in taken] == sizes
    assert all(tensor.data_ptr() % 64 == 0 for tensor in taken)
    for number, tensor in enumerate(taken):
        tensor.fill_(number)
    for number, tensor in enumerate(taken):
        assert torch.all(tensor == number)


def test_memory_outlives_its_arena() -> None:
    tensor = Arena().take(1000).fill_(7)
    assert torch.all(tensor == 7)
