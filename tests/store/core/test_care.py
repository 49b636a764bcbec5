"""Looking at a store, copying it, printing it, adopting a record: also beside a broker."""

import base64
import os
import shutil
import stat
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from semel.mqtt import Properties
from semel.store.care import adopt, back_up, describe, export, row_as_json
from semel.store.commit import Commit
from semel.store.folder import open_folder
from semel.store.forensics.check import MAXIMUM_FINDINGS, check_store
from semel.store.forensics.pages import Gap
from semel.store.forensics.repair import repair_store
from semel.store.forensics.salvage import salvage
from semel.store.gaps import gap_name
from semel.store.record import committed_records
from semel.store.rows import properties_value
from semel.store.schema import VERSION, Unusable
from semel.store.wal import WriteAheadLog, log_path
from tests.store.faults import FAULTS
from tests.store.stores import OWNER, change, contents, pages_of, root_of, rows, wipe


def findings(folder: Path) -> list[tuple[str, str, str]]:
    return [(each.table, each.row, each.problem) for each in check_store(folder).findings]


# --- check ----------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_a_store_of_many_pages(large: Path) -> None:
    assert findings(large) == []


def test_nothing_is_wrong_with_a_store_that_was_only_used(small: Path) -> None:
    assert findings(small) == []
    report = check_store(small)
    assert report.rows == {table: len(found) for table, found in contents(small).items()}
    assert min(report.rows.values()) > 0


def test_a_check_changes_nothing(small: Path) -> None:
    before = (small / "store.db").read_bytes()
    check_store(small)
    assert (small / "store.db").read_bytes() == before


@pytest.mark.parametrize(
    "change_of_inbox",
    [
        # The server has forgotten it.
        "packet_id = 0",
        "packet_id = 65535",
        "flags = 14",
        "protocol_version = 4, properties = NULL",
        "topic = '$SYS/x'",
        "payload = x''",
        "number = number + 1000000",
    ],
)
def test_a_message_that_waits_to_be_acknowledged_is_right(
    small: Path, change_of_inbox: str
) -> None:
    change(small, f"UPDATE inbox SET {change_of_inbox}")
    assert check_store(small).is_clean


@pytest.mark.slow
@pytest.mark.parametrize(("statements", "table", "words", "_"), FAULTS)
def test_each_fault_is_found_where_it_is(
    small: Path, statements: list[str], table: str, words: str, _: str
) -> None:
    change(small, *statements)
    found = findings(small)
    assert any(each[0] == table and words in each[2] for each in found), found


def test_a_topic_alias_that_an_older_semel_recorded_is_no_fault_and_is_not_read(
    small: Path,
) -> None:
    """It belonged to the connection, but the message is whole."""
    change(
        small,
        "UPDATE record SET properties = x'0723000103000178' WHERE seq = 3",
        "UPDATE record SET properties = x'03230001' WHERE seq = 4",
        "UPDATE inbox SET properties = x'03230001' WHERE number = 1",
    )
    assert check_store(small).is_clean
    assert repair_store(small, "20240131T101500").saved is None
    assert len(rows(small, "SELECT seq FROM record")) == 5
    with open_folder(small) as opened, closing(opened.open()) as database:
        third, fourth = committed_records(database.connection, 1, 3, 2)
        assert third.properties == Properties(content_type="x")
        assert fourth.properties == Properties()
        assert database.inbox(1)[0][2].properties == Properties()


def test_a_key_tells_which_row_it_is(small: Path) -> None:
    change(small, "UPDATE delivery SET flags = 3 WHERE session_id = 1 AND number = 3")
    assert ("delivery", "session 1, number 3", "flags is 3") in findings(small)
    change(small, "UPDATE retained SET topic = 'a/+' WHERE topic = 't'")
    assert ("retained", "position 1", "TOPIC_NAME_WITHOUT_WILDCARDS: topic_name 'a/+'") in findings(
        small
    )


def test_a_gap_that_a_repair_noted_is_no_finding(small: Path) -> None:
    change(small, "DELETE FROM record WHERE seq BETWEEN 2 AND 3")
    assert findings(small) == [("record", "stream 1, seq 2 to 3", "are missing")]
    change(small, f"INSERT INTO metadata VALUES ('{gap_name(1, 3, 3)}', 0, 'now')")
    assert findings(small) == [("record", "stream 1, seq 2 to 2", "are missing")]
    change(small, f"INSERT INTO metadata VALUES ('{gap_name(1, 1, 2)}', 0, 'now')")
    assert findings(small) == []


