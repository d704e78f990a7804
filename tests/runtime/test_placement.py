"""What lies where on cards of many sizes, and which experts are kept on one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.placement import HotExperts, LayerSize, Placement, Sizes, place, sizes
from runtime.shapes import SHAPES, Shaped

GB = 10**9
CARDS = (8, 12, 16, 24, 80, 141)


def need(name: str, context: int = 32_768) -> Sizes:
    """Of a Q4_K_M file of the model."""
    shaped = Shaped.of(SHAPES[name])
    moe = shaped.model.config.moe
    tensors = {
        tensor: round(size * (moe.experts / moe.used if moe and "_exps." in tensor else 1))
        for tensor, size in shaped.weights.used.items()
    }
    config = shaped.model.config
    row = 2 * config.kv_heads * config.head_dim * 4
    if config.hidden > 2560 or moe:
        tensors["token_embd.weight"] = 248_320 * config.hidden * 144 // 256
    return sizes(tensors, config, context * row, work=200 << 20)


def bytes_by_card(found: Placement, of: Sizes) -> dict[int, int]:
    """Counted from what lies where."""
    used: dict[int, int] = {}
    for layer, where, experts in zip(of.layers, found.layers, found.experts, strict=True):
        if where != "memory":
            used[where] = used.get(where, of.work) + layer.weights + layer.state
        if experts != "memory":
            used[experts] = used.get(experts, of.work) + layer.experts
    if found.head != "memory":
        used[found.head] = used.get(found.head, of.work) + of.head + of.embeddings
    for card, size in found.cached.items():
        used[card] += size
    return used


@pytest.mark.parametrize("name", ["4b", "9b", "27b", "35b-a3b"])
@pytest.mark.parametrize("card", CARDS)
def test_no_card_holds_more_than_is_free(name: str, card: int) -> None:
    of = need(name)
    found = place(of, [card * GB])
    assert found.used == pytest.approx(bytes_by_card(found, of))
    assert all(size <= card * GB - (600 << 20) for size in found.used.values())


@pytest.mark.parametrize(
    ("name", "whole"),
    [("4b", CARDS), ("9b", (12, 16, 24, 80, 141)), ("27b", (24, 80, 141)), ("35b-a3b", (80, 141))],
)
def test_what_fits_is_whole(name: str, whole: tuple[int, ...]) -> None:
    """With 32,768 tokens of context, 1.3 to 4.3 GB in float32: files of 2.8, 5.6, 16.7 and 21 GB."""
    of = need(name)
    assert tuple(card for card in CARDS if place(of, [card * GB]).whole) == whole


@pytest.mark.parametrize("card", [8, 12, 16, 24])
def test_experts_stay_in_memory_before_any_layer_does(card: int) -> None:
    of = need("35b-a3b")
    found = place(of, [card * GB])
    assert "memory" not in found.layers and "memory" in found.experts
    assert "the experts of" in found.sentence()
    assert sum(found.cached.values()) > 0 or found.experts.count("memory") < len(found.experts)
    # what still goes to the card is of the first layers, without a gap
    kept = [where != "memory" for where in found.experts]
    assert kept == sorted(kept, reverse=True)


def test_of_a_dense_model_layers_stay() -> None:
    found = place(need("27b"), [12 * GB])
    assert 0 < found.layers.count("memory") < 64
    assert found.layers[-1] == 0 and found.layers[0] == "memory"
    assert found.sentence() == (
        f"The model does not fit on the GPU: {found.layers.count('memory')} of 65 layers run on the processor."
    )


def test_two_cards_share_the_layers_in_order() -> None:
    found = place(need("27b"), [16 * GB, 16 * GB])
    assert found.whole and set(found.layers) == {0, 1}
    assert list(found.layers) == sorted(found.layers)
    assert found.head == 1  # with the MTP block, which reads embeddings and head too
    assert found.sentence() == "The whole model is on 2 GPUs."


@pytest.mark.parametrize(
    ("free", "where"), [([16, 80, 80], {1}), ([80, 16], {0}), ([8, 8, 16], {0, 1, 2}), ([16, 16, 16], {0, 1})]
)
def test_no_more_cards_than_are_needed(free: list[int], where: set[int]) -> None:
    """One that holds all is better than several, wherever it comes."""
    found = place(need("27b"), [size * GB for size in free])
    assert found.whole and found.cards == where


def test_embeddings_and_head_go_where_there_is_room_for_them() -> None:
    """Beside them the second card has room for one layer, and 6 go there and on the first; the other way round, 7."""
    of = Sizes((LayerSize(768 << 20, 0, 0),) * 7, 512 << 20, 512 << 20, 1 << 20)
    found = place(of, [5 << 30, 3 << 30])
    assert found.whole and found.layers == (0, 0, 0, 0, 1, 1, 1) and found.head == 0
    assert found.used == {0: (4 << 30) + (1 << 20), 1: (2304 << 20) + (1 << 20)}
    fewer = place(replace(of, layers=of.layers[1:]), [5 << 30, 3 << 30])
    assert fewer.layers == (0, 0, 0, 0, 0, 1) and fewer.head == 1


def test_two_cards_that_do_not_suffice_share_what_there_is_room_for() -> None:
    """Of a sparse model all but experts, and those that are chosen often; of a dense one the last layers."""
    found = place(of := need("35b-a3b"), [8 * GB, 6 * GB])
    assert set(found.layers) == {0, 1} and "memory" in found.experts and set(found.cached) <= {0, 1}
    assert found.used == pytest.approx(bytes_by_card(found, of))
    assert found.sentence().startswith("The model does not fit on 2 GPUs: the experts of ")
    found = place(need("27b"), [6 * GB, 8 * GB])
    first = found.layers.count("memory")
    assert found.head == 1 and found.layers == ("memory",) * first + (0,) * found.layers.count(0) + (1,) * (
        65 - first - found.layers.count(0)
    )
    assert found.sentence() == f"The model does not fit on 2 GPUs: {first} of 65 layers run on the processor."


def test_tensors_are_counted_where_they_are_read() -> None:
    """The head is the embeddings, or a tensor of its own; those of the MTP block's own are where the trunk's are."""
    config = SHAPES["4b"]
    names = {"token_embd.weight": 1 << 40, "blk.0.attn_qkv.weight": 3, "blk.32.nextn.eh_proj.weight": 5}
    tied = sizes(names, config, 700, work=0)
    assert (tied.embeddings, tied.head) == (1 << 40, 0)
    assert [layer.weights for layer in tied.layers] == [3, *[0] * 31, 5]
    assert tied.layers[3].state == tied.layers[32].state == 700
    more = {"output.weight": 11, "blk.32.nextn.shared_head_head.weight": 13, "blk.32.nextn.embed_tokens.weight": 17}
    assert sizes(names | more, config, 700, work=0) == replace(tied, head=41)


def test_without_room_or_card_all_is_in_memory() -> None:
    for free in ([], [10 << 20], [500 << 20]):
        found = place(need("4b"), free)
        assert set(found.layers) == {"memory"} and found.head == "memory" and not found.used


layers = st.builds(LayerSize, st.integers(1, 100), st.integers(0, 100), st.integers(0, 20)).map(
    lambda layer: replace(layer, weights=layer.weights << 20, experts=layer.experts << 20, state=layer.state << 20)
)


@given(st.lists(layers, min_size=1, max_size=12), st.lists(st.integers(0, 2000), max_size=3), st.integers(1, 300))
def test_for_any_sizes_every_byte_is_counted_and_has_room(some: list[LayerSize], free: list[int], head: int) -> None:
    of = Sizes(tuple(some), head << 20, head << 20, 10 << 20)
    found = place(of, [size << 20 for size in free])
    assert found.used == bytes_by_card(found, of)
    assert all(size <= max((free[card] << 20) - (600 << 20), 0) for card, size in found.used.items())


def misses(cache: HotExperts, chosen: list[list[int]]) -> int:
    return sum(len(cache.choose(some)[0]) for some in chosen)


def test_the_cache_learns_which_experts_are_hot() -> None:
    """Of 64 experts 16 are chosen nine times in ten; a cache of 16 misses little more than the rest."""
    draw = random.Random(3)
    chosen = [[draw.randrange(16) if draw.random() < 0.9 else draw.randrange(16, 64)] for _ in range(4000)]
    assert misses(HotExperts(64, 16), chosen) / 4000 < 0.2


def test_the_cache_follows_when_others_become_hot() -> None:
    cache = HotExperts(8, 2)
    for _ in range(50):
        cache.choose([0, 1])
    assert set(cache.held) == {0, 1}
    for _ in range(200):
        cache.choose([4, 5])
    assert set(cache.held) == {4, 5}


def test_one_odd_token_changes_nothing() -> None:
    cache = HotExperts(8, 2)
    for _ in range(50):
        cache.choose([0, 1])
    assert cache.choose([6, 7]) == ([6, 7], [])


def test_a_slot_is_given_to_one_expert_at_a_time() -> None:
    draw, cache, slots = random.Random(5), HotExperts(32, 6), {}
    for _ in range(500):
        _, loads = cache.choose(draw.sample(range(32), 4))
        slots |= {slot: expert for expert, slot in loads}
        assert {expert: slot for slot, expert in slots.items()} == cache.held
        assert len(cache.held) <= 6


def test_a_cache_of_nothing_holds_nothing() -> None:
    assert HotExperts(8, 0).choose([1, 2]) == ([1, 2], [])
