"""Greedy replies of the training model, many at once, and what its drafts would have been worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from runtime.builtin.model import DeltaBlock, LanguageModel, LayerState
from runtime.builtin.prompt import render, take_apart
from runtime.builtin.vocabulary import IM_END


@dataclass(frozen=True, slots=True)
class Request:
    messages: tuple[dict[str, str], ...]
    thinking: bool


@dataclass(frozen=True, slots=True)
class Generated:
    """`ended`: the model ended the reply itself; `closed`: it closed its thought."""

    thought: str
    reply: str
    ended: bool
    closed: bool
    prompt: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of greedy drafts: `first` of single ones, `chain` of all drafts in rounds of three."""

    first: float
    chain: float


class Generator:
    """Greedy decoding in batches; calling it answers one conversation."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, max_tokens: int = 320, batch: int = 96) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_tokens, self.batch = max_tokens, batch
        self.end = tokenizer.token_to_id(IM_END)

    def __call__(self, messages: Sequence[dict[str, str]], thinking: bool) -> tuple[str, str]:
        made = self.answer([Request(tuple(messages), thinking)])[0]
        return made.thought, made.reply

    def answer(self, requests: Sequence[Request]) -> list[Generated]:
        """One reply each, in the order of the requests."""
        prompts = [
            self.tokenizer.encode(render(q.messages, q.thinking), add_special_tokens=False).ids for q in requests
        ]
        order = sorted(range(len(requests)), key=lambda i: len(prompts[i]))
        results: dict[int, Generated] = {}
        for start in range(0, len(order), self.batch):
            take = order[start : start + self.batch]
            for i, ids in zip(take, self._decode([prompts[i] for i in take]), strict=True):
                ended = bool(ids) and ids[-1] == self.end
                text = self.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=False)
                thought, reply, closed = take_apart(text, requests[i].thinking)
                results[i] = Generated(thought, reply, ended, closed, tuple(prompts[i]), tuple(ids))
        return [results[i] for i in range(len(requests))]

    @torch.inference_mode()
    def _decode(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Generated ids per prompt. All begin at position 0: shorter prompts generate while longer ones are read."""
        made: list[list[int]] = [[] for _ in prompts]
        states = [LayerState() for _ in self.model.trunk]
        done = [False] * len(prompts)
        current = [p[0] for p in prompts]
        position = 0
        while not all(done):
            logits = self._step(torch.tensor(current), position, states)
            choice = logits.argmax(-1).tolist()
            position += 1
            for i, prompt in enumerate(prompts):
                if position < len(prompt):
                    current[i] = prompt[position]
                elif not done[i]:
                    current[i] = choice[i]
                    made[i].append(choice[i])
                    done[i] = choice[i] == self.end or len(made[i]) >= self.max_tokens
        return made

    def _step(self, ids: Tensor, position: int, states: Sequence[LayerState]) -> Tensor:
        cos, sin = self.model.angles(torch.tensor([position]))
        x = self.model.token_embd(ids)
        for block, state in zip(self.model.trunk, states, strict=True):
            x = block.step(x, state) if isinstance(block, DeltaBlock) else block.step(x, state, cos, sin)  # type: ignore[operator]
        return self.model.logits(self.model.output_norm(x))

    @torch.inference_mode()
    def acceptance(self, generated: Sequence[Generated], depth: int = 3) -> Acceptance:
        """How many drafts greedy decoding would have accepted."""
        singles = hits = rounds = accepted = 0
        for made in generated:
            ids = [*made.prompt, *made.ids]
            T = len(ids)
            padded = functional.pad(torch.tensor([ids]), (0, -T % self.model.config.chunk + depth + 1))
            n = padded.shape[1] - depth - 1
            packed = self.model.packed(torch.zeros(1, n, dtype=torch.long), torch.arange(n).unsqueeze(0))
            hidden = self.model.hidden(padded[:, :n], packed)
            drafts = [self.model.logits(s)[0].argmax(-1) for s in self.model.drafts(hidden, padded, packed, depth)]
            right = [[t + 2 + j < T and int(d[t]) == ids[t + 2 + j] for t in range(T)] for j, d in enumerate(drafts)]
            t = len(made.prompt) - 1  # the first reply token is known, drafts begin behind it
            for place in range(t, T - 2):
                singles += 1
                hits += right[0][place]
            while t + 1 + depth < T:
                run = next((j for j in range(depth) if not right[j][t]), depth)
                rounds += depth
                accepted += run
                t += run + 1
        return Acceptance(hits / max(1, singles), accepted / max(1, rounds))
