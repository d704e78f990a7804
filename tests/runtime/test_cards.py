"""A model over several cards: on those of Triton's interpreter it gives one card's numbers, and on cards that only note
each launch is given what lies on its own card.
"""

from __future__ import annotations

import importlib.util
import io
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from kernels.moe import experts
from kernels.op import OpTable
from kernels.quants import QUANTS, QuantTensor
from kernels.triton.card import Card
from runtime.cache import RecurrentState, SequenceState, StagedRows
from runtime.fallback import FREED, TO_PROCESSOR
from runtime.gguf import GGUFFile
from runtime.graphs import GraphStepper
from runtime.kv_cache import KVType
from runtime.loading import _snapshots, open_chat_model
from runtime.models.config import ModelConfig, MoEConfig
from runtime.models.layers import MoEFFN
from runtime.models.loading import card_sizes, load_model
from runtime.models.qwen35 import Qwen35
from runtime.models.spread import Spread
from runtime.placement import Placement, Where
from runtime.protocol import Event, Finished, Generate, Load, Message, Notice, Sampling
from runtime.shapes import SHAPES, ShapedWeights, q4_k_m
from runtime.snapshots import SnapshotStore
from runtime.worker import Inbox, Worker

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

GOLDENS = Path(__file__).parents[1] / "goldens"
M: Where = "memory"


# numbers


PROMPT = [5, 17, 3, 40, 8, 1, 99, 23, 77]  # more rows than a step has


def conversation(model: Qwen35, kv: KVType = "f32") -> tuple[list[Tensor], SequenceState]:
    """A prompt, a step with two drafts of which one is kept, and a row on from a fork of that."""
    state = model.new_state(kv)
    hidden = model.forward(PROMPT, state)
    state.commit()
    state.checkpoint()
    drafted = model.draft([9], hidden[-1:], state, state.length - 1)
    verified = model.forward([9, 4, 2], state, each=True)
    state.commit(2)
    state = state.fork(state.length)
    last = model.forward([6], state)
    state.commit()
    return [*map(model.logits, (hidden[-1:], verified, last)), model.draft_logits(drafted)], state


def remembered(config: ModelConfig, state: SequenceState) -> Iterator[Tensor]:
    """All of a state, layer by layer."""
    assert state.mtp_kv and state.last_hidden is not None
    attention = [state.kv.layer(index) for index in range(config.attention_layers)]
    for layer in (*attention, state.mtp_kv.layer(0)):
        rows = state.length - (layer.cache is state.mtp_kv)
        yield from (torch.cat(list(part), dim=1)[:, :rows] for part in (layer.keys, layer.values))
    for recurrent in state.recurrent:
        yield from (recurrent.window, recurrent.state)
    yield state.last_hidden


def one_by_one(name: str, room: Placement | None) -> Qwen35:
    """A model that makes its steps launch by launch, on one card too."""
    model = load_model(GOLDENS / f"{name}.gguf", "triton", room=room).model
    model.stepper = None
    return model


@pytest.mark.slow
def test_three_cards_give_the_numbers_of_one() -> None:
    """The MTP block is on the first card, embeddings and head on the second, attention on the third."""
    where = (0, 1, 1, 2, 0)
    results = []
    for room in (None, Placement(where, where, 1)):
        model = one_by_one("tiny-dense", room)
        logits, state = conversation(model)
        results.append([*logits, *remembered(model.config, state)])
    wanted, found = results
    assert all(map(torch.equal, found, wanted)) and len(found) == len(wanted) == 4 + 4 + 6 + 1
    tables = [block.ops for block in model.trunk.blocks]
    assert len({id(table.card) for table in tables}) == 3 and model.ops is tables[1]
    assert model.mtp and model.mtp.ops is tables[0]


@pytest.mark.slow
def test_experts_that_are_chosen_often_are_on_their_layers_cards() -> None:
    """Two of five of each layer, on one card or on two."""
    layers, each = (0, 0, 1, 1), 2 * 3 * 24 * 32 * 2  # bytes in float16
    results = []
    for where, cached in (((0,) * 4, {0: 4 * each}), (layers, {0: 2 * each, 1: 2 * each})):
        model = one_by_one("tiny-moe", Placement(where, (M,) * 4, where[-1], cached))
        state = model.new_state()
        for ids in ([5, 17], [6]):
            model.forward(ids, state)
            state.commit()
        results.append(list(remembered(model.config, state)))
    assert all(map(torch.equal, *results)) and len(results[0]) == len(results[1])
    for index, block in enumerate(model.trunk.blocks):
        near = cast(MoEFFN, block.ffn).memory
        assert near and near._card is model.spread.tables[layers[index]].card
        assert len(near.hot.held) == 2 and near.misses
    assert any(cast(MoEFFN, block.ffn).memory.hits for block in model.trunk.blocks)  # type: ignore[union-attr]


