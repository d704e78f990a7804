"""The tokenizer of the built-in model: byte-level BPE with the family's special tokens and pre-tokeniser."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from runtime.builtin.corpus.dialogue import segments
from runtime.builtin.corpus.mix import dialogue
from runtime.builtin.corpus.registry import World

END_OF_TEXT, IM_START, IM_END, THINK, END_THINK = SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
)
# The Qwen2 pattern with \p{M} in the letter class, named `qwen35` in GGUF files.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
COMMON = 6  # documents that a word must occur in to shape the merges: made-up values must not


def train_vocabulary(world: World, size: int, seed: int, documents: int = 40_000) -> Tokenizer:
    """A tokenizer of `size` tokens, trained on the corpus without its made-up words."""
    r = Random(f"vocabulary {seed}")
    texts = ["\n".join(s.text for s in segments(dialogue(r, world))) for _ in range(documents)]
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(set(re.findall(r"\w+", text)))
    texts = [re.sub(r"\w+", lambda m: m[0] if seen[m[0]] >= COMMON else "", text) for text in texts]
    for special in SPECIAL:
        texts = [text.replace(special, "\n") for text in texts]
    tokenizer = _around(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _around(bpe: models.BPE) -> Tokenizer:
    """A tokenizer of the family's kind: normaliser, pre-tokeniser and decoder around byte pairs."""
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def vocabulary_of(tokens: Sequence[str], merges: Sequence[str]) -> Tokenizer:
    """The tokenizer that a GGUF file describes by its tokens, in order of their ids, and its merges, "left right"."""
    pairs = [(left, right) for left, right in (m.split(" ") for m in merges)]
    tokenizer = _around(models.BPE({t: i for i, t in enumerate(tokens)}, pairs))
    tokenizer.add_special_tokens([t for t in SPECIAL if t in set(tokens)])
    return tokenizer


def load_vocabulary(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def pieces(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The tokens that are letters only, without the space before them: what copy tasks draw from."""
    texts = (tokenizer.decode([i]) for i in range(len(SPECIAL), tokenizer.get_vocab_size()))
    return tuple(sorted({t.strip() for t in texts if t.strip().isalpha() and t.isascii()}))
