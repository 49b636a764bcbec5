"""Rows by pages are the rows that SQLite reads, and nothing in a file is believed."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from semel.store.folder import open_folder
from semel.store.forensics.log_frames import intact_frames
from semel.store.forensics.pages import Gap, Page, PageRow, Pages, Unreadable, read_payload, varint
from semel.store.gaps import without
from semel.store.wal import WriteAheadLog, log_path
from tests.store.histories import History
from tests.store.stores import pages_of, rows, wipe

TABLES = {
    *("metadata", "session", "subscription", "inbound", "delivery"),
    *("delivery_extra", "shared_payload"),
    *("will", "retained", "stream", "record", "inbox"),
}


def by_pages(path: Path) -> dict[str, list[tuple[object, ...]]]:
    found: dict[str, list[tuple[object, ...]]] = {}
    with Pages(path) as pages:
        for kind, name, root in list(pages.tables()):
            if kind == "table":
                found[name] = []
                for each in pages.walk(root):
                    assert isinstance(each, PageRow)
                    row = each.values
                    found[name].append(row if each.rowid is None else (each.rowid, *row[1:]))
            elif root:
                assert all(isinstance(each, PageRow) for each in pages.walk(root))
        # Every page has been seen, or is free.
        assert len(pages.used) + len(pages.free()) == pages.count
    return found


def by_sqlite(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in names}


def test_a_store_without_a_log_is_read_as_sqlite_reads_it(large: Path) -> None:
    path = large / "store.db"
    found = by_pages(path)
    assert found == by_sqlite(path)
    assert found.keys() == TABLES
    assert len(found["record"]) > 2000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_store_with_a_log_is_read_as_sqlite_reads_it(tmp_path: Path, seed: int) -> None:
    history = History(seed, clients=20)
    with open_folder(tmp_path / "data") as opened, closing(opened.open()) as database:
        for name in ("one", "two"):
            database.stream(name)
        database.connection.execute("PRAGMA wal_autocheckpoint = 40")
        for _ in range(25):
            database.apply([history.commit() for _ in range(4)])
            # The file of the log is read, not that of its index: no lock of SQLite is touched.
            assert log_path(opened.database).stat().st_size > 0
            copy = tmp_path / "copy.db"
            copy.write_bytes(opened.database.read_bytes())
            log_path(copy).write_bytes(log_path(opened.database).read_bytes())
            found = by_pages(copy)
            assert found == by_sqlite(copy)


@pytest.mark.parametrize("page_size", [512, 1024, 4096, 65_536])
def test_every_size_of_page_and_every_kind_of_value_is_read(tmp_path: Path, page_size: int) -> None:
    path = tmp_path / "x.db"
    choose = random.Random(page_size)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute("CREATE TABLE a (number INTEGER PRIMARY KEY, x)")
        connection.execute("CREATE TABLE b (k, x, PRIMARY KEY (k)) WITHOUT ROWID")
        connection.execute("BEGIN")
        for _ in range(400):
            value = choose.choice(
                [
                    *(
                        None,
                        0,
                        1,
                        -1,
                        127,
                        -128,
                        2**15,
                        -(2**23),
                        2**31,
                        2**47,
                        2**63 - 1,
                        -(2**63),
                    ),
                    *(0.5, 1e300, "", "ß" * 10, b"", choose.randbytes(choose.randrange(9000))),
                ]
            )
            rowid = choose.randrange(-(2**63), 2**63)
            connection.execute("INSERT OR IGNORE INTO a VALUES (?, ?)", (rowid, value))
            key = choose.randbytes(choose.randrange(1, 700))
            connection.execute("INSERT OR IGNORE INTO b VALUES (?, ?)", (key, value))
        connection.execute("DELETE FROM a WHERE number % 3 = 0")
        connection.execute("COMMIT")
    assert by_pages(path) == by_sqlite(path)


def test_a_page_that_is_wiped_costs_its_rows_and_no_others(large: Path) -> None:
    before = rows(large, "SELECT * FROM record")
    _, leaves = pages_of(large, "record")
    wipe(large, [leaves[5], leaves[9]])
    with Pages(large / "store.db") as pages:
        root = next(root for _, name, root in pages.tables() if name == "record")
        found = list(pages.walk(root))
    assert sum(isinstance(each, Gap) for each in found) == 2
    kept = [each.values for each in found if isinstance(each, PageRow)]
    assert [row for row in before if row in set(kept)] == kept
    assert 0 < len(before) - len(kept) < len(before) / 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_no_file_is_too_odd_to_be_walked(tmp_path: Path, seed: int) -> None:
    """Pages that point to each other, to nowhere, or to themselves end in gaps."""
    choose = random.Random(seed)
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("CREATE TABLE a (number INTEGER PRIMARY KEY, x)")
        connection.execute("CREATE TABLE b (k, x, PRIMARY KEY (k)) WITHOUT ROWID")
        connection.execute("BEGIN")
        for number in range(60):
            connection.execute("INSERT INTO a VALUES (?, ?)", (number, "x" * number * 20))
            connection.execute("INSERT INTO b VALUES (?, ?)", ("k" * number, b"x" * number * 20))
        connection.execute("COMMIT")
    data = bytearray(path.read_bytes())
    for _ in range(choose.choice((1, 10, 300))):
        data[choose.randrange(len(data))] = choose.choice((0, 1, 2, 5, 10, 13, 255))
    path.write_bytes(data)
    with Pages(path) as pages:
        for root in range(1, pages.count + 1):
            for found in pages.walk(root):
                assert isinstance(found, PageRow | Gap)
        try:
            free = pages.free()
        except Unreadable:
            free = set()
        list(pages.strays(free))


def test_a_page_that_two_others_point_to_is_read_once(large: Path) -> None:
    path = large / "store.db"
    (number, *_), _ = pages_of(large, "delivery")
    with Pages(path) as pages:
        page = Page(pages, number)
        first = page.child(0).to_bytes(4, "big")
        data = bytearray(path.read_bytes())
        start = (number - 1) * pages.page_size
        # A cell begins with its child; where it is stands after the 12 bytes of the head.
        place = int.from_bytes(data[start + 14 : start + 16], "big")
        assert data[start + place : start + place + 4] == page.child(1).to_bytes(4, "big")
        data[start + place : start + place + 4] = first
    path.write_bytes(data)
    with Pages(path) as pages:
        root = next(root for _, name, root in pages.tables() if name == "delivery")
        found = list(pages.walk(root))
    assert [each.why for each in found if isinstance(each, Gap)] == [
        f"page {int.from_bytes(first, 'big')} is used twice"
    ]
    keys = [each.values[:2] for each in found if isinstance(each, PageRow)]
    assert len(keys) == len(set(keys))


def test_a_payload_that_goes_on_in_itself_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("CREATE TABLE a (number INTEGER PRIMARY KEY, x)")
        connection.execute("INSERT INTO a VALUES (1, ?)", (b"x" * 5000,))
    with Pages(path) as pages:
        assert [type(each) for each in pages.walk(2)] == [PageRow]
    data = bytearray(path.read_bytes())
    # One of ten pages, which are one after the other, goes back to an earlier one.
    assert data[7 * 512 : 7 * 512 + 4] == (9).to_bytes(4, "big")
    data[7 * 512 : 7 * 512 + 4] = (5).to_bytes(4, "big")
    path.write_bytes(data)
    with Pages(path) as pages:
        (gap,) = pages.walk(2)
    assert isinstance(gap, Gap)
    assert gap.why == "page 5 is used twice"


def test_numbers_and_rows_that_are_cut_are_unreadable() -> None:
    assert varint(b"\x81\x00", 0) == (128, 2)
    assert varint(b"\xff" * 9, 0) == (2**64 - 1, 9)
    assert read_payload(b"\x02\x01\x07") == (7,)
    for cut in (b"", b"\x81"):
        with pytest.raises(Unreadable):
            varint(cut, 0)
    for payload in (b"\x02\x01", b"\x02\x01\x07\x07", b"\x02\x0a", b"\x05\x01\x07", b"\x01\x01"):
        with pytest.raises(Unreadable):
            read_payload(payload)


# --- the log --------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a database, three commits long."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for number in range(3):
            connection.execute(f"CREATE TABLE t{number} (x)")
        copy = tmp_path / "copy-wal"
        copy.write_bytes(log_path(path).read_bytes())
    return copy


def test_a_log_tells_its_frames_and_its_commits(log: Path) -> None:
    found = WriteAheadLog(log)
    assert found.has_header
    assert found.commits(0) == 3
    assert found.committed == len(found.frames)
    assert found.synced < found.committed
    assert intact_frames(found) == [True] * len(found.frames)


@pytest.mark.parametrize("place", [0, 5, 8, 15, 16, 23, 24, 1000])
def test_a_broken_frame_is_told_and_the_others_are_not(log: Path, place: int) -> None:
    found = WriteAheadLog(log)
    count = len(found.frames)
    data = bytearray(log.read_bytes())
    data[found.offset(2) + place] ^= 1
    log.write_bytes(data)
    broken = [at for at, right in enumerate(intact_frames(WriteAheadLog(log))) if not right]
    # The next one goes on from the checksum that this one states.
    assert broken == ([2, 3] if 16 <= place < 24 and count > 3 else [2])


def test_a_log_whose_header_is_broken_is_read_by_its_frames(log: Path) -> None:
    whole = WriteAheadLog(log)
    data = bytearray(log.read_bytes())
    data[9] ^= 1
    log.write_bytes(data)
    assert not WriteAheadLog(log).has_header
    assert WriteAheadLog(log).frames == []
    found = WriteAheadLog(log, whole.page_size)
    assert not found.has_header
    assert found.frames == whole.frames
    # Nothing tells what the first goes on from.
    assert intact_frames(found) == [False] + [True] * (len(whole.frames) - 1)


def test_ranges_without_others() -> None:
    assert without([(1, 10)], []) == [(1, 10)]
    assert without([(1, 10)], [(3, 4), (8, 20)]) == [(1, 2), (5, 7)]
    assert without([(1, 3), (7, 9)], [(2, 8)]) == [(1, 1), (9, 9)]
    assert without([(1, 3)], [(1, 3)]) == []
    assert without([(4, 6)], [(1, 3), (7, 9)]) == [(4, 6)]