def spread_over(*where: Where) -> Spread:
    cards: dict[Where, OpTable] = {index: OpTable("triton", card=Card.interpreter()) for index in range(3)}
    return Spread.over(Placement(where, where, where[-1]), cards | {"memory": OpTable("reference")})


def test_a_state_comes_back_from_the_disk_to_its_cards(tmp_path: Path) -> None:
    """A full block and a part of one, of attention layers on two cards and of the MTP block on a third."""
    config, spread = small(DENSE), spread_over(0, 0, 0, 0, 0, 1, 1, 1, 2)
    new = partial(SequenceState.empty, config, mtp=True, home=spread.home)
    state = new()
    state.kv.reserve(0, 300)
    assert state.mtp_kv
    state.mtp_kv.reserve(0, 299)
    generator = torch.Generator().manual_seed(1)
    for block in state.blocks():
        for tensor in block.tensors.values():
            tensor.normal_(generator=generator)
    assert list(state.kv.blocks[0].tensors) == ["keys", "values", "card1_keys", "card1_values"]
    assert list(state.mtp_kv.blocks[0].tensors) == ["card2_keys", "card2_values"]
    recurrent = [
        RecurrentState(*(torch.randn(part.shape, generator=generator) for part in (layer.window, layer.state)))
        for layer in state.recurrent
    ]
    hidden = torch.randn(1, config.hidden, generator=generator)
    state.stage(StagedRows(tuple(range(300)), hidden.expand(300, -1), [], each=False))
    state.commit()
    state.recurrent = recurrent
    store = partial(SnapshotStore, tmp_path, "key", new, config.hidden, 1 << 40, pytest.fail)
    assert store().save("conversation", state, lambda: False)
    there = store().find(range(301), 0)
    assert there and there[1] == 300
    back = store().load(*there)
    assert back and back.ids == state.ids
    found, wanted = list(remembered(config, back)), list(remembered(config, state))
    assert all(map(torch.equal, found, wanted)) and len(found) == len(wanted) == 6 + 2 * 6 + 1


def test_of_another_placement_no_state_is_taken(tmp_path: Path) -> None:
    """Where all layers are on one card, whichever, states lie alike; where their experts are does not matter."""
    command, path = Load("", ops="triton", snapshots=str(tmp_path)), GOLDENS / "tiny-moe.gguf"
    states = {}
    for layers in ((0, 0, 1, 1), (0, 1, 1, 1), (1, 1, 0, 0), (0, 0, "memory", "memory"), (0, 0, 0, 0), (1, 1, 1, 1)):
        loaded = load_model(path, "triton", room=Placement(layers, layers, layers[0]))
        store = _snapshots(command, loaded, loaded.model.new_state, pytest.fail)
        assert store
        states[layers] = store._folder
    assert len(set(states.values())) == 5 and states[0, 0, 0, 0] == states[1, 1, 1, 1]


@dataclass
class Roomy(Card):
    """An interpreter that says how much it can take."""

    index: int = 0
    room: int | None = None

    def free(self) -> int:
        assert self.room is not None, "this one need not be asked"
        return self.room


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[weakref.ref[Card]]]:
    """Gives this one cards with room for such parts of the dense model each, and says which have been made."""
    with GGUFFile.open(GOLDENS / "tiny-dense.gguf") as gguf:
        whole = card_sizes([gguf], ModelConfig.from_metadata(gguf.metadata)).total

    def set_up(*parts: float | None) -> list[weakref.ref[Card]]:
        made: list[weakref.ref[Card]] = []

        def here(index: int = 0) -> Card:
            part = parts[index]
            room = None if part is None else (600 << 20) + round(part * whole / 0.96)
            card = Roomy(torch.device("cpu"), "interpreted", index=index, room=room)
            made.append(weakref.ref(card))
            return card

        monkeypatch.setattr(Card, "here", here)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(parts))
        return made

    return set_up


Machine = Callable[..., list[weakref.ref[Card]]]


def index_of(table: OpTable) -> int:
    assert isinstance(table.card, Roomy)
    return table.card.index