def test_sealed_rows_that_are_still_there_are_no_finding(small: Path) -> None:
    """A crash between the note that they are sealed and their deletion leaves them."""
    change(small, "UPDATE stream SET sealed_seq = 3, sealing_seq = 3 WHERE id = 1")
    assert findings(small) == []
    change(small, "DELETE FROM record WHERE seq <= 3")
    assert findings(small) == []


@pytest.mark.slow
def test_findings_beyond_measure_are_counted(small: Path) -> None:
    many = ", ".join(
        f"(1, {number}, 0, 0, 0, 3, 't', x'')" for number in range(10, MAXIMUM_FINDINGS + 110)
    )
    change(small, f"INSERT INTO delivery VALUES {many}")
    report = check_store(small)
    assert len(report.findings) == MAXIMUM_FINDINGS
    assert report.more >= 100


def test_a_page_that_cannot_be_read_is_a_finding_and_other_tables_are_looked_at(
    large: Path,
) -> None:
    change(large, "UPDATE will SET retain = 7 WHERE client_id = 'will 3'")
    _, leaves = pages_of(large, "record")
    wipe(large, [leaves[3]])
    found = findings(large)
    assert any(table == "record" and "cannot be read" in problem for table, _, problem in found)
    assert ("will", "client_id 'will 3'", "retain is 7") in found


@pytest.mark.parametrize("content", [b"", b"x" * 10_000])
def test_a_file_that_is_no_store_any_more_is_a_finding(small: Path, content: bytes) -> None:
    (small / "store.db").write_bytes(content)
    (finding,) = check_store(small).findings
    assert finding.table == "store.db"


def test_a_broken_log_is_a_finding_also_where_sqlite_says_nothing(small: Path) -> None:
    with open_folder(small) as opened, closing(opened.open()) as database:
        for number in range(1, 6):
            database.connection.execute(f"UPDATE will SET due_at = {number}")
        log = WriteAheadLog(log_path(opened.database))
        assert findings(small) == []
        data = bytearray(log.path.read_bytes())
        data[log.offset(1) + 100] ^= 1
        log.path.write_bytes(data)
        ((table, row, problem),) = findings(small)
        assert (table, row) == ("store.db-wal", "frame 2")
        assert "4 commits" in problem
        data[log.offset(1) + 100] ^= 1
        # The last commit may be in the middle of being written.
        data[log.offset(len(log.frames) - 1) + 100] ^= 1
        log.path.write_bytes(data)
        assert findings(small) == []
        data[log.offset(len(log.frames) - 1) + 100] ^= 1
        data[9] ^= 1
        log.path.write_bytes(data)
        assert ("store.db-wal", "") in [each[:2] for each in findings(small)]


def test_a_newer_store_is_not_judged(small: Path) -> None:
    change(small, f"PRAGMA user_version = {VERSION + 1}", "CREATE TABLE later (x)")
    with pytest.raises(Unusable, match="written by a newer semel"):
        check_store(small)


def test_an_older_store_is_not_judged(small: Path) -> None:
    change(small, "PRAGMA user_version = 0")
    with pytest.raises(Unusable, match="a broker upgrades it to"):
        check_store(small)


# --- beside a broker ------------------------------------------------------------------------------


class Busy:
    """A thread that commits session after session, as a broker's does."""

    def __init__(self, folder: Path) -> None:
        self._folder = open_folder(folder)
        self._database = self._folder.open()
        self._database.connection.execute("PRAGMA wal_autocheckpoint = 20")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.committed = 0
        self.half = threading.Event()

    def _run(self) -> None:
        # From 5,000 on, the numbers are those of the store's own sessions.
        while not self._stop.is_set() and self.committed < 4_900:
            commit = Commit()
            number = 100 + self.committed
            commit.sessions.append((number, f"busy {number}", 60, ""))
            self._database.apply([commit])
            self.committed += 1
            if self.committed == 50:
                self.half.set()

    def __enter__(self) -> "Busy":
        self._thread.start()
        assert self.half.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._database.close()
        self._folder.close()


def numbers(folder: Path) -> list[int]:
    found = rows(folder, "SELECT id FROM session WHERE id >= 100 ORDER BY 1")
    return [int(str(number)) for (number,) in found]


