"""Memory for packed weights, for what lasts, and for what passes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernels.cpu.memory import Arena, Rooms, lasting, streamed, trim, untouched
from kernels.cpu.pages import Ahead


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


def test_what_is_streamed_is_zero_and_begins_a_line() -> None:
    for numbers in (1, 16, 1_000_003):
        tensor = streamed(numbers)
        assert (tensor.shape, tensor.dtype, tensor.data_ptr() % 64) == ((numbers,), torch.float32, 0)
        assert torch.all(tensor == 0)


def test_a_room_is_taken_again_only_when_no_view_of_it_is_left() -> None:
    rooms = Rooms()
    first = rooms.empty((1000, 300)).fill_(1)
    place, view = first.data_ptr(), first[500:, ::7]
    del first
    second = rooms.empty((1000, 300)).fill_(2)
    assert second.data_ptr() != place
    assert torch.all(view == 1)
    del view
    assert rooms.empty((1000, 290)).data_ptr() == place


def test_a_room_is_not_given_to_what_needs_little_of_it() -> None:
    rooms = Rooms()
    place = rooms.empty((8 << 20,), torch.int8).data_ptr()
    assert rooms.empty((3 << 20,), torch.int8).data_ptr() != place
    assert rooms.empty((5 << 20,), torch.int8).data_ptr() == place


def test_a_room_serves_what_needs_a_little_more() -> None:
    """Layers of one kind leave rooms of 2ⁿ bytes, and those of another ask for an eighth more."""
    rooms = Rooms()
    place = rooms.empty((256, 8192)).data_ptr()
    assert rooms.empty((256, 9216)).data_ptr() == place


def test_of_equal_rooms_the_one_that_was_used_last_is_taken() -> None:
    rooms = Rooms()
    first, second, third = (rooms.empty((1 << 20,)) for _ in range(3))
    place = second.data_ptr()
    del first, third, second
    assert rooms.empty((1 << 20,)).data_ptr() == place


def test_tensors_of_all_sizes_and_types_are_what_was_asked_for() -> None:
    rooms = Rooms()
    held = []
    for number, (shape, dtype) in enumerate(
        [((0, 5), torch.float32), ((3,), torch.long), ((257, 1023), torch.float32), ((7, 99_999), torch.int8)]
    ):
        for new in (rooms.empty, lasting):
            tensor = new(shape, dtype)
            assert (tensor.shape, tensor.dtype) == (shape, dtype)
            assert tensor.is_contiguous()
            assert tensor.data_ptr() % 64 == 0 or tensor.numel() == 0
            held.append((number, tensor.fill_(number)))
    assert all(torch.all(tensor == number) for number, tensor in held)


def test_an_arena_cuts_first_from_memory_that_was_brought_in_ahead() -> None:
    ahead, arena = Ahead(24 << 20), Arena()
    arena.begin_with(ahead)
    memory, start = ahead.take()
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    taken = [arena.take(size) for size in (5, 7 << 20, 30 << 20, 9 << 20)]
    places = [tensor.data_ptr() - whole.data_ptr() - start for tensor in taken]
    assert places[:2] == [0, 64]
    assert not -(30 << 20) < places[2] < 24 << 20, "what does not fit lies elsewhere"
    assert places[3] == 64 + (7 << 20)
    assert all(torch.all(tensor == 0) for tensor in taken)
    for number, tensor in enumerate(taken):
        tensor.fill_(number + 1)
    arena.end()
    assert all(torch.all(tensor == number + 1) for number, tensor in enumerate(taken))
    assert torch.all(arena.take(7 << 20) == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_was_brought_in_for_nothing_goes_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    ahead, arena = Ahead(80 << 20), Arena()
    ahead._thread.join()
    assert resident() - before > 70 << 20
    arena.begin_with(ahead)
    taken = arena.take(10 << 20).fill_(1)
    arena.end()
    assert resident() - before < 20 << 20
    assert torch.all(taken == 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_lasts_goes_back_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    tensors = [lasting((5 << 20,), torch.int8).fill_(1) for _ in range(20)]
    assert resident() - before > 80 << 20
    tensors.clear()
    assert resident() - before < 20 << 20


def test_of_libraries_only_what_nobody_wrote_to_is_dropped() -> None:
    """What the linker wrote before it took the right to write away would be gone."""

    def mapped(addresses: str, rights: str, path: str, anonymous: int) -> str:
        rest = f"Size: 8 kB\nRss: 8 kB\nAnonymous: {anonymous:8} kB\nAnonHugePages: 0 kB\nVmFlags: rd mr\n"
        return f"{addresses} {rights} 00001000 fd:00 17   {path}\n{rest}"

    maps = (
        mapped("1000-3000", "r-xp", "/lib/libtorch_cpu.so", 0)
        + mapped("3000-5000", "r--p", "/lib/libtorch_cpu.so", 4)
        + mapped("5000-7000", "rw-p", "/lib/libtorch_cpu.so", 0)
        + mapped("7000-9000", "r--p", "/lib/libstdc++.so.6.0.30", 0)
        + mapped("9000-b000", "r--s", "/lib/libshared.so", 0)
        + mapped("b000-d000", "r--p", "/home/somebody/model.gguf", 0)
        + mapped("d000-f000", "r--p", "", 0)
    )
    assert untouched(maps.encode()) == [(0x1000, 0x3000), (0x7000, 0x9000)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_libraries_work_on_after_what_they_have_in_memory_was_dropped() -> None:
    def resident() -> int:
        """Kilobytes of torch's library, its code alone."""
        _, _, rest = Path("/proc/self/smaps").read_text().partition("libtorch_cpu.so\n")
        return int(rest[rest.index("Rss:") :].split()[1])

    before, product = resident(), torch.arange(9.0).view(3, 3) @ torch.ones(3, 3)
    trim()
    assert resident() < before / 2
    assert torch.equal(torch.arange(9.0).view(3, 3) @ torch.ones(3, 3), product)
