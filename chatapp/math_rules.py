"""Mathematics in Markdown, kept as it was written: `$x$`, `$$x$$`, `\\(x\\)`, `\\[x\\]`.

To CommonMark a backslash before a bracket is an escape, and an underscore in a formula emphasis.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

from chatapp.split import MATH, MATH_ENDS, math_closes

_BLOCK_ALTERNATIVES: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
# No spaces inside the dollars and no digit behind them, so that prices are not taken for formulas.
_DOLLARS = re.compile(r"\$(?=[^\s$])((?:[^$\n\\]|\\[^\n])*?)(?<=\S)\$(?![\d$])")


def add_math(parser: MarkdownIt) -> None:
    """Teach the parser the tokens `math_block` and `math_inline`."""
    parser.block.ruler.before("fence", "math_block", _block, _BLOCK_ALTERNATIVES)
    parser.inline.ruler.before("escape", "math_inline", _inline)


def _block(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """From an opener at the start of a line to its closer, or to an empty line."""
    if state.sCount[first] - state.blkIndent >= 4:
        return False
    match = MATH.match(state.src[state.bMarks[first] + state.tShift[first] : state.eMarks[first]])
    if match is None:
        return False
    if silent:
        return True
    opener = match[1]
    lines: list[str] = []
    number = first
    while number < end and not state.isEmpty(number):
        if state.sCount[number] < state.blkIndent:
            break
        lines.append(state.getLines(number, number + 1, state.blkIndent, False))
        number += 1
        if math_closes(lines[-1], opener, len(lines) == 1):
            break
    text = "\n".join(lines).strip().removeprefix(opener).removesuffix(MATH_ENDS[opener])
    token = state.push("math_block", "", 0)
    token.content = text.strip("\n")
    token.map = [first, number]
    state.line = number
    return True


def _inline(state: StateInline, silent: bool) -> bool:
    source, start = state.src, state.pos
    if source[start] == "$" and not source.startswith("$$", start):
        match = _DOLLARS.match(source, start)
        if match is None or (start and source[start - 1].isalnum()):
            return False
        text, end = match[1], match.end()
    else:
        opener = source[start : start + 2]
        if opener not in MATH_ENDS:
            return False
        close = source.find(MATH_ENDS[opener], start + 2)
        text, end = source[start + 2 : close], close + 2
        if close < 0 or not text.strip():
            return False
    if not silent:
        state.push("math_inline", "", 0).content = text.strip()
    state.pos = end
    return True
