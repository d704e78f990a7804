"""Presets: the makers' values for each model and mode, and who has the last word."""

from __future__ import annotations

from typing import Any

import pytest
from rewrite import GOLDENS

from runtime.loading import open_chat_model
from runtime.presets import presets, resolve, thinking_by_default
from runtime.protocol import Load, Sampling
from runtime.sampling import SamplingError, SamplingParams


def official(name: str) -> dict[str, Any]:
    return {"general.name": name}


def row(params: SamplingParams) -> tuple[float, float, int, float]:
    return params.temperature, params.top_p, params.top_k, params.presence_penalty


THINKING, CODING, NON_THINKING = (1.0, 0.95, 20, 1.5), (0.6, 0.95, 20, 0.0), (0.7, 0.8, 20, 1.5)
FREELY, SMALL_NON_THINKING = (1.0, 0.95, 20, 0.0), (1.0, 1.0, 20, 2.0)


@pytest.mark.parametrize(
    ("metadata", "thinking", "coding", "non_thinking"),
    [
        (official("Qwen3.5-0.8B"), THINKING, CODING, SMALL_NON_THINKING),
        (official("Qwen3.5 2B"), THINKING, CODING, SMALL_NON_THINKING),
        (official("Qwen3.5-4B"), THINKING, CODING, NON_THINKING),
        (official("Qwen_Qwen3.5-9B"), THINKING, CODING, NON_THINKING),
        (official("Qwen3.5-27B"), THINKING, CODING, NON_THINKING),
        (official("Qwen3.5 122B A10B"), THINKING, CODING, NON_THINKING),
        (official("Qwen3.6-27B"), FREELY, CODING, NON_THINKING),
        (official("Qwen3.6 35B A3B"), THINKING, CODING, NON_THINKING),
        (official("Qwen3.8-27B"), FREELY, FREELY, NON_THINKING),
        ({"general.name": "Model", "general.basename": "qwen3.8"}, FREELY, FREELY, NON_THINKING),
        (
            # A name without a size: the width has it. The converter's label is an estimate.
            {
                "general.basename": "Qwen3.5",
                "general.size_label": "1.9B",
                "general.architecture": "qwen35",
                "qwen35.embedding_length": 2048,
            },
            THINKING,
            CODING,
            SMALL_NON_THINKING,
        ),
        (
            {
                "general.basename": "Qwen3.6",
                "general.size_label": "256x2.6B",
                "general.architecture": "qwen35moe",
                "qwen35moe.embedding_length": 2048,
            },
            THINKING,
            CODING,
            NON_THINKING,
        ),
        ({"general.name": "Tale Spinner", "general.base_model.0.name": "Qwen3.8 27B"}, FREELY, FREELY, NON_THINKING),
        ({"general.name": "Unknown", "general.size_label": "0.8B"}, THINKING, CODING, SMALL_NON_THINKING),
        ({"general.name": "Unknown"}, THINKING, CODING, NON_THINKING),
        ({}, THINKING, CODING, NON_THINKING),
        ({"general.name": 5, "general.architecture": [1], "general.size_label": 7}, THINKING, CODING, NON_THINKING),
    ],
)
def test_are_those_the_makers_recommend(
    metadata: dict[str, Any], thinking: object, coding: object, non_thinking: object
) -> None:
    by_mode = presets(metadata)
    assert {mode: row(params) for mode, params in by_mode.items()} == {
        "thinking": thinking,
        "thinking-coding": coding,
        "non-thinking": non_thinking,
    }
    assert all((params.min_p, params.repetition_penalty, params.seed) == (0, 1, None) for params in by_mode.values())


FILE = {
    "general.sampling.temp": 0.25,
    "general.sampling.top_k": 40,
    "general.sampling.top_p": 0.5,
    "general.sampling.min_p": 0.125,
    "general.sampling.penalty_repeat": 1.25,
}


def test_an_official_models_preset_goes_before_its_file() -> None:
    assert presets(official("Qwen3.5-4B") | FILE) == presets(official("Qwen3.5-4B"))


@pytest.mark.parametrize("mode", ["thinking", "thinking-coding", "non-thinking"])
def test_a_fine_tunes_file_goes_before_the_family(mode: str) -> None:
    assert presets({"general.name": "Tale Spinner"} | FILE)[mode] == SamplingParams(
        temperature=0.25,
        top_k=40,
        top_p=0.5,
        min_p=0.125,
        repetition_penalty=1.25,
        presence_penalty=0.0,  # which a file cannot ask for, so its values are complete without
    )


def test_a_file_made_from_a_known_model_keeps_that_ones_presence_penalty() -> None:
    made_from = {"general.name": "Tale Spinner", "general.base_model.0.name": "Qwen3.5 4B"}
    assert presets(made_from | FILE)["thinking"].presence_penalty == 1.5


@pytest.mark.parametrize("broken", [-1.0, float("nan"), "hot", None, [1]])
def test_a_files_broken_values_are_passed_over(broken: object) -> None:
    assert presets({"general.sampling.temp": broken}) == presets({})


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Qwen3.5-0.8B", False), ("Qwen3.5-2B", False), ("Qwen3.5-4B", True), ("Qwen3.6-35B-A3B", True), ("Other", True)],
)
def test_only_the_smallest_do_not_think_by_default(name: str, expected: bool) -> None:
    assert thinking_by_default(official(name)) is expected


class TestChoice:
    PRESET = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, presence_penalty=1.5)

    def test_without_one_is_the_preset(self) -> None:
        assert resolve(Sampling(), self.PRESET) == self.PRESET

    def test_of_the_user_goes_before_the_preset_even_where_it_is_zero(self) -> None:
        user = Sampling(temperature=0.0, top_k=0, presence_penalty=0.0, seed=0, max_tokens=5)
        assert resolve(user, self.PRESET) == SamplingParams(temperature=0.0, top_k=0, top_p=0.95, seed=0)

    def test_out_of_range_is_refused(self) -> None:
        with pytest.raises(SamplingError, match="top_p must be above 0"):
            resolve(Sampling(top_p=7.0), self.PRESET)


def test_asked_for_triton_what_runs_in_its_place_is_told() -> None:
    _, _, notices = open_chat_model(Load(str(GOLDENS / "tiny-dense.gguf"), ops="triton"), lambda done, total: None)
    assert any("No GPU was found: Triton's interpreter runs in its place" in notice for notice in notices)
    _, _, notices = open_chat_model(Load(str(GOLDENS / "tiny-dense.gguf"), ops="reference"), lambda done, total: None)
    assert not any("Triton" in notice for notice in notices)
