"""Markdown as it streams in: the same rows in the end, at a cost that does not grow (CASES 41)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.highlight import highlight
from chatapp.markdown import render
from chatapp.open_block import LIVE_LIMIT
from chatapp.rows import Row
from chatapp.stream import MarkdownStream

WIDTH = 50

DOCUMENT = """# Title

A paragraph with **bold**, `code` and
a second line.
- a list right after it
- with **two** items
  and a lazy line

1. one
2. two
   - nested
   - more

   ```sh
   ls -l | wc
   ```
3. three

> a quote
> goes on
lazily

| a | b |
|---|--:|
| 1 | 22 |
| x | |

```python
def f():
\treturn "```"

```
~~~
tilde ``` inside
~~~
$$
x = 1
- y
$$
So
\\[ a_1 \\]
- [ ] open
- [x] done $a*b$

Setext
======

***
    indented code

    more of it
The end with 世界 and 👩‍👩‍👧.
"""


def streamed(pieces: list[str], width: int = WIDTH) -> MarkdownStream:
    stream = MarkdownStream(width)
    for piece in pieces:
        stream.feed(piece)
    stream.close()
    return stream


def whole(text: str, width: int = WIDTH) -> list[Row]:
    return streamed([text], width).rows


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def texts(rows: list[Row]) -> list[str]:
    return [row.text.rstrip() for row in rows]


def test_it_ends_as_the_rendering_of_the_whole() -> None:
    # One difference is meant: an item with an empty line inside does not pull the items around it apart.
    expected = texts(render(DOCUMENT, WIDTH))
    expected.remove("")
    loose = expected.index("1. one")
    assert expected[loose + 1] == ""
    del expected[loose + 1]
    got = texts(whole(DOCUMENT))
    assert [row for row in got if row] == [row for row in expected if row]


@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_the_pieces_it_came_in_do_not_matter(places: list[int]) -> None:
    assert streamed(cut(DOCUMENT, places)).rows == whole(DOCUMENT)


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_rows_above_the_one_it_returns_are_as_they_were(places: list[int]) -> None:
    stream = MarkdownStream(WIDTH)
    for piece in cut(DOCUMENT, places):
        before = [*stream.rows, *stream.tail]
        changed = stream.feed(piece)
        assert [*stream.rows, *stream.tail][:changed] == before[:changed]


@given(st.lists(st.integers(0, 10_000), max_size=10), st.integers(20, 90))
def test_a_new_width_in_the_middle_gives_the_rows_of_that_width(places: list[int], width: int) -> None:
    stream = MarkdownStream(WIDTH)
    for number, piece in enumerate(cut(DOCUMENT, places)):
        stream.feed(piece)
        stream.resize(width if number % 2 else WIDTH)
    stream.close()
    stream.resize(width)
    assert stream.rows == whole(DOCUMENT, width)


LONG = {
    "a code fence of 30 kB": ("```python\n", "    value = call(1, 'two')  # three\n", 30_000),
    "a line of code of 30 kB": ("```\n", "abcdefgh", 30_000),
    "a list of 3 kB": ("", "- an item with **bold** and `code`\n", 3_000),
    "a nested list of 3 kB": ("- outer\n", "  - an inner item with **bold**\n", 3_000),
    "a table of 4 kB": ("| a | b |\n|---|---|\n", "| one cell | another |\n", 4_000),
    "a paragraph of 9 kB": ("", "some words and **bold** ones, ", 9_000),
    "a quote of 6 kB": ("", "> a line of a quote\n", 6_000),
    "prose of 30 kB": ("", "A paragraph of some length.\n\n", 30_000),
}


@pytest.mark.parametrize("case", LONG)
def test_the_work_for_a_piece_does_not_grow_with_the_length(case: str) -> None:
    start, unit, total = LONG[case]
    stream = MarkdownStream(100)
    stream.feed(start)
    most = 0
    for _ in range(total // len(unit)):
        before = stream.work
        stream.feed(unit)
        most = max(most, stream.work - before)
    # The open block is parsed at most once more, and what ends is parsed once.
    assert most <= 2 * (LIVE_LIMIT + len(unit)) + 200


@pytest.mark.parametrize("case", LONG)
def test_the_rows_that_change_do_not_grow_with_the_length(case: str) -> None:
    start, unit, total = LONG[case]
    stream = MarkdownStream(100)
    stream.feed(start)
    most = 0
    for _ in range(total // len(unit)):
        changed = stream.feed(unit)
        most = max(most, len(stream) - changed)
    assert most <= LIVE_LIMIT // 10


@pytest.mark.parametrize("case", LONG)
def test_all_of_a_long_block_is_there_while_it_streams(case: str) -> None:
    start, unit, total = LONG[case]
    stream = MarkdownStream(100)
    count = total // len(unit)
    for piece in [start, *[unit] * count]:
        stream.feed(piece)
    word = "".join(character for character in unit if character.isalpha())[:5]
    text = "".join(character for row in [*stream.rows, *stream.tail] for character in row.text if character.isalpha())
    assert text.count(word) >= count - 1


def tail_of(*pieces: str) -> list[str]:
    stream = MarkdownStream(WIDTH)
    for piece in pieces:
        stream.feed(piece)
    return texts([*stream.rows, *stream.tail])


def test_an_open_mark_looks_closed_already() -> None:
    stream = MarkdownStream(WIDTH)
    stream.feed("this is **important")
    assert stream.tail[0].spans == (("this is ", ""), ("important", "strong"))
    stream.feed("** and `code")
    assert stream.tail[0].spans[-1] == ("code", "code")


@pytest.mark.parametrize("start", ["-", "1.", "1)", "12. ", "#", "##", "```", "```py", "|", ">", "- ", "*", "**"])
def test_a_line_that_may_become_anything_waits(start: str) -> None:
    assert tail_of(f"text\n{start}") == ["text"]


@pytest.mark.parametrize("text", ["3.14159265358979323846", "1234567890", "192.168.0.1", "...", "- " * 200, "=" * 300])
def test_what_can_become_no_such_thing_any_more_does_not_wait(text: str) -> None:
    assert tail_of(*text)
    assert len(tail_of("text\n\n", *text)) > 2


def test_what_waits_is_shown_at_the_end() -> None:
    assert texts(streamed(["the answer is\n\n", "42"]).rows) == ["the answer is", "", "42"]


def test_the_end_of_a_fence_is_never_shown_as_code() -> None:
    assert tail_of("```\ncode\n``")[1:] == [" code", ""]


@pytest.mark.parametrize("indent", [1, 2, 3])
def test_code_keeps_its_indentation_through_new_widths(indent: int) -> None:
    lines = ["```python", "def f():", "    if x:", "        return 1"]
    stream = MarkdownStream(WIDTH)
    stream.feed("".join(f"{' ' * indent}{line}\n" for line in lines))
    for width in (40, 60, WIDTH):
        stream.resize(width)
        assert texts([*stream.rows, *stream.tail])[1:-1] == [f" {line}" for line in lines[1:]]
    stream.feed("```\n")
    assert stream.pieces[0].source == "\n".join(lines[1:])


def test_text_inside_a_fence_is_no_markdown() -> None:
    assert tail_of("~~~\n# no heading\n- **x**\n")[1:] == [" # no heading", " - **x**", ""]


def test_colours_come_without_moving_a_row() -> None:
    stream = streamed(["```python\ndef f():\n    pass\n```\n", "after"])
    before = texts(stream.rows)
    lines = highlight(stream.pieces[0].source, "python")
    assert lines is not None
    assert stream.colour(stream.pieces[0], lines) is False
    assert texts(stream.rows) == before
    assert (("def", "fence keyword")) in stream.rows[1].spans


def test_colours_stay_through_a_new_width() -> None:
    stream = streamed(["text\n\n```python\nx = 1  # comment that is long\n```\n"])
    lines = highlight(stream.pieces[1].source, "python")
    assert lines is not None
    stream.colour(stream.pieces[1], lines)
    stream.resize(12)
    assert any(style == "fence comment" for row in stream.rows for _, style in row.spans)