def test_what_fits_on_one_card_lies_there(machine: Machine) -> None:
    """On any, and none after it is asked; and it takes its steps as graphs."""
    for parts, where in (((1.01,), 0), ((0.5, 1.01, None), 1), ((2, None), 0)):
        machine(*parts)
        loaded = load_model(GOLDENS / "tiny-dense.gguf", "triton")
        assert not loaded.notices and loaded.model.spread.placement is None
        assert index_of(loaded.model.ops) == where and isinstance(loaded.model.stepper, GraphStepper)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"kv_type": "f32"}, False),
        ({"kv_type": "q8"}, True),
        ({"context_length": 1024, "kv_type": "f32"}, True),
        ({"context_length": 2048, "kv_type": "f32"}, False),
    ],
    ids=str,
)
def test_room_is_left_for_the_context_and_the_keys_and_values_that_are_asked_for(
    machine: Machine, changes: dict[str, Any], fits: bool
) -> None:
    machine(1.01)
    command = Load(str(GOLDENS / "tiny-dense.gguf"), ops="triton", **changes)
    _, _, notices = open_chat_model(command, lambda done, total: None)
    assert any("does not fit on the GPU" in notice for notice in notices) != fits


def test_what_a_conversation_takes_on_a_card_is_what_its_blocks_take() -> None:
    with GGUFFile.open(GOLDENS / "tiny-dense.gguf") as gguf:
        config = ModelConfig.from_metadata(gguf.metadata)
        for kind in cast(tuple[KVType, ...], ("f16", "f32", "q8")):
            block = SequenceState.empty(config, mtp=True, kv=kind).kv.new_block()
            for context, blocks in ((1, 1), (256, 1), (257, 2), (100_000, 8)):  # it was trained for 2,048
                need = card_sizes([gguf], config, context, kind)
                assert need.layers[3].state == need.layers[4].state == blocks * block.nbytes


def test_what_does_not_is_on_as_many_as_it_takes(machine: Machine) -> None:
    machine(0.95, 0.95, 0.95)
    loaded = load_model(GOLDENS / "tiny-dense.gguf", "triton")
    assert loaded.notices == ["The whole model is on 2 GPUs."]
    tables = loaded.model.spread.tables
    assert {where: index_of(table) for where, table in tables.items()} == {0: 0, 1: 1}
    first, second = (table.card._packed.keys() for table in tables.values() if table.card)
    assert first and second and first.isdisjoint(second)
    assert loaded.model.stepper is None and not loaded.model.spread.memory


def test_a_card_that_gets_ops_wrong_is_left_out(machine: Machine) -> None:
    """Those that are not needed are not asked."""
    machine(0.95, 0.95, 0.95, 0.95)
    asked: list[int] = []

    def wrong(table: OpTable) -> list[str]:
        asked.append(index_of(table))
        return ["add", "rope"] if asked[-1] == 1 else []

    loaded = load_model(GOLDENS / "tiny-dense.gguf", "triton", wrong=wrong)
    assert loaded.notices == ["GPU 2 of 4 is left out: it gets add, rope wrong.", "The whole model is on 2 GPUs."]
    assert loaded.model.spread.placement and loaded.model.spread.placement.cards == {0, 2}
    assert asked == [1, 2]


