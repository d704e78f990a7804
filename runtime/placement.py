"""What of a model lies on which card, and what stays in memory, decided before anything is loaded.

Everything lies on the card if it fits. If not, experts stay in memory first, layer by layer from the last on: of a
token's time they are the smallest part of many bytes, and those that are chosen often are kept on the card all the
same, as far as there is room. Then whole layers stay, from the first on. Several cards share the layers in order, each
as many as its free memory holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runtime.models.config import ModelConfig

Where = int | Literal["memory"]  # a card's number

_RESERVE = 600 << 20  # bytes of a card for its driver, kernels and workspaces
_SHARE = 0.96  # of the rest: what the allocator cannot use
_COPIES = 4  # of the recurrent state: the live one, the next one, and two places to come back to


@dataclass(frozen=True)
class LayerSize:
    """Bytes of a layer: its weights without routed experts, its experts, and what a conversation keeps in it."""

    weights: int
    experts: int
    state: int


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model: its layers in order, the MTP block last, and the embeddings and the head."""

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
    """Where each layer lies, and where its experts do; `cached`: bytes for experts that are chosen often."""

    layers: tuple[Where, ...]
    experts: tuple[Where, ...]
    head: Where
    cached: Mapping[int, int] = field(default_factory=dict)  # by card
    used: Mapping[int, int] = field(default_factory=dict)  # bytes by card

    @property
    def whole(self) -> bool:
        """Whether nothing stays in memory."""
        return "memory" not in (*self.layers, *self.experts, self.head)

    def sentence(self) -> str:
        """For the user."""
        cards = sorted({where for where in (*self.layers, self.head) if where != "memory"})
        if not cards:
            return "No card has room for a layer: the model runs on the processor."
        on = "the GPU" if len(cards) == 1 else f"{len(cards)} GPUs"
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


def sizes(tensors: Mapping[str, int], config: ModelConfig, context: int, kv_row: int, work: int) -> Sizes:
    """From the bytes of a file's tensors; `kv_row`: of a token in one attention layer."""
    delta = config.delta
    state = _COPIES * 4 * delta.value_heads * delta.head_dim**2
    layers = []
    for index in range(config.layers + config.mtp_layers):
        own = {name: size for name, size in tensors.items() if name.startswith(f"blk.{index}.")}
        experts = sum(size for name, size in own.items() if "_exps." in name)
        recurrent = index < config.layers and config.recurrent[index]
        layers.append(LayerSize(sum(own.values()) - experts, experts, state if recurrent else context * kv_row))
    head = tensors.get("output.weight", 0)
    return Sizes(tuple(layers), tensors.get("token_embd.weight", 0), head, work)


def place(need: Sizes, free: Sequence[int]) -> Placement:
    """`free`: bytes that are free on each card, in the order in which they take layers."""
    rooms = [max(round(_SHARE * (bytes_ - _RESERVE)), 0) for bytes_ in free]
    if found := _all(need, rooms, len(need.layers)):
        return found
    # Experts go to memory one layer more at a time, until the rest fits.
    moe = [index for index, layer in enumerate(need.layers) if layer.experts]
    for kept in range(len(moe) - 1, -1, -1):
        if found := _all(need, rooms, moe[kept]):
            return _with_cache(need, found, rooms)
    return _with_cache(need, _some(need, rooms), rooms)


def _all(need: Sizes, rooms: Sequence[int], until: int) -> Placement | None:
    """All layers on the cards in order, with the experts of those before `until`; None if they do not fit."""
    if not rooms:
        return None
    used, card = [0] * len(rooms), 0
    layers: list[Where] = []
    experts: list[Where] = []
    for index, layer in enumerate(need.layers if rooms else ()):
        stays = index >= until and layer.experts > 0
        size = layer.weights + layer.state + (0 if stays else layer.experts)
        extra = need.embeddings if index == 0 else 0
        while card < len(rooms) and used[card] + size + extra + need.work > rooms[card]:
            card += 1
        if card == len(rooms):
            return None
        used[card] += size + extra
        layers.append(card)
        experts.append("memory" if stays else card)
    if used[card] + need.head + need.work > rooms[card]:
        return None
    used[card] += need.head
    return Placement(tuple(layers), tuple(experts), card, {}, _with_work(need, used))


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
