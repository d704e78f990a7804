"""Text from a model, a file, a title or a paste, made harmless for a terminal.

Every control character becomes a visible picture of itself, so an escape sequence stays readable as text and does
nothing. The mapping looks at one character at a time: a sequence cut between two pieces of a stream cannot slip
through, and nothing is swallowed by a sequence that never ends.
"""

from __future__ import annotations

import re

TAB_SIZE = 4


def _table() -> dict[int, str | None]:
    table: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}
    del table[ord("\n")], table[ord("\t")]
    # A lone CR goes as well as that of a CR LF, which may come in two pieces.
    table |= {ord("\v"): "\n", ord("\f"): "\n", ord("\r"): None, 0x7F: "\u2421"}
    # A C1 control is one character for ESC and the character 0x40 below it.
    table |= {code: "\u241b" + chr(code - 0x40) for code in range(0x80, 0xA0)}
    # Line separators that str.splitlines and some terminals act upon.
    table |= {0x85: "\n", 0x2028: "\n", 0x2029: "\n"}
    # Bidirectional embeddings, overrides and isolates reorder what stands around them; marks (200E, 200F) do not.
    table |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
    # A soft hyphen takes a cell in some terminals and none in others.
    table[0xAD] = None
    # Half of a surrogate pair cannot be encoded, and would end the program at the next write.
    table |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
    return table


def _class(codes: list[int]) -> str:
    """A character class; in ranges, since one of two thousand characters takes long to compile."""
    starts = [code for code in codes if code - 1 not in _TABLE]
    ends = [code for code in codes if code + 1 not in _TABLE]
    return "[" + "".join(f"\\U{start:08x}-\\U{end:08x}" for start, end in zip(starts, ends, strict=True)) + "]"


_TABLE = _table()
_HARMFUL = re.compile(_class(sorted(_TABLE)))


def clean(text: str) -> str:
    """`text` without anything a terminal obeys, except newlines and tabs. Pieces may be cleaned one by one."""
    return _HARMFUL.sub(lambda match: _TABLE[ord(match[0])] or "", text)


def pasted(text: str) -> str:
    """What a terminal brings as a paste, made harmless; its lines may end in CR alone."""
    return clean(text.replace("\r\n", "\n").replace("\r", "\n"))


def clean_line(text: str, limit: int = 200) -> str:
    """`text` as one line of at most `limit` characters: for titles, names and paths."""
    line = " ".join(clean(text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shortened(text: str, limit: int) -> str:
    """`text` as one line of at most `limit` characters, without its middle if need be: names differ at their ends."""
    line = clean_line(text, 1000)
    if len(line) <= limit:
        return line
    end = max(3 * (limit - 1) // 5, 1)
    return f"{line[: max(limit - 1 - end, 0)]}…{line[-end:]}"