def test_where_memory_ends_every_card_is_let_go(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chat is told where the model is; a step that two times finds no room sends it to the processor."""
    cards = machine(0.95, 0.95)
    events: list[Event] = []
    worker = Worker(Inbox(io.BytesIO()), events.append)
    worker._load(Load(str(GOLDENS / "tiny-dense.gguf"), ops="triton"))
    assert "The whole model is on 2 GPUs." in [event.message for event in events if isinstance(event, Notice)]
    del events[:]
    plain = Qwen35.forward

    def full(self: Qwen35, *arguments: Any, **options: Any) -> Tensor:
        if self.ops.card:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Qwen35, "forward", full)
    assert sum(card() is not None for card in cards) == 2
    command = Generate("r", "c", (Message("user", "hello"),), Sampling(temperature=0, max_tokens=2), thinking=False)
    worker._generate(command)
    assert [event for event in events if isinstance(event, Notice)] == [FREED, TO_PROCESSOR]
    assert isinstance(events[-1], Finished)
    assert not any(card() for card in cards)


# devices


@dataclass
class Strict(Card):
    """A card that notes launches, on a device of its own, and takes no tensor of another."""

    def launch(self, kernel: Any, grid: Any, *arguments: Any, **rest: Any) -> None:
        for argument in arguments:
            if isinstance(argument, Tensor):
                assert argument.device == self.device, f"{kernel.fn.__name__} is given a tensor of {argument.device}"
        super().launch(kernel, grid, *arguments, **rest)


class Near(OpTable):
    """The references, but for experts: which of them are chosen is not known without numbers."""

    def __getitem__(self, op: Any) -> Any:
        return (lambda x, *rest: torch.empty_like(x)) if op is experts else op.reference


class SpreadWeights(ShapedWeights):
    """Without numbers, on the devices of a spread."""

    def __init__(self, config: ModelConfig, spread: Spread, tied: bool) -> None:
        super().__init__(config, q4_k_m, tied, 512)
        self._spread = spread

    def take(self, name: str, *shape: int) -> QuantTensor:
        quant, device = QUANTS[self._mix(name)], self._spread.device(name)
        return QuantTensor(
            torch.empty(*shape[:-1], quant.row_bytes(shape[-1]), dtype=torch.uint8, device=device), quant, shape
        )

    def dense(self, name: str, *shape: int) -> Tensor:
        return torch.empty(*shape, device=self._spread.device(name))


def small(name: str) -> ModelConfig:
    """Eight layers and the MTP block, the fourth and the last attending."""
    config = SHAPES[name]
    moe = MoEConfig(4, 2, 256, 256) if config.moe else None
    return replace(
        config, hidden=256, ff=0 if moe else 256, layers=8, recurrent=config.recurrent[:8], heads=2, kv_heads=1,
        head_dim=128, moe=moe, delta=replace(config.delta, key_heads=1, value_heads=2, head_dim=128),
    )  # fmt: skip


def strict(config: ModelConfig, placement: Placement, *, tied: bool = False) -> Qwen35:
    """Over cards of different makes."""
    targets = "sm_90", "gfx1100", "sm_80"
    tables: dict[Where, OpTable] = {
        index: OpTable("triton", card=Strict(torch.device("meta", index), "noted", target))
        for index, target in enumerate(targets)
    }
    spread = Spread.over(placement, tables | {"memory": Near("reference")})
    weights = SpreadWeights(config, spread, tied)
    return Qwen35(weights, weights, config, spread)


DENSE = "9b"
SPARSE = "35b-a3b"
PLACEMENTS = {
    "two cards": (DENSE, Placement((0, 0, 0, 0, 0, 1, 1, 1, 1), (0,) * 9, 1)),
    "three, the head on the first": (DENSE, Placement((0, 0, 0, 1, 1, 1, 2, 2, 2), (0,) * 9, 0)),
    "the MTP block on another than the head": (DENSE, Placement((0, 0, 0, 1, 1, 1, 2, 2, 0), (0,) * 9, 2)),
    "two and memory": (DENSE, Placement((0, 0, 0, M, M, 1, 1, 1, 1), (0,) * 9, 0)),
    "experts on two cards": (SPARSE, Placement((0,) * 5 + (1,) * 4, (0,) * 5 + (1,) * 4, 1)),
    "experts in memory, and often chosen ones": (
        SPARSE, Placement((0,) * 5 + (1,) * 4, (0, 0, *(M,) * 7), 1, {0: 1 << 21, 1: 1 << 21})
    ),
}  # fmt: skip


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors have devices and no numbers, and torch refuses to calculate with those of two."""
    chosen = lambda ids: [[i % 4 for i in range(ids.shape[1])]] * len(ids)  # noqa: E731 — of experts
    monkeypatch.setattr(FakeTensor, "tolist", chosen)
    monkeypatch.setattr("runtime.kv_cache.lasting", lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype))
    with FakeTensorMode():
        yield


@pytest.mark.parametrize(
    ("name", "kv"),
    [
        *((name, "f32") for name in PLACEMENTS if name != "two and memory"),
        *(pytest.param("two and memory", kv, marks=pytest.mark.slow) for kv in ("f32", "q8")),
    ],
)
def test_no_launch_is_given_a_tensor_of_another_card(name: str, kv: KVType, apart: None) -> None:
    shape, placement = PLACEMENTS[name]
    placement = replace(placement, experts=placement.layers) if shape == DENSE else placement
    model = strict(small(shape), placement, tied=name == "two cards")
    logits, state = conversation(model, kv=kv)
    assert {one.device for one in logits} == {model.ops.device}
    for block in model.trunk.blocks:
        assert block.ops.card is None or block.ops.card.launches
    attending = [block.ops.device for block in model.trunk.blocks if hasattr(block.mixer, "attn_q")]
    for index, device in enumerate(attending):
        assert {part.device for part in (*state.kv.layer(index).keys, *state.kv.layer(index).values)} == {device}
    state.rewind(0)
    model.forward([1, 2], state)


def test_a_tensor_of_another_card_would_be_found(apart: None) -> None:
    """A layer of another model, a state that lies otherwise, a hidden state that is not brought over."""
    config = small(DENSE)
    layers = (0, 0, 0, 0, 0, 1, 1, 1, 1)
    one, other = (strict(config, Placement(where, where, 1)) for where in (layers, layers[::-1]))
    one.forward([1, 2, 3], one.new_state())
    with pytest.raises((AssertionError, RuntimeError)):
        one.forward([1, 2, 3], other.new_state())
    with pytest.raises((AssertionError, RuntimeError)):
        one.logits(torch.empty(1, config.hidden, device=torch.device("meta", 0)))
