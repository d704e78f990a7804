"""The states in memory: which one a prompt goes on from, and which go when memory is short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from runtime.cache import SequenceState, memory
from runtime.prefix import common_prefix
from runtime.snapshots import SnapshotStore
from runtime.thinning import FLOORS, thinned

_SHARED_PREFIX = "system prompt "
_SHARED_KEPT = 4  # system prompts
_PRELOADED = 3  # conversations
_UNFINISHED = "unfinished reply of "
_UNFINISHED_KEPT = 4
_OTHER = "other version of "
_OTHERS_KEPT = 4
_LEAST_LOST = 2  # places to come back to: with one, no message of the user's goes


@dataclass(frozen=True)
class Holding:
    """What is kept of one conversation, bytes shared with others included."""

    conversation: str
    tokens: int
    checkpoints: int
    memory_bytes: int
    disk_bytes: int


class StatePool:
    """The sequences of several conversations under one memory budget, least recently used out first.

    A prompt goes on from whichever sequence agrees with it longest, in memory or on disk, so a new conversation
    begins with the system prompt that another has read, and a fork with all that it shares with its origin.
    """

    def __init__(self, new: Callable[[], SequenceState], budget: int, snapshots: SnapshotStore | None = None) -> None:
        """`budget` in bytes."""
        self.new_state = new
        self.budget = budget
        self.snapshots = snapshots
        self._states: dict[str, SequenceState] = {}  # the last one used comes last
        self._unsaved: dict[str, None] = {}  # an ordered set of names in `_states`
        self._lent: SequenceState | None = None
        self._versions = 0  # that were kept of conversations
        self._blocks = 0  # of the lent state, when room was last made

    def __len__(self) -> int:
        return len(self._states)

    @property
    def nbytes(self) -> int:
        return memory((*self._states.values(), *([self._lent] if self._lent else [])))

    @contextmanager
    def lend(self, conversation: str, prompt: Sequence[int]) -> Iterator[SequenceState]:
        """The conversation's state, rewound to the furthest place that agrees with `prompt`.

        It comes back to the pool afterwards, unless the work on it failed: then it may be wrong and is dropped.
        """
        self._lent = state = self._claim(conversation, list(prompt))
        try:
            yield state
        except GeneratorExit:
            self._put(conversation, state)  # whoever asked went away between two steps: nothing is half done
            raise
        else:
            self._put(conversation, state)
        finally:
            self._lent = None

    @contextmanager
    def borrow(self, prompt: Sequence[int]) -> Iterator[SequenceState]:
        """A state of nobody's that begins with as much of `prompt` as one in memory or on disk does; it is not kept."""
        reached, best = 0, None
        for state in self._states.values():
            if (agreed := _agreement(state, prompt)) > reached:
                reached, best = agreed, state
        restored = self._from_disk(prompt, reached, self._states.values())
        yield restored or (best.fork(reached) if best else self.new_state())

    def set_aside(self, conversation: str) -> None:
        """The conversation's state as it is now can be come back to, whatever becomes of it, for a few of them."""
        self._states.pop(_UNFINISHED + conversation, None)
        if state := self._states.pop(conversation, None):
            self._states[_UNFINISHED + conversation] = state.fork(state.length)
            self._states[conversation] = state
        for name in [name for name in self._states if name.startswith(_UNFINISHED)][:-_UNFINISHED_KEPT]:
            del self._states[name]

    def checkpoint(self, state: SequenceState) -> None:
        """Make the lent state's present place one to come back to, if memory allows."""
        state.checkpoint()
        self._make_room()

    def follow(self, state: SequenceState) -> None:
        """The lent state has gone on: make room for what it has grown by."""
        if len(state.kv.blocks) != self._blocks:
            self._make_room()

    def share(self, state: SequenceState) -> None:
        """What the lent state has read so far is a system prompt: keep it for conversations to come."""
        name = _SHARED_PREFIX + xxhash.xxh3_64_hexdigest(repr(state.ids).encode())
        known = self._states.pop(name, None)
        self._states[name] = known or state.fork(state.length)
        if known is None:
            self._unsaved[name] = None
            shared = [name for name in self._states if name.startswith(_SHARED_PREFIX)]
            for name in shared[:-_SHARED_KEPT]:
                self._evict(name)

    def save(self, cancelled: Callable[[], bool]) -> bool:
        """Bring to disk what has changed, the last used first. Returns whether nothing is left to do."""
        while self._unsaved and self.snapshots:
            name = next(reversed(self._unsaved))
            if not self.snapshots.save(name, self._states[name], cancelled) and cancelled():
                return False
            # if it was not cancelled, another process is saving the conversation, which does as well
            del self._unsaved[name]
        return True

    def preload(
        self, cancelled: Callable[[], bool], expect: Callable[[Sequence[int]], None] = lambda ids: None
    ) -> bool:
        """Bring the conversations used last from disk to memory, ahead of the turn that will go on with one.

        `expect` is told the ids of each. Returns whether it got there before it was cancelled.
        """
        recent = self.snapshots.recent()[:_PRELOADED] if self.snapshots else []
        for snapshot in recent:
            name = snapshot.manifest.conversation
            if cancelled():
                return False
            if self.snapshots is None or self.nbytes + snapshot.state_bytes > self.budget // 2:
                break
            if name not in self._states and (state := self.snapshots.load(snapshot, snapshot.manifest.tokens)):
                self._states = {name: state, **self._states}  # used before those that are there
                expect(state.ids)
        return True

    def drop(self, conversation: str) -> None:
        """Forget a conversation, on disk too."""
        for name in [name for name in self._states if _owner(name) == conversation]:
            del self._states[name]
        self._unsaved.pop(conversation, None)
        if self.snapshots:
            self.snapshots.drop(conversation)

    def drop_all(self) -> None:
        """Forget everything, on disk too."""
        self.clear()
        if self.snapshots:
            self.snapshots.drop(None)

    def clear(self) -> None:
        """Forget what is in memory."""
        self._states.clear()
        self._unsaved.clear()

    def holdings(self) -> list[Holding]:
        """The last used first, those on disk only at the end."""
        stored = {found.manifest.conversation: found for found in (self.snapshots.all() if self.snapshots else ())}
        held = []
        together: dict[str, list[SequenceState]] = {}  # the conversation's own state first
        for name, state in reversed(self._states.items()):
            of = together.setdefault(_owner(name), [])
            of.insert(0 if name == _owner(name) else len(of), state)
        for name, states in together.items():
            found = stored.pop(name, None)
            size, disk = memory(states), found.nbytes if found else 0
            held.append(Holding(name, states[0].length, len(states[0].checkpoints) - 1, size, disk))
        for name, found in stored.items():
            held.append(Holding(name, found.manifest.tokens, len(found.manifest.places), 0, found.nbytes))
        return held

    def _claim(self, conversation: str, prompt: list[int]) -> SequenceState:
        own = self._states.pop(conversation, None)
        self._unsaved.pop(conversation, None)
        if own and _loses(own, prompt):
            self._keep_version(conversation, own)
            own = None  # but among all others
        best, reached = own, _agreement(own, prompt) if own else 0
        for name, other in self._states.items():
            if (agreed := _agreement(other, prompt)) > reached:
                best, reached = other, agreed
                source = name
        if restored := self._from_disk(prompt, reached, (*([own] if own else []), *self._states.values())):
            if best:
                restored.adopt(best)
            return restored
        if best is None:
            return self.new_state()
        if best is not own:
            if not source.startswith(_OTHER) or _owner(source) != conversation or _loses(best, prompt):
                self._states[source] = self._states.pop(source)  # it has just been of use
                return best.fork(reached)
            del self._states[source]  # the conversation goes on with that version
        best.rewind(reached)
        return best

    def _from_disk(self, prompt: Sequence[int], beyond: int, held: Iterable[SequenceState]) -> SequenceState | None:
        """The state that agrees with `prompt` longest, if with more than `beyond` tokens of it."""
        found = self.snapshots.find(prompt, beyond) if self.snapshots else None
        return self.snapshots.load(*found, held) if self.snapshots and found else None

    def _keep_version(self, conversation: str, own: SequenceState) -> None:
        """The user may come back to this version; it is the first to go when memory is short."""
        others = [name for name in self._states if name.startswith(_OTHER)]
        for name in others:
            if _owner(name) == conversation and not _loses(self._states[name], own.ids):
                del self._states[name]  # there is as much of it here
        for name in [name for name in others if name in self._states][_OTHERS_KEPT - 1 :]:
            del self._states[name]
        self._versions += 1
        self._states = {f"{_OTHER}{self._versions:09} {conversation}": own, **self._states}

    def _put(self, conversation: str, state: SequenceState) -> None:
        self._lent = None
        state.rest()
        self._states[conversation] = state
        if self.snapshots:
            self._unsaved.pop(conversation, None)
            self._unsaved[conversation] = None
        self._make_room()

    def _make_room(self) -> None:
        """Thin out checkpoints, the oldest sequence's first, then let whole sequences go, the one in use never."""
        budget = self.budget
        if self._lent:  # its next step brings a new recurrent state
            self._blocks = len(self._lent.kv.blocks)
            budget -= sum(layer.nbytes for layer in self._lent.recurrent)
        used = self.nbytes
        for floor in FLOORS:
            for state in (*self._states.values(), *([self._lent] if self._lent else [])):
                if used <= budget:
                    return
                if _thin(state, used - budget, floor):
                    used = self.nbytes
        names = list(self._states)[: None if self._lent else -1]
        for name in sorted(names, key=lambda name: name.startswith(_SHARED_PREFIX)):  # system prompts go last
            if used <= budget:
                return
            self._evict(name)
            used = self.nbytes

    def _evict(self, name: str) -> None:
        state = self._states.pop(name)
        if name in self._unsaved:
            del self._unsaved[name]
            if self.snapshots:
                self.snapshots.save(name, state, lambda: False)


def _loses(state: SequenceState, prompt: Sequence[int]) -> bool:
    """Whether a message of the user's would have to be read again for another prompt than this one."""
    reached = _agreement(state, prompt)
    return sum(place.length > reached for place in state.checkpoints) >= _LEAST_LOST


def _owner(name: str) -> str:
    """The conversation of a state of this name."""
    if name.startswith(_OTHER):
        return name[len(_OTHER) + 10 :]
    return name.removeprefix(_UNFINISHED)


def _thin(state: SequenceState, excess: int, floor: int) -> bool:
    """Drop the least useful checkpoints until about `excess` bytes are free or `floor` are left."""
    before = state.checkpoints
    kept = set(thinned({place.length: place.nbytes for place in before}, state.length, excess, floor))
    state.checkpoints = [place for place in before if place.length in kept]
    return len(kept) < len(before)


def _agreement(state: SequenceState, prompt: Sequence[int]) -> int:
    return state.reach(common_prefix(state.ids, prompt))
