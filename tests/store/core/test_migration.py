"""From older formats to the current one.

Format 1 had no checksums and other names. Format 2 did not know who owns a session.
"""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel.broker.identity import decode_identity
from semel.store import migration
from semel.store.commit import Commit
from semel.store.folder import open_folder
from semel.store.forensics.check import check_store
from semel.store.forensics.repair import repair_store
from semel.store.forensics.salvage import salvage
from semel.store.mark import MARK, make_mark, put_mark, read_mark
from semel.store.migration import STEPS
from semel.store.row_checksums import crc_of, time_high
from semel.store.schema import APPLICATION_ID, TABLES, VERSION, Unusable, with_checksum
from semel.store.settings import DISK
from tests.store.stores import OWNER, WILL_OWNER, contents, copied, damage, rows, wipe

WHEN = "20240131T101500"

# As semel created them before it had checksums.
FORMAT_1 = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session (
    number INTEGER PRIMARY KEY,
    client_id TEXT NOT NULL UNIQUE,
    expiry INTEGER NOT NULL,
    ends_at REAL
);
CREATE TABLE subscription (
    session INTEGER NOT NULL,
    filter TEXT NOT NULL,
    options INTEGER NOT NULL,
    identifier INTEGER NOT NULL,
    cursor INTEGER,
    PRIMARY KEY (session, filter)
) WITHOUT ROWID;
CREATE TABLE inbound (
    session INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    PRIMARY KEY (session, packet_id)
) WITHOUT ROWID;
CREATE TABLE delivery (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    released INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    topic TEXT,
    payload BLOB,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
CREATE TABLE particular (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    size INTEGER NOT NULL,
    expires_at REAL,
    share TEXT,
    body INTEGER,
    properties BLOB,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
CREATE TABLE body (
    id INTEGER PRIMARY KEY,
    uses INTEGER NOT NULL,
    payload BLOB NOT NULL
);
CREATE TRIGGER body_is_used_less AFTER DELETE ON particular WHEN old.body IS NOT NULL
BEGIN
    UPDATE body SET uses = uses - 1 WHERE id = old.body;
    DELETE FROM body WHERE id = old.body AND uses = 0;
END;
CREATE TABLE will (
    client_id TEXT PRIMARY KEY,
    user_name TEXT,
    due_at REAL,
    qos INTEGER NOT NULL,
    retain INTEGER NOT NULL,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE retained (
    place INTEGER PRIMARY KEY,
    topic TEXT NOT NULL UNIQUE,
    qos INTEGER NOT NULL,
    expires_at REAL,
    properties BLOB,
    payload BLOB NOT NULL
);
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    last_seq INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    sealing INTEGER NOT NULL
);
CREATE TABLE record (
    stream INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    received INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    client_id TEXT NOT NULL,
    user_name TEXT,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL,
    PRIMARY KEY (stream, seq)
) WITHOUT ROWID;
CREATE TABLE inbox (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    key TEXT NOT NULL,
    flags INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
"""
# The tables that had another name.
OLD_NAMES = {"metadata": "fact", "shared_payload": "body", "delivery_extra": "particular"}
# Metadata that format 1 did not have.
NEW = ("epoch", "commit", "next_session")
# Metadata that no two stores have in common.
OF_ONE_STORE = ("epoch", "id", "made")

Make = Callable[[Path, Path], Path]


# Small as semel wrote it in format 2: a dump of SQLite.
FORMAT_2 = Path(__file__).parent.parent / "format_2.sql"
# The tables of format 2 that were different.
TABLES_2 = """
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    client_id TEXT NOT NULL UNIQUE,
    expiry_interval INTEGER NOT NULL,
    ends_at REAL
);
CREATE TABLE will (
    client_id TEXT PRIMARY KEY,
    checksum INTEGER NOT NULL,
    user_name TEXT,
    due_at REAL,
    qos INTEGER NOT NULL,
    retain INTEGER NOT NULL,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL
) WITHOUT ROWID;
"""


def older(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The content of a row as older formats had it."""
    if table == "session":
        return row[:-1]
    if table == "will":
        return (row[0], json.loads(row[1])["user_name"] if row[1] else None, *row[2:])
    return row


def make_format_1(source: Path, target: Path) -> Path:
    """The same store as semel would have written it in format 1."""
    target.mkdir(mode=0o700)
    with (
        closing(sqlite3.connect(source / "store.db")) as today,
        closing(sqlite3.connect(target / "store.db", isolation_level=None)) as old,
    ):
        old.execute("PRAGMA page_size = 8192")
        old.execute("PRAGMA journal_mode = WAL")
        old.executescript(
            f"BEGIN; {FORMAT_1} PRAGMA application_id = {APPLICATION_ID};"
            " PRAGMA user_version = 1; COMMIT;"
        )
        for table in TABLES:
            names = TABLES[table].content_names
            selected = [
                "flags & 7" if table == "delivery" and each == "flags" else each for each in names
            ]
            found = today.execute(f"SELECT {', '.join(selected)} FROM {table}").fetchall()
            if table == "metadata":
                found = [row for row in found if row[0] not in NEW]
            for row in found:
                values = older(table, row)
                places = ", ".join("?" * len(values))
                old.execute(f"INSERT INTO {OLD_NAMES.get(table, table)} VALUES ({places})", values)
    return target


def make_format_2(source: Path, target: Path) -> Path:
    """The same store as semel would have written it in format 2."""
    copied(source, target)
    with closing(sqlite3.connect(target / "store.db", isolation_level=None)) as connection:
        found = {
            table: connection.execute(
                f"SELECT {', '.join(TABLES[table].content_names)} FROM {table}"
            ).fetchall()
            for table in ("session", "will")
        }
        connection.executescript(f"DROP TABLE session; DROP TABLE will; {TABLES_2}")
        for row in found["session"]:
            session = older("session", row)
            checksum = crc_of("session", session[:3]) | time_high(session[3]) << 32
            values = (session[0], checksum, *session[1:])
            connection.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?)", values)
        for row in found["will"]:
            will = older("will", row)
            values = (will[0], crc_of("will", will), *will[1:])
            connection.execute("INSERT INTO will VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        connection.execute("PRAGMA user_version = 2")
    return target


def load_format_2(target: Path) -> Path:
    """The small store that semel wrote in format 2."""
    target.mkdir(mode=0o700)
    with closing(sqlite3.connect(target / "store.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(FORMAT_2.read_text("utf-8"))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 2")
        make_mark(target, connection, DISK)
    return target


@pytest.fixture
def old(small: Path, tmp_path: Path) -> Path:
    return make_format_1(small, tmp_path / "old")


@pytest.fixture
def old_2(tmp_path: Path) -> Path:
    return load_format_2(tmp_path / "old")


def upgraded(folder: Path, *, left_out: tuple[str, ...] = NEW) -> dict[str, list[Any]]:
    """All rows of a store as they are after an upgrade: of sessions no owner is known."""
    found: dict[str, list[Any]] = {**contents(folder)}
    found["metadata"] = [row for row in found["metadata"] if row[0] not in left_out]
    found["session"] = [
        with_checksum("session", (number, *rest[:-1], "")) for number, _, *rest in found["session"]
    ]
    return found


def test_a_store_of_format_1_is_upgraded_after_a_copy(
    old: Path, small: Path, tmp_path: Path
) -> None:
    before = contents(copied(old, tmp_path / "before"))
    with open_folder(old) as opened:
        (warning,) = opened.warnings
        assert "was upgraded from format 1 to 3; store.db.format-1.bak is the backup" in warning
        with closing(opened.open()) as database:
            saved = database.restore()
            assert saved.next_session == 3
            assert [each.packet_id for each in database.exchanges(1)[0]] == [1, 2]
            assert [each.number for each in database.queue(1, 3, 9)] == [3, 4, 5]
    assert check_store(old).is_clean
    assert upgraded(old) == upgraded(small)
    assert rows(old, "SELECT DISTINCT identity FROM session") == [("",)]
    # The copy is a store of format 1, with all that it had.
    copy = tmp_path / "copy"
    copy.mkdir()
    (old / "store.db.format-1.bak").rename(copy / "store.db")
    assert contents(copy) == before
    with open_folder(old) as opened:
        assert opened.warnings == []
        assert opened.notes == []


def test_a_store_of_format_2_is_upgraded_after_a_copy(
    old_2: Path, small: Path, tmp_path: Path
) -> None:
    before = contents(copied(old_2, tmp_path / "before"))
    with open_folder(old_2) as opened:
        (warning,) = opened.warnings
        assert opened.notes == []
        assert "was upgraded from format 2 to 3; store.db.format-2.bak is the backup" in warning
        with closing(opened.open()) as database:
            saved = database.restore()
            assert [(each.client_id, each.identity) for each in saved.sessions] == [
                ("a", ""),
                ("b", ""),
            ]
            (will,) = saved.wills
            assert json.loads(will.identity) == {
                "listener": "default",
                "proof": "anonymous",
                "user_name": "user",
            }
            assert decode_identity("a", will.identity).user_name == "user"
            assert [each.packet_id for each in database.exchanges(1)[0]] == [1, 2]
            assert [each.number for each in database.queue(1, 3, 9)] == [3, 4, 5]
    assert check_store(old_2).is_clean
    assert upgraded(old_2, left_out=OF_ONE_STORE) == upgraded(small, left_out=OF_ONE_STORE)
    copy = tmp_path / "copy"
    copy.mkdir()
    (old_2 / "store.db.format-2.bak").rename(copy / "store.db")
    assert contents(copy) == before
    with open_folder(old_2) as opened:
        assert opened.warnings == []
        assert opened.notes == []


def test_the_backup_of_an_upgrade_may_be_put_back_after_more_commits(old_2: Path) -> None:
    """The mark counts commits that the backup never had, and that are not a loss of it."""
    with open_folder(old_2) as opened, closing(opened.open()) as database:
        for _ in range(3):
            database.apply([Commit()])
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (old_2 / name).unlink(missing_ok=True)
    (old_2 / "store.db.format-2.bak").rename(old_2 / "store.db")
    with open_folder(old_2) as opened:
        assert opened.notes == [
            f"{old_2 / 'store.db'} is not the store that {MARK} was written for"
        ]
    assert check_store(old_2).is_clean


def test_a_store_of_format_2_that_has_lost_commits_is_not_upgraded(old_2: Path) -> None:
    mark = read_mark(old_2)
    assert mark is not None
    put_mark(old_2, replace(mark, commit=mark.commit + 2))
    before = contents(old_2)
    with pytest.raises(Unusable, match="commits 2 to 3, which were acknowledged, are lost"):
        open_folder(old_2)
    assert contents(old_2) == before
    assert not list(old_2.glob("*.bak*"))
    repair_store(old_2, WHEN)
    open_folder(old_2).close()
    assert check_store(old_2).is_clean


def test_format_2_is_as_these_tests_make_it(old_2: Path, small: Path, tmp_path: Path) -> None:
    query = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    made = make_format_2(small, tmp_path / "made")
    assert rows(made, query) == rows(old_2, query)
    query = (
        "SELECT * FROM session UNION ALL SELECT checksum, user_name, due_at, qos, topic FROM will"
    )
    assert rows(made, query) == rows(old_2, query)


@pytest.mark.parametrize("make", [make_format_1, make_format_2])
def test_after_the_upgrade_tables_and_columns_are_those_of_a_new_store(
    small: Path, tmp_path: Path, make: Make
) -> None:
    old = make(small, tmp_path / "old")
    open_folder(old).close()
    query = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    assert rows(old, query) == rows(small, query)


def test_every_table_and_column_of_format_1_has_a_current_name() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(FORMAT_1)
        for table, (old_table, old_names) in migration.FORMAT_1.items():
            found = connection.execute(f"PRAGMA table_info({old_table})").fetchall()
            assert tuple(row[1] for row in found) == old_names
            # Format 1 did not know who owns a session.
            added = 1 if table == "session" else 0
            assert len(old_names) + added == len(TABLES[table].content_names)
    assert set(migration.FORMAT_1) == set(TABLES)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_format_1, make_format_2])
def test_a_large_store_of_an_older_format_is_the_same_in_ours(
    large: Path, tmp_path: Path, make: Make
) -> None:
    old = make(large, tmp_path / "old")
    open_folder(old).close()
    assert upgraded(old) == upgraded(large)
    assert len(set(rows(old, "SELECT identity FROM will"))) == 3
    assert check_store(old).is_clean


@pytest.mark.parametrize("make", [make_format_1, make_format_2])
@pytest.mark.parametrize("user_name", ["x" * 65_535, "\x01" * 65_535])
def test_a_will_of_a_user_with_a_long_name_is_upgraded(
    small: Path, tmp_path: Path, make: Make, user_name: str
) -> None:
    damage(small, f"UPDATE will SET identity = '{json.dumps({'user_name': user_name})}'")
    old = make(small, tmp_path / "old")
    open_folder(old).close()
    assert check_store(old).is_clean
    ((identity,),) = rows(old, "SELECT identity FROM will")
    assert isinstance(identity, str)
    assert decode_identity("a", identity).user_name == user_name


def change_old(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as connection:
        connection.execute(statement)


def test_a_damaged_store_of_format_1_stays_as_it_was_and_can_be_repaired(
    old: Path, small: Path
) -> None:
    change_old(old, "UPDATE retained SET topic = 'a/+' WHERE topic = 'u'")
    before = (old / "store.db").read_bytes()
    with pytest.raises(Unusable, match=r"retained: position 2: .*semel store repair"):
        open_folder(old)
    assert (old / "store.db").read_bytes() == before
    result = repair_store(old, WHEN)
    assert result.dropped == {"retained": 1}
    assert check_store(old).is_clean
    expected = upgraded(small)
    del expected["retained"][1]
    assert upgraded(old) == expected
    assert (old / MARK).exists()


def test_what_can_be_read_of_a_store_of_format_1_is_printed(old: Path) -> None:
    found = list(salvage(old))
    assert {"table": "inbound", "session_id": 1, "packet_id": 7} in found
    assert not [each for each in found if isinstance(each, dict) and "damaged" in each]


# A row that was changed, one with an invalid value, and a text that is no UTF-8.
DAMAGE_2 = {
    "UPDATE session SET client_id = 'c' WHERE id = 2": "session: id 2: it differs",
    "UPDATE session SET ends_at = 61.0 WHERE id = 1": "session: id 1: it differs",
    "UPDATE session SET expiry_interval = -1 WHERE id = 1": "session: id 1: expiry_interval is -1",
    "UPDATE will SET user_name = NULL": "will: client_id 'a': it differs",
    "UPDATE will SET user_name = x'01'": "will: client_id 'a': identity is not text",
    "UPDATE will SET user_name = 'a' || char(0)": "will: client_id 'a': identity is not a JSON",
}


@pytest.mark.parametrize("statement", DAMAGE_2)
def test_a_damaged_store_of_format_2_stays_as_it_was_and_can_be_repaired(
    old_2: Path, small: Path, statement: str
) -> None:
    change_old(old_2, statement)
    with closing(sqlite3.connect(old_2 / "store.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = (old_2 / "store.db").read_bytes()
    with pytest.raises(Unusable, match=f"{re.escape(DAMAGE_2[statement])}.*semel store repair"):
        open_folder(old_2)
    assert (old_2 / "store.db").read_bytes() == before
    assert not list(old_2.glob("*.bak*"))
    (marked,) = [each for each in salvage(old_2) if isinstance(each, dict) and "damaged" in each]
    table = statement.split()[1]
    assert marked["table"] == table
    result = repair_store(old_2, WHEN)
    assert result.dropped[table] == 1
    assert check_store(old_2).is_clean
    expected = upgraded(small, left_out=OF_ONE_STORE)
    for name in ("metadata", "stream", "retained", "record"):
        assert upgraded(old_2, left_out=OF_ONE_STORE)[name] == expected[name]


def test_what_can_be_read_of_a_store_of_format_2_is_printed(old_2: Path) -> None:
    found = list(salvage(old_2))
    assert not [each for each in found if isinstance(each, dict) and "damaged" in each]
    session = {"table": "session", "id": 2, "client_id": "b", "expiry_interval": 0xFFFF_FFFF}
    assert {**session, "ends_at": None, "identity": ""} in found


def test_a_repair_of_format_2_without_its_first_page_finds_the_rest(
    old_2: Path, small: Path
) -> None:
    """The format is unknown then: rows may be of format 2, or of ours."""
    for folder in (old_2, small):
        with closing(sqlite3.connect(folder / "store.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        expected = contents(folder)
        wipe(folder, [1])
        result = repair_store(folder, WHEN)
        assert result.kept["session"] == 2
        assert result.kept["will"] == 1
        assert result.kept["delivery"] == len(expected["delivery"])
        assert result.kept["record"] == 5
        assert check_store(folder).is_clean
    assert rows(old_2, "SELECT identity FROM session") == [("",), ("",)]
    assert rows(old_2, "SELECT identity FROM will") == [(WILL_OWNER,)]
    assert rows(small, "SELECT identity FROM session") == [(OWNER,), ("",)]


def test_a_repair_of_format_1_without_its_first_page_finds_the_rest(old: Path) -> None:
    wipe(old, [1])
    result = repair_store(old, WHEN)
    assert result.kept["delivery"] >= 6
    assert result.kept["record"] == 5
    assert check_store(old).is_clean


def test_there_is_a_step_from_each_older_format() -> None:
    assert sorted(STEPS) == list(range(1, VERSION))
