"""Byte-level BPE from a GGUF file's metadata, and incremental UTF-8 for streaming."""

from __future__ import annotations

import codecs
import contextlib
import gc
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Bpe

from runtime.errors import UserError
from runtime.gguf_header import Strings, printable

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # values of tokenizer.ggml.token_type

PRE_TOKENIZERS: Final[Mapping[str, str]] = {
    "qwen35": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
STOP_TOKENS: Final = ("<|im_end|>", "<|endoftext|>")

# The regex engine gives up, and takes the process with it, after 10 million steps inside one match.
MAX_CHARACTERS: Final = 8_000_000
_KNOWN: Final = 1_000_000  # characters of prompts before the last one
MAX_SPECIALS: Final = 10_000

_SURROGATE = re.compile("[\ud800-\udfff]")


class TokenizerError(UserError):
    """A vocabulary that cannot be used; one sentence for the user."""

    kind = "load"


class TextTooLongError(UserError):
    """A text beyond MAX_CHARACTERS; one sentence for the user."""

    kind = "context"


def valid_text(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate: what a terminal makes of bytes that are not UTF-8."""
    return _SURROGATE.sub("\ufffd", text)


class Tokenizer:
    """Text ↔ token ids.

    Control and user-defined tokens are unknown to the BPE, so plain text cannot become one: only
    `encode(parse_special=True)` and ids handed to `encode_prompt` make them.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        token_types: Sequence[int],
        merges: Sequence[str],
        pre: str,
        named_ids: Mapping[str, int],
    ) -> None:
        """Raises TokenizerError.

        `merges`: pairs of tokens with a space between, the most frequent first. `named_ids`: "eos", "bos", "padding".
        """
        if len(tokens) != len(token_types):
            raise TokenizerError(f"The file lists {len(tokens)} tokens but {len(token_types)} token types.")
        if pre not in PRE_TOKENIZERS:
            known = " and ".join(PRE_TOKENIZERS)
            raise TokenizerError(f"The file's pre-tokeniser is “{printable(pre)}”; only {known} are supported.")
        for name, i in named_ids.items():
            if not 0 <= i < len(tokens):
                raise TokenizerError(f"The file's {name} token {i} is outside its vocabulary of {len(tokens)} tokens.")
        self._tokens = tokens
        self._types = token_types
        texts = list(tokens)
        self._specials = {
            text: i
            for i, (text, kind) in enumerate(zip(texts, token_types, strict=True))
            if kind in (CONTROL, USER_DEFINED) and text
        }
        if len(self._specials) > MAX_SPECIALS:
            raise TokenizerError(f"The file marks {len(self._specials)} tokens as special, which cannot be right.")
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        stops = {self._specials[text] for text in STOP_TOKENS if text in self._specials}
        self.stop_ids = frozenset(stops | {named_ids[name] for name in ("eos",) if name in named_ids})
        if not self.stop_ids:
            raise TokenizerError("The file names no token that ends a reply.")
        self._named_ids = named_ids
        with _without_collector():
            self._bpe = self._build(texts, merges, pre)
        self._known: dict[str, list[int]] = {}  # texts of the last prompts, the last used last

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The vocabulary under `tokenizer.ggml.*`. Raises TokenizerError."""
        model = metadata.get("tokenizer.ggml.model")
        if model != "gpt2":
            raise TokenizerError(
                f"The file's tokenizer is “{printable(str(model))}”; only byte-level BPE (gpt2) is supported."
            )
        return cls(
            tokens=_list(metadata, "tokens", str),
            token_types=_list(metadata, "token_type", int),
            merges=_list(metadata, "merges", str),
            pre=str(metadata.get("tokenizer.ggml.pre")),
            named_ids={
                name: value
                for name in ("eos", "bos", "padding")
                if isinstance(value := metadata.get(f"tokenizer.ggml.{name}_token_id"), int)
            },
        )

    def _build(self, texts: list[str], merges: Sequence[str], pre: str) -> Bpe:
        vocab = {
            text: i
            for i, (text, kind) in enumerate(zip(texts, self._types, strict=True))
            if kind not in (CONTROL, USER_DEFINED)
        }
        if not vocab.keys() >= _BYTES.keys():
            raise TokenizerError("The file's vocabulary lacks tokens for some bytes, so text would be lost.")
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        try:
            model = models.BPE(vocab, pairs)
        except Exception as error:
            known = vocab.keys() | self._specials.keys()
            for left, right in pairs:
                if not {left, right, left + right} <= known:
                    shown = printable(f"{left} {right}")
                    raise TokenizerError(f"The file's merge “{shown}” refers to no token of its vocabulary.") from error
            # What is left is a merge that makes a special token, which plain text must never become.
            model = models.BPE(vocab, [(a, b) for a, b in pairs if {a, b, a + b} <= vocab.keys()])
        bpe = Bpe(model)
        bpe.normalizer = normalizers.NFC()
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PRE_TOKENIZERS[pre]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return bpe

    @property
    def vocab_size(self) -> int:
        """Ids in the file, padding included."""
        return len(self._tokens)

    @property
    def named_tokens(self) -> dict[str, str]:
        """What templates know as `eos_token`, `bos_token` and `pad_token`."""
        return {f"{name.replace('padding', 'pad')}_token": self._tokens[i] for name, i in self._named_ids.items()}

    def special_id(self, text: str) -> int | None:
        """The id of a control or user-defined token, by its exact text."""
        return self._specials.get(text)

    def split(self, text: str) -> list[int | str]:
        """`text` cut at its special tokens, the longest first: their ids, and the plain text between them."""
        pieces: list[int | str] = []
        start = 0
        for match in self._special.finditer(text):
            pieces += [text[start : match.start()], self._specials[match[0]]]
            start = match.end()
        return [piece for piece in (*pieces, text[start:]) if piece != ""]

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """Ids of the NFC form of `text`. Raises TextTooLongError.

        `parse_special`: text that spells a special token becomes it. Only for text that is trusted.
        """
        if parse_special:
            return [i for piece in self.split(text) for i in self._ids(piece)]
        return self._plain(text)

    def encode_prompt(self, pieces: Iterable[int | str]) -> list[int]:
        """Ids of special tokens, given as ids, and of plain text between them. Raises TextTooLongError.

        Neighbouring texts are encoded as one. What the last prompts held is not encoded again, so a growing
        conversation costs its new part only.
        """
        whole = joined(pieces)
        self._know([piece for piece in whole if isinstance(piece, str)])
        ids: list[int] = []
        for piece in whole:
            ids += [piece] if isinstance(piece, int) else self._known[piece]
        return ids

    def expect(self, ids: Sequence[int]) -> None:
        """Encode ahead of time the texts between the special tokens of a prompt that is likely to come again."""
        special = set(self._specials.values())
        runs = (run for plain, run in itertools.groupby(ids, lambda id: id not in special) if plain)
        with contextlib.suppress(TextTooLongError):
            self._know([text for run in runs if (text := self.decode(run))])

    def _know(self, texts: Sequence[str]) -> None:
        """Encode those of a prompt's texts that are not known, and forget the ones used longest ago."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known |= zip(new, self._encoded(new), strict=True)
        for text in texts:
            self._known[text] = self._known.pop(text)
        kept = set(texts)
        excess = sum(map(len, self._known)) - _KNOWN
        for text in list(self._known):
            if excess <= 0 or text in kept:
                break
            excess -= len(text)
            del self._known[text]

    def _ids(self, piece: int | str) -> list[int]:
        return [piece] if isinstance(piece, int) else self._plain(piece)

    def _plain(self, text: str) -> list[int]:
        return self._encoded([text])[0]

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            if len(text) > MAX_CHARACTERS:
                raise TextTooLongError(
                    f"The text is {len(text):,} characters long; at most {MAX_CHARACTERS:,} can be read."
                )
        # The batch form skips the character offsets, which take most of the time, and takes all cores.
        encodings = self._bpe.encode_batch_fast([valid_text(text) for text in texts], add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for; nothing for control tokens, padding and ids outside the vocabulary."""
        if not 0 <= token_id < len(self._tokens):
            return b""
        text, kind = self._tokens[token_id], self._types[token_id]
        if kind == USER_DEFINED:
            return valid_text(text).encode()
        if kind != NORMAL:
            return b""
        return b"".join(_BYTES.get(character) or valid_text(character).encode() for character in text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`: U+FFFD for bytes that are not UTF-8, nothing for a character cut off at the end."""
        return StreamDecoder(self).push_all(ids)


class StreamDecoder:
    """Text as its tokens come. The concatenation of all pushes equals `Tokenizer.decode` of the ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def push_all(self, ids: Iterable[int]) -> str:
        return self._utf8.decode(b"".join(map(self._tokenizer.token_bytes, ids)))

    def finish(self) -> str:
        """End the text: a character cut off at the end is dropped, never shown as U+FFFD."""
        self._utf8.reset()
        return ""


def joined(pieces: Iterable[int | str]) -> list[int | str]:
    """`pieces` with neighbouring texts made one and empty ones left out."""
    result: list[int | str] = []
    run: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            run.append(piece)
            continue
        if text := "".join(run):
            result.append(text)
        run.clear()
        result.append(piece)
    if text := "".join(run):
        result.append(text)
    return result


def _byte_of_character() -> dict[str, bytes]:
    """GPT-2's printable stand-ins: visible Latin-1 characters for themselves, U+0100 onwards for the other bytes."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): bytes([byte]) for byte in visible} | {
        chr(0x100 + n): bytes([byte]) for n, byte in enumerate(hidden)
    }


_BYTES: Final = _byte_of_character()


def _list(metadata: Mapping[str, Any], name: str, kind: type) -> Sequence[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise TokenizerError(f"The file has no tokenizer.ggml.{name}.")
    if not (kind is str and isinstance(values, Strings)) and not all(isinstance(value, kind) for value in values):
        raise TokenizerError(f"The file's tokenizer.ggml.{name} holds something else than expected.")
    return values


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Half a million objects that live for a second are no reason to look for garbage, which took a third of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
