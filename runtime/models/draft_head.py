"""A head for drafts over a part of the vocabulary: where that is large, its head costs more than the whole MTP block.

The part is the tokens that the vocabulary learnt first, which are the most frequent ones, and those that came up last
in prompts and replies. What it lacks is only never drafted; each token is still chosen by the whole head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.op import OpTable
from kernels.quant_matmul import quant_matmul
from kernels.quants import QUANTS, QuantTensor
from kernels.residual import spread_logits

_RECENT = 1024  # tokens beside the first ones


class DraftHead:
    def __init__(self, head: QuantTensor, count: int, ops: OpTable) -> None:
        """`count`: how many of the first tokens can always be drafted, at least 1 and at most all."""
        self.ops, self._head = ops, head
        self.vocabulary, hidden = head.shape
        self.count = min(count, self.vocabulary)
        self._first = head.rows(0, self.count)
        self._rows = torch.zeros(_RECENT, hidden, dtype=torch.float16)
        self._recent = QuantTensor(self._rows.view(torch.uint8), QUANTS["F16"], (_RECENT, hidden))
        self._ids = torch.full((_RECENT,), -1)
        self._slots: dict[int, int] = {}  # of recent tokens, the one noted last comes last

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, H] → [T, V]; those of tokens that are not in it are far below all others."""
        first = self.ops[quant_matmul](hidden, self._first)
        recent = self.ops[quant_matmul](hidden, self._recent)
        return self.ops[spread_logits](first, recent, self._ids, self.vocabulary)

    @torch.inference_mode()
    def note(self, ids: Sequence[int]) -> None:
        """Tokens of a prompt or a reply: from now on they can be drafted, until many others have come up since."""
        latest = [id for id in dict.fromkeys(reversed(ids)) if id >= self.count][:_RECENT]
        latest.reverse()  # the last one last
        for id in latest:
            if id in self._slots:  # so that none of them makes room for another
                self._slots[id] = self._slots.pop(id)
        for id in latest:
            slot = self._slots.pop(id, None)
            if slot is None:
                slot = len(self._slots)
                if slot == _RECENT:
                    slot = self._slots.pop(next(iter(self._slots)))
                self._rows[slot] = self._head.rows(id, id + 1).dequantize()[0]
                self._ids[slot] = id
            self._slots[id] = slot
