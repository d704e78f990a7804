"""What a file must hold to be run, and that a sequence may be cut into forwards in any way."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from rewrite import GOLDENS, rewrite, tensor_names, tensor_values

from kernels.op import Column
from runtime import fit
from runtime.hub import peek
from runtime.hub.protocol import Machine
from runtime.models.config import ModelConfig, ModelError, UnknownTokenError
from runtime.models.loading import load_model
from runtime.models.qwen35 import Qwen35
from runtime.rope import RotaryEmbedding
from runtime.sampling import Sampler, SamplingParams
from runtime.speculative import verify

DENSE, MOE = GOLDENS / "tiny-dense.gguf", GOLDENS / "tiny-moe.gguf"
IDS = [int(i) for i in np.random.default_rng(7).integers(0, 300, 120)]


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe"])
def model(request: pytest.FixtureRequest) -> Qwen35:
    return load_model(GOLDENS / f"{request.param}.gguf").model


@pytest.fixture(scope="module")
def dense() -> Qwen35:
    return load_model(DENSE).model


def run(model: Qwen35, *parts: list[int]) -> torch.Tensor:
    """Logits of the last token after forwards over the parts."""
    state = model.new_state()
    for part in parts:
        hidden = model.forward(part, state)
        state.commit()
    return model.logits(hidden[-1:])[0]


YARN = {
    f"{architecture}.rope.{key}": value
    for architecture in ("qwen35", "qwen35moe")
    for key, value in {
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 1024,
        "scaling.attn_factor": 1.2,
        "scaling.yarn_beta_fast": 32.0,
        "scaling.yarn_beta_slow": 1.0,
    }.items()
}


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("column", ["reference", "cpu"])
class TestTokensThatTheModelHasNot:
    @pytest.fixture
    def tiny(self, column: Column) -> Qwen35:
        return load_model(DENSE, column, threads=1).model

    @pytest.mark.parametrize("rows", [1, 3, 40], ids=lambda rows: f"among {rows}")
    @pytest.mark.parametrize("past", [0, 1_000_000_000], ids=["the first", "far beyond"])
    def test_are_refused_by_number_and_leave_no_trace(self, tiny: Qwen35, rows: int, past: int) -> None:
        """Natively, memory beyond the embeddings would be read."""
        state, id = tiny.new_state(), tiny.vocabulary + past
        tiny.forward(IDS[:9], state)
        state.commit()
        with pytest.raises(UnknownTokenError, match=f"and {id:,} is none of them"):
            tiny.forward([*IDS[: rows - 1], id], state)
        with pytest.raises(UnknownTokenError):
            tiny.forward([-1] * rows, state)
        tiny.forward(IDS[9:12], state)
        state.commit()
        hidden = tiny.forward(IDS[12:13], state)
        assert distance(tiny.logits(hidden)[0], run(tiny, IDS[:9], IDS[9:12], IDS[12:13])) < 1e-6

    def test_are_refused_as_drafts(self, tiny: Qwen35) -> None:
        state = tiny.new_state()
        hidden = tiny.forward(IDS[:9], state)
        state.commit()
        sampler = Sampler(SamplingParams(temperature=0), (), tiny.vocabulary)
        with pytest.raises(UnknownTokenError):
            verify(tiny, state, [tiny.vocabulary], [], sampler)
        with pytest.raises(UnknownTokenError):
            verify(tiny, state, [IDS[9]], [tiny.vocabulary], sampler)
        with pytest.raises(UnknownTokenError):
            tiny.draft([tiny.vocabulary], hidden[-1:], state, 8)


class TestCuts:
    @pytest.mark.parametrize("length", [1, 2, 3, 4])
    def test_a_short_prompt_and_eight_decodes_are_one_forward(self, model: Qwen35, length: int) -> None:
        ids = IDS[: length + 8]
        assert distance(run(model, ids[:length], *([i] for i in ids[length:])), run(model, ids)) < 1e-4

    def test_a_hundred_tokens_in_three_parts_are_one_shot(self, model: Qwen35) -> None:
        assert distance(run(model, IDS[:33], IDS[33:66], IDS[66:100]), run(model, IDS[:100])) < 1e-4

    @pytest.mark.parametrize("length", [2, 17, 64, 65, 120])
    def test_all_but_one_and_then_one(self, model: Qwen35, length: int) -> None:
        ids = IDS[:length]
        assert distance(run(model, ids[:-1], ids[-1:]), run(model, ids)) < 1e-4

    def test_rows_with_a_state_each_are_the_same_rows(self, model: Qwen35) -> None:
        state = model.new_state()
        model.forward(IDS[:20], state)
        state.commit()
        each = model.forward(IDS[20:25], state, each=True)
        assert distance(model.logits(each[-1:])[0], run(model, IDS[:25])) < 1e-4

    @pytest.mark.parametrize("kept", [0, 1, 3, 5])
    def test_rejected_rows_leave_no_trace(self, model: Qwen35, kept: int) -> None:
        state = model.new_state()
        model.forward(IDS[:20], state)
        state.commit()
        model.forward([*IDS[20 : 20 + kept], *([299] * (5 - kept))], state, each=True)
        state.commit(kept)
        hidden = model.forward(IDS[20 + kept : 30], state)
        state.commit()
        assert state.ids == IDS[:30]
        assert distance(model.logits(hidden[-1:])[0], run(model, IDS[:30])) < 1e-4

    def test_going_back_to_a_checkpoint_and_on_another_way(self, model: Qwen35) -> None:
        state = model.new_state()
        for start in (0, 40):
            model.forward(IDS[start : start + 40], state)
            state.commit()
            state.checkpoint()
        assert state.rewind(60) == 40
        hidden = model.forward(IDS[:7], state)
        state.commit()
        assert distance(model.logits(hidden[-1:])[0], run(model, [*IDS[:40], *IDS[:7]])) < 1e-4
        assert [place.length for place in state.checkpoints] == [0, 40]

    def test_part_of_the_rows_cannot_be_kept_when_only_the_last_state_is_known(self, dense: Qwen35) -> None:
        state = dense.new_state()
        dense.forward(IDS[:4], state)
        with pytest.raises(ValueError, match="cannot keep 2 of 4"):
            state.commit(2)

    def test_the_mtp_cache_filled_along_the_way_is_the_one_of_a_full_pass(self, model: Qwen35) -> None:
        """Drafts after a prefill in parts and decodes equal those with the MTP block run over everything."""
        state = model.new_state()
        for part in (IDS[:30], IDS[30:31], IDS[31:32], IDS[32:60]):
            hidden = model.forward(part, state)
            state.commit()
        drafted = model.draft_logits(model.draft([5], hidden[-1:], state, 59))

        fresh = model.new_state()
        everything = model.forward(IDS[:60], fresh)
        whole = model.draft_logits(model.draft([*IDS[1:60], 5], everything, model.new_state(), 0))
        assert distance(drafted[0], whole[-1]) < 1e-4


class TestPositions:
    def test_equal_sections_are_plain_positions(self, dense: Qwen35) -> None:
        plain = dense.forward(IDS[:9], dense.new_state())
        three = dense.forward(IDS[:9], dense.new_state(), positions=torch.arange(9).expand(3, 9))
        torch.testing.assert_close(three, plain)

    def test_sections_matter_where_they_differ(self, dense: Qwen35) -> None:
        plain = dense.forward(IDS[:9], dense.new_state())
        positions = torch.stack([torch.arange(9), torch.zeros(9, dtype=torch.long), torch.arange(9)])
        assert distance(dense.forward(IDS[:9], dense.new_state(), positions=positions), plain) > 1e-3


class TestFiles:
    def test_a_tensor_too_many_is_named(self, tmp_path: Path) -> None:
        file = rewrite(DENSE, tmp_path / "m.gguf", tensors={"blk.1.attn_surprise.weight": np.ones((4, 4), np.float32)})
        with pytest.raises(ModelError, match=r"blk\.1\.attn_surprise\.weight"):
            load_model(file)

    def test_escapes_in_names_are_shown_harmless(self, tmp_path: Path) -> None:
        evil = "blk.1.\x1b]52;c;aGk=\x07\x9b2J"
        file = rewrite(DENSE, tmp_path / "m\x1b[31m.gguf", tensors={evil: np.ones((4, 4), np.float32)})
        with pytest.raises(ModelError) as error:
            load_model(file)
        assert str(error.value).isprintable()

    @pytest.mark.parametrize("name", tensor_names(DENSE))
    def test_a_missing_tensor_is_named(self, tmp_path: Path, name: str) -> None:
        """Any tensor but the head's own (a file without it is tied) and the MTP block's optional norm."""
        file = rewrite(DENSE, tmp_path / "m.gguf", tensors={name: None})
        if name in ("output.weight", "blk.4.nextn.shared_head_norm.weight"):
            load_model(file)
            return
        with pytest.raises(ModelError, match=r"lacks the tensor|drafting"):
            load_model(file)

    def test_a_tensor_of_another_shape_is_named(self, tmp_path: Path) -> None:
        file = rewrite(DENSE, tmp_path / "m.gguf", tensors={"blk.0.ssm_a": np.full(3, -1, np.float32)})
        with pytest.raises(ModelError, match=r"blk\.0\.ssm_a has the shape \[3\]"):
            load_model(file)

    @pytest.mark.parametrize("mean", [0.0, 2.0])
    def test_norms_that_miss_the_one_or_have_it_twice_are_warned_of(self, tmp_path: Path, mean: float) -> None:
        norm = (mean + 0.01 * np.random.default_rng(1).standard_normal(32)).astype(np.float32)
        changed = {name: norm for name in tensor_names(DENSE) if name.endswith("attn_norm.weight")}
        notices = load_model(rewrite(DENSE, tmp_path / "m.gguf", tensors=changed)).notices
        assert len(notices) == 1
        assert "attn_norm" in notices[0]

    def test_a_good_file_needs_no_warning(self) -> None:
        assert load_model(DENSE).notices == []

    def test_the_norm_used_is_the_files(self, dense: Qwen35) -> None:
        expected = tensor_values(DENSE, "blk.0.attn_norm.weight")
        np.testing.assert_array_equal(dense.trunk.blocks[0].attn_norm.numpy(), expected)

    def test_the_mtp_block_is_no_trunk_layer(self, dense: Qwen35) -> None:
        assert dense.config.layers == len(dense.trunk.blocks) == 4
        assert dense.config.recurrent == (True, True, True, False)
        assert dense.mtp is not None
        assert "blk.4.ssm_conv1d.weight" not in tensor_names(DENSE)

    @pytest.mark.parametrize("count", [4, 5], ids=["never counted", "counted"])
    def test_a_file_that_lost_its_mtp_block_loads_with_one_notice(self, tmp_path: Path, count: int) -> None:
        gone = {name: None for name in tensor_names(DENSE) if name.startswith("blk.4.")}
        file = rewrite(DENSE, tmp_path / "m.gguf", tensors=gone, metadata={"qwen35.block_count": count})
        loaded = load_model(file)
        assert loaded.model.mtp is None
        assert len(loaded.notices) == 1
        with_block = run(load_model(DENSE).model, IDS[:20])
        torch.testing.assert_close(run(loaded.model, IDS[:20]), with_block)

    def test_a_sidecar_beside_a_file_without_the_block_drafts_for_it(self, tmp_path: Path) -> None:
        block = {name for name in tensor_names(DENSE) if name.startswith("blk.4.")}
        trunk = rewrite(
            DENSE,
            tmp_path / "m.gguf",
            tensors=dict.fromkeys(block),
            metadata={"qwen35.block_count": 4, "qwen35.nextn_predict_layers": None},
        )
        assert load_model(trunk).model.mtp is None
        others = {name for name in tensor_names(DENSE) if name.startswith("blk.")} - block
        rewrite(DENSE, tmp_path / "mtp-m.gguf", tensors=dict.fromkeys(others))
        loaded = load_model(trunk)
        assert loaded.notices == ["Drafts come from mtp-m.gguf, which lies beside the model."]
        whole = load_model(DENSE).model
        assert loaded.model.mtp
        hidden = whole.forward(IDS[:9], whole.new_state())
        drafts = [
            model.draft_logits(model.draft(IDS[1:10], hidden, model.new_state(), 0)) for model in (loaded.model, whole)
        ]
        torch.testing.assert_close(*drafts)

    @pytest.mark.parametrize(
        "changes", [{"qwen35.block_count": 9}, {"qwen35.attention.head_count": 4}, {"general.basename": "other"}]
    )
    def test_a_sidecar_of_another_model_is_left_alone(self, tmp_path: Path, changes: dict[str, object]) -> None:
        block = {name for name in tensor_names(DENSE) if name.startswith("blk.4.")}
        metadata = {"qwen35.block_count": 4, "qwen35.nextn_predict_layers": None, "general.basename": "this"}
        trunk = rewrite(DENSE, tmp_path / "m.gguf", tensors=dict.fromkeys(block), metadata=metadata)
        others = {name for name in tensor_names(DENSE) if name.startswith("blk.")} - block
        rewrite(DENSE, tmp_path / "mtp-m.gguf", tensors=dict.fromkeys(others), metadata=changes)
        assert load_model(trunk).model.mtp is None

    def test_fused_experts_are_the_two_halves(self, tmp_path: Path) -> None:
        names = tensor_names(MOE)
        fused = [name for name in names if name.endswith("ffn_gate_up_exps.weight")]
        apart: dict[str, np.ndarray | None] = {}
        for name in fused:
            both = tensor_values(MOE, name)
            half = both.shape[1] // 2
            apart[name] = None
            apart[name.replace("gate_up", "gate")] = both[:, :half].copy()
            apart[name.replace("gate_up", "up")] = both[:, half:].copy()
        assert fused, "the golden has no fused experts to compare"
        file = rewrite(MOE, tmp_path / "m.gguf", tensors=apart)
        torch.testing.assert_close(run(load_model(file).model, IDS[:20]), run(load_model(MOE).model, IDS[:20]))

    @pytest.mark.parametrize("keep_packed", [True, False])
    def test_packed_weights_give_the_same(self, monkeypatch: pytest.MonkeyPatch, keep_packed: bool) -> None:
        file = GOLDENS / "tiny-quants.gguf"
        expected = run(load_model(file).model, IDS[:20])
        monkeypatch.setattr("runtime.models.loading._fits_unpacked", lambda gguf: not keep_packed)
        torch.testing.assert_close(run(load_model(file).model, IDS[:20]), expected)


class TestRefusals:
    @pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3next", "qwen4exp", "qwen3moe"])
    def test_another_architecture(self, tmp_path: Path, architecture: str) -> None:
        file = rewrite(DENSE, tmp_path / "m.gguf", metadata={"general.architecture": architecture})
        with pytest.raises(ModelError, match=f"'{architecture}'; qwenchat runs qwen35"):
            load_model(file)

    def test_an_image_part(self, tmp_path: Path) -> None:
        file = rewrite(DENSE, tmp_path / "mmproj-F16.gguf", metadata={"general.architecture": "clip"})
        with pytest.raises(ModelError, match="image part"):
            load_model(file)

    def test_a_draft_model_of_another_engine(self, tmp_path: Path) -> None:
        file = rewrite(DENSE, tmp_path / "dflash-x.gguf", metadata={"general.architecture": "dflash"})
        with pytest.raises(ModelError, match="draft model for another engine"):
            load_model(file)

    def test_a_sidecar(self, tmp_path: Path) -> None:
        trunk = {name: None for name in tensor_names(DENSE) if name.startswith(("blk.0", "blk.1", "blk.2", "blk.3"))}
        file = rewrite(DENSE, tmp_path / "mtp-m.gguf", tensors=trunk)
        with pytest.raises(ModelError, match="only the drafting"):
            load_model(file)

    def test_weights_with_scales_apart_are_refused_by_name(self, tmp_path: Path) -> None:
        """NVFP4 keeps its outer scale in a tensor of its own: without it the weights are not what they should be."""
        packed = np.zeros((32, 36), np.uint8), GGMLQuantizationType.NVFP4  # 64 columns in a row of 36 bytes
        changed = {"blk.0.ssm_out.weight": packed, "blk.0.ssm_out.scale": np.ones(1, np.float32)}
        with pytest.raises(ModelError, match=r"blk\.0\.ssm_out\.weight as NVFP4"):
            load_model(rewrite(DENSE, tmp_path / "m.gguf", tensors=changed))

    def test_a_vocabulary(self, tmp_path: Path) -> None:
        file = rewrite(DENSE, tmp_path / "m.gguf", tensors=dict.fromkeys(tensor_names(DENSE)))
        with pytest.raises(ModelError, match="no weights"):
            load_model(file)

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("attention.head_count", 3, "shape"),
            ("attention.head_count_kv", 3, "2 attention heads for 3"),
            ("attention.head_count", None, "attention.head_count"),
            ("ssm.time_step_rank", 3, "value heads"),
            ("ssm.inner_size", 96, "inner_size"),
            ("ssm.state_size", 0, "positive"),
            ("ssm.state_size", 2048, "2,048 dimensions"),
            ("ssm.conv_kernel", 18, "kernel of 18"),
            ("rope.dimension_count", 64, "rotates 64"),
            ("rope.dimension_count", 7, "even"),
            ("block_count", 1, "layer"),
            ("embedding_length", 33, "shape"),
            ("nextn_predict_layers", 2, "MTP"),
        ],
    )
    def test_impossible_metadata(self, tmp_path: Path, key: str, value: int | None, said: str) -> None:
        file = rewrite(DENSE, tmp_path / "m.gguf", metadata={f"qwen35.{key}": value})
        with pytest.raises(ModelError, match=said):
            load_model(file)

    def test_sizes_are_refused_where_native_functions_have_no_room(self) -> None:
        pytest.importorskip("llvmlite")
        from kernels.cpu import delta, rows
        from runtime.models import config

        assert (config._MOST_HEAD_DIM, config._MOST_TAPS) == (delta.MOST_DIM, rows.MOST_TAPS)

    def test_an_unknown_stretching_of_positions(self, tmp_path: Path) -> None:
        file = rewrite(DENSE, tmp_path / "m.gguf", metadata={"qwen35.rope.scaling.type": "longrope"})
        with pytest.raises(ModelError, match="longrope"):
            load_model(file)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"block_count": 3_000_000, "attention.recurrent_layers": None}, "2999999 layers"),
            ({"block_count": 2, "nextn_predict_layers": -3_000_000, "attention.recurrent_layers": None}, "MTP"),
            ({"embedding_length": 0}, "embedding_length is 0"),
            ({"context_length": -5}, "context_length is -5"),
            ({"feed_forward_length": 0}, "feed_forward_length is 0"),
            ({"attention.layer_norm_rms_epsilon": math.nan}, "epsilon is nan"),
            ({"attention.head_count": [[2], [2]]}, "differs between layers"),
            ({"rope.freq_base": 1.0}, "freq_base is 1"),
            ({"rope.dimension_sections": ["a", "b", "c"]}, "dimension_sections"),
            ({"rope.dimension_sections": [math.nan, 1, 1]}, "dimension_sections"),
            ({"rope.dimension_sections": [-1, 1, 1]}, "dimension_sections"),
            ({"rope.scaling.original_context_length": 0}, "original_context_length is 0"),
            ({"rope.scaling.factor": 0.0}, "factor is 0"),
            ({"rope.scaling.attn_factor": math.inf}, "attn_factor is inf"),
            ({"rope.scaling.yarn_beta_fast": -1.0}, "yarn_beta_fast is -1"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
    )
    def test_numbers_that_no_model_has(self, changes: dict[str, object], said: str) -> None:
        metadata = peek.read(DENSE) | YARN | {f"qwen35.{key}": value for key, value in changes.items()}
        with pytest.raises(ModelError, match=said):
            ModelConfig.from_metadata({key: value for key, value in metadata.items() if value is not None})

    @pytest.mark.parametrize("path", [DENSE, MOE], ids=lambda path: path.stem)
    def test_whatever_a_key_holds_the_file_is_judged_or_refused_in_a_sentence(self, path: Path) -> None:
        """What lists the models of a folder goes through all its files."""
        values: tuple[object, ...] = (
            "x",
            True,
            0,
            -1,
            7,
            2**63,
            math.nan,
            math.inf,
            0.5,
            [],
            ["x"] * 3,
            [math.nan, 1, 1],
            [[1]] * 3,
        )
        here = Machine("a processor", 4, 16 * 10**9, 12 * 10**9, 10**12, "", (), 40e9)
        metadata = peek.read(path) | YARN
        for key, value in itertools.product((key for key in metadata if key.startswith("qwen35")), values):
            try:
                config = ModelConfig.from_metadata(metadata | {key: value})
            except ModelError:
                continue
            assert fit.verdict(config, 10**6, here).sentence
            if config.head_dim < 1000:  # else no tensor has the shape
                assert RotaryEmbedding(config.rope)(torch.arange(3))[0].isfinite().all()
