"""From format 1, which had no checksums and other names, to the current format."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from semel.store import migration
from semel.store.folder import open_folder
from semel.store.forensics.check import check_store
from semel.store.forensics.repair import repair_store
from semel.store.forensics.salvage import salvage
from semel.store.mark import MARK
from semel.store.migration import STEPS
from semel.store.schema import APPLICATION_ID, TABLES, VERSION, Unusable
from tests.store.stores import contents, copied, rows, wipe

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
            places = ", ".join("?" * len(names))
            found = today.execute(f"SELECT {', '.join(selected)} FROM {table}").fetchall()
            if table == "metadata":
                found = [row for row in found if row[0] not in NEW]
            old.executemany(f"INSERT INTO {OLD_NAMES.get(table, table)} VALUES ({places})", found)
    return target


@pytest.fixture
def old(small: Path, tmp_path: Path) -> Path:
    return make_format_1(small, tmp_path / "old")


def without_new_metadata(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    found = contents(folder)
    found["metadata"] = [row for row in found["metadata"] if row[0] not in NEW]
    return found


def test_a_store_of_format_1_is_brought_to_format_2_after_a_copy(
    old: Path, small: Path, tmp_path: Path
) -> None:
    before = contents(copied(old, tmp_path / "before"))
    with open_folder(old) as opened:
        (warning,) = opened.warnings
        assert "was upgraded from format 1 to 2; store.db.format-1.bak is the backup" in warning
        with closing(opened.open()) as database:
            saved = database.restore()
            assert saved.next_session == 3
            assert [each.packet_id for each in database.exchanges(1)[0]] == [1, 2]
            assert [each.number for each in database.queue(1, 3, 9)] == [3, 4, 5]
    assert check_store(old).is_clean
    assert without_new_metadata(old) == without_new_metadata(small)
    # The copy is a store of format 1, with all that it had.
    copy = tmp_path / "copy"
    copy.mkdir()
    (old / "store.db.format-1.bak").rename(copy / "store.db")
    assert contents(copy) == before
    with open_folder(old) as opened:
        assert opened.warnings == []
        assert opened.notes == []


def test_after_the_upgrade_tables_and_columns_are_those_of_a_new_store(
    old: Path, small: Path
) -> None:
    open_folder(old).close()
    query = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    assert rows(old, query) == rows(small, query)


def test_every_table_and_column_of_format_1_has_a_current_name() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(FORMAT_1)
        for table, (old_table, old_names) in migration.FORMAT_1.items():
            found = connection.execute(f"PRAGMA table_info({old_table})").fetchall()
            assert tuple(row[1] for row in found) == old_names
            assert len(old_names) == len(TABLES[table].content_names)
    assert set(migration.FORMAT_1) == set(TABLES)


def test_a_large_store_of_format_1_is_the_same_in_format_2(large: Path, tmp_path: Path) -> None:
    old = make_format_1(large, tmp_path / "old")
    open_folder(old).close()
    assert without_new_metadata(old) == without_new_metadata(large)
    assert check_store(old).is_clean


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
    expected = without_new_metadata(small)
    del expected["retained"][1]
    assert without_new_metadata(old) == expected
    assert (old / MARK).exists()


def test_what_can_be_read_of_a_store_of_format_1_is_printed(old: Path) -> None:
    found = list(salvage(old))
    assert {"table": "inbound", "session_id": 1, "packet_id": 7} in found
    assert not [each for each in found if isinstance(each, dict) and "damaged" in each]


def test_a_repair_of_format_1_without_its_first_page_finds_the_rest(old: Path) -> None:
    wipe(old, [1])
    result = repair_store(old, WHEN)
    assert result.kept["delivery"] >= 6
    assert result.kept["record"] == 5
    assert check_store(old).is_clean


def test_there_is_a_step_from_each_older_format() -> None:
    assert sorted(STEPS) == list(range(1, VERSION))
