"""Markdown as rows of a terminal."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import rules_core
from rich.cells import cell_len

from chatapp.exchange.export import _rendered
from chatapp.highlight import highlight
from chatapp.markdown import render
from chatapp.parse import _parser
from chatapp.rows import Row, copied
from chatapp.wrap import fold, wrap


def shown(source: str, width: int = 40) -> list[str]:
    return [row.text.rstrip() for row in render(source, width)]


def styles(source: str, text: str) -> str:
    return next(style for row in render(source, 80) for part, style in row.spans if part == text)


def test_marks_become_styles() -> None:
    source = "a **b** *c* ***d*** `e` ~~f~~"
    assert shown(source) == ["a b c d e f"]
    assert [styles(source, part) for part in "bcdef"] == ["strong", "em", "em strong", "code", "strike"]


def test_a_newline_that_the_model_wrote_stays() -> None:
    assert shown("roses are red\nviolets are blue") == ["roses are red", "violets are blue"]


def test_blocks_are_set_apart_by_one_empty_row() -> None:
    assert shown("# One\n\n\n\ntwo\n\n---") == ["One", "", "two", "", "─" * 40]


def test_lists_keep_their_numbers_and_nest() -> None:
    assert shown("9. nine\n10. ten\n    - inner\n      more") == [" 9. nine", "10. ten", "    ◦ inner", "      more"]


def test_long_items_hang() -> None:
    assert shown("- one two three four", 10) == ["• one two", "  three", "  four"]


def test_quotes_have_a_bar() -> None:
    assert shown("> one\n> two") == ["▎ one", "▎ two"]


def test_html_is_shown_as_text() -> None:
    assert shown("<b>bold</b> <script>x</script>") == ["<b>bold</b> <script>x</script>"]


def test_a_fence_names_its_language_and_keeps_its_lines() -> None:
    assert shown("```python extra\nif x:\n\tpass\n```", 20) == [" python        copy", " if x:", "     pass", ""]


def test_long_lines_of_code_are_folded_not_cut() -> None:
    rows = render("```\n" + "x" * 50 + "\n```", 22)
    assert "".join(row.text.strip() for row in rows[1:]) == "x" * 50
    unfolded = render("```\n" + "x" * 50 + "\n```", 22, wrap=False)
    assert [row.text for row in unfolded[1:]] == [" " + "x" * 50, ""]


def test_a_link_carries_its_address_and_a_script_does_not_become_one() -> None:
    assert styles("[here](https://a.example/x)", "here") == "link @https://a.example/x"
    assert shown("[here](javascript:alert(1))") == ["[here](javascript:alert(1))"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("[bank.example](https://evil.example/x)", "bank.example (evil.example)"),
        ("[https://a.example/x](https://a.example/y)", "https://a.example/x"),
        ("[the docs](https://a.example)", "the docs"),
        ("<https://a.example>", "https://a.example"),
        ("[Dashboard](http://[your-ip:8080]/)", "Dashboard"),
        ("<http://[host:8080]>", "http://[host:8080]"),
        ("[v6](http://[2001:db8::g]/)", "v6"),
    ],
)
def test_a_link_that_names_another_host_tells_its_own(source: str, text: str) -> None:
    assert shown(source, 80) == [text]


def test_a_reference_is_shown_with_its_address() -> None:
    """Blocks are rendered one by one, so a link cannot know what follows further below."""
    assert [row.text for row in render("see [docs][1]", 60)] == ["see [docs][1]"]
    source = "[1]: https://a.example/x\n[^2]: A note"
    assert [row.text for row in render(source, 60)] == source.split("\n")
    assert styles(source, "https://a.example/x") == "link @https://a.example/x"


def test_a_bare_address_is_a_link_and_a_file_name_is_none() -> None:
    assert styles("see https://a.example/a_b_c. Then", "https://a.example/a_b_c") == "link @https://a.example/a_b_c"
    assert shown("README.md and a@b.example", 80) == ["README.md and a@b.example"]
    assert all(style == "" for row in render("README.md and a@b.example", 80) for _, style in row.spans)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("so $a_i * b_i$ and", "a_i * b_i"),
        (r"so \(x_1 * y_1\) and", "x_1 * y_1"),
        (r"so \[\frac{a}{b}\] and", r"\frac{a}{b}"),
        (r"so $$\sum_i x_i$$ and", r"\sum_i x_i"),
    ],
)
def test_formulas_stay_as_they_were_written(source: str, text: str) -> None:
    assert styles(source, text) == "math"


@pytest.mark.parametrize("source", ["costs $5 and $10", "US$5 or $ 6 $", "`$a_b$`", r"a \$x_1\$ b"])
def test_prices_and_code_are_no_formulas(source: str) -> None:
    assert all("math" not in style for row in render(source, 80) for _, style in row.spans)


@pytest.mark.parametrize(("opener", "closer"), [("$$", "$$"), ("\\[", "\\]")])
def test_a_block_of_formulas_holds_no_markdown(opener: str, closer: str) -> None:
    source = f"So\n{opener}\nx = 1\n- y_1 * z_1\n{closer}\nand"
    assert shown(source) == ["So", "", "  x = 1", "  - y_1 * z_1", "", "and"]
    assert shown(f"{opener} x_1 {closer}") == ["   x_1"]


def test_tasks_have_boxes() -> None:
    assert shown("- [ ] open\n- [x] done\n- [no] task\n- plain") == ["☐ open", "☑ done", "• [no] task", "• plain"]


TABLE = "| name | n |\n|:--|--:|\n| one | 1 |\n| three | 30 |"


def test_a_table_is_aligned() -> None:
    assert shown(TABLE) == ["name     n", "──────────", "one      1", "three   30"]


def test_wide_cells_of_a_table_wrap() -> None:
    assert shown("| a | b |\n|--|--|\n| one two three | x |\n| y | z |", 12) == [
        "a          b",
        "────────────",
        "one two    x",
        "three",
        "────────────",
        "y          z",
    ]


def test_lines_that_the_first_column_tells_apart_need_no_rules() -> None:
    assert shown("| a | b |\n|--|--|\n| x | one two three |\n| y | z |", 12) == [
        "a   b",
        "────────────",
        "x   one two",
        "    three",
        "y   z",
    ]
    assert shown("| a | b |\n|--|--|\n| x | one two three |\n| | z |", 12).count("────────────") == 2


def test_a_table_without_room_becomes_a_list() -> None:
    wide = "|" + "|".join(f"column {n}" for n in range(6)) + "|\n|" + "--|" * 6 + "\n|" + "|".join("123456") + "|"
    assert shown(wide, 30) == [f"column {n}: {n + 1}" for n in range(6)]


def test_a_paragraph_too_long_to_parse_is_shown_as_it_is_at_once() -> None:
    began = time.process_time()
    rows = render("[" * 30_000 + "**a**", 80)
    assert "".join(row.text for row in rows) == "[" * 30_000 + "**a**"
    assert time.process_time() - began < 2  # the parser would take minutes


words = st.lists(
    st.sampled_from(["a", "word", "long" * 8, "世界", "👩‍👩‍👧", "e\u0301", " ", "\n", "- ", "```\n", "| ", "# "])
)


@given(words.map("".join), st.integers(1, 30))
def test_no_row_is_wider_than_its_room(source: str, width: int) -> None:
    assert all(cell_len(row.text) <= max(width, 8) for row in render(source, width))


@given(words.map("".join), st.integers(2, 30))
def test_breaking_a_line_loses_nothing(text: str, width: int) -> None:
    for offsets in (wrap(text, width), fold(text, width)):
        assert offsets == sorted(set(offsets))
        assert all(0 < offset < len(text) for offset in offsets)


@given(words.map("".join), words.map("".join), st.integers(2, 30))
def test_breaks_stay_when_text_is_added(text: str, more: str, width: int) -> None:
    before = wrap(text, width)
    assert wrap(text + more, width)[: len(before)] == before


def test_graphemes_stay_whole() -> None:
    assert fold("👩‍👩‍👧" * 3, 4) == [10]
    assert wrap("ab世界", 4) == [3]


def copy(rows: list[Row]) -> str:
    return copied(rows, None, None)


def test_a_copy_joins_what_was_only_wrapped() -> None:
    text = "one two three four five six seven"
    rows = render(f"{text}\n\n- {text}", 12)
    assert copy(rows) == f"{text}\n\n• {text}"


def test_a_copy_of_code_is_the_code() -> None:
    assert copy(render("```python\ndef f():\n    return 1\n```", 10)) == "def f():\n    return 1"


def test_a_copy_of_a_quote_has_no_bars() -> None:
    assert copy(render("> one two three", 8)) == "one two three"


def test_a_copy_may_begin_and_end_inside_rows() -> None:
    rows = render("one two three", 8)
    assert copied(rows, (0, 4), (1, 3)) == "two thr"


def test_code_is_coloured_line_by_line_and_keeps_its_text() -> None:
    code = 'def f(x: int) -> str:\n    """Doc\n    string."""\n    return "a"  # end'
    lines = highlight(code, "python")
    assert lines is not None
    assert ["".join(text for text, _ in line) for line in lines] == code.split("\n")
    assert ("def", "keyword") in lines[0]
    assert ("# end", "comment") in lines[3]


@pytest.mark.parametrize("language", ["", "nonsense", "PYTHON"])
def test_unknown_languages_have_no_colours(language: str) -> None:
    assert (highlight("x = 1", language) is None) == (language != "PYTHON")


@pytest.mark.parametrize("levels", [2, 9, 14, 15, 16, 40, 100, 1_000])
@pytest.mark.parametrize("kind", ["quotes", "lists", "emphasis", "both"])
def test_however_deep_it_lies_no_text_is_lost(kind: str, levels: int) -> None:
    """A parser that stops at a depth, and one that calls itself for each, would lose it, or the whole reply."""
    if kind == "lists":
        levels = min(levels, 300)
    source = {
        "quotes": ">" * levels + " deep",
        "lists": "".join("  " * level + "- item\n" for level in range(levels)) + "  " * levels + "- deep",
        "emphasis": "*a " * levels + "deep" + "*" * levels,
        "both": ">" * levels + " " + "**a *b " * levels + "deep" + "***" * levels,
    }[kind]
    assert "deep" in "".join(shown(source, 80))
    assert "deep" in _rendered(source)


MARKS = st.sampled_from(["", "- ", "* ", "+ ", "1. ", "23) ", "- [x] ", "- **a", "1. **b", "x"])
TEXT = st.sampled_from("ab *_`[]()<>&#!~\\$:/.-+1|='é漢\u00a0\t")
PIECES = st.sampled_from(["http://a.b", "[x] ", "**", "mailto", "&colon;", "2) "])


@given(MARKS, st.lists(TEXT | PIECES, max_size=20))
def test_a_single_line_is_what_the_whole_parser_makes_of_it(mark: str, bits: list[str]) -> None:
    whole = _parser.__wrapped__()
    whole.core.ruler.at("block", rules_core.block)
    whole.core.ruler.at("linkify", rules_core.linkify)
    line = mark + "".join(bits)
    assert _parser().parse(line) == whole.parse(line)


def test_a_table_breaks_words_only_if_it_must() -> None:
    source = "| Conversation | Checkpoints | On disk |\n|:--|--:|--:|\n| a talk about it | 3 | 99 MB |"
    assert shown(source, 35) == [
        "Conversation   Checkpoints       On",
        "                               disk",
        "─" * 35,
        "a talk about             3    99 MB",
        "it",
    ]
    assert shown(source, 33)[0].split() == ["Conversation", "Checkpoints", "On"]
    assert shown(source, 32)[0].split() == ["Conversat", "Checkpoin", "On", "disk"]  # the widest give way alike
