"""What the name of a model file tells: its quantisation, its parts, and whether it is a model to chat with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

Kind = Literal["model", "sidecar", "other"]

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:"
    r"I?Q\d_K(?:_(?:XXS|XS|S|M|L|XL))?|IQ\d_(?:XXS|XS|S|M|NL)|Q\d_\d(?:_\d_\d)?|TQ\d_\d"
    r"|IQ\d_(?:K[SLT]|KSS|BN)|Q8_KV|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32)(?:_R\d\d?)?)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
# Types of other engines, ik_llama's above all, and of rows that lie interleaved.
_FOREIGN = re.compile(r"NVFP4|IQ\d_K|IQ\d_BN|Q6_0|Q8_KV|.*_R\d|Q\d_\d_\d_\d")
_FOR_OTHERS = "a format for other engines"
_DYNAMIC = "; the layers that matter most keep more bits"
# By the first part of the name, the longer before the shorter.
_ABOUT = (
    ("F32", "unquantised, in twice the size of what was trained: nothing gains by it"),
    ("BF16", "as trained: the largest and slowest, no loss"),
    ("F16", "as trained: the largest and slowest, no loss"),
    ("Q8", "half the size of the original, a loss that nobody notices; slower than smaller ones"),
    ("Q6", "two fifths of the original, nearly no loss"),
    ("Q5", "a third of the original, very little loss"),
    ("IQ4", "a quarter of the original, little loss; as fast as its size, a little more work to unpack"),
    ("MXFP4", "a quarter of the original, little loss, fast"),
    ("Q4_K", "the usual choice: under a third of the original, little loss, fast"),
    ("Q4", "a quarter of the original, some loss, fast"),
    ("IQ3", "a fifth of the original, a loss that shows; for when nothing larger fits"),
    ("Q3", "a fifth of the original, a loss that shows; for when nothing larger fits"),
    ("IQ2", "the smallest that still makes sense, with a large loss; a smaller model at Q4 is often better"),
    ("Q2", "very small, with a large loss; a smaller model at Q4 is often better"),
    ("IQ1", "a curiosity: most of the model is lost"),
    ("TQ", "a curiosity: most of the model is lost"),
)


@dataclass(frozen=True, slots=True)
class Name:
    """`stem`: without the number of the part; `number` of `count` parts; `quant` "" if the name tells none."""

    stem: str
    quant: str
    kind: Kind
    number: int = 1
    count: int = 1


def parse(path: str) -> Name:
    """Of a path below a repository or of a file."""
    whole = PurePosixPath(path)
    stem = whole.name.removesuffix(".gguf")
    number, count = 1, 1
    if part := _PART.fullmatch(stem):
        stem, number, count = part["stem"], int(part["number"]), int(part["count"])
    # some makers keep each quantisation in a folder of its name
    found = _QUANT.findall(stem) or _QUANT.findall(str(whole.parent))
    return Name(stem, found[-1].upper() if found else "", _kind(stem), number, count)


def _kind(stem: str) -> Kind:
    lower = stem.lower()
    if lower.startswith("mtp-"):
        return "sidecar"
    if "mmproj" in lower or lower.startswith("dflash") or "imatrix" in lower:
        return "other"
    return "model"


def about(quant: str) -> str:
    """One clause on size, quality and speed."""
    if not readable(quant):
        return _FOR_OTHERS
    bare = quant.removeprefix("UD-")
    clause = next((text for start, text in _ABOUT if bare.startswith(start)), "")
    return clause + _DYNAMIC if clause and quant.startswith("UD-") else clause


def readable(quant: str) -> bool:
    """Whether files of this name hold types that qwenchat reads."""
    return not _FOREIGN.match(quant.removeprefix("UD-"))
