"""The thought and the answer of a served reply, whichever way a server tells them apart, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.remote.tags import Channels, Mark, Part


def play(pieces: list[str], *, bare: bool | None = None, hold: bool = False) -> tuple[str, str, Channels]:
    """The thought and the answer in the end."""
    channels = Channels(bare=bare, hold=hold)
    thought = answer = ""
    parts: list[Part] = [part for piece in pieces for part in channels.content(piece)]
    for part in [*parts, *channels.end()]:
        if part is Mark.WAS_THOUGHT:
            assert not hold
            thought, answer = thought + answer, ""
        elif part[0] == "thinking":
            thought += part[1]
        else:
            answer += part[1]
    return thought, answer, channels


CASES = {
    "both tags": ("<think>\nwhy\n</think>\n\nbecause", None, ("why", "because")),
    "both tags, no lines": ("<think>why</think>because", None, ("why", "because")),
    "after blanks": ("\n <think>\nwhy\n</think>\n\nbecause", None, ("why", "because")),
    "an empty thought": ("<think>\n\n</think>\n\nbecause", None, ("", "because")),
    "no first tag": ("why\nindeed\n</think>\n\nbecause", None, ("why\nindeed", "because")),
    "no first tag, known": ("why\nindeed\n</think>\n\nbecause", True, ("why\nindeed", "because")),
    "nothing but the last tag": ("</think>\n\nbecause", None, ("", "because")),
    "no tags": ("because\n\nindeed", None, ("", "because\n\nindeed")),
    "none, and known": ("because", False, ("", "because")),
    "an answer about the tags": (
        "Write `<think>` first and\n</think> last.",
        None,
        ("", "Write `<think>` first and\n</think> last."),
    ),
    "a last tag inside a line": ("It ends in `</think>`.", None, ("", "It ends in `</think>`.")),
    "less than": ("a < b\n<c", None, ("", "a < b\n<c")),
    "tags after the thought": (
        "<think>\nx\n</think>\n\n`<think>` and\n</think>",
        None,
        ("x", "`<think>` and\n</think>"),
    ),
    "a thought that never ends": ("<think>\nwhy", None, ("why", "")),
}


@pytest.mark.parametrize(("text", "bare", "wanted"), CASES.values(), ids=CASES.keys())
@given(data=st.data())
def test_tags_cut_anywhere(text: str, bare: bool | None, wanted: tuple[str, str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for hold in (False, True):
        assert play(pieces, bare=bare, hold=hold)[:2] == wanted


@given(st.text(alphabet="a<>/\nthink `", max_size=40), st.booleans())
def test_no_text_is_lost(text: str, hold: bool) -> None:
    thought, answer, _ = play(list(text), hold=hold)
    kept = (thought + answer).replace("<think>", "").replace("</think>", "").replace("\n", "").strip()
    assert kept == text.replace("<think>", "").replace("</think>", "").replace("\n", "").strip()


def test_a_reply_that_began_without_a_tag_is_remembered() -> None:
    assert play(["why\n</think>\n\nx"])[2].bare is True
    assert play(["x"])[2].bare is None


def test_the_servers_own_field_decides() -> None:
    channels = Channels(bare=None)
    parts = [*channels.reasoning("why"), *channels.content("\n\n"), *channels.content("Use </think>."), *channels.end()]
    assert parts == [("thinking", "why"), ("answer", "Use </think>.")]
    assert channels.bare is False


def test_the_lines_between_empty_tags_are_no_thought() -> None:
    channels = Channels(bare=None)
    parts = [*channels.reasoning("\n"), *channels.reasoning("\n"), *channels.content("x"), *channels.reasoning("\ny")]
    assert parts == [("answer", "x"), ("thinking", "y")]


def test_blanks_alone_are_an_answer() -> None:
    assert play(["  "])[:2] == ("", "  ")
