"""The tokenizer: ids as the family's own, text that cannot forge a token, text that comes back as it went in."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vocabulary import (
    AB,
    ACUTE,
    BC,
    END_THINK,
    ENDOFTEXT,
    HELLO,
    IM_END,
    IM_START,
    LONGEST,
    MERGES,
    PADDING,
    SPACE_W,
    SPECIALS,
    THINK,
    X_ACUTE,
    metadata,
)

from runtime import tokenizer as module
from runtime.gguf import GGUFFile
from runtime.tokenizer import StreamDecoder, TextTooLongError, Tokenizer, TokenizerError

SMALL = Tokenizer.from_metadata(metadata())

# Only characters that this Python's Unicode tables know: the tokenizer's are newer, and may compose others.
texts = st.text(st.characters(exclude_categories=["Cs", "Cn"]))


@pytest.fixture(scope="module")
def real(fixtures: Path) -> Tokenizer:
    """The family's real vocabulary."""
    with GGUFFile.open(fixtures / "vocab-qwen35.gguf") as file:
        return Tokenizer.from_metadata(file.metadata)


class TestEncoding:
    def test_applies_the_most_frequent_merge_first(self) -> None:
        # "ll" and "he" before "hell": [h e l l o] → [h e ll o] → [he ll o] → [hell o] → [hello]
        assert SMALL.encode("hello") == [HELLO]
        assert SMALL.encode("hello world") == [HELLO, SPACE_W, *b"orld"]

    def test_prefers_the_merge_of_lower_rank_over_the_one_further_left(self) -> None:
        assert SMALL.encode("abc") == [AB, ord("c")]
        swapped = metadata(merges=[merge for merge in MERGES if merge != "a b"] + ["a b"])
        assert Tokenizer.from_metadata(swapped).encode("abc") == [ord("a"), BC]

    def test_falls_back_to_bytes(self) -> None:
        assert SMALL.encode("世") == list("世".encode())

    @pytest.mark.parametrize(("pre", "ids"), [("qwen35", [X_ACUTE]), ("qwen2", [ord("x"), ACUTE])])
    def test_keeps_marks_with_their_letter_only_in_qwen35(self, pre: str, ids: list[int]) -> None:
        assert Tokenizer.from_metadata(metadata(pre=pre)).encode("x\u0301") == ids

    def test_splits_numbers_into_digits_and_takes_line_breaks_as_one(self, real: Tokenizer) -> None:
        assert [real.decode([i]) for i in real.encode("2026\n\n!")] == ["2", "0", "2", "6", "\n\n", "!"]

    def test_agrees_with_two_independent_tokenizers(self, real: Tokenizer, fixtures: Path) -> None:
        vectors = json.loads((fixtures / "tokenizer.json").read_text(encoding="utf-8"))
        assert [real.encode(v["text"], parse_special=True) for v in vectors] == [v["ids"] for v in vectors]
        spelled = [v["text"] for v in vectors if real.encode(v["text"]) != v["ids"]]
        assert spelled == ["<think>\nhmm\n</think>\n\nok<|im_end|>\n", "<|im_start|>user\nhi<|im_end|>\n"]

    def test_composed_and_decomposed_text_are_the_same(self, real: Tokenizer) -> None:
        assert real.encode("cafe\u0301") == real.encode("caf\u00e9")

    @settings(deadline=None)
    @given(texts)
    def test_text_comes_back_in_its_composed_form(self, text: str) -> None:
        assert SMALL.decode(SMALL.encode(text)) == unicodedata.normalize("NFC", text)

    @settings(deadline=None)
    @given(texts)
    def test_text_comes_back_under_the_real_vocabulary(self, real: Tokenizer, text: str) -> None:
        assert real.decode(real.encode(text)) == unicodedata.normalize("NFC", text)

    @pytest.mark.parametrize("text", ["a\udc80b", "\ud83d", "\udfff\ud800"])
    def test_lone_surrogates_are_replaced(self, text: str) -> None:
        expected = "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)
        assert SMALL.decode(SMALL.encode(text)) == expected

    def test_a_text_without_end_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_CHARACTERS", 10)
        assert SMALL.encode("x" * 10)
        with pytest.raises(TextTooLongError, match="11 characters"):
            SMALL.encode("x" * 11)


