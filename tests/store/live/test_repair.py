"""A repair keeps what can be read, says what cannot, and deletes nothing."""

import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel.mqtt.session import NEVER_EXPIRES
from semel.store.care import describe, export
from semel.store.folder import open_folder
from semel.store.forensics.check import check_store
from semel.store.forensics.pages import Gap, Page, PageRow, Pages
from semel.store.forensics.repair import RepairReport, repair_store
from semel.store.forensics.salvage import salvage
from semel.store.gaps import gap_name
from semel.store.row_checksums import row_checksum
from semel.store.schema import VERSION, Unusable
from semel.store.wal import WriteAheadLog, log_path
from tests.store.faults import FAULTS
from tests.store.stores import change, contents, copied, damage, pages_of, root_of, rows, wipe

WHEN = "20240131T101500"
SAVED = f"store.db.damaged-{WHEN}"


def repaired(folder: Path) -> RepairReport:
    """RepairReport it; then nothing is wrong, a broker can have it, and the old file is there."""
    before = (folder / "store.db").read_bytes()
    result = repair_store(folder, WHEN)
    assert result.saved == folder / SAVED
    assert (folder / SAVED).read_bytes() == before
    assert stat.S_IMODE((folder / "store.db").stat().st_mode) == 0o600
    works(folder)
    assert {table: len(found) for table, found in contents(folder).items()} == result.kept
    return result


def works(folder: Path) -> None:
    assert [each.problem for each in check_store(folder).findings] == []
    with open_folder(folder) as opened, closing(opened.open()) as database:
        for each in database.restore().sessions:
            database.exchanges(each.store_id)
            database.queue(each.store_id, each.first_waiting, each.waiting)


