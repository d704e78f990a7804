"""Files inside a message: found again as they were, whatever they hold."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp import files
from chatapp.attachments import Attached, attach, detach, tokens
from chatapp.chips import Chips, mention
from chatapp.files import FileError

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
TEXTS = st.text(st.one_of(st.sampled_from("`\nF: "), st.characters(exclude_categories=("Cs",))), min_size=1)


@given(st.text(alphabet="ab `\n", max_size=30), st.lists(st.builds(Attached, NAMES, TEXTS), max_size=3))
def test_what_was_attached_is_found_again(text: str, attached: list[Attached]) -> None:
    assert detach(attach(text, attached)) == (text, tuple(attached))


def test_the_model_reads_a_name_and_a_fence() -> None:
    message = attach("What is wrong with @a.py?", [Attached("a.py", "print(1")])
    assert message == "What is wrong with @a.py?\n\nFile a.py:\n```py\nprint(1\n```"


def test_a_fence_inside_a_file_does_not_end_it() -> None:
    assert attach("", [Attached("x.md", "```\n````\n")]).count("`````") == 2


@pytest.mark.parametrize("text", ["plain", "a\n\nFile x:\nno fence", "a\n\nFile x:\n```\nb\n```\nafter it"])
def test_other_text_is_left_alone(text: str) -> None:
    assert detach(text) == (text, ())


def test_the_estimate_is_of_the_right_size() -> None:
    # Counted with the tokenizer of Qwen3.5.
    assert tokens("") == 0
    assert 180 <= tokens("The quick brown fox jumps over the lazy dog. " * 20) <= 260
    assert 40 <= tokens("今天天气很好，我们去公园散步吧。" * 5) <= 70


class TestReading:
    def write(self, path: Path, data: bytes) -> Path:
        (path / "file").write_bytes(data)
        return path / "file"

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (b"one\r\ntwo\r\n", "one\ntwo"),
            ("\ufeffé".encode(), "é"),
            ("é\n".encode("utf-16"), "é"),
            (b"<|im_end|>\n", "<|im_end|>"),
        ],
    )
    def test_text_of_every_make(self, data: bytes, text: str, tmp_path: Path) -> None:
        assert files.read(self.write(tmp_path, data)) == text

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"\x89PNG\r\n\x1a\n\0\0", "is a picture: only text"),
            (b"%PDF-1.7", "is a PDF"),
            (b"a\0b", "is binary"),
            (b"\xff\xfe\xfd", "is binary"),
            (b"caf\xe9", "is binary"),
            (b" \n", "is empty"),
            (b"x" * (files.LIMIT + 1), "has 1.0 MB: files up to 1.0 MB"),
        ],
    )
    def test_what_is_refused_and_why(self, data: bytes, why: str, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=why):
            files.read(self.write(tmp_path, data))

    def test_folders_pipes_and_what_is_not_there(self, tmp_path: Path) -> None:
        import os

        os.mkfifo(tmp_path / "pipe")
        for name, why in (("", "is a folder"), ("pipe", "not a file"), ("nothing", "No such file")):
            with pytest.raises(FileError, match=why):
                files.read(tmp_path / name)


class TestFinding:
    def test_what_git_ignores_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / ".git").mkdir()
        (tmp_path / ".gitignore").write_text("*.log\n/build/\n!keep.log\nsub/deep/x.txt\n")
        for name in (
            "a.py",
            "b.log",
            "keep.log",
            "build/c.py",
            "sub/d.py",
            "sub/build/e.py",
            "sub/f.tmp",
            "sub/deep/x.txt",
            "sub/deep/y.txt",
            ".hidden",
            "node_modules/m.js",
        ):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("x")
        (tmp_path / "sub" / ".gitignore").write_text("*.tmp\n")
        assert files.below(tmp_path) == ["a.py", "keep.log", "sub/d.py", "sub/build/e.py", "sub/deep/y.txt"]
        assert files.below(tmp_path / "sub") == ["d.py", "build/e.py", "deep/y.txt"]

    def test_a_circle_of_links_and_a_folder_of_any_size_end(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to(tmp_path)
        for number in range(30):
            (tmp_path / f"{number:02}").write_text("x")
        assert len(files.below(tmp_path)) == 30
        assert len(files.below(tmp_path, most=10)) == 10

    def test_names_that_a_terminal_obeys_are_not_offered(self, tmp_path: Path) -> None:
        """CASES 45."""
        for name in ("x\x1b]0;y\x07.py", "x\ny", "x\x9b1m", "x.py"):
            (tmp_path / name).write_text("x")
        assert files.below(tmp_path) == ["x.py"]
        assert files.inside(f"{tmp_path}/x") == [f"{tmp_path}/x.py"]

    def test_the_likeliest_come_first(self) -> None:
        paths = ["src/readers/x.py", "docs/my_readme.md", "README.md", "r/e/a/d.c", "src/read.py"]
        assert files.ranked("read", paths, 9)[:3] == ["README.md", "src/read.py", "docs/my_readme.md"]
        assert files.ranked("rmd", paths, 1) == ["README.md"]
        assert files.ranked("zz", paths, 9) == []

    def test_letters_scattered_over_folders_are_no_name(self) -> None:
        paths = ["new/old/fine/last/export.txt", "chatapp/parts/reading.py"]
        assert files.ranked("nofile.txt", paths, 9) == []
        assert files.ranked("chat/read", paths, 9) == ["chatapp/parts/reading.py"]
        assert files.ranked("parts/chat", paths, 9) == []
        assert files.ranked("reading.py/", paths, 9) == []

    def test_a_long_name_that_is_nowhere_is_not_looked_for_long(self) -> None:
        before = time.process_time()
        assert files.ranked("ab" * 100 + "c", ["ab" * 2_000] * 10, 9) == []
        assert files.ranked("a/" * 100 + "c", ["a/" * 2_000] * 10, 9) == []
        assert time.process_time() - before < 2

    def test_a_path_goes_on_by_its_folder(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "some.txt").write_text("x")
        (tmp_path / ".env").write_text("x")
        assert files.inside(f"{tmp_path}/s") == [f"{tmp_path}/some.txt", f"{tmp_path}/sub/"]
        assert files.inside(f"{tmp_path}/.e") == [f"{tmp_path}/.env"]
        assert files.inside("~nobody-of-that-name/x") == []


class TestChips:
    def chips(self, path: Path) -> Chips:
        (path / "a.py").write_text("print(1)\n")
        (path / "my file.txt").write_text("x")
        (path / "pic.png").write_bytes(b"\x89PNG\0")
        return Chips(path)

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("look at @a.py.", ["a.py"]),
            ("(@a.py) and @a.py", ["a.py", "a.py"]),
            ('@"my file.txt"!', ["my file.txt"]),
            ("me@a.py @alice @nothing.py", []),
        ],
    )
    def test_files_are_found_where_they_are_named(self, text: str, names: list[str], tmp_path: Path) -> None:
        chips = self.chips(tmp_path)
        assert [chip.name for chip in chips.found(text)] == names
        assert chips.attached(text).count("\n\nFile ") == len(set(names))

    @pytest.mark.parametrize("name", ["logo@2x.svg", "two words.txt", "@types/a.ts", "(x).py", "plain.py."])
    def test_whatever_its_name_it_is_written_so_that_it_is_found(self, name: str, tmp_path: Path) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
        assert [chip.name for chip in Chips(tmp_path).found(f"see {mention(name)}, please")] == [name]

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("look at @nothing.py, @a.py and @src/x.rs.", ["nothing.py", "src/x.rs"]),
            ('@"no such.txt" and @"my file.txt"', ["no such.txt"]),
            ("@alice @app.get('/x') me@b.com @types/node @property x = @v1.2", []),
        ],
    )
    def test_what_looks_like_a_file_and_is_none(self, text: str, names: list[str], tmp_path: Path) -> None:
        assert self.chips(tmp_path).missing(text) == names

    def test_a_file_that_cannot_be_sent_says_so_before_and_then(self, tmp_path: Path) -> None:
        chips = self.chips(tmp_path)
        assert "picture" in chips.found("@pic.png")[0].problem
        with pytest.raises(FileError, match="picture"):
            chips.attached("@pic.png")

    def test_a_message_that_is_sent_again_holds_its_files_as_they_were(self, tmp_path: Path) -> None:
        chips = self.chips(tmp_path)
        message = chips.attached("@a.py")
        (tmp_path / "a.py").unlink()
        text = chips.folded(message)
        assert text == "@a.py"
        assert "as it was sent" in chips.found(text)[0].detail
        assert chips.attached(text) == message

    def test_what_comes_back_to_the_composer_is_harmless_and_its_files_are_as_they_were(self, tmp_path: Path) -> None:
        """CASES 45."""
        chips = Chips(tmp_path)
        message = attach("see \x1b[31m @x.py", [Attached("x.py", "\x1b[2J")])
        assert chips.folded(message) == "see ␛[31m @x.py"
        assert detach(chips.attached("see @x.py"))[1] == (Attached("x.py", "\x1b[2J"),)

    @pytest.mark.parametrize("lines", [21, 10_000])
    def test_a_long_paste_becomes_a_chip_and_comes_back_whole(self, lines: int, tmp_path: Path) -> None:
        chips, long = Chips(tmp_path), "\n".join(f"line {number}" for number in range(lines))
        text = f"before {chips.paste(long)} after"
        assert text == f"before [paste 1: {lines:,} lines] after"
        assert chips.unfolded(text) == f"before {long} after"
        assert chips.folded(f"before {long} after") == text
        assert chips.paste("short\ntext") == "short\ntext"

    @pytest.mark.parametrize(("text", "number"), [("a\n" * 60, 60), ("a\n" * 60 + "b", 61), ("\n" * 60, 60)])
    def test_a_newline_at_the_end_begins_no_line(self, text: str, number: int, tmp_path: Path) -> None:
        assert Chips(tmp_path).paste(text) == f"[paste 1: {number} lines]"

    def test_long_text_from_elsewhere_keeps_its_first_line(self, tmp_path: Path) -> None:
        message = "Summarise this:\n" + "x\n" * 500
        chips = Chips(tmp_path)
        assert chips.folded(message) == "Summarise this:\n[paste 1: 500 lines]"
        assert chips.unfolded(chips.folded(message)) == message

    def test_a_pasted_page_brings_no_file(self, tmp_path: Path) -> None:
        """Nobody has read all of it: what it names stays a name."""
        chips = self.chips(tmp_path)
        pasted = "\n".join(["of a page"] * 30 + ["@a.py, @pic.png and @none.py"])
        text = f"see {chips.paste(pasted)} @none.txt"
        assert [chip.name for chip in chips.found(text)] == ["paste 1"]
        assert chips.attached(text) == f"see {pasted} @none.txt"
        assert chips.missing(chips.attached(text)) == ["none.txt"]

    def test_a_file_that_is_also_named_in_a_paste_comes_back_with_its_message(self, tmp_path: Path) -> None:
        chips = self.chips(tmp_path)
        token = chips.paste("see @a.py\n" * 31)
        unfolded = chips.attached(chips.pasted(token))  # in sight, and so meant
        assert chips.folded(unfolded) == f"{token} @a.py"
        assert chips.attached(chips.folded(unfolded)).count("\n\nFile a.py:") == 1

    def test_files_of_the_users_own_long_words_are_listed_and_sent(self, tmp_path: Path) -> None:
        chips = self.chips(tmp_path)
        token = chips.paste("page @my.txt\n" * 30 + "@pic.png")
        written = "Compare:\n" + "words\n" * 300 + f"with @a.py, @a.py and\n{chips.pasted(token)}"
        text = chips.folded(written)
        assert text == "Compare:\n[paste 2: 332 lines]"
        assert [(chip.name, chip.paste) for chip in chips.found(text)] == [("paste 2", True), ("a.py", False)]
        message = chips.attached(text)
        assert detach(message) == (written, (Attached("a.py", "print(1)"),))
        assert chips.folded(message) == text
