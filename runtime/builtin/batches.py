"""Packed rows of token ids: a pure function of seed and step, so that a resumed run sees what an unbroken one would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from runtime.builtin.corpus.dialogue import Dialogue, segments
from runtime.builtin.corpus.mix import Stage, dialogue
from runtime.builtin.corpus.registry import World

AHEAD = 4  # tokens kept beyond a row: the targets of the last position and of its drafts
STRETCH = 0.15  # share of documents whose positions jump between turns, so that long distances are known
LONGEST_JUMP = 3000
# Share of documents that end within their last reply, beside those that are meant to: what it is about is decided in
# its first tokens. How many of its tokens remain; of a brief one, and of another.
CUT = 0.45
BRIEF = (7, 13)
KEPT = (9, 16)
EMPTY = -1

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed documents. ids and weight [B, T + AHEAD], position and document [B, T].

    weight[t] is that of predicting token t; documents are numbered in a row, EMPTY where none is.
    """

    ids: Array
    weight: Array
    position: Array
    document: Array

    @property
    def fill(self) -> float:
        return float((self.document != EMPTY).mean())


@dataclass(frozen=True, slots=True)
class Encoded:
    ids: list[int]
    weight: list[int]
    position: list[int]


def encode(tokenizer: Tokenizer, dialogues: list[Dialogue], r: Random) -> list[Encoded]:
    parts = [segments(d) for d in dialogues]
    flat = iter(tokenizer.encode_batch([s.text for p in parts for s in p], add_special_tokens=False))
    result = []
    for part, written in zip(parts, dialogues, strict=True):
        ids: list[int] = []
        weight: list[int] = []
        position: list[int] = []
        offset, jumps = 0, r.random() < STRETCH
        for segment in part:
            tokens = next(flat).ids
            position += range(len(ids) + offset, len(ids) + offset + len(tokens))
            ids += tokens
            weight += [segment.weight] * len(tokens)
            if jumps and segment.text == "\n" and r.random() < 0.4:
                offset += r.randint(1, LONGEST_JUMP)
        end = len(ids)
        if written.brief:
            end = _cut(weight, r.randint(*BRIEF))
        elif r.random() < CUT:
            end = _cut(weight, r.randint(*KEPT))
        result.append(Encoded(ids[:end], weight[:end], position[:end]))
    return result


def _cut(weight: list[int], kept: int) -> int:
    """Where a document ends that keeps so much of its last reply; its length if that is short or not learnt."""
    last = len(weight)
    while last and not weight[last - 1]:
        last -= 1
    first = last
    while first and weight[first - 1]:
        first -= 1
    end = first + kept
    return end if last and end < last - 3 else len(weight)


def batches(
    tokenizer: Tokenizer, world: World, stage: Stage, seed: int, group: int, steps: int, rows: int, length: int
) -> Iterator[Batch]:
    """The `steps` batches of a group, packed together, so that little room is lost."""
    r = Random(f"{seed} {stage} {group}")
    total = steps * rows
    space = np.zeros(total, np.int64)
    count = np.zeros(total, np.int64)
    ids = np.zeros((total, length + AHEAD), np.int64)
    weight = np.zeros_like(ids)
    position = np.zeros((total, length), np.int64)
    document = np.full((total, length), EMPTY, np.int64)
    space[:] = length
    misses = 0
    while misses < 200 and space.sum() > 0.015 * total * length:
        for doc in encode(tokenizer, [dialogue(r, world, stage) for _ in range(64)], r):
            n = len(doc.ids)
            row = int(np.where(space >= n, space, length + 1).argmin())  # best fit: the fullest row that takes it
            if space[row] < n:
                misses += 1
                continue
            at = length - int(space[row])
            ids[row, at : at + n] = doc.ids
            weight[row, at : at + n] = doc.weight
            position[row, at : at + n] = doc.position
            document[row, at : at + n] = count[row]
            space[row] -= n
            count[row] += 1
    order = list(range(total))
    r.shuffle(order)
    for i in range(0, total, rows):
        take = order[i : i + rows]
        yield Batch(ids[take], weight[take], position[take], document[take])
