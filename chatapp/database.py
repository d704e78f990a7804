"""Opening the SQLite file of the conversations: its schema and versions, and what becomes of a damaged one."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

APPLICATION_ID = 0x71776E63  # "qwnc"
BUSY_SECONDS = 10.0

# Step n brings a file from version n to n + 1.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        name TEXT UNIQUE,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        head INTEGER,
        model TEXT NOT NULL,
        FOREIGN KEY (id, head) REFERENCES nodes (conversation_id, id) DEFERRABLE INITIALLY DEFERRED
    );
    CREATE TABLE nodes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        parent INTEGER,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        content TEXT NOT NULL,
        thought TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('complete', 'partial', 'cancelled', 'failed')),
        thought_closed INTEGER NOT NULL,
        created REAL NOT NULL,
        meta TEXT NOT NULL,
        UNIQUE (conversation_id, id),
        FOREIGN KEY (conversation_id, parent) REFERENCES nodes (conversation_id, id) DEFERRABLE INITIALLY DEFERRED
    );
    CREATE INDEX nodes_by_parent ON nodes (conversation_id, parent);
    CREATE INDEX conversations_by_time ON conversations (updated);
    """,
    # `touched` counts writes, so that the last one is known whatever the clock did. `titled`: who gave the title, the
    # first words ('') or 'model' or 'user'. `deleted`: when. `unsent`: what a window has not sent yet.
    """
    ALTER TABLE conversations ADD COLUMN touched INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE conversations ADD COLUMN titled TEXT NOT NULL DEFAULT '';
    ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE conversations ADD COLUMN deleted REAL;
    ALTER TABLE conversations ADD COLUMN former_name TEXT;
    UPDATE conversations SET touched = place FROM
        (SELECT id AS key, row_number() OVER (ORDER BY updated, rowid) AS place FROM conversations) WHERE id = key;
    CREATE INDEX conversations_by_touch ON conversations (touched);
    DROP INDEX conversations_by_time;
    CREATE TABLE tags (
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        tag TEXT NOT NULL,
        PRIMARY KEY (conversation_id, tag)
    ) WITHOUT ROWID;
    CREATE TABLE unsent (
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        window TEXT NOT NULL,
        draft TEXT NOT NULL,
        queue TEXT NOT NULL,
        PRIMARY KEY (conversation_id, window)
    ) WITHOUT ROWID;
    CREATE VIRTUAL TABLE words USING fts5
        (content, content = 'nodes', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2');
    INSERT INTO words (words) VALUES ('rebuild');
    CREATE TRIGGER words_added AFTER INSERT ON nodes BEGIN
        INSERT INTO words (rowid, content) VALUES (new.id, new.content);
    END;
    CREATE TRIGGER words_removed AFTER DELETE ON nodes BEGIN
        INSERT INTO words (words, rowid, content) VALUES ('delete', old.id, old.content);
    END;
    CREATE TRIGGER words_changed AFTER UPDATE OF content ON nodes BEGIN
        INSERT INTO words (words, rowid, content) VALUES ('delete', old.id, old.content);
        INSERT INTO words (rowid, content) VALUES (new.id, new.content);
    END;
    """,
    # What a conversation has of its own instead of the user's settings, as a JSON object.
    """
    CREATE TABLE choices (
        conversation_id TEXT PRIMARY KEY REFERENCES conversations (id) ON DELETE CASCADE,
        chosen TEXT NOT NULL
    ) WITHOUT ROWID;
    """,
)


class StoreError(Exception):
    """The conversations cannot be read or written; the message is a sentence for the user."""


def open_database(path: Path) -> tuple[sqlite3.Connection, str | None]:
    """A connection in autocommit mode, usable from any thread, and a sentence if a damaged file was set aside.

    Raises StoreError.
    """
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o700)
    except OSError as error:
        raise StoreError(f"The folder {path.parent} cannot be made: {error.strerror}.") from error
    with _alone(path.parent), explained(path):
        if not _headless(path):
            try:
                return _open(path), None
            except sqlite3.DatabaseError as error:
                if not _damaged(error):
                    raise
        aside = _set_aside(path)
        notice = f"The conversations file was damaged and is now {aside}; nothing in it was deleted. A new one is used."
        return _open(path), notice


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what SQLite and the system say into a StoreError with a sentence."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"The conversations file {path} cannot be used: {error.strerror}.") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        reasons = {
            sqlite3.SQLITE_BUSY: "another program keeps it locked",
            sqlite3.SQLITE_LOCKED: "another program keeps it locked",
            sqlite3.SQLITE_FULL: "the disk is full",
            sqlite3.SQLITE_READONLY: "it may not be written",
            sqlite3.SQLITE_CANTOPEN: "it cannot be opened, or its folder may not be written",
            sqlite3.SQLITE_CORRUPT: "a part of it is damaged",
            sqlite3.SQLITE_NOTADB: "a part of it is damaged",
        }
        raise StoreError(f"The conversations file {path} cannot be used: {reasons.get(code, error)}.") from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing. The write lock is taken at once: a later upgrade could fail without waiting."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection, path)
        connection.execute("SELECT * FROM conversations ORDER BY touched DESC LIMIT 1").fetchall()
        connection.execute("SELECT * FROM nodes ORDER BY id DESC LIMIT 1").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = _pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreError(f"The file {path} belongs to another program.")
    if version > len(MIGRATIONS):
        raise StoreError(f"The conversations file {path} was written by a newer qwenchat: please update this one.")
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        with transaction(connection):
            for statement in _statements(step):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one; a trigger, which holds some, is one."""
    statement = ""
    for part in script.split(";")[:-1]:
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    yield statement + script.rpartition(";")[2]


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _headless(path: Path) -> bool:
    """Whether there is something that SQLite must not open: it would delete the log of a file without a header."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            return file.read(512)[:16] != b"SQLite format 3\0" or file.tell() < 512
    wal = path.with_name(path.name + "-wal")
    return wal.is_file() and wal.stat().st_size > 0


def _damaged(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _set_aside(path: Path) -> Path:
    """Rename the file with its log and index, so that a repair has all there is."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number = 0
    while (aside := path.with_name(f"{path.stem}.damaged-{stamp}{f'-{number}' * (number > 0)}{path.suffix}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time opens: two must not set aside, create or migrate the same file."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StoreError(f"The folder {folder} cannot be read: {error.strerror}.") from error
    try:
        with suppress(OSError):  # a file system without such locks still has SQLite's own
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
