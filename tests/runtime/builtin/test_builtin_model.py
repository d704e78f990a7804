"""The training form: the chunked rule equals the recurrence, packing isolates, drafts chain as in decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from runtime.builtin.batches import EMPTY
from runtime.builtin.delta import chunked_delta_rule, delta_step, unit_lower_inverse
from runtime.builtin.generate import Generated, Generator
from runtime.builtin.model import LanguageModel, LayerState, ModelConfig
from runtime.builtin.muon import orthogonalise

SMALL = ModelConfig(vocabulary=1024, hidden=64, ff=96, layers=4, heads=2, head_dim=32, rope_dim=8, state_dim=16)


def rule_inputs(T: int, low: float = -0.3) -> list[Tensor]:
    torch.manual_seed(0)
    q, k = (functional.normalize(torch.randn(2, T, 3, 16), dim=-1) for _ in "qk")
    g = torch.rand(2, T, 6) * low
    return [q * 16**-0.5, k, torch.randn(2, T, 6, 8), g, torch.rand(2, T, 6)]


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    S = q.new_zeros(q.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    outputs = []
    for t in range(q.shape[1]):
        o, S = delta_step(S, q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t])
        outputs.append(o)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("chunk", [8, 16, 32])
def test_the_chunked_rule_is_the_recurrence_and_so_is_its_gradient(chunk: int) -> None:
    inputs = [x.double().requires_grad_() for x in rule_inputs(96)]
    weight = torch.randn(2, 96, 6, 8, dtype=torch.float64)
    expected = recurrence(*inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    got = chunked_delta_rule(*inputs, chunk)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad((got * weight).sum(), inputs), wanted)


def test_strong_decay_stays_finite() -> None:
    q, k, v, g, beta = rule_inputs(128)
    g = torch.full_like(g, -20.0)
    out = chunked_delta_rule(q, k, v, g, beta, 32)
    torch.testing.assert_close(out, recurrence(q, k, v, g, beta), rtol=1e-4, atol=1e-6)


def test_the_inverse_holds_for_the_hardest_matrix() -> None:
    """Equal keys written at full strength: every entry below the diagonal is 1."""
    A = torch.ones(1, 32, 32).tril(-1)
    torch.testing.assert_close(unit_lower_inverse(A) @ (torch.eye(32) + A), torch.eye(32).unsqueeze(0))


def randomised(config: ModelConfig = SMALL) -> LanguageModel:
    torch.manual_seed(1)
    model = LanguageModel(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def whole(model: LanguageModel, ids: Tensor) -> Tensor:
    document = torch.zeros_like(ids)
    return model.hidden(ids, model.packed(document, torch.arange(ids.shape[1]).expand_as(ids)))


@torch.no_grad()
def test_token_by_token_equals_the_whole_sequence(tokenizer: Tokenizer) -> None:
    model = randomised()
    ids = torch.randint(0, 1024, (2, 64))
    states = [LayerState() for _ in model.trunk]
    generator = Generator(model, tokenizer)
    steps = torch.stack([generator._step(ids[:, t], t, states) for t in range(64)], 1)
    torch.testing.assert_close(steps, model.logits(whole(model, ids)), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_packed_documents_do_not_see_each_other() -> None:
    model = randomised()
    ids = torch.randint(0, 1024, (1, 96))
    document = torch.tensor([[0] * 37 + [1] * 40 + [EMPTY] * 19])
    position = torch.tensor([[*range(37), *range(40), *[0] * 19]])
    packed = model.hidden(ids, model.packed(document, position))
    alone = whole(model, functional.pad(ids[:, 37:77], (0, 24)))[:, :40]
    torch.testing.assert_close(packed[:, 37:77], alone, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_chained_drafts_are_those_of_decoding() -> None:
    """Draft j from position t, made token by token with a cache of keys, as an engine does it."""
    model = randomised()
    ids = torch.randint(0, 1024, (1, 36))
    hidden = whole(model, ids[:, :32])
    packed = model.packed(torch.zeros(1, 32, dtype=torch.long), torch.arange(32).unsqueeze(0))
    chained = model.drafts(hidden, ids, packed, 3)
    block, t = model.mtp, 20
    state = LayerState()
    for place in range(t + 1):
        out = mtp_step(model, ids[:, place + 1], hidden[:, place], place, state)
    torch.testing.assert_close(out, chained[0][:, t], rtol=1e-4, atol=1e-4)
    for j in (1, 2):
        out = mtp_step(model, ids[:, t + 1 + j], out, t + j, state)
        torch.testing.assert_close(out, chained[j][:, t], rtol=1e-4, atol=1e-4)
    assert block.nextn.eh_proj.in_features == 128


def mtp_step(model: LanguageModel, token: Tensor, hidden: Tensor, position: int, state: LayerState) -> Tensor:
    cos, sin = model.angles(torch.tensor([position]))
    x = model.mtp.join(model.token_embd(token), hidden)
    return model.mtp.nextn.shared_head_norm(model.mtp.step(x, state, cos, sin))


def test_newton_schulz_brings_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 32, 64), (2, 64, 32)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.5 and values.max() < 1.3


def test_unusable_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        replace(SMALL, hidden=50)
    with pytest.raises(ValueError, match="multiple of key heads"):
        replace(SMALL, value_heads=4)


@torch.no_grad()
def test_acceptance_is_that_of_drafting_round_by_round(tokenizer: Tokenizer) -> None:
    """Against a plain simulation on the model's own greedy text."""
    model = randomised()
    generator = Generator(model, tokenizer)
    generator.end, generator.max_tokens = -1, 40
    prompt = list(range(20, 30))
    (made,) = generator._decode([prompt])
    ids = prompt + made
    padded = functional.pad(torch.tensor([ids]), (0, -len(ids) % 32 + 4))
    n = padded.shape[1] - 4
    hidden = whole(model, padded[:, :n])
    rounds = accepted = 0
    t = len(prompt) - 1
    while t + 4 < len(ids):
        state = LayerState()
        for place in range(t + 1):
            out = mtp_step(model, padded[:, place + 1], hidden[:, place], place, state)
        run = 0
        while run < 3 and int(model.logits(out).argmax()) == ids[t + 2 + run]:
            run += 1
            if run < 3:
                out = mtp_step(model, padded[:, t + 1 + run], out, t + run, state)
        rounds, accepted, t = rounds + 3, accepted + run, t + run + 1
    result = generator.acceptance([Generated("", "", True, True, tuple(prompt), tuple(made))])
    assert result.chain == pytest.approx(accepted / rounds)
