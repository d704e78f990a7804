"""The states in memory: which one a prompt goes on from, and which go when memory is short."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from runtime.cache import Checkpoint, SequenceState, memory

_LATEST_KEPT = 3  # checkpoints of a sequence that are never thinned out, besides its beginning


class StatePool:
    """The sequences of several conversations under one memory budget, least recently used out first.

    A prompt goes on from whichever sequence agrees with it longest, so a new conversation begins with the
    system prompt that another has read, and a fork with all that it shares with its origin.
    """

    def __init__(self, new: Callable[[], SequenceState], budget: int) -> None:
        """`budget` in bytes."""
        self._new = new
        self._budget = budget
        self._states: dict[str, SequenceState] = {}  # the last one used comes last

    def __len__(self) -> int:
        return len(self._states)

    @property
    def nbytes(self) -> int:
        return memory(self._states.values())

    @contextmanager
    def lend(self, conversation: str, prompt: Sequence[int]) -> Iterator[SequenceState]:
        """The conversation's state, rewound to the furthest place that agrees with `prompt`.

        It comes back to the pool afterwards, unless the work on it failed: then it may be wrong and is dropped.
        """
        state = self._claim(conversation, prompt)
        try:
            yield state
        except GeneratorExit:
            self._put(conversation, state)  # whoever asked went away between two steps: nothing is half done
            raise
        else:
            self._put(conversation, state)

    def drop(self, conversation: str) -> None:
        self._states.pop(conversation, None)

    def clear(self) -> None:
        self._states.clear()

    def _claim(self, conversation: str, prompt: Sequence[int]) -> SequenceState:
        own = self._states.pop(conversation, None)
        best, reached = own, _agreement(own, prompt) if own else 0
        for other in self._states.values():
            if (agreed := _agreement(other, prompt)) > reached:
                best, reached = other, agreed
        if best is None:
            return self._new()
        if best is not own:
            return best.fork(reached)
        best.rewind(reached)
        return best

    def _put(self, conversation: str, state: SequenceState) -> None:
        self._states[conversation] = state
        used = self.nbytes
        for name in list(self._states):
            if used <= self._budget:
                return
            if self._thin(self._states[name], used - self._budget):
                used = self.nbytes
            if used > self._budget and name != conversation:
                del self._states[name]
                used = self.nbytes

    def _thin(self, state: SequenceState, excess: int) -> bool:
        """Drop checkpoints that save the least prefill for their age, until `excess` bytes are free or few are left."""
        dropped = False
        while excess > 0 and len(state.checkpoints) > _LATEST_KEPT + 1:
            places = state.checkpoints
            index = min(range(1, len(places) - _LATEST_KEPT), key=lambda i: _worth(places, i))
            excess -= sum(layer.nbytes for layer in places.pop(index).recurrent)
            dropped = True
        return dropped


def _worth(places: Sequence[Checkpoint], index: int) -> float:
    """Tokens that would be read again without this checkpoint, less the further it lies back."""
    age = places[-1].length - places[index].length
    return (places[index + 1].length - places[index - 1].length) / (age + 1)


def _agreement(state: SequenceState, prompt: Sequence[int]) -> int:
    return state.reach(common_prefix(state.ids, prompt))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences share from the start."""
    low, high = 0, min(len(a), len(b))
    a, b = list(a[:high]), list(b[:high])
    while low < high:  # halving, since comparing slices is far quicker than a loop
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
