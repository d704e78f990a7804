"""Steps of decoding as a card does them, launch by launch in Triton's interpreter, against the references."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from runtime.graphs import GraphStepper
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.models.slabs import Carried
from runtime.sampling import Sampler, SamplingParams
from runtime.speculative import step

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

TINY = Path(__file__).parents[1] / "goldens" / "tiny-dense.gguf"
PROMPT = [5, 17, 3]


@pytest.fixture(scope="module")
def model() -> Qwen35:
    return load_model(TINY, "triton").model


@pytest.fixture(scope="module")
def reference() -> Qwen35:
    return load_model(TINY).model


def greedy(model: Qwen35, ids: list[int], count: int) -> list[int]:
    state, ids = model.new_state(), list(ids)
    hidden = model.forward(ids, state)
    state.commit()
    tokens = [int(model.logits(hidden[-1:]).argmax())]
    while len(tokens) < count:
        hidden = model.forward(tokens[-1:], state)
        state.commit()
        tokens.append(int(model.logits(hidden).argmax()))
    return tokens


@pytest.mark.long
def test_drafted_tokens_are_those_of_the_reference(model: Qwen35, reference: Qwen35) -> None:
    """Drafts of the model's own, and as many of them kept as are right; then a switch to another conversation."""
    wanted = greedy(reference, PROMPT, 6)
    state = model.new_state()
    model.forward(PROMPT, state)
    state.commit()
    sampler = Sampler(SamplingParams(temperature=0), PROMPT, model.vocabulary)
    tokens = [wanted[0]]
    sampler.accept(tokens[0])
    while len(tokens) < 6:
        read = step(model, state, tokens[-1:], 2, sampler)
        assert len(read.drafts) == 2
        right = 0
        while (token := read.choose(right)) == [*read.drafts, None][right]:
            tokens.append(token)
            sampler.accept(token)
            right += 1
        tokens.append(token)
        sampler.accept(token)
        state.commit(1 + right)
    assert tokens[:6] == wanted
    assert isinstance(state.recurrent, Carried)
    carried = state.recurrent.slab
    assert carried is not None

    # another sequence takes the memory, and the first goes on as if nothing had been
    other = model.new_state()
    for ids in ([9], [8], [7]):
        model.forward(ids, other)
        other.commit()
    assert state.recurrent.slab is None or other.recurrent.slab is not state.recurrent.slab  # type: ignore[attr-defined]
    follows = model.forward([11], state)
    plain = reference.forward([*state.ids, 11], reference.new_state())
    torch.testing.assert_close(follows[-1], plain[-1], rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_rows_that_are_rejected_leave_no_trace(model: Qwen35, reference: Qwen35) -> None:
    state = model.new_state()
    model.forward(PROMPT, state)
    state.commit()
    model.forward([4, 299, 299], state, each=True)
    state.commit(1)
    hidden = model.forward([6, 7], state)
    plain = reference.forward([*PROMPT, 4, 6, 7], reference.new_state())
    torch.testing.assert_close(hidden, plain[-2:], rtol=1e-3, atol=1e-4)


def test_without_a_gpu_nothing_is_captured(model: Qwen35) -> None:
    assert isinstance(model.stepper, GraphStepper)
    assert not model.stepper.captures


class Capture:
    """Stands for a capture that fails, and whose end may fail of that again."""

    def __init__(self, error: Exception, end: Exception | None) -> None:
        self.error, self.end = error, end

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        try:
            raise self.error
        finally:
            if self.end:
                raise self.end


@pytest.mark.parametrize(
    ("error", "end", "full"),
    [
        (RuntimeError("the driver cannot"), None, False),
        (torch.OutOfMemoryError("full"), None, True),
        (torch.OutOfMemoryError("full"), RuntimeError("the capture was spoilt"), True),
    ],
    ids=["a driver that cannot", "full", "full, and said otherwise"],
)
def test_memory_that_ends_in_a_capture_is_no_reason_to_go_on_without(
    model: Qwen35, monkeypatch: pytest.MonkeyPatch, error: Exception, end: Exception | None, full: bool
) -> None:
    """It is told, so that room is made and the step is tried again."""
    assert model.ops.card
    stepper = GraphStepper(model, model.ops.card)
    monkeypatch.setattr(stepper, "_plain", False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: Capture(error, end))
    hidden = torch.ones(1, model.config.hidden)
    monkeypatch.setattr("runtime.graphs.step", lambda *arguments, **options: (hidden, [], hidden))
    state = model.new_state()
    state.ids, state.last_hidden = [5], torch.zeros(model.config.hidden)
    if full:
        with pytest.raises(torch.OutOfMemoryError):
            stepper.forward([7], state, each=False)
    else:
        assert stepper.forward([7], state, each=False).equal(hidden)
    assert stepper.captures == full
