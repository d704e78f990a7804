"""What of a model lies on which card, and what stays in memory, decided before anything is loaded.

Everything lies on one card if it fits there. If not, several cards share the layers in order, each as many as its free
memory holds. If that does not suffice, experts stay in memory first, layer by layer from the last on: of a token's time
they are the smallest part of many bytes, and those that are chosen often are kept on the layer's card all the same, as
far as there is room. Then whole layers stay, from the first on. Embeddings and head lie together on one of the cards,
the last by preference, where the MTP block reads them too: they may be one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runtime.models.config import ModelConfig

Where = int | Literal["memory"]  # a card's number

_RESERVE = 600 << 20  # bytes of a card for its driver, kernels and workspaces
_SHARE = 0.96  # of the rest: what the allocator cannot use
_COPIES = 4  # of the recurrent state: the live one, the next one, and two places to come back to
_LAYER = re.compile(r"blk\.(\d+)\.(?!nextn\.(?:embed_tokens|shared_head))")


@dataclass(frozen=True)
class LayerSize:
    """Bytes of a layer: its weights without routed experts, its experts, and what a conversation keeps in it."""

    weights: int
    experts: int
    state: int


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model: its layers in order, the MTP block last; the embeddings; and the head, where that is another
    tensor, with those of both that the MTP block brings.
    """

    layers: tuple[LayerSize, ...]
    embeddings: int
    head: int
    work: int  # of the longest piece of prefill

    @property
    def total(self) -> int:
        layers = sum(layer.weights + layer.experts + layer.state for layer in self.layers)
        return layers + self.embeddings + self.head + self.work


@dataclass(frozen=True)
class Placement:
    """Where each layer lies, where its experts do, and where embeddings and head do, together.

    `cached`: bytes of a card for experts that are chosen often.
    """

    layers: tuple[Where, ...]
    experts: tuple[Where, ...]
    head: Where
    cached: Mapping[int, int] = field(default_factory=dict)  # by card
    used: Mapping[int, int] = field(default_factory=dict)  # bytes by card

    @property
    def cards(self) -> frozenset[int]:
        """Those that anything lies on."""
        return frozenset(where for where in (*self.layers, *self.experts, self.head) if where != "memory")

    @property
    def whole(self) -> bool:
        """Whether nothing stays in memory."""
        return "memory" not in (*self.layers, *self.experts, self.head)

    def sentence(self) -> str:
        """For the user."""
        if not self.cards:
            return "No card has room for a layer: the model runs on the processor."
        on = "the GPU" if len(self.cards) == 1 else f"{len(self.cards)} GPUs"
        if self.whole:
            return f"The whole model is on {on}."
        layers = self.layers.count("memory")
        experts = sum(expert == "memory" != layer for expert, layer in zip(self.experts, self.layers, strict=True))
        parts = []
        if experts:
            kept = sum(self.cached.values()) / 1e9
            but = f", but for {kept:.1f} GB of them, those chosen most" if kept >= 0.05 else ""
            parts.append(f"the experts of {_counted(experts)} run on the processor{but}")
        if layers:
            parts.append(f"{layers} of {_counted(len(self.layers))} run on the processor")
        return f"The model does not fit on {on}: " + ", and ".join(parts) + "."


def _counted(layers: int) -> str:
    return "1 layer" if layers == 1 else f"{layers} layers"


def layer_of(name: str) -> int | None:
    """The number of the layer that reads a tensor; None: it is read where embeddings and head are, the MTP block's own
    embeddings and head included.
    """
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def sizes(tensors: Mapping[str, int], config: ModelConfig, kv: int, work: int) -> Sizes:
    """From the bytes of a file's tensors; `kv`: of an attention layer, in a conversation that fills the context."""
    delta, count = config.delta, config.layers + config.mtp_layers
    state = _COPIES * 4 * delta.value_heads * delta.head_dim**2
    weights, experts, head = [0] * count, [0] * count, 0
    for name, size in tensors.items():
        index = layer_of(name)
        if index is None:
            head += size if name != "token_embd.weight" else 0
        elif index < count:
            part = experts if "_exps." in name else weights
            part[index] += size
    states = [state if recurrent else kv for recurrent in config.recurrent] + [kv] * config.mtp_layers
    layers = map(LayerSize, weights, experts, states)
    return Sizes(tuple(layers), tensors.get("token_embd.weight", 0), head, work)