@pytest.mark.slow
def test_a_store_in_use_can_be_looked_at_checked_printed_and_copied(
    large: Path, tmp_path: Path
) -> None:
    with Busy(large) as busy:
        assert findings(large) == []
        before = busy.committed
        sessions = describe(large)["sessions"]
        assert isinstance(sessions, int)
        assert sessions >= before
        printed = [each["id"] for each in export(large) if each["table"] == "session"]
        # All of one moment.
        own = sorted(n for n in printed if isinstance(n, int) and 100 <= n < 5_000)
        assert own == list(range(100, 100 + len(own)))
        assert len(own) >= before
        before = busy.committed
        steps: list[tuple[int, int]] = []
        back_up(large, tmp_path / "copy", lambda *step: steps.append(step))
        after = busy.committed
    assert check_store(tmp_path / "copy").is_clean
    assert steps[-1][0] == steps[-1][1]
    copy = [n for n in numbers(tmp_path / "copy") if n < 5_000]
    assert copy == list(range(100, 100 + len(copy)))
    assert before <= len(copy) <= after
    assert findings(large) == []


# --- backup ---------------------------------------------------------------------------------------


def test_a_copy_is_a_data_folder_of_its_own(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "copy"
    back_up(small, target)
    assert check_store(target).is_clean
    assert contents(target) == contents(small)
    assert {file.name for file in target.iterdir()} == {"store.db", "store.mark"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert stat.S_IMODE((target / "store.db").stat().st_mode) == 0o600
    with open_folder(target) as opened, closing(opened.open()) as database:
        assert opened.warnings == []
        assert len(database.restore().sessions) == 2


def test_a_copy_has_what_is_in_the_log_alone(small: Path, tmp_path: Path) -> None:
    with open_folder(small) as opened, closing(opened.open()) as database:
        database.set_metadata("new", "yes")
        back_up(small, tmp_path / "copy")
        assert check_store(tmp_path / "copy").is_clean
    assert rows(tmp_path / "copy", "SELECT value FROM metadata WHERE name = 'new'") == [("yes",)]


def test_nothing_is_overwritten_by_a_copy(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    back_up(small, target)
    assert check_store(target).is_clean
    before = (target / "store.db").read_bytes()
    with pytest.raises(Unusable, match="is not empty, and nothing is overwritten"):
        back_up(small, target)
    assert (target / "store.db").read_bytes() == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Unusable, match="is not a folder"):
        back_up(small, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_copy_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="is not a data folder"):
        back_up(tmp_path / "nowhere", tmp_path / "copy")
    assert not (tmp_path / "copy" / "store.db").exists()


def test_a_copy_of_a_damaged_store_says_what_is_wrong(large: Path, tmp_path: Path) -> None:
    _, leaves = pages_of(large, "record")
    wipe(large, [leaves[3]])
    back_up(large, tmp_path / "copy")
    assert not check_store(tmp_path / "copy").is_clean


# --- info -----------------------------------------------------------------------------------------


def test_a_store_is_described_in_numbers(small: Path) -> None:
    change(
        small,
        "UPDATE stream SET sealed_seq = 2 WHERE id = 1",
        f"INSERT INTO metadata VALUES ('{gap_name(1, 1, 2)}', 0, 'now')",
        "INSERT INTO metadata VALUES ('node', 0, 'n1')",
        "INSERT INTO metadata VALUES ('break:1:10', 0, 'the server had no session')",
        "INSERT INTO metadata VALUES ('break:1:9', 0, 'the server had no session')",
    )
    found = describe(small)
    with open_folder(small) as opened, closing(opened.open()) as database:
        assert found["id"] == database.unique_id()
    expected = {
        "format": VERSION,
        "node": "n1",
        "sessions": 2,
        "subscriptions": 2,
        "queued": 4,
        "in_flight": 2,
        "inbound": 1,
        "inbox": 2,
        "retained": 2,
        "retained_bytes": 8,
        "wills": 1,
        "bytes": (small / "store.db").stat().st_size,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["streams"] == [
        {
            "name": "plant",
            "last_seq": 5,
            "sealed": 2,
            "unsealed": 3,
            "lost": [[1, 2]],
            "breaks": [9, 10],
        },
        {"name": "yard", "last_seq": 0, "sealed": 0, "unsealed": 0, "lost": [], "breaks": []},
    ]


def test_a_damaged_store_is_not_described_but_explained(small: Path) -> None:
    wipe(small, [root_of(small, "delivery")])
    with pytest.raises(Unusable, match="semel store repair"):
        describe(small)


# --- export ---------------------------------------------------------------------------------------


def test_every_row_is_printed_with_its_table_first(small: Path) -> None:
    printed = list(export(small))
    assert Counter(each["table"] for each in printed) == {
        table: len(found) for table, found in contents(small).items()
    }
    assert all(next(iter(each)) == "table" for each in printed)
    session = next(each for each in printed if each["table"] == "session")
    assert session == {
        "table": "session",
        "id": 1,
        "client_id": "a",
        "expiry_interval": 4294967295,
        "ends_at": 60.0,
        "identity": OWNER,
    }


def test_what_a_program_has_not_acknowledged_is_printed_with_its_key(small: Path) -> None:
    first, second = (each for each in export(small) if each["table"] == "inbox")
    assert first == {
        "table": "inbox",
        "session_id": 1,
        "number": 1,
        "key": "run-1",
        "flags": 9,
        "packet_id": 3,
        "protocol_version": 5,
        "topic": "t",
        "properties": None,
        "payload_base64": "/w==",
    }
    assert (second["key"], second["payload"], second["flags"]) == ("run-4", "in", 6)
    assert second["properties"] == {"content_type": "x", "user_properties": (("k", "v"),)}


def test_payloads_are_text_or_base64(small: Path) -> None:
    deliveries = {
        (each["session_id"], each["number"]): each
        for each in export(small)
        if each["table"] == "delivery"
    }
    assert deliveries[1, 3]["payload"] == "drei ß"
    assert base64.b64decode(str(deliveries[1, 4]["payload_base64"])) == b"\xff\x00"
    assert "payload" not in deliveries[1, 4]
    assert deliveries[1, 5]["payload"] is None


def test_properties_are_printed_by_their_names(small: Path) -> None:
    (extra,) = [
        each for each in export(small) if each["table"] == "delivery_extra" and each["number"] == 4
    ]
    assert extra["properties"] == {
        "content_type": "x",
        "correlation_data_base64": base64.b64encode(b"\xfe").decode(),
        "user_properties": (("k", "v"),),
    }
    row = ("c", None, None, 0, 0, "t", b"\x05bad", b"")
    assert row_as_json("will", row)["properties_base64"] == base64.b64encode(b"\x05bad").decode()
    section = properties_value(
        Properties(payload_format_indicator=1, will_delay_interval=3, response_topic="r")
    )
    assert row_as_json("will", ("c", None, None, 0, 0, "t", section, b""))["properties"] == {
        "payload_format_indicator": 1,
        "response_topic": "r",
        "will_delay_interval": 3,
    }


def test_what_can_be_read_of_a_damaged_store_is_printed_on_demand(large: Path) -> None:
    before = contents(large)
    _, leaves = pages_of(large, "record")
    wipe(large, [leaves[3]])
    with pytest.raises(Unusable, match="is damaged"):
        list(export(large))
    found = list(salvage(large))
    assert sum(isinstance(each, Gap) for each in found) == 1
    printed = Counter(each["table"] for each in found if not isinstance(each, Gap))
    for table, kept in before.items():
        if table != "record":
            assert printed[table] == len(kept)
    assert len(before["record"]) * 0.8 < printed["record"] < len(before["record"])


def test_a_damaged_store_in_use_is_not_salvaged(small: Path) -> None:
    with open_folder(small), pytest.raises(Unusable, match="in use by another process"):
        list(salvage(small))
    assert len(list(salvage(small))) == len(list(export(small)))
    with pytest.raises(Unusable, match="is not a data folder"):
        list(salvage(small / "nowhere"))


# --- adopt ----------------------------------------------------------------------------------------


def streams(folder: Path) -> list[tuple[object, ...]]:
    return rows(folder, "SELECT name, last_seq, sealed_seq, sealing_seq FROM stream ORDER BY id")


def test_a_stream_without_rows_of_its_own_goes_on_after_its_record(small: Path) -> None:
    adopt(small, "yard", 4711)
    assert streams(small)[1] == ("yard", 4711, 4711, 4711)
    assert streams(small)[0][1] == 5
    assert findings(small) == []


def test_rows_that_are_sealed_are_not_in_the_way(small: Path) -> None:
    change(small, "UPDATE stream SET sealed_seq = 5, sealing_seq = 5 WHERE id = 1")
    adopt(small, "plant", 9)
    assert streams(small)[0] == ("plant", 9, 9, 9)
    assert findings(small) == []


def test_rows_that_are_not_sealed_are_in_the_way_until_they_are_named(small: Path) -> None:
    change(small, "UPDATE stream SET sealed_seq = 2, sealing_seq = 4 WHERE id = 1")
    before = contents(small)
    for discard in (None, (1, 5), (3, 4)):
        with pytest.raises(Unusable) as caught:
            adopt(small, "plant", 9, discard)
        said = str(caught.value)
        for words in ("3 rows", "3 to 5", "new node name", "semel store export", "--discard 3-5"):
            assert words in said
        assert contents(small) == before
    adopt(small, "plant", 9, (3, 5))
    assert streams(small)[0] == ("plant", 9, 9, 9)
    assert rows(small, "SELECT * FROM record") == []
    assert findings(small) == []


def test_nothing_is_discarded_where_nothing_is_in_the_way(small: Path) -> None:
    with pytest.raises(Unusable, match="has no rows to discard"):
        adopt(small, "yard", 9, (1, 2))


def test_numbers_only_go_up(small: Path) -> None:
    adopt(small, "yard", 100)
    with pytest.raises(Unusable, match="numbers only increase"):
        adopt(small, "yard", 99)
    adopt(small, "yard", 100)
    assert streams(small)[1] == ("yard", 100, 100, 100)


def test_a_stream_that_is_not_there_is_not_adopted(small: Path, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="no stream gargen: it has plant, yard"):
        adopt(small, "gargen", 9)
    with open_folder(tmp_path / "empty"):
        pass
    with pytest.raises(Unusable, match="it has none"):
        adopt(tmp_path / "empty", "plant", 9)
    with pytest.raises(Unusable, match="is not a data folder"):
        adopt(tmp_path / "nowhere", "plant", 9)
    assert not (tmp_path / "nowhere").exists()


def test_a_store_in_use_adopts_nothing(small: Path) -> None:
    with open_folder(small), pytest.raises(Unusable, match=f"process {os.getpid()}"):
        adopt(small, "yard", 9)
    assert streams(small)[1] == ("yard", 0, 0, 0)


def files_of(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Everything in a folder: contents, modes and times of change."""
    return {
        each.name: (each.read_bytes(), each.stat().st_mode, each.stat().st_mtime_ns)
        for each in folder.iterdir()
    }


def crashed_copy(folder: Path, target: Path) -> Path:
    """A folder as a crash leaves it: its last commit is in the log only."""
    with open_folder(folder) as opened, closing(opened.open()) as database:
        with database.transaction():
            number = database.stream("yard").id
            database.continue_after(number, 17)
        shutil.copytree(folder, target)
    assert log_path(target / "store.db").stat().st_size > 0
    return target


@pytest.mark.parametrize("state", ["stopped", "crashed", "without a lock file", "read-only"])
def test_a_dry_run_of_adopt_checks_and_changes_no_file(
    state: str, small: Path, tmp_path: Path
) -> None:
    folder = crashed_copy(small, tmp_path / "crashed") if state == "crashed" else small
    if state == "without a lock file":
        (folder / "lock").unlink()
    if state == "read-only":
        folder.chmod(0o500)
    before = files_of(folder)
    adopt(folder, "yard", 4711, dry_run=True)
    with pytest.raises(Unusable, match=r"--discard 1-5"):
        adopt(folder, "plant", 4711, dry_run=True)
    adopt(folder, "plant", 4711, (1, 5), dry_run=True)
    if state == "crashed":
        # What only the log has is seen.
        with pytest.raises(Unusable, match="numbers up to 17"):
            adopt(folder, "yard", 16, dry_run=True)
    assert files_of(folder) == before
    folder.chmod(0o700)
    adopt(folder, "yard", 4711)
    assert streams(folder)[1] == ("yard", 4711, 4711, 4711)


def test_a_dry_run_of_adopt_refuses_a_store_in_use(small: Path) -> None:
    with open_folder(small):
        before = files_of(small)
        with pytest.raises(Unusable, match=rf"in use by another process \(process {os.getpid()}\)"):
            adopt(small, "yard", 4711, dry_run=True)
        assert files_of(small) == before
    adopt(small, "yard", 4711, dry_run=True)
