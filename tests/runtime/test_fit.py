"""What a model takes and how fast it is, foretold: against states that were measured, and the models' own names."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime import bench_memory, fit, machine
from runtime.bench_worker import WorkerError
from runtime.hub import family
from runtime.hub.protocol import Gpu, Machine
from runtime.kv_cache import BLOCK, KVType
from runtime.loading import DEFAULT_CONTEXT
from runtime.models.config import ModelConfig
from runtime.models.loading import load_model
from runtime.models.slabs import ROWS, Layout
from runtime.protocol import Load

GOLDENS = Path(__file__).parents[1] / "goldens"
GB = 10**9
HERE = Machine("a processor", 4, 16 * GB, 12 * GB, 10**12, "", (), 40e9)


def known(model: str, *, mtp: bool = False) -> ModelConfig:
    config = family.known_config(model, mtp)
    assert config is not None
    return config


def test_the_runtime_s_own_numbers_are_meant() -> None:
    assert (fit.BLOCK, fit.DEFAULT_CONTEXT, fit.ROWS) == (BLOCK, DEFAULT_CONTEXT, ROWS)


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("kind", ["f16", "f32", "q8"])
def test_keys_values_and_states_are_as_large_as_they_are(name: str, kind: KVType) -> None:
    path = GOLDENS / f"{name}.gguf"
    config, size = fit.read(path)
    assert size == path.stat().st_size
    model = load_model(path).model
    state = model.new_state(kind)
    tokens = BLOCK + 3
    model.forward([1] * tokens, state)
    state.commit()
    need = fit.memory(config, size, tokens, kind)
    assert need.kv == sum(block.nbytes for block in state.kv.blocks)
    assert need.mtp == (sum(block.nbytes for block in state.mtp_kv.blocks) if state.mtp_kv else 0)
    assert need.state == fit.COPIES * sum(layer.nbytes for layer in state.recurrent)
    layout = Layout(config)
    steps = 4 * (2 * (layout.size - ROWS * config.hidden) + layout.states_size)
    assert need.steps == pytest.approx(steps, rel=0.05)  # each piece begins at a cache line


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        ("Qwen3.5-0.8B", 0.8, 0.8),
        ("Qwen3.5-2B", 2, 2),
        ("Qwen3.5-4B", 4, 4),
        ("Qwen3.5-9B", 9, 9),
        ("Qwen3.6-27B", 27, 27),
        ("Qwen3.6-35B-A3B", 35, 3),
    ],
)
def test_a_token_uses_as_many_weights_as_the_model_s_name_says(model: str, total: float, active: float) -> None:
    used, all_ = fit.parameters(known(model))
    assert all_ / 1e9 == pytest.approx(total, rel=0.12)
    assert used / 1e9 == pytest.approx(active, rel=0.2)


def test_state_and_keys_of_the_4b_are_those_that_are_known() -> None:
    """Per token 32 KiB in 16 bits, and 4 KiB of the MTP block; 50.3 MiB of state."""
    need = fit.memory(known("Qwen3.5-4B", mtp=True), 3 * GB, 1024)
    assert need.kv == 1024 * 32 * 1024
    assert need.mtp == 1024 * 4 * 1024
    assert need.state / fit.COPIES == pytest.approx(50.3 * 2**20, rel=0.01)


def test_reading_and_decoding_share_their_memory() -> None:
    """While a prompt is read no slab is there; while tokens are decoded the two places to come back to, and slabs."""
    need = fit.Need(base=1000, weights=100, kv=20, mtp=3, state=400, steps=200, work=10)
    assert need.total == 1123 + 410
    assert replace(need, steps=300, work=10).total == 1123 + 200 + 300


def test_a_file_smaller_than_the_family_s_vocabulary_has_another() -> None:
    config = known("Qwen3.5-0.8B")
    small, large = fit.memory(config, 10_000_000, 256), fit.memory(config, 20_000_000, 256)
    assert large.base - small.base == 80_000_000
    assert small.weights == pytest.approx(10_000_000, rel=0.05)
    assert large.weights == pytest.approx(9_000_000, rel=0.05)


def test_verdicts() -> None:
    config = known("Qwen3.5-4B")
    gpu = Gpu("a card", 8 * GB, 8 * GB, used=True)
    assert fit.verdict(config, 3 * GB, HERE).place == "cpu"
    assert fit.verdict(config, 3 * GB, replace(HERE, gpus=(gpu,))).place == "gpu"
    assert fit.verdict(config, 3 * GB, replace(HERE, gpus=(replace(gpu, used=False),))).place == "cpu"
    assert fit.verdict(config, 10 * GB, replace(HERE, gpus=(gpu,))).place == "split"
    assert fit.verdict(config, 18 * GB, replace(HERE, gpus=(gpu,))).place == "split"
    assert fit.verdict(config, 30 * GB, replace(HERE, gpus=(gpu,))).place == "no"
    two, three = (replace(HERE, gpus=(gpu,) * count) for count in (2, 3))
    assert fit.verdict(config, 3 * GB, two).sentence.startswith("fits on the GPU: ")
    assert fit.verdict(config, 10 * GB, two).sentence.startswith("fits on 2 GPUs: ")
    assert fit.verdict(config, 18 * GB, two).sentence.startswith("fits partly on 2 GPUs, the rest in memory: ")
    assert fit.verdict(config, 30 * GB, three).place == "split"
    large = fit.verdict(config, 15 * GB, HERE)
    assert large.place == "no" and "of 16.0 GB" in large.sentence and large.tok_per_s is None


def test_context_costs_memory_and_is_at_most_what_was_trained() -> None:
    config = known("Qwen3.5-4B")
    small, usual = (fit.verdict(config, 3 * GB, HERE, context) for context in (2048, None))
    assert usual.need - small.need == (DEFAULT_CONTEXT - 2048) * 32 * 1024
    assert fit.verdict(config, 3 * GB, HERE, 10**9).sentence == fit.verdict(config, 3 * GB, HERE, 262_144).sentence
    q8 = fit.verdict(config, 3 * GB, HERE, None, "q8")
    assert q8.need < usual.need


def test_speed_follows_the_bytes_that_a_token_reads() -> None:
    """A dense model's file once, of a mixture of experts the tenth that is used."""
    dense, moe = known("Qwen3.5-4B"), known("Qwen3.6-35B-A3B")
    slow, fast = (fit.verdict(dense, 3 * GB, replace(HERE, bandwidth=b), 512).tok_per_s for b in (20e9, 40e9))
    assert slow and fast and fast == pytest.approx(2 * slow)
    assert 20e9 / 3e9 * 0.75 < slow < 20e9 / 3e9 * 1.05
    big = replace(HERE, memory=64 * GB, available=60 * GB)
    experts = fit.verdict(moe, 22 * GB, big, 512).tok_per_s
    assert experts and 40e9 / 22e9 * 6 < experts < 40e9 / 22e9 * 12


