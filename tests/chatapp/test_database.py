"""The file of the conversations: created, grown over versions, damaged, out of reach."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatapp import database
from chatapp.store import Store, StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    one = Store(path)
    yield one
    one.close()


def test_the_folder_is_made_for_its_owner_alone(store: Store, path: Path) -> None:
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_what_was_written_is_there_after_reopening(store: Store, path: Path) -> None:
    made = store.create(name="kept")
    store.add(made.id, None, "user", "hello")
    store.close()
    again = Store(path)
    assert again.notice is None
    assert [node.content for node in again.thread(made.id)] == ["hello"]
    again.close()


def test_a_file_of_a_newer_version_is_refused_and_untouched(store: Store, path: Path) -> None:
    store.create()
    store.close()
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {len(database.MIGRATIONS) + 1}")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer qwenchat"):
        Store(path)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE bookmarks (url TEXT)")
    raw.close()
    with pytest.raises(StoreError, match="belongs to another program"):
        Store(path)


def test_a_step_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(path).close()
    steps = (*database.MIGRATIONS, "CREATE TABLE added (x); CREATE TABLE conversations (x)")
    monkeypatch.setattr(database, "MIGRATIONS", steps)
    with pytest.raises(StoreError):
        Store(path)
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (len(steps) - 1,)
        assert not raw.execute("SELECT * FROM sqlite_master WHERE name = 'added'").fetchall()
    raw.close()


def test_a_file_of_the_first_version_keeps_its_order_and_its_words_are_found(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as raw:
        for statement in database.MIGRATIONS[0].split(";"):
            raw.execute(statement)
        raw.execute(f"PRAGMA application_id = {database.APPLICATION_ID}")
        raw.execute("PRAGMA user_version = 1")
        for name, updated in (("b", 20.0), ("c", 30.0), ("a", 10.0)):
            raw.execute("INSERT INTO conversations VALUES (?, 't', NULL, 1, ?, NULL, 'm')", (name, updated))
        raw.execute("INSERT INTO nodes VALUES (7, 'b', NULL, 'user', 'a crème', '', 'complete', 1, 1, '{}')")
    raw.close()
    store = Store(path)
    assert [each.id for each in store.conversations()] == ["c", "b", "a"]
    with store.reading() as sql:
        assert sql.execute("SELECT rowid FROM words WHERE words MATCH 'creme'").fetchall() == [(7,)]
    store.add("a", None, "user", "x")
    assert [each.id for each in store.conversations()] == ["a", "c", "b"]
    store.close()


@pytest.mark.parametrize("damage", [b"no database " * 1000, b"SQLite format 3\0", b""], ids=["other", "cut", "emptied"])
def test_a_damaged_file_is_set_aside_with_its_log_and_a_new_one_used(path: Path, damage: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(damage)
    wal = path.with_name(path.name + "-wal")
    wal.write_bytes(b"its log")
    store = Store(path)
    assert store.notice is not None
    assert "nothing in it was deleted" in store.notice
    assert store.conversations() == []
    [aside] = path.parent.glob("conversations.damaged-*.db")
    assert str(aside) in store.notice
    assert aside.read_bytes() == damage
    assert aside.with_name(aside.name + "-wal").read_bytes() == b"its log"
    store.close()


def test_an_empty_file_is_a_new_one(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    store = Store(path)
    assert store.notice is None
    store.close()


def test_damage_inside_a_file_is_found_on_opening(store: Store, path: Path) -> None:
    made = store.create()
    for _ in range(50):
        store.add(made.id, None, "user", "word " * 1000)
    store.close()
    content = bytearray(path.read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    path.write_bytes(content)
    again = Store(path)
    assert again.notice is not None
    assert again.conversations() == []
    again.close()


def test_damage_found_later_is_a_sentence(store: Store, path: Path) -> None:
    made = store.create()
    for _ in range(50):
        store.add(made.id, None, "user", "word " * 1000)
    store.close()
    again = Store(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096 * 8)
        file.write(b"\xff" * (size - 4096 * 8))
    with pytest.raises(StoreError, match="a part of it is damaged"):
        again.children(made.id, None)
    again.close()


def test_two_windows_that_find_the_damage_set_it_aside_once(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"damaged " * 1000)
    code = (
        "import sys; from pathlib import Path; from chatapp.store import Store\n"
        "store = Store(Path(sys.argv[1])); store.create(name=sys.argv[2]); store.close()\n"
    )
    windows = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("a", "b", "c")]
    assert [window.wait() for window in windows] == [0, 0, 0]
    assert len(list(path.parent.glob("conversations.damaged-*.db"))) == 1
    store = Store(path)
    assert {one.name for one in store.conversations()} == {"a", "b", "c"}
    store.close()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"The folder .* cannot be made: Not a directory\."):
        Store(tmp_path / "file" / "data" / "conversations.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o500)
    with pytest.raises(StoreError, match="cannot be"):
        Store(folder / "conversations.db")


def test_a_path_that_is_a_folder_is_a_sentence(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(path)


def test_a_file_locked_by_another_program_is_a_sentence(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store._connection.execute("PRAGMA busy_timeout = 10")
    with pytest.raises(StoreError, match="another program keeps it locked"):
        store.create()
    other.execute("ROLLBACK")
    other.close()
    assert store.create()
