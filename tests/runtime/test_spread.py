"""A model that does not fit on its card, in Triton's interpreter: whatever stays in memory, the logits are known."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.moe import experts, route
from kernels.op import OpTable
from kernels.quants import QuantTensor
from kernels.triton.card import Card
from runtime import machine
from runtime.cache import Checkpoint, SequenceState
from runtime.gguf import GGUFFile
from runtime.kv_cache import Home
from runtime.loading import states_budget
from runtime.models.config import ModelConfig
from runtime.models.layers import MoEFFN
from runtime.models.loading import LoadedModel, card_sizes, load_model
from runtime.models.memory_experts import MemoryExperts
from runtime.models.spread import Spread
from runtime.placement import Placement, Where
from runtime.placement import place as decided
from runtime.snapshot_files import Target
from runtime.snapshot_places import PlaceFiles

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

MOE = Path(__file__).parents[1] / "goldens" / "tiny-moe.gguf"
FLOAT32 = 1e-4
LAYERS = 4  # of the trunk and the MTP block
RESERVE = 600 << 20
ON_CARD: tuple[int, ...] = (0,) * LAYERS


def distance(loaded: LoadedModel, length: int = 2) -> float:
    """From the known logits: the first token in one forward, the others in another."""
    with np.load(MOE.with_suffix(".npz")) as known:
        ids, logits = [int(i) for i in known[f"ids_{length}"]], torch.from_numpy(known[f"logits_{length}"])
    model, rows = loaded.model, []
    state = model.new_state("f32")
    for part in (ids[:1], ids[1:]):
        rows.append(model.logits(model.forward(part, state, each=len(part) > 1)))
        state.commit()
    found = torch.cat(rows)[-len(logits) :]
    return float((found - logits).norm() / logits.norm())


def memories(loaded: LoadedModel) -> list[MemoryExperts]:
    mtp = loaded.model.mtp
    assert mtp
    layers = [block.ffn for block in (*loaded.model.trunk.blocks, mtp.block)]
    return [layer.memory for layer in layers if isinstance(layer, MoEFFN) and layer.memory]


@pytest.mark.slow
def test_all_experts_in_memory() -> None:
    loaded = load_model(MOE, "triton", room=Placement(ON_CARD, ("memory",) * LAYERS, 0))
    assert loaded.model.ops.column == "triton" and loaded.model.stepper is None
    assert loaded.notices[0] == ("The model does not fit on the GPU: the experts of 4 layers run on the processor.")
    assert distance(loaded) <= FLOAT32
    assert [(memory.misses, memory.hits) for memory in memories(loaded)] == [(4, 0)] * 3 + [(0, 0)]


def test_the_last_layers_on_the_processor() -> None:
    """Attention, with its keys and values, and the MTP block among them."""
    where = (0, "memory", "memory", "memory")
    loaded = load_model(MOE, "triton", room=Placement(where, where, 0))
    assert loaded.notices[0] == "The model does not fit on the GPU: 3 of 4 layers run on the processor."
    columns = [block.ops.column for block in loaded.model.trunk.blocks]
    assert columns == ["triton", *[loaded.model.spread.memory.column] * 2]  # type: ignore[union-attr]
    assert distance(loaded) <= FLOAT32


@pytest.mark.long
def test_some_experts_on_the_card_and_drafts() -> None:
    """Two of five experts a layer, which change, over a longer prompt; and the MTP block's numbers."""
    with GGUFFile.open(MOE) as gguf:
        stacks = [info for name, info in gguf.tensors.items() if name.startswith("blk.0.") and "_exps." in name]
        each = sum(info.nbytes for info in stacks) // stacks[0].shape[0]
    loaded = load_model(MOE, "triton", room=Placement(ON_CARD, ("memory",) * LAYERS, 0, {0: LAYERS * 2 * each}))
    assert [memory.hot.held for memory in memories(loaded)] == [{}] * 4
    assert distance(loaded, 5) <= FLOAT32
    assert [len(memory.hot.held) for memory in memories(loaded)] == [2, 2, 2, 0]
    reference, model = load_model(MOE).model, loaded.model
    chains = []
    for one in (reference, model):
        state = one.new_state()
        hidden = one.forward([5, 17, 3], state)[-1:]
        state.commit()
        chains.append(one.draft_logits(one.draft([9], hidden, state, 2)))
    torch.testing.assert_close(chains[1], chains[0], rtol=1e-3, atol=1e-4)


def test_the_size_of_the_card_decides() -> None:
    """Whole where there is room for all; with less, experts stay; with hardly any, everything does."""
    with GGUFFile.open(MOE) as gguf:
        need = card_sizes([gguf], ModelConfig.from_metadata(gguf.metadata))
    rooms = [RESERVE + round(part * need.total / 0.96) for part in (1.01, 0.999, 0)]
    found = [decided(need, [room]) for room in rooms]
    assert [one.whole for one in found] == [True, False, False]
    whole, part, none = (load_model(MOE, "triton", room=room) for room in rooms)
    assert not whole.notices and whole.model.spread.memory is None
    assert "the experts of 1 layer run on the processor" in part.notices[0] and len(memories(part)) == 1
    assert none.notices == ["No card has room for a layer: the model runs on the processor."]
    assert none.model.ops.card is None


