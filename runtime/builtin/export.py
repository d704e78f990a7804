"""Writes the built-in model as a GGUF file: `python -m runtime.builtin.export --run DIR --out FILE.gguf`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer

from runtime.builtin.model import EPS, LanguageModel, ModelConfig
from runtime.builtin.prompt import template
from runtime.builtin.schedule import TrainConfig
from runtime.builtin.vocabulary import END_OF_TEXT, IM_END, SPECIAL, load_vocabulary, vocabulary_of

ARCHITECTURE = "qwen35"
NAME = "qwenchat built-in"
CONTEXT = 8192
FILE_TYPES = {Type.F16: gguf.LlamaFileType.MOSTLY_F16, Type.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0}


def export(model: LanguageModel, tokenizer: Tokenizer, path: Path, kind: Type = Type.Q8_0) -> None:
    """Matrices as `kind`, Q8_0 or F16; norms, convolutions and the decay's own vectors as F32."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    _metadata(writer, model, kind)
    _vocabulary(writer, tokenizer)
    for name, parameter in model.state_dict().items():
        values = parameter.float().numpy()
        if name.endswith("ssm_a_log"):
            name, values = name.removesuffix("_log"), -np.exp(values)
        if values.ndim < 2 or name.endswith("ssm_conv1d.weight"):
            writer.add_tensor(name, values.astype(np.float32))
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(writer: Any, model: LanguageModel, kind: Type) -> None:
    c = model.config
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(NAME)
    writer.add_size_label(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M")
    writer.add_license("apache-2.0")
    writer.add_float32("general.sampling.temp", 0.0)  # as it was trained to be right
    writer.add_block_count(c.layers + 1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(c.hidden)
    writer.add_feed_forward_length(c.ff)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_rope_dimension_sections(_sections(c))
    writer.add_rope_freq_base(c.rope_base)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_nextn_predict_layers(1)
    writer.add_ssm_conv_kernel(c.conv)
    writer.add_ssm_state_size(c.state_dim)
    writer.add_ssm_group_count(c.key_heads)
    writer.add_ssm_time_step_rank(c.value_heads)
    writer.add_ssm_inner_size(c.value_width)
    writer.add_array(f"{ARCHITECTURE}.attention.recurrent_layers", [*(c.recurrent(i) for i in range(c.layers)), False])
    writer.add_uint32(f"{ARCHITECTURE}.full_attention_interval", c.interval)
    writer.add_rope_dimension_count(c.rope_dim)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _sections(c: ModelConfig) -> list[int]:
    """M-RoPE sections that share the pairs out over three axes; for text all axes have one position."""
    pairs = c.rope_dim // 2
    last = pairs // 4
    first = (pairs - last + 1) // 2
    return [first, pairs - last - first, last, 0]


def _vocabulary(writer: Any, tokenizer: Tokenizer) -> None:
    bpe = json.loads(tokenizer.to_str())["model"]
    ids = {i: token for token, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens = [ids[i] for i in range(len(ids))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]])
    writer.add_eos_token_id(tokens.index(IM_END))
    writer.add_pad_token_id(tokens.index(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template())


def import_weights(model: LanguageModel, path: Path) -> Tokenizer:
    """Reads weights that `export` wrote into a model of the same shape; the tokenizer that goes with them.

    Raises ValueError, with a sentence, where the file is not of that shape.
    """
    reader = gguf.GGUFReader(path)
    held = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}
    weights = {}
    for name, parameter in model.state_dict().items():
        stored = name.removesuffix("_log")
        if stored not in held or held[stored].shape != parameter.shape:
            raise ValueError(f"{path} is not a model of this shape: see its tensor {stored}.")
        weights[name] = held[stored] if stored == name else (-held[stored]).log()
    model.load_state_dict(weights)
    tokens, merges = (reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
    return vocabulary_of(tokens, merges)


def mean_with(model: LanguageModel, tokenizer: Tokenizer, files: Sequence[Path], share: float) -> None:
    """Takes the mean of the weights: `share` of the model's own, the rest in equal parts of those in `files`.

    Of models that were trained on from one another the mean is often better than each. Raises ValueError, with a
    sentence, where a file has another shape or vocabulary.
    """
    mean = {name: share * weight for name, weight in model.state_dict().items()}
    other = LanguageModel(model.config)
    for file in files:
        if import_weights(other, file).get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"{file} has another vocabulary.")
        for name, weight in other.state_dict().items():
            mean[name] += (1 - share) / len(files) * weight
    model.load_state_dict(mean)


def load_run(out: Path) -> tuple[LanguageModel, Tokenizer]:
    """The model of a training run as of its last checkpoint, the weights averaged if they are, and its vocabulary."""
    saved = torch.load(out / "checkpoint.pt", weights_only=True)
    model = LanguageModel(TrainConfig.from_dict(saved["config"]).model)
    model.load_state_dict(saved["model"] | saved.get("average", {}))
    return model.eval(), load_vocabulary(out / "vocabulary.json")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.builtin.export", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the folder of a training run")
    parser.add_argument("--out", type=Path, required=True, help="the GGUF file to write")
    parser.add_argument("--type", choices=("q8_0", "f16"), default="q8_0")
    parser.add_argument("--mean-with", type=Path, nargs="+", metavar="FILE", help="write the mean of it and these")
    parser.add_argument("--share", type=float, default=0.5, help="the run's share of the mean (default 0.5)")
    options = parser.parse_args(arguments)
    try:
        model, tokenizer = load_run(options.run)
    except OSError as error:
        print(f"The run in {options.run} cannot be read: {error}.", file=sys.stderr)
        return 1
    if options.mean_with:
        try:
            mean_with(model, tokenizer, options.mean_with, options.share)
        except (OSError, ValueError) as error:
            print(f"No mean can be taken: {error}", file=sys.stderr)
            return 1
    export(model, tokenizer, options.out, Type.Q8_0 if options.type == "q8_0" else Type.F16)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