# --- one fault at a time --------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["session", "inbound", "delivery"])
def test_a_row_without_values_is_dropped(
    small: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged cell can be decoded to a row that has none."""
    root = root_of(small, table)
    walk = Pages.walk

    def with_an_empty_row(pages: Pages, number: int) -> Iterator[PageRow | Gap]:
        yield from walk(pages, number)
        if number == root:
            yield PageRow((), None)

    damage(small, "UPDATE retained SET qos = 1 - qos")
    monkeypatch.setattr(Pages, "walk", with_an_empty_row)
    assert repair_store(small, WHEN).dropped[table] == 1


def test_a_store_with_nothing_wrong_is_left_alone(small: Path) -> None:
    before = (small / "store.db").read_bytes()
    result = repair_store(small, WHEN)
    assert result.saved is None
    assert result.is_complete
    assert (small / "store.db").read_bytes() == before
    assert not (small / SAVED).exists()


@pytest.mark.parametrize(("statements", "_", "words", "loss"), FAULTS)
def test_after_a_repair_each_fault_is_gone_and_its_loss_is_told(
    small: Path, statements: list[str], _: str, words: str, loss: str
) -> None:
    change(small, *statements)
    result = repaired(small)
    if loss == "gap":
        assert result.gaps
    elif loss == "will" and "DROP TABLE will" in statements:
        assert result.unreadable == {"will": 1}
    elif loss:
        assert loss in result.dropped
    else:
        assert result.is_complete, (result.dropped, result.unreadable, result.gaps)
    assert result.is_complete == (not loss)


def test_rows_that_are_right_stay_as_they_were(small: Path) -> None:
    before = contents(small)
    change(small, "UPDATE retained SET topic = 'a/+' WHERE topic = 'u'")
    result = repaired(small)
    assert result.dropped == {"retained": 1}
    after = contents(small)
    assert after.pop("retained") == before.pop("retained")[:1]
    assert after == before


def test_what_a_session_lost_is_told_by_its_client_identifier(small: Path) -> None:
    change(small, "UPDATE delivery SET topic = '#' WHERE session_id = 1 AND number = 3")
    result = repaired(small)
    assert result.sessions == {"'a'": ["delivery: session 1, number 3"]}


def test_a_message_of_an_inbox_that_is_lost_is_told_and_the_others_stay(small: Path) -> None:
    change(small, "UPDATE inbox SET topic = '#' WHERE number = 4")
    result = repaired(small)
    assert result.sessions == {"'a'": ["inbox: session 1, number 4"]}
    assert rows(small, "SELECT key FROM inbox") == [("run-1",)]


def test_a_session_that_is_lost_takes_what_was_its_and_all_is_told(small: Path) -> None:
    change(small, "UPDATE session SET expiry_interval = 'x' WHERE id = 1")
    result = repaired(small)
    assert rows(small, "SELECT client_id FROM session") == [("b",)]
    assert result.dropped == {
        "session": 1,
        "subscription": 1,
        "inbound": 1,
        "delivery": 5,
        "delivery_extra": 2,
        "inbox": 2,
    }
    assert result.sessions["'a'"][0] == "the session itself"
    # b still has the payload that it shared with a.
    assert rows(small, "SELECT use_count FROM shared_payload") == [(1,)]


def test_of_two_sessions_with_one_client_identifier_the_first_stays(small: Path) -> None:
    # Both checksums have the same length then.
    change(small, "UPDATE session SET ends_at = 5.0")
    path = small / "store.db"
    data = path.read_bytes()

    def stored(client_id: str) -> bytes:
        """The checksum, the identifier, and the expiry that follows it: never."""
        checksum = row_checksum("session", (2, client_id, NEVER_EXPIRES, 5.0, ""))
        expiry = NEVER_EXPIRES.to_bytes(6, "big")
        return checksum.to_bytes(8, "big") + client_id.encode() + expiry

    assert data.count(stored("b")) == 1
    path.write_bytes(data.replace(stored("b"), stored("a")))
    result = repaired(small)
    assert rows(small, "SELECT id, client_id FROM session") == [(1, "a")]
    assert result.dropped["session"] == 1
    assert ("session", "id 2", "another row has its key") in [
        (each.table, each.row, each.problem) for each in result.details.findings
    ]


def test_of_many_losses_of_a_session_not_all_are_told_one_by_one(large: Path) -> None:
    change(large, "UPDATE session SET expiry_interval = 'x' WHERE id = 5300")
    result = repaired(large)
    (losses,) = result.sessions.values()
    assert losses[0] == "the session itself"
    assert losses[-1] == "and more"
    assert len(losses) < 30
    assert result.dropped["delivery"] == 300


def test_tables_that_are_taken_for_each_other_are_not_mixed(small: Path) -> None:
    will, session = root_of(small, "will"), root_of(small, "session")
    damage(
        small,
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_schema SET rootpage = {session} WHERE name = 'will'",
        f"UPDATE sqlite_schema SET rootpage = {will} WHERE name = 'session'",
    )
    result = repaired(small)
    assert result.kept["will"] == result.kept["session"] == 0
    assert result.dropped["will"] == 2
    assert result.dropped["session"] == 1


def test_of_two_deliveries_with_one_identifier_the_first_stays(small: Path) -> None:
    change(small, "UPDATE delivery SET packet_id = 1 WHERE session_id = 1 AND number = 2")
    repaired(small)
    assert rows(small, "SELECT number FROM delivery WHERE session_id = 1 AND packet_id = 1") == [
        (1,)
    ]


# --- streams --------------------------------------------------------------------------------------


def test_streams_are_not_numbered_anew_and_gaps_are_noted(small: Path) -> None:
    change(small, "DELETE FROM record WHERE seq IN (2, 3, 5)")
    result = repaired(small)
    assert result.gaps == [("plant", 2, 3), ("plant", 5, 5)]
    assert rows(small, "SELECT seq FROM record") == [(1,), (4,)]
    assert rows(small, "SELECT last_seq, sealed_seq FROM stream WHERE id = 1") == [(5, 0)]
    noted = {name for name, *_ in contents(small)["metadata"]}
    assert {gap_name(1, 2, 3), gap_name(1, 5, 5)} <= noted
    streams = describe(small)["streams"]
    assert isinstance(streams, list)
    assert streams[0]["lost"] == [[2, 3], [5, 5]]
    # Noted once is known.
    assert repair_store(small, WHEN).saved is None


def test_what_was_given_to_the_sealer_stays_given(small: Path) -> None:
    """Only the sealer can find out whether the segment is there."""
    change(
        small,
        "UPDATE stream SET sealed_seq = 1, sealing_seq = 4 WHERE id = 1",
        "DELETE FROM record WHERE seq = 3",
    )
    repaired(small)
    assert rows(small, "SELECT sealed_seq, sealing_seq FROM stream WHERE id = 1") == [(1, 4)]


def test_a_stream_that_lost_its_name_keeps_its_rows(small: Path) -> None:
    change(
        small,
        "DELETE FROM stream WHERE id = 1",
        "DELETE FROM record WHERE seq = 1",
        "UPDATE stream SET name = 'lost-1'",
    )
    result = repaired(small)
    assert result.is_complete
    assert any("lost its name" in note for note in result.notes)
    assert rows(small, "SELECT id, name, last_seq, sealed_seq FROM stream") == [
        (1, "lost-1-", 5, 1),
        (2, "lost-1", 0, 0),
    ]
    assert len(rows(small, "SELECT * FROM record")) == 4


# --- pages ----------------------------------------------------------------------------------------


def seqs_in(folder: Path, page: int) -> set[int]:
    with Pages(folder / "store.db") as pages:
        found = Page(pages, page)
        return {int(str(found.row(cell).values[1])) for cell in range(found.cells)}


def is_range(seqs: set[int]) -> bool:
    return max(seqs) - min(seqs) == len(seqs) - 1


def test_a_page_of_a_stream_costs_its_rows_which_are_told_exactly(large: Path) -> None:
    before = contents(large)
    _, leaves = pages_of(large, "record")
    # One with rows of one stream, which follow each other.
    found = {leaf: seqs_in(large, leaf) for leaf in leaves[5:]}
    leaf, lost = next((leaf, seqs) for leaf, seqs in found.items() if is_range(seqs))
    wipe(large, [leaf])
    result = repaired(large)
    ((_, first, last),) = result.gaps
    assert set(range(first, last + 1)) == lost
    assert result.unreadable == {"record": 1}
    assert result.sessions == {}
    after = contents(large)
    assert len(before.pop("record")) - len(after.pop("record")) == len(lost)
    assert {each[0] for each in after.pop("metadata")} - {
        each[0] for each in before.pop("metadata")
    }
    assert after == before


def test_an_inner_page_costs_its_own_rows_and_not_those_below_it(large: Path) -> None:
    before = contents(large)
    inner, _ = pages_of(large, "delivery")
    with Pages(large / "store.db") as pages:
        own = Page(pages, inner[0]).cells
    wipe(large, [inner[0]])
    result = repaired(large)
    after = contents(large)
    assert result.unreadable == {"delivery": 1}
    missing = len(before["delivery"]) - len(after["delivery"])
    assert own <= missing <= own + result.dropped.get("delivery", 0)
    assert set(after["delivery"]) <= set(before["delivery"])
    for table in ("session", "record", "retained", "will", "inbound", "subscription"):
        assert after[table] == before[table]
    # Whoever may have lost something is told.
    lost = {row[0] for row in set(before["delivery"]) - set(after["delivery"])}
    names = {client_id for number, _, client_id, *_ in before["session"] if number in lost}
    assert {ascii(name) for name in names} <= result.sessions.keys()


def test_what_hangs_on_a_page_that_is_lost_may_be_broken_too(large: Path) -> None:
    before = contents(large)
    inner, _ = pages_of(large, "delivery")
    with Pages(large / "store.db") as pages:
        child = Page(pages, inner[0]).child(0)
        size = pages.page_size
    path = large / "store.db"
    data = bytearray(path.read_bytes())
    # Where its first cell is.
    data[(child - 1) * size + 8 : (child - 1) * size + 10] = b"\xff\xff"
    path.write_bytes(data)
    wipe(large, [inner[0]])
    result = repaired(large)
    assert result.unreadable == {"delivery": 1, "unknown": 1}
    assert set(contents(large)["delivery"]) <= set(before["delivery"])


def test_a_page_of_sessions_costs_them_and_they_are_told_by_name(large: Path) -> None:
    before = {row[0]: row[2] for row in contents(large)["session"]}
    _, leaves = pages_of(large, "session")
    wipe(large, [leaves[3]])
    result = repaired(large)
    after = {row[0] for row in contents(large)["session"]}
    lost = before.keys() - after
    assert lost
    for number in lost:
        assert "the session itself" in result.sessions[ascii(before[number])]
    assert not result.is_complete


@pytest.mark.parametrize("content", [b"\0", b"\xff"])
def test_without_its_first_page_everything_else_is_found(large: Path, content: bytes) -> None:
    before = contents(large)
    wipe(large, [1], content)
    result = repaired(large)
    assert not result.is_complete
    assert any("rows that had been deleted may be back" in note for note in result.notes)
    after = contents(large)
    for table, found in before.items():
        assert set(found) <= set(after[table]), table


def test_the_root_of_a_table_costs_its_own_rows(large: Path) -> None:
    before = contents(large)
    wipe(large, [root_of(large, name) for name in ("record", "session", "will", "delivery_extra")])
    result = repaired(large)
    after = contents(large)
    # In a table with rowids an inner page has no rows.
    assert after["session"] == before["session"]
    assert set(after["record"]) <= set(before["record"])
    assert len(after["record"]) > 0.9 * len(before["record"])
    assert set(result.unreadable) == {"record", "session", "will", "delivery_extra"}


def test_an_index_costs_nothing(large: Path) -> None:
    before = contents(large)
    _, leaves = pages_of(large, "sqlite_autoindex_session_1")
    wipe(large, leaves[:3])
    assert not check_store(large).is_clean
    result = repaired(large)
    assert result.is_complete
    assert contents(large) == before


def test_a_store_that_lost_its_id_has_a_new_one_and_says_so(small: Path) -> None:
    question = "SELECT value FROM metadata WHERE name = 'id'"
    old = rows(small, question)
    wipe(small, [root_of(small, "metadata")])
    result = repaired(small)
    assert any("the store has lost its id" in note for note in result.notes)
    assert len(old) == len(rows(small, question)) == 1
    assert old != rows(small, question)


@pytest.mark.parametrize("content", [b"", b"no database " * 1000])
def test_of_a_file_with_nothing_in_it_nothing_is_kept(small: Path, content: bytes) -> None:
    (small / "store.db").write_bytes(content)
    result = repaired(small)
    assert not result.is_complete
    assert sum(result.kept.values()) == len(contents(small)["metadata"])


# --- the log --------------------------------------------------------------------------------------

KILLED = """
import os, sys
from pathlib import Path
from semel.store.folder import open_folder
from tests.store.histories import History
database = open_folder(Path(sys.argv[1])).open()
database.stream("one"), database.stream("two")
history = History(5, clients=20, large=False)
for _ in range(40):
    database.apply([history.commit()])
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose broker was killed: all is in its log."""
    path = tmp_path_factory.mktemp("killed") / "data"
    paths = [entry for entry in sys.path if entry] + [str(Path(__file__).parents[3])]
    subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert log_path(path / "store.db").stat().st_size > 100_000
    return path


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> Path:
    return copied(killed_once, tmp_path / "data")


def test_a_hot_log_is_nothing_to_repair(killed: Path) -> None:
    assert repair_store(killed, WHEN).saved is None
    works(killed)


def test_of_a_log_that_is_broken_in_the_middle_no_commit_is_lost(
    killed: Path, killed_once: Path, tmp_path: Path
) -> None:
    before = contents(copied(killed_once, tmp_path / "whole"))
    log = log_path(killed / "store.db")
    data = bytearray(log.read_bytes())
    # In a salt, which says nothing: but SQLite would read no further.
    data[WriteAheadLog(log).offset(4) + 8] ^= 1
    log.write_bytes(data)
    result = repair_store(killed, WHEN)
    assert log_path(killed / SAVED).read_bytes() == bytes(data)
    assert any("the log has 1 damaged page" in note for note in result.notes)
    assert not result.is_complete
    works(killed)
    assert contents(killed) == before


def test_a_log_without_a_header_is_read_all_the_same(
    killed: Path, killed_once: Path, tmp_path: Path
) -> None:
    before = contents(copied(killed_once, tmp_path / "whole"))
    log = log_path(killed / "store.db")
    data = bytearray(log.read_bytes())
    data[:32] = bytes(32)
    log.write_bytes(data)
    repair_store(killed, WHEN)
    works(killed)
    assert contents(killed) == before


def test_a_last_commit_that_is_not_whole_is_left_out_and_told(
    killed: Path, killed_once: Path, tmp_path: Path
) -> None:
    before = contents(copied(killed_once, tmp_path / "whole"))
    log = log_path(killed / "store.db")
    data = bytearray(log.read_bytes())
    found = WriteAheadLog(log)
    data[found.offset(found.committed - 1) + 200] ^= 1
    # Without this there would be nothing to repair: so it is after loss of power.
    data[found.offset(4) + 8] ^= 1
    log.write_bytes(data)
    result = repair_store(killed, WHEN)
    assert any("last commit in the log is incomplete" in note for note in result.notes)
    works(killed)
    assert contents(killed) != before


# --- refusing -------------------------------------------------------------------------------------


def test_a_store_in_use_is_not_repaired(small: Path) -> None:
    change(small, "UPDATE retained SET qos = 3")
    before = (small / "store.db").read_bytes()
    with open_folder(small), pytest.raises(Unusable, match="in use by another process"):
        repair_store(small, WHEN)
    assert (small / "store.db").read_bytes() == before
    repaired(small)


def test_a_newer_store_is_not_repaired(small: Path) -> None:
    change(small, f"PRAGMA user_version = {VERSION + 1}", "CREATE TABLE later (x)")
    with pytest.raises(Unusable, match="written by a newer semel"):
        repair_store(small, WHEN)
    assert not (small / SAVED).exists()


def test_another_database_is_not_repaired(tmp_path: Path) -> None:
    change(tmp_path, "CREATE TABLE songs (title TEXT)")
    with pytest.raises(Unusable, match="not a store of semel"):
        repair_store(tmp_path, WHEN)
    assert [each.name for each in tmp_path.iterdir() if "damaged" in each.name] == []


def test_where_there_is_no_store_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"it has no store\.db"):
        repair_store(tmp_path, WHEN)
    assert not (tmp_path / "store.db").exists()
    with pytest.raises(Unusable, match="it does not exist"):
        repair_store(tmp_path / "nowhere", WHEN)
    assert not (tmp_path / "nowhere").exists()


def test_two_repairs_within_a_second_keep_two_files(small: Path) -> None:
    for topic in ("t", "u"):
        change(small, f"UPDATE retained SET qos = 3 WHERE topic = '{topic}'")
        repair_store(small, WHEN)
    assert (small / SAVED).exists()
    assert (small / f"{SAVED}.2").exists()


# --- cut short ------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_log", [False, True])
def test_a_repair_that_was_cut_short_is_taken_up_again(
    killed: Path, killed_once: Path, tmp_path: Path, with_log: bool
) -> None:
    """Between any two renames: the folder is refused, and the next repair has everything."""
    before = contents(copied(killed_once, tmp_path / "whole"))
    store = killed / "store.db"
    store.rename(killed / SAVED)
    if with_log:
        log_path(store).rename(log_path(killed / SAVED))
    with pytest.raises(Unusable, match="semel store repair"):
        open_folder(killed)
    (killed / "store.db.part").write_bytes(b"half of a new one")
    result = repair_store(killed, "20250101T000000")
    assert result.saved == killed / SAVED
    assert result.is_complete
    works(killed)
    assert contents(killed) == before


# --- anything at all ------------------------------------------------------------------------------


def hurt(path: Path, choose: random.Random) -> None:
    """Do to a file what disks, and people, do to files."""
    data = bytearray(path.read_bytes())
    size = len(data)
    kind = choose.randrange(5)
    if kind == 0:
        for _ in range(choose.choice((1, 1, 3, 20))):
            data[choose.randrange(size)] ^= 1 << choose.randrange(8)
    elif kind == 1:
        for _ in range(choose.choice((1, 3))):
            data[choose.randrange(120)] ^= 1 << choose.randrange(8)
    elif kind == 2:
        at = choose.randrange(size)
        data[at : at + 100] = choose.randbytes(min(100, size - at))
    elif kind == 3:
        at = choose.randrange(size) // 512 * 512
        length = min(choose.choice((512, 4096, 8192)), size - at)
        data[at : at + length] = choose.choice((bytes(length), choose.randbytes(length)))
    else:
        del data[choose.randrange(size) :]
    path.write_bytes(data)


def said(act: str, folder: Path) -> str:
    """Why it does not work; nothing if it does."""
    try:
        if act == "open":
            with open_folder(folder) as opened:
                opened.open().close()
        elif act == "check":
            check_store(folder)
        elif act == "describe":
            describe(folder)
        elif act == "export":
            list(export(folder))
        else:
            list(salvage(folder))
    except Unusable as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_broken_there_is_a_sentence_and_a_way_out(
    seed: int, small_once: Path, killed_once: Path, tmp_path: Path
) -> None:
    choose = random.Random(seed)
    folder = copied(choose.choice((small_once, killed_once)), tmp_path / "data")
    files = [folder / "store.db", log_path(folder / "store.db")]
    hurt(choose.choice([file for file in files if file.exists()]), choose)
    for act in ("open", "check", "describe", "export", "salvage"):
        # Opening it for a broker may change what is there, if there is nothing wrong.
        place = copied(folder, tmp_path / act)
        sentence = said(act, place)
        assert not sentence or str(place) in sentence
        assert "\n" not in sentence
    was_clean = check_store(folder).is_clean
    result = repair_store(folder, WHEN)
    assert (result.saved is None) == was_clean
    works(folder)
