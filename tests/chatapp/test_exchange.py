"""Conversations out of the chat and back: Markdown, HTML and JSON."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend, say, think
from harness import running
from test_sanitize import ATTACKS

from chatapp.__main__ import main
from chatapp.exchange import files, read
from chatapp.exchange.export import Exported, Format, file_name
from chatapp.exchange.files import FileError
from chatapp.exchange.read import NotOursError
from chatapp.store import Conversation, Store
from chatapp.thread import source_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path / "conversations.db")
    yield one
    one.close()


def grown(store: Store) -> Conversation:
    """A conversation with every kind of message, two versions of one, and one that goes on from another."""
    made = store.create("Rivers & <b>lakes</b>", name="water", model="/m/q.gguf")
    system = store.add(made.id, None, "system", "Be brief.")
    asked = store.add(made.id, system.id, "user", "Name *three* rivers <script>alert(1)</script>\n世 👩‍👩‍👧")
    store.add(made.id, asked.id, "assistant", "Douro.", "first thought", meta={"reason": "stop", "stats": {"n": 1.5}})
    begun = store.add(made.id, asked.id, "assistant", "Do", "second", "cancelled", meta={"reason": "cancelled"})
    whole = store.add(
        made.id, asked.id, "assistant", "Douro, Tejo\n\n```python\nx = 1 < 2", meta={"continues": begun.id}
    )
    marker = store.add(made.id, whole.id, "system", "notes", meta={"cut": {"from": whole.id, "summary": True}})
    store.add(made.id, marker.id, "user", "\x1b]52;c;eA==\x07")
    store.pin(made.id, True)
    store.tag(made.id, ["geo", "two words"])
    found = store.get(made.id)
    assert found is not None
    return found


def exported(store: Store, conversation: Conversation, format: Format, *, thoughts: bool = False) -> str:
    return Exported.of(store, conversation).text(format, thoughts=thoughts)


class TestJson:
    def test_what_is_written_is_read_back_whole(self, store: Store, tmp_path: Path) -> None:
        origin = grown(store)
        text = exported(store, origin, "json", thoughts=True)
        other = Store(tmp_path / "other" / "conversations.db")
        other.add(other.create().id, None, "user", "so that the numbers differ")
        made = files.bring_in(other, files.write(tmp_path / "a.json", text))
        assert exported(other, made, "json", thoughts=True) == text
        assert dataclasses.replace(made, id=origin.id, head=origin.head) == origin
        assert [node.content for node in other.thread(made.id)] == [n.content for n in store.thread(origin.id)]
        assert other.latest() == made
        other.close()

    def test_a_second_time_it_is_another_conversation_without_the_name(self, store: Store, tmp_path: Path) -> None:
        origin = grown(store)
        path = files.write(tmp_path / "a.json", exported(store, origin, "json"))
        made = files.bring_in(store, path)
        assert (made.id != origin.id, made.name, made.title) == (True, None, origin.title)

    def test_thoughts_are_left_out_unless_asked_for(self, store: Store) -> None:
        assert "first thought" not in exported(store, grown(store), "json")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "not JSON"),
            ("[" * 100_000, r"not JSON.*\((too deep|line 1, column 1)\)"),
            ('{"a": 1,\n b}', r"not JSON.*\(line 2, column 2\)"),
            pytest.param("1" * 5_000, r"not JSON.*\(a number is too long\)", id="long number"),
            ("[]", "itself"),
            ('"x"', "itself"),
            ('[{"title": "x", "mapping": {}}]', "ChatGPT"),
            ('{"messages": [{"role": "user", "content": "x"}]}', "another program"),
            ('[{"uuid": "1", "chat_messages": []}]', "Claude"),
        ],
    )
    def test_what_others_wrote_is_refused_kindly(self, text: str, words: str) -> None:
        with pytest.raises(NotOursError, match=words):
            read.conversation(text)

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"version": 2}, "update"),
            ({"version": "1"}, "version"),
            ({"version": None}, "version"),
            ({"version": 0}, "version"),
            ({"tags": [1, None]}, "tags"),
            ({"head": 99}, "head"),
            ({"created": "now"}, "created"),
            ({"created": float("nan")}, "created"),
            ({"messages": {}}, "messages"),
            ({"messages": [{}]}, "message 1"),
            ({"messages": [{"id": True}]}, "message 1"),
            ({"titled": "me"}, "titled"),
        ],
    )
    def test_damage_is_named_and_nothing_is_stored(
        self, change: dict[str, Any], named: str, store: Store, tmp_path: Path
    ) -> None:
        whole = json.loads(exported(store, grown(store), "json")) | change
        path = files.write(tmp_path / "a.json", json.dumps(whole))
        with pytest.raises(FileError, match=named):
            files.bring_in(store, path)
        assert len(store.conversations()) == 1

    @pytest.mark.parametrize(
        "change", [{"parent": 3}, {"parent": True}, {"role": "tool"}, {"status": "x"}, {"content": None}, {"id": 7}]
    )
    def test_so_is_damage_in_a_message(self, change: dict[str, Any], store: Store) -> None:
        whole = json.loads(exported(store, grown(store), "json"))
        whole["messages"][1] |= change
        with pytest.raises(NotOursError, match="message 2"):
            read.conversation(json.dumps(whole))


NUMBERS = (-1, 10**15 + 1, 10**30, 10**400, 1e308, -1e308)
NO_NUMBERS = (None, True, "x", [], [1], {}, {"a": 1})


def tampered(store: Store, path: list[Any], value: object) -> str:
    """A conversation as JSON, with one value of the message that is meant, or of the whole, in place of another."""
    whole = json.loads(exported(store, grown(store), "json"))
    place: Any = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(whole)


class TestForeign:
    """A file that was not written by this chat, or by somebody who means no good."""

    @pytest.mark.parametrize("value", [*NUMBERS, *NO_NUMBERS])
    @pytest.mark.parametrize("path", [["created"], ["updated"], ["messages", 0, "created"]])
    def test_a_time_is_one_that_a_calendar_has(self, path: list[Any], value: object, store: Store) -> None:
        with pytest.raises(NotOursError, match=path[-1]):
            read.conversation(tampered(store, path, value))

    @pytest.mark.parametrize(
        ("message", "name", "value"),
        [
            *((2, name, value) for name in ("reason", "source", "model", "failure") for value in (1, True, [], {})),
            *((2, "stats", value) for value in (1, True, "x", [])),
            *((5, "cut", value) for value in (None, 1, True, "x", [])),
            *((4, "continues", value) for value in (0, 5, 1.0, 10**400, True, "4", [4], {})),
        ],
    )
    def test_what_is_known_of_a_message_is_of_its_kind(
        self, message: int, name: str, value: object, store: Store
    ) -> None:
        with pytest.raises(NotOursError, match=f"{name} of message {message + 1} is not"):
            read.conversation(tampered(store, ["messages", message, "meta", name], value))

    @pytest.mark.parametrize("value", [*NUMBERS[1:], *NO_NUMBERS[1:]])
    @pytest.mark.parametrize("path", [(2, "stats", "n"), (5, "cut", "from"), (5, "cut", "tokens")])
    def test_so_are_its_figures(self, path: tuple[int, str, str], value: object, store: Store) -> None:
        message, table, name = path
        with pytest.raises(NotOursError, match=f"{name} of message {message + 1} is not"):
            read.conversation(tampered(store, ["messages", message, "meta", table, name], value))

    @pytest.mark.parametrize(
        "value", ["NaN", "[-Infinity]", '{"a": 1e999}', pytest.param("[" * 200 + "]" * 200, id="deep")]
    )
    def test_what_no_database_reads_back_is_not_brought_in(self, value: str, store: Store) -> None:
        text = tampered(store, ["messages", 2, "meta", "x"], "here").replace('"here"', value)
        with pytest.raises(NotOursError, match="meta of message 3 is not what it should be"):
            read.conversation(text)

    @pytest.mark.parametrize("source", ["http://x.example:8000/v1#m", "https://x.example", "server:cluster"])
    def test_no_server_is_asked_because_a_file_names_it(self, source: str, store: Store) -> None:
        found = read.conversation(tampered(store, ["messages", 2, "meta", "source"], source))
        assert source_of(found.nodes) is None
        assert found.nodes[2].meta["reason"] == "stop"

    def test_half_a_surrogate_pair_is_replaced_wherever_it_stands(self, store: Store, tmp_path: Path) -> None:
        text = json.dumps(json.loads(exported(store, grown(store), "json", thoughts=True)))
        broken = text.replace("stop", "st\\ud800p").replace("Douro", "D\\ud800uro").replace("geo", "g\\udc00o")
        made = files.bring_in(store, files.write(tmp_path / "a.json", broken))
        path = files.write(tmp_path / "b.json", exported(store, made, "json", thoughts=True))
        assert path.read_text("utf-8").count("\ufffd") == 4

    @pytest.mark.parametrize("kind", ["folder", "pipe", "/dev/zero"])
    def test_what_is_no_file_is_not_read(self, kind: str, store: Store, tmp_path: Path) -> None:
        path = Path(kind) if kind.startswith("/") else tmp_path / kind
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        with pytest.raises(FileError, match="cannot be read"):
            files.bring_in(store, path)

    def test_a_home_of_nobody_is_a_folder_that_is_not_there(self, store: Store) -> None:
        with pytest.raises(FileError, match="No such file"):
            files.bring_in(store, Path("~nobody-of-this-name/x.json"))
        with pytest.raises(FileError, match="No such file"):
            files.write(Path("~nobody-of-this-name/x.json"), "x")


def test_where_the_disk_is_full_nothing_half_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(FileError, match="cannot be written: File too large"):
            files.write(path, "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not path.exists()


class TestMarkdown:
    def test_it_holds_what_is_shown_as_it_was_written(self, store: Store) -> None:
        text = exported(store, grown(store), "md")
        assert text.startswith("# Rivers & <b>lakes</b>\n")
        assert "## You\n\nName *three* rivers <script>" in text
        assert "## Reply\n\nDouro, Tejo\n\n```python\nx = 1 < 2\n```\n" in text
        assert "Douro." not in text
        assert "thought" not in text

    def test_a_thought_is_quoted(self, store: Store) -> None:
        made = store.create("t")
        store.add(made.id, None, "assistant", "answer", "one\n\ntwo", "cancelled")
        assert "> *Thought*\n>\n> one\n>\n> two\n\nanswer\n\n*stopped*" in exported(store, made, "md", thoughts=True)


class Page(html.parser.HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str | None] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.loaded += [value for name, value in attrs if name in ("src", "srcset", "data", "background", "style")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words += data


class TestHtml:
    def test_what_was_said_is_text_in_the_page(self, store: Store) -> None:
        page = Page(exported(store, grown(store), "html"))
        assert "script" not in page.tags
        assert "b" not in page.tags
        assert "<script>alert(1)</script>" in page.words
        assert "x = 1 < 2" in page.words
        assert {"table", "img"}.isdisjoint(page.tags)

    @pytest.mark.parametrize("role", ["user", "assistant"])
    def test_nothing_in_it_loads_or_runs_anything(self, role: Any, store: Store) -> None:
        made = store.create('</title><img src="https://x.example/t">')
        evil = (
            "![x](https://x.example/a.png) [a](javascript:alert(1)) <img src=x onerror=alert(1)> [ok](https://y.example)"
            "\n\n<style>*{}</style>\n\n```html\n</code></pre><script>1</script>\n```\n\n| a |\n|--|\n| <i>b</i> |\n"
        )
        store.add(made.id, None, role, evil + "".join(ATTACKS), "</details><script>2</script>")
        page = Page(exported(store, made, "html", thoughts=True))
        assert {"script", "img", "i", "iframe", "link", "object"}.isdisjoint(page.tags)
        assert set(page.links) <= {"https://y.example", "https://x.example/a.png"}
        assert not page.loaded


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Rivers & lakes", "Rivers-lakes.md"),
        ("../../etc/passwd", "etc-passwd.md"),
        ("  ", "conversation.md"),
        ("写诗", "写诗.md"),
        ("x" * 200, "x" * 60 + ".md"),
    ],
)
def test_a_file_is_called_by_the_title(title: str, name: str) -> None:
    assert file_name(Conversation("i", title, None, 0, 0, None, "m"), "md") == name


def test_nobody_reads_what_the_command_line_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QWENCHAT_HOME", str(tmp_path))
    store = Store(tmp_path / "conversations.db")
    grown(store)
    store.close()
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as out, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", out)
        assert main(["export"]) == 128 + signal.SIGPIPE
    assert capsys.readouterr().err == ""


async def test_the_commands_write_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(FakeBackend([think("hm"), say("Douro.")]), tmp_path) as chat:
        await chat.ask("Name a river")
        await chat.send("/export")
        await chat.until(lambda: (tmp_path / "Name-a-river.md").exists())
        await chat.send("/export")
        await chat.until(lambda: (tmp_path / "Name-a-river-2.md").exists())
        await chat.send("/export my river.json thoughts")
        await chat.until(lambda: (tmp_path / "my river.json").exists())
        await chat.send("/export my river.json")
        await chat.until(lambda: "left as it is" in chat.words())
        await chat.send("/export a.pdf")
        await chat.until(lambda: "not in .pdf" in chat.words())
        assert '"thought": "hm"' in (tmp_path / "my river.json").read_text()
        await chat.send("/new")
        await chat.until(lambda: "Douro" not in chat.text())
        await chat.send("/import my river.json")
        await chat.until(lambda: "Douro." in chat.text())
        await chat.until(lambda: "Read from my river.json" in chat.text())
        assert len(chat.store.conversations()) == 2
        await chat.send("/import nothing.json")
        await chat.until(lambda: "cannot be read" in chat.words())


def test_the_command_line_writes_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QWENCHAT_HOME", str(tmp_path))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        return code, *capsys.readouterr()

    assert run("export") == (2, "", "qwenchat: There is no conversation yet.\n")
    store = Store(tmp_path / "conversations.db")
    grown(store)
    store.close()
    assert "## Reply\n\nDouro, Tejo" in run("export")[1]
    assert run("export", "water", "--thoughts", "-o", "w.json") == (0, "", "")
    assert run("export", "water", "-o", "w.json")[0] == 2
    assert "no conversation 'nothing'" in run("export", "nothing")[2]
    wrong = "qwenchat: --format takes one of md, html, json, not 'pdf'. See qwenchat export --help.\n"
    assert run("export", "--format", "pdf") == (2, "", wrong)
    assert run("export", "rivers") == run("export", "water")
    code, out, _ = run("import", "w.json")
    assert (code, out[:6]) == (0, "Rivers")
    assert run("export", out.split()[-1], "--format", "html")[1].startswith("<!DOCTYPE html>")
    code, out, err = run("export", "Rivers")
    assert (code, out, err[:40]) == (2, "", "qwenchat: 'Rivers' fits 2 conversations:")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    assert run("import", "binary.json")[0] == 2