def place(need: Sizes, free: Sequence[int]) -> Placement:
    """`free`: bytes that are free on each card, in the order in which they take layers."""
    rooms = [max(round(_SHARE * (bytes_ - _RESERVE)), 0) for bytes_ in free]
    every = len(need.layers)
    for card in range(len(rooms)):  # on one, a step is one graph
        if found := _filled(need, rooms, every, [card], card):
            return found
    if found := _all(need, rooms, every):
        return found
    # Experts go to memory one layer more at a time, until the rest fits.
    moe = [index for index, layer in enumerate(need.layers) if layer.experts]
    for kept in range(len(moe) - 1, -1, -1):
        if found := _all(need, rooms, moe[kept]):
            return _with_cache(need, found, rooms)
    return _with_cache(need, _some(need, rooms), rooms)


def _all(need: Sizes, rooms: Sequence[int], until: int) -> Placement | None:
    """All layers on the first few cards, with the experts of those before `until`; None if they do not fit."""
    for count in range(1, len(rooms) + 1):
        for head in reversed(range(count)):
            if found := _filled(need, rooms, until, range(count), head):
                return found
    return None


def _filled(need: Sizes, rooms: Sequence[int], until: int, cards: Sequence[int], head: int) -> Placement | None:
    """The same on these cards in order, with embeddings and head on one of them."""
    used = [0] * len(rooms)
    used[head] = need.embeddings + need.head
    left = list(cards)
    layers: list[Where] = []
    experts: list[Where] = []
    for index, layer in enumerate(need.layers):
        stays = index >= until and layer.experts > 0
        size = layer.weights + layer.state + (0 if stays else layer.experts)
        while left and used[left[0]] + size + need.work > rooms[left[0]]:
            del left[0]
        if not left:
            return None
        used[left[0]] += size
        layers.append(left[0])
        experts.append("memory" if stays else left[0])
    if used[head] + need.work > rooms[head]:
        return None
    return Placement(tuple(layers), tuple(experts), head, {}, _with_work(need, used))


def _some(need: Sizes, rooms: Sequence[int]) -> Placement:
    """The last layers on the cards, and the head before any; experts and the first layers in memory."""
    used: list[int] = [0] * len(rooms)
    layers: list[Where] = []
    head: Where = "memory"
    order = sorted(range(len(rooms)), key=lambda card: -rooms[card])
    if order and need.head + need.embeddings + need.work <= rooms[order[0]]:
        head, used[order[0]] = order[0], need.head + need.embeddings
    at = 0
    for layer in reversed(need.layers):
        size = layer.weights + layer.state
        while head != "memory" and at < len(order) and used[order[at]] + size + need.work > rooms[order[at]]:
            at += 1
        placed = head != "memory" and at < len(order)
        if placed:
            used[order[at]] += size
        layers.append(order[at] if placed else "memory")
    layers.reverse()
    experts: list[Where] = [
        "memory" if layer.experts else where for layer, where in zip(need.layers, layers, strict=True)
    ]
    return Placement(tuple(layers), tuple(experts), head, {}, _with_work(need, used))


def _with_work(need: Sizes, used: Sequence[int]) -> dict[int, int]:
    return {card: size + need.work for card, size in enumerate(used) if size}


def _with_cache(need: Sizes, found: Placement, rooms: Sequence[int]) -> Placement:
    """What is left of the cards holds experts that are chosen often."""
    cached, used = {}, dict(found.used)
    for card, size in found.used.items():
        stay = sum(
            layer.experts
            for layer, place, expert in zip(need.layers, found.layers, found.experts, strict=True)
            if expert == "memory" and place == card
        )
        if room := min(rooms[card] - size, stay):
            cached[card], used[card] = room, size + room
    return Placement(found.layers, found.experts, found.head, cached, used)


class HotExperts:
    """Which experts of a layer are kept on a card: those that were chosen most, of late more than long ago.

    `capacity` experts fit. An expert that is missed comes in when it has been chosen more than the one that is chosen
    least of those that are in, so that a single odd token does not turn the cache over.
    """

    def __init__(self, experts: int, capacity: int, forget: float = 0.98) -> None:
        self._weight = [0.0] * experts
        self._capacity, self._forget, self._step = max(capacity, 0), forget, 1.0
        self.held: dict[int, int] = {}  # expert → slot

    def choose(self, chosen: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Of a token's experts, those that are missed; and which experts to load, into which slots."""
        self._step /= self._forget
        if self._step > 1e30:
            self._weight = [weight / self._step for weight in self._weight]
            self._step = 1.0
        for expert in chosen:
            self._weight[expert] += self._step
        missed = [expert for expert in chosen if expert not in self.held]
        loads = []
        for expert in missed:
            if len(self.held) < self._capacity:
                slot = len(self.held)
            else:
                others = [held for held in self.held if held not in chosen]
                least = min(others, key=lambda held: self._weight[held], default=None)
                if least is None or self._weight[least] >= self._weight[expert]:
                    continue
                slot = self.held.pop(least)
            self.held[expert] = slot
            loads.append((expert, slot))
        return missed, loads
