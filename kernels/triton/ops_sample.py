"""Launches of the choice of a token."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.triton.card import Card, power_of_two
from kernels.triton.common import cdiv, new

MOST_CANDIDATES = 128  # tokens that the choice of one keeps
UNDECIDED = -2  # in place of a token where more are in question
_PART = 8192  # logits


def sample(
    card: Card, logits: Tensor, rules: Tensor, noise: Tensor, seen: Tensor, reply: Tensor, drafted: Tensor,
    out: Tensor, draft: bool = False,
) -> None:  # fmt: skip
    from kernels.triton.sample import pick, shortlist

    size = logits.shape[0]
    tile = _PART if card.way != "interpreted" else power_of_two(size)
    parts = cdiv(size, tile)
    values = new(card, parts, 2 * MOST_CANDIDATES)
    ids = new(card, parts, 2 * MOST_CANDIDATES, dtype=torch.int32)
    sound = new(card, parts, dtype=torch.int32)
    card.launch(
        shortlist, (parts,), logits.contiguous(), rules, seen.view(torch.uint8), reply.view(torch.uint8), drafted,
        values, ids, sound, len(drafted), size, warps=8, KEPT=MOST_CANDIDATES, B=tile,
    )  # fmt: skip
    card.launch(
        pick, (1,), rules, noise, values, ids, sound, out, len(drafted), parts, warps=8, DRAFT=draft, NOT_FINITE=-1,
        UNDECIDED=UNDECIDED, KEPT=MOST_CANDIDATES, BP=power_of_two(parts),
    )  # fmt: skip