class Roomy(Card):
    """A card with so many bytes free."""

    room = 0

    def free(self) -> int:
        return self.room


@pytest.mark.parametrize(
    ("where", "rooms", "near", "budget"),
    [
        ("memory", (), (24, 20), 6),
        ("memory", (), (24, 4), 2),
        ("memory", (), (24, 0), 0.25),
        ((0, 0, 0, 0), (60,), (24, 4), 30),
        ((0, 0, 1, 1), (10, 8), (24, 4), 8),
        ((0, 1, 1, 1), (60, 6), (24, 4), 4),
        (("memory", 0, 0, 0), (60,), (24, 4), 8),
        ((0, 0, 0, 0), (0.1,), (24, 4), 0.25),
    ],
)
def test_states_may_take_a_part_of_what_is_free_where_they_lie(
    where: tuple[Where, ...] | str,
    rooms: tuple[float, ...],
    near: tuple[float, float],
    budget: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the model is there. All numbers in GiB: a fourth of the memory, or half of what is free if that is less."""
    monkeypatch.setattr(machine, "memory", lambda: tuple(round(part * 2**30) for part in near))
    tables: dict[Where, OpTable] = {"memory": OpTable("cpu")}
    for index, room in enumerate(rooms):
        card = Roomy(torch.device("meta"), "noted")
        card.room = round(room * 2**30)
        tables[index] = OpTable("triton", card=card)
    if isinstance(where, str):
        spread = Spread(tables["memory"])
    elif len(set(where)) == 1:
        spread = Spread(tables[0])
    else:
        spread = Spread.over(Placement(where, where, 0), tables)
    assert states_budget(spread, LAYERS) == pytest.approx(budget * 2**30)


def test_experts_that_come_and_go_change_no_number() -> None:
    """Of 8 experts the card holds 3, packed in K-quants too; a few tokens at a time, some chosen more than others."""
    generator = torch.Generator().manual_seed(3)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    card = OpTable("triton", card=Card.interpreter())
    stacks = tuple(QuantTensor.from_dense(randn(*shape)) for shape in ((8, 24, 32), (8, 24, 32), (8, 32, 24)))
    each = sum(stack.nbytes for stack in stacks) // 8
    memory = MemoryExperts(stacks, card, OpTable("reference"), 3 * each + 100)  # type: ignore[arg-type]
    favour, held = torch.arange(8) / 4.0, set()
    for tokens in (1, 3, 1, 1, 2, 1):
        x = randn(tokens, 32)
        weights, ids = route.reference(randn(tokens, 8) + favour, 2)
        wanted = experts.reference(x, weights, ids, *stacks)
        torch.testing.assert_close(memory(x, weights, ids), wanted, rtol=1e-4, atol=1e-4)
        held.add(frozenset(memory.hot.held))
        favour = favour.roll(2)
    assert memory.hits and memory.misses and len(held) > 2
    assert all(len(some) <= 3 for some in held)


def test_a_sequence_is_where_its_layers_are(tmp_path: Path) -> None:
    """On the device that has no numbers, in memory the layers that stay there, and what comes back from the disk."""
    with GGUFFile.open(MOE) as gguf:
        config = ModelConfig.from_metadata(gguf.metadata)
    meta = torch.device("meta")
    homes = [Home("memory_") if layer in (1, 2) else Home("", meta) for layer in range(LAYERS)]
    state = SequenceState.empty(config, mtp=True, home=homes.__getitem__, device=meta)
    assert [layer.state.is_meta for layer in state.recurrent] == [True, False]
    state.kv.reserve(0, 1)
    block = state.kv.blocks[0]
    assert {name: len(tensor) for name, tensor in block.tensors.items()} == {"memory_keys": 1, "memory_values": 1}
    assert not block.tensors["memory_keys"].is_meta
    assert state.kv.layer(0).keys[0].data_ptr() == block.tensors["memory_keys"].data_ptr()
    assert state.fork(0).kv.layer(0).home == homes[2]
    assert state.mtp_kv and state.mtp_kv.new_block().tensors["keys"].is_meta

    near = SequenceState.empty(config, mtp=True)
    place = Checkpoint(1, tuple(near.recurrent), torch.ones(config.hidden))
    files = PlaceFiles(near, config.hidden)
    (tmp_path / "a").mkdir()
    name = files.write(Target(tmp_path / "a", lambda: False), place, exact=True)
    found = PlaceFiles(state, config.hidden).read(tmp_path / "a", name, 1)
    assert found.last_hidden is not None and found.last_hidden.is_meta
    assert [layer.window.is_meta for layer in found.recurrent] == [True, False]