class TestSpecialTokens:
    @pytest.mark.parametrize("text", SPECIALS)
    def test_plain_text_never_becomes_one(self, text: str) -> None:
        for around in (text, f"hello{text}", f"{text}\n{text} w"):
            ids = SMALL.encode(around)
            assert max(ids) < ENDOFTEXT
            assert SMALL.decode(ids) == around

    @settings(deadline=None)
    @given(texts)
    def test_plain_text_never_becomes_one_of_the_real_ones(self, real: Tokenizer, text: str) -> None:
        assert all(i < 248044 for i in real.encode(f"<|im_end|>{text}</think>"))

    def test_parsing_takes_control_and_user_defined_ones_and_the_longest(self) -> None:
        ids = SMALL.encode("<think>hello</think><|im_end|><|im_start|><|im_end|>", parse_special=True)
        assert ids == [THINK, HELLO, END_THINK, LONGEST, IM_END]

    def test_a_merge_that_makes_one_is_left_out(self) -> None:
        types = metadata()["tokenizer.ggml.token_type"]
        ids = Tokenizer.from_metadata(metadata(token_type=[*types[:HELLO], 3, *types[HELLO + 1 :]])).encode("hello")
        assert ids == [258, ord("o")]  # "hell", "o"

    def test_a_prompt_is_ids_and_plain_text_of_which_neighbours_are_one(self) -> None:
        assert SMALL.encode_prompt([IM_START, "hel", "", "lo", IM_END, "<think>"]) == [
            IM_START,
            HELLO,
            IM_END,
            *SMALL.encode("<think>"),
        ]

    @pytest.fixture
    def encoded(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The texts that are encoded from now on."""
        texts: list[str] = []
        plain = Tokenizer._encoded
        monkeypatch.setattr(Tokenizer, "_encoded", lambda self, new: texts.extend(new) or plain(self, new))
        return texts

    def test_only_the_new_part_of_a_growing_prompt_is_encoded(self, encoded: list[str]) -> None:
        tokenizer = Tokenizer.from_metadata(metadata())
        history: list[int | str] = [IM_START, "hello", IM_END]
        tokenizer.encode_prompt(history)
        ids = tokenizer.encode_prompt([*history, "world"])
        assert encoded == ["hello", "world"]
        assert ids == [IM_START, HELLO, IM_END, *b"world"]

    def test_a_prompt_is_known_after_another_conversation_s_and_forgotten_after_many(
        self, encoded: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runtime.tokenizer._KNOWN", 12)
        tokenizer = Tokenizer.from_metadata(metadata())
        for text in ("hello", "there", "hello"):
            tokenizer.encode_prompt([IM_START, text])
        assert encoded == ["hello", "there"]
        for text in ("again", "hello", "there"):
            tokenizer.encode_prompt([IM_START, text])
        assert encoded == ["hello", "there", "again", "there"]

    def test_a_prompt_longer_than_what_is_remembered_is_known_when_it_grows(
        self, encoded: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runtime.tokenizer._KNOWN", 3)
        tokenizer = Tokenizer.from_metadata(metadata())
        tokenizer.encode_prompt(["hello", IM_END, "world"])
        assert tokenizer.encode_prompt(["hello", IM_END, "world", IM_END]) == [HELLO, IM_END, *b"world", IM_END]
        assert encoded == ["hello", "world"]

    def test_a_prompt_that_is_expected_is_not_encoded_again(self, encoded: list[str]) -> None:
        tokenizer = Tokenizer.from_metadata(metadata())
        prompt: list[int | str] = [IM_START, "hello", IM_END, THINK, "wörld"]
        ids = Tokenizer.from_metadata(metadata()).encode_prompt(prompt)
        tokenizer.expect(ids)
        encoded.clear()
        assert tokenizer.encode_prompt(prompt) == ids
        assert not encoded

    def test_stops_are_the_end_of_turn_the_end_of_text_and_the_files_own(self) -> None:
        assert SMALL.stop_ids == {IM_END, ENDOFTEXT}
        assert Tokenizer.from_metadata(metadata(eos_token_id=THINK)).stop_ids == {IM_END, ENDOFTEXT, THINK}
        assert Tokenizer.from_metadata(metadata(eos_token_id=None)).stop_ids == {IM_END, ENDOFTEXT}

    def test_the_real_stops_print_nothing(self, real: Tokenizer) -> None:
        assert real.stop_ids == {248046, 248044}
        assert real.decode([248046, 248044]) == ""

    def test_are_found_by_their_text(self) -> None:
        assert SMALL.special_id("</think>") == END_THINK
        assert SMALL.special_id("hello") is None
        assert SMALL.named_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


class TestDecoding:
    def test_control_tokens_and_padding_are_silent_and_user_defined_ones_are_not(self) -> None:
        assert SMALL.decode([IM_START, THINK, HELLO, END_THINK, PADDING, IM_END]) == "<think>hello</think>"

    @pytest.mark.parametrize("outside", [-1, PADDING + 1, 10**9])
    def test_ids_outside_the_vocabulary_are_silent(self, outside: int) -> None:
        assert SMALL.token_bytes(outside) == b""

    def test_id_by_id_is_the_same_as_at_once(self, real: Tokenizer) -> None:
        text = "👩‍👩‍👧 삼겹살 世a"
        stream = StreamDecoder(real)
        assert "".join(map(stream.push, real.encode(text))) == text

    def test_stopped_inside_a_character_shows_nothing_of_it(self, real: Tokenizer) -> None:
        text = "👩‍👩‍👧 삼겹살 🦙"
        ids = real.encode(text)
        cuts = []
        for cut in range(len(ids)):
            stream = StreamDecoder(real)
            shown = "".join(map(stream.push, ids[:cut])) + stream.finish()
            assert text.startswith(shown)
            cuts.append(len(shown.encode()) < sum(len(real.token_bytes(i)) for i in ids[:cut]))
        assert any(cuts), "no cut fell inside a character"

    @settings(deadline=None)
    @given(st.lists(st.integers(0, PADDING)))
    def test_a_stream_shows_what_the_bytes_say(self, ids: list[int]) -> None:
        stream = StreamDecoder(SMALL)
        shown = "".join(map(stream.push, ids)) + stream.finish()
        assert shown == SMALL.decode(ids)
        whole = b"".join(map(SMALL.token_bytes, ids)).decode("utf-8", "replace")
        assert whole.removeprefix(shown) in ("", "\ufffd")

    def test_bytes_that_are_no_text_are_marked(self) -> None:
        assert SMALL.decode([ord("a"), 0xFF, ord("b"), 0xE4, 0xB8, ord("c")]) == "a\ufffdb\ufffdc"


def _without(values: list[Any], value: str) -> list[Any]:
    return [other if other != value else "other" for other in values]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": []}, "no tokenizer.ggml.tokens"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"token_type": None}, "no tokenizer.ggml.token_type"),
        ({"token_type": [1, 2]}, "275 tokens but 2 token types"),
        ({"tokens": [1, 2]}, "tokens holds something else"),
        ({"model": "llama"}, "“llama”; only byte-level BPE"),
        ({"model": None}, "only byte-level BPE"),
        ({"pre": "llama-bpe"}, "“llama-bpe”; only qwen35 and qwen2"),
        ({"pre": "x\x1b[31m"}, r"“x\\x1b\[31m”"),
        ({"merges": [*MERGES, "z z"]}, "merge “z z” refers to no token"),
        ({"merges": [*MERGES, "zz"]}, "merge “zz ” refers to no token"),
        ({"tokens": _without(metadata()["tokenizer.ggml.tokens"], "A")}, "lacks tokens for some bytes"),
        ({"eos_token_id": 275}, "eos token 275 is outside"),
        ({"bos_token_id": -1}, "bos token -1 is outside"),
        (
            {"eos_token_id": None, "token_type": [1] * 274 + [5]},
            "no token that ends a reply",
        ),
    ],
)
def test_an_unusable_vocabulary_is_refused_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TokenizerError, match=sentence) as refusal:
        Tokenizer.from_metadata(metadata(**changes))
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).isprintable()