def test_too_little_free_memory_is_said() -> None:
    assert "close something first" in fit.verdict(known("Qwen3.5-4B"), 3 * GB, replace(HERE, available=2 * GB)).sentence


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
@pytest.mark.parametrize(
    ("limit", "used", "stat", "key"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ],
    ids=["version 2", "version 1"],
)
def test_what_a_container_keeps_of_files_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, stat: str, key: str
) -> None:
    """A model that has been read is in its page cache, which gives way."""
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_meminfo", lambda: (256 * GB, 200 * GB))
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text(f"{8 * GB}\n")
    (tmp_path / used).write_text(f"{7 * GB}\n")
    assert machine.memory() == (8 * GB, GB)
    (tmp_path / stat).write_text(f"anon {2 * GB}\nfile {5 * GB}\n{key} {4 * GB}\nactive_file {GB}\n")
    assert machine.memory() == (8 * GB, 5 * GB)
    (tmp_path / limit).write_text("max\n")
    assert machine.memory() == (256 * GB, 200 * GB)


def test_this_machine_has_memory_and_a_bandwidth_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_BLOCK", 4 << 20)  # quicker, if nearer to what a cache gives
    total, available = machine.memory()
    assert 0 < available <= total
    measured = machine.bandwidth(tmp_path, 0.01)
    assert measured > 1e8
    assert machine.bandwidth(tmp_path, 0.01) == measured
    (tmp_path / "bandwidth.json").write_text("{damaged")
    assert machine.bandwidth(tmp_path, 0.01) > 1e8


@pytest.mark.skipif(sys.platform != "linux", reason="what memory is not the file's only Linux tells")
class TestBenchmark:
    def test_the_peak_is_the_memory_that_a_program_writes(self) -> None:
        code = "x = bytearray(b'x') * (200 << 20); sum(range(2_000_000))"
        assert 200 << 20 <= bench_memory.peak([sys.executable, "-c", code]) < 230 << 20

    def test_a_program_that_fails_is_told_by_its_last_words(self) -> None:
        with pytest.raises(WorkerError, match="RuntimeError: no memory"):
            bench_memory.peak([sys.executable, "-c", "raise RuntimeError('no memory')"])

    def test_a_program_that_is_killed_is_told_by_the_signal(self) -> None:
        with pytest.raises(WorkerError, match=r"ended by signal 9 \(Killed\), as happens when memory is short"):
            bench_memory.peak([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
        with pytest.raises(WorkerError, match="ended with exit code 3"):
            bench_memory.peak([sys.executable, "-c", "raise SystemExit(3)"])

    def test_it_takes_the_memory_that_a_full_context_takes(self) -> None:
        path = GOLDENS / "tiny-dense.gguf"
        state = bench_memory.fill(Load(str(path), 2 * BLOCK + 1, threads=1))
        need = fit.memory(*fit.read(path), 2 * BLOCK + 1)
        assert need.kv == sum(block.nbytes for block in state.kv.blocks)
        assert state.mtp_kv and need.mtp == sum(block.nbytes for block in state.mtp_kv.blocks)
        assert len(state.checkpoints) == fit.COPIES - 2 + 1  # the live one and the next; and the beginning, of zeros

    def test_it_says_how_near_it_came(self) -> None:
        report = bench_memory.Report("m.gguf", 256, "auto", 96 * 10**7, 10**9)
        assert report.good and report.difference == pytest.approx(-0.04)
        assert report.as_text() == (
            "m.gguf, context 256, keys and values auto: 1.000 GB at its peak, 0.960 GB expected (-4.0%)"
        )
        assert not replace(report, expected=94 * 10**7).good


def test_a_row_of_prefill_is_what_the_largest_layer_holds() -> None:
    """By hand, in floats: the 4B's feed-forward; the 35B-A3B's, of eight experts; one whose heads are many."""
    recurrent = 2 * 2560 + 3 * (2 * 16 * 128 + 32 * 128) + 2 * 32 * 128
    ff = 5 * 2560 + 3 * 9216
    assert ff > recurrent
    assert fit.work(known("Qwen3.5-4B")) == round(1.2 * 4 * ff)
    assert fit.work(known("Qwen3.5-35B-A3B")) == round(1.2 * 4 * (5 * 2048 + 8 * (3 * 2048 + 2 * 512)))
    wide = replace(known("Qwen3.5-4B"), heads=64)
    assert fit.work(wide) == round(1.2 * 4 * (2 * 2560 + 5 * 64 * 256 + 2 * 4 * 256))
