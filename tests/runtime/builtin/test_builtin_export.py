"""The exported file: names, types and metadata of a file of the family, and the training form's own logits."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from tokenizers import Tokenizer

from runtime import probe
from runtime.builtin.export import export, mean_with
from runtime.builtin.model import LanguageModel, ModelConfig
from runtime.builtin.vocabulary import SPECIAL

CONFIG = ModelConfig(vocabulary=1024, hidden=64, ff=96, layers=4, head_dim=32, rope_dim=16)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """Random weights that half precision holds exactly."""
    torch.manual_seed(3)
    model = LanguageModel(CONFIG).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(torch.randn_like(p) * 0.1)
            if p.dim() == 2 and "conv1d" not in name:
                p.copy_(p.half().float())
    return model


def tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def test_names_types_and_fields_are_those_of_a_file_of_the_family(
    model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path, fixtures: Path
) -> None:
    like = ModelConfig(vocabulary=1024, hidden=64, ff=96, layers=8, head_dim=32)
    path = tmp_path / "model.gguf"
    export(LanguageModel(like), tokenizer, path)
    got, wanted = tensors(path), tensors(fixtures / "learnt-Q8_0.gguf")
    assert got.keys() == wanted.keys()
    assert {n: t.tensor_type for n, t in got.items()} == {n: t.tensor_type for n, t in wanted.items()}
    assert {n: len(t.shape) for n, t in got.items()} == {n: len(t.shape) for n, t in wanted.items()}
    fields, known = (gguf.GGUFReader(p).fields for p in (path, fixtures / "learnt-Q8_0.gguf"))
    assert fields.keys() - {"general.license", "general.sampling.temp"} == known.keys()
    assert all(fields[n].types == known[n].types for n in known)
    for name in ("recurrent_layers", "head_count", "head_count_kv"):
        key = f"qwen35.attention.{name}"
        assert fields[key].contents() == known[key].contents()


def test_shapes_follow_the_configuration(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    export(model, tokenizer, tmp_path / "model.gguf", Type.F16)
    shapes = {n: tuple(map(int, reversed(t.shape))) for n, t in tensors(tmp_path / "model.gguf").items()}
    assert shapes["token_embd.weight"] == (1024, 64)
    assert shapes["blk.0.attn_qkv.weight"] == (2 * 96 + 192, 64)
    assert shapes["blk.0.ssm_conv1d.weight"] == (2 * 96 + 192, 4)
    assert shapes["blk.0.ssm_a"] == shapes["blk.0.ssm_dt.bias"] == (6,)
    assert shapes["blk.3.attn_q.weight"] == (3 * 2 * 32, 64)
    assert shapes["blk.4.nextn.eh_proj.weight"] == (64, 128)
    assert (tensors(tmp_path / "model.gguf")["blk.0.ssm_a"].data < 0).all()


def test_the_vocabulary_is_written_whole(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    export(model, tokenizer, tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert tokens[: len(SPECIAL)] == list(SPECIAL)
    assert len(tokens) == tokenizer.get_vocab_size() == 1024
    types = fields["tokenizer.ggml.token_type"].contents()
    assert [t == gguf.TokenType.CONTROL for t in types] == [t in SPECIAL for t in tokens]
    assert tokens[fields["tokenizer.ggml.eos_token_id"].contents()] == "<|im_end|>"


def test_the_runtime_computes_the_same_logits(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    export(model, tokenizer, tmp_path / "model.gguf", Type.F16)
    ids = torch.randint(5, 1024, (1, 64), generator=torch.Generator().manual_seed(0))
    got = probe.probe(tmp_path / "model.gguf", ids[0].tolist(), ops="reference")
    with torch.no_grad():
        packed = model.packed(torch.zeros_like(ids), torch.arange(64).unsqueeze(0))
        hidden = model.hidden(ids, packed)
        drafts = model.drafts(hidden, torch.nn.functional.pad(ids, (0, 1)), packed, 1)[0]
        wanted = {"logits": model.logits(hidden)[0], "mtp_logits": model.logits(drafts)[0, :-1]}
    for name, values in wanted.items():
        error = np.linalg.norm(got[name] - values.numpy()) / np.linalg.norm(values.numpy())
        assert error < 1e-4, name


def test_the_mean_of_weights(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    shifted, mean = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in shifted.parameters():
            parameter.mul_(3)
    export(model, tokenizer, tmp_path / "one.gguf", Type.F16)
    export(shifted, tokenizer, tmp_path / "three.gguf", Type.F16)

    mean_with(mean, tokenizer, [tmp_path / "one.gguf", tmp_path / "three.gguf"], share=0.5)

    for name, weight in mean.state_dict().items():  # 0.5 + 0.25 + 0.25 * 3
        assert torch.allclose(weight, 1.5 * model.state_dict()[name], rtol=1e-3), name


def test_no_mean_is_taken_of_models_that_differ(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    export(LanguageModel(dataclasses.replace(CONFIG, ff=128)), tokenizer, tmp_path / "wider.gguf", Type.F16)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="shape"):
        mean_with(model, tokenizer, [tmp_path / "wider.gguf"], share=0.5)
    assert all(weight.equal(before[name]) for name, weight in model.state_dict().items())
