"""SQL over a lake sees each landed row, and with the record each row once; it changes nothing."""

import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from semel.mqtt.properties import NO_PROPERTIES
from semel.pipeline.errors import TableError
from semel.pipeline.table_retention import remove_expired
from semel.store.commit import Commit, RecordedMessage
from semel.store.reading import NodeRecord, StreamCatalog
from semel.store.roots import open_root
from semel.store.segment_names import segment_name
from semel.up.sql import LakeSql, RecordLocation, SqlError, record_beside
from tests.modes import repeats
from tests.store.keeper import Keeper
from tests.store.recorded import message, received
from tests.up.asked import NUMBERS, Kept, ask, rows_of, simple_lake
from tests.up.landed import land_rows, with_date


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Of ten rows 1 to 8 are sealed, as 1-3, 4-6 and 7-8, and 1 to 5 landed."""
    made = Kept(tmp_path)
    made.keeper.commit(10)
    made.keeper.seal(3, 3, 2)
    made.land(5)
    yield made
    made.close()


# --- rows that are landed and rows that are not ---------------------------------------------------


def test_all_rows_are_there_once_and_say_whether_they_are_landed(kept: Kept) -> None:
    rows = ask(kept.sql(), "select * from messages_now order by seq")
    assert [row["seq"] for row in rows] == list(range(1, 11))
    assert [row["landed"] for row in rows] == [True] * 5 + [False] * 5
    for row in rows:
        expected = message(row["seq"])
        assert (row["topic"], row["payload"]) == (expected.topic_name, expected.payload)
        assert row["client_id"] == expected.client_id
        assert row["node"] == "n1"
        assert row["date"] == row["received"].date()


def test_the_two_parts_are_there_on_their_own(kept: Kept) -> None:
    assert ask(kept.sql(), "select list(seq order by seq) as s from messages") == [
        {"s": [1, 2, 3, 4, 5]}
    ]
    assert ask(kept.sql(), "select list(seq order by seq) as s from messages_not_landed") == [
        {"s": [6, 7, 8, 9, 10]}
    ]


def test_all_views_of_one_question_are_of_one_moment(kept: Kept) -> None:
    (row,) = ask(
        kept.sql(),
        "select (select count(*) from messages) as m, (select count(*) from messages_now) as n,"
        " (select count(*) from messages_now a join messages_now b using (node, seq)) as j,"
        " (select count(*) from messages_not_landed) as r",
    )
    assert row == {"m": 5, "n": 10, "j": 10, "r": 5}


def test_rows_that_retention_has_removed_do_not_come_back_from_the_record(kept: Kept) -> None:
    address = str(kept.lake / "messages")
    far = 4e9
    assert remove_expired(address, DeltaTable(address), 3600.0, now=far) is not None
    rows = ask(kept.sql(), "select seq, landed from messages_now order by seq")
    assert rows == [{"seq": seq, "landed": False} for seq in range(6, 11)]
    assert ask(kept.sql(), "select count(*) as n from messages_once") == [{"n": 5}]
    assert ask(kept.sql(), "select count(*) as n from messages") == [{"n": 0}]
    # What lands from then on is there once.
    kept.land(2)
    rows = ask(kept.sql(), "select seq, landed from messages_now order by seq")
    assert [row["seq"] for row in rows] == list(range(6, 11))
    assert [row["landed"] for row in rows] == [True, True, False, False, False]


def test_before_the_first_commit_there_is_what_is_not_landed(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keeper.commit(4)
    kept.keeper.seal(2)
    assert not kept.lake.exists()
    rows = ask(kept.sql(), "select seq, landed, date from messages_now order by seq")
    assert [(row["seq"], row["landed"]) for row in rows] == [(n, False) for n in range(1, 5)]
    assert str(rows[0]["date"]) == "2023-11-14"
    with pytest.raises(SqlError, match="nothing has landed in messages yet: query messages_now"):
        ask(kept.sql(), "select * from messages")
    kept.close()


def test_without_a_record_there_is_what_is_landed(kept: Kept) -> None:
    assert ask(LakeSql(str(kept.lake)), "select count(*) as n from messages") == [{"n": 5}]
    with pytest.raises(SqlError, match="no table messages_now: did you mean messages"):
        ask(LakeSql(str(kept.lake)), "select * from messages_now")


def test_without_a_store_there_is_what_is_sealed(kept: Kept) -> None:
    record = RecordLocation(str(kept.root), None, "plant", "messages")
    sql = LakeSql(str(kept.lake), record=record)
    assert ask(sql, "select max(seq) as m, count(*) as n from messages_now") == [{"m": 8, "n": 8}]


def test_a_table_that_takes_no_stream_has_no_such_views(kept: Kept) -> None:
    write_deltalake(kept.lake / "other", NUMBERS)
    assert ask(kept.sql(), "select count(*) as n from other") == [{"n": 3}]
    with pytest.raises(SqlError, match="no table other_now"):
        ask(kept.sql(), "select * from other_now")


def test_a_table_with_the_name_of_a_view_is_that_table(kept: Kept) -> None:
    write_deltalake(kept.lake / "messages_now", NUMBERS)
    assert ask(kept.sql(), "select sum(a) as a from messages_now") == [{"a": 6}]


COMMIT, WRITE_SEGMENT, DELETE_ROWS, SEAL, MERGE, TIDY, LAND = range(7)
ALL_STEPS = (COMMIT, WRITE_SEGMENT, DELETE_ROWS, SEAL, MERGE, TIDY, LAND)
# Covered segments are kept for a grace time: a reader has that long.
MEANWHILE = (COMMIT, WRITE_SEGMENT, DELETE_ROWS, SEAL, MERGE, LAND)


def step(kept: Kept, chance: random.Random, kinds: tuple[int, ...] = ALL_STEPS) -> None:
    """One of the things that happen to a record and its table, in any order."""
    at = chance.randrange(len(kept.keepers))
    keeper = kept.keepers[at]
    kind = chance.choice(kinds)
    if kind == COMMIT:
        keeper.commit(chance.randrange(1, 4))
    elif kind == WRITE_SEGMENT:
        keeper.write_segment(chance.randrange(1, 4))
    elif kind == DELETE_ROWS:
        keeper.delete_rows(all_of_them=chance.random() < 0.5)
    elif kind == SEAL:
        keeper.seal(chance.randrange(1, 4))
    elif kind == MERGE:
        keeper.merge()
    elif kind == TIDY:
        keeper.tidy()
    else:
        kept.land(chance.randrange(1, 6), of=at)


class Disturbed(LakeSql):
    """Things go on between any two looks."""

    def __init__(self, kept: Kept, disturb: Callable[[], None]) -> None:
        super().__init__(str(kept.lake), record=kept.record)
        self._disturb = disturb

    def _read_positions(self, opened: Any, stream: str) -> Any:
        self._disturb()
        found = super()._read_positions(opened, stream)
        self._disturb()
        return found

    def _copied(self, record: NodeRecord, first: int, last: int) -> Any:
        self._disturb()
        return super()._copied(record, first, last)

    def _register_table(self, table: str) -> None:
        self._disturb()
        super()._register_table(table)


@pytest.mark.parametrize("seed", range(repeats(8, 3)))
def test_each_row_is_there_once_whatever_goes_on_meanwhile(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kept = Kept(tmp_path, nodes=("n1", "n2"))
    for keeper in kept.keepers:
        keeper.commit(1)
    for _ in range(12):
        for _ in range(chance.randrange(6)):
            step(kept, chance)
        # What has to be there: of the second node a stranger sees what is sealed.
        least = {
            "n1": kept.keeper.last,
            "n2": kept.keepers[1].root.highest_seq("plant", "n2"),
        }

        def disturb() -> None:
            for _ in range(chance.randrange(3)):
                step(kept, chance, MEANWHILE)

        sql = Disturbed(kept, disturb)
        rows = ask(sql, "select node, seq, landed, payload from messages_now")
        for node, last in least.items():
            seqs = sorted(row["seq"] for row in rows if row["node"] == node)
            assert seqs == list(range(1, len(seqs) + 1)), (seed, node)
            assert len(seqs) >= last, (seed, node)
            landed = [row["seq"] for row in rows if row["node"] == node and row["landed"]]
            assert sorted(landed) == list(range(1, len(landed) + 1))
        assert all(row["payload"] == message(row["seq"]).payload for row in rows)
        # Before the first commit a note says that nothing is landed.
        assert [note for note in sql.notes if not note.endswith("/messages yet")] == []
    kept.close()


def test_beside_a_thread_that_lands_each_row_is_there_once(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keeper.commit(3)
    kept.keeper.seal(3)
    kept.land(1)
    answers: list[list[int]] = []
    least: list[int] = []
    problems: list[BaseException] = []
    is_over = threading.Event()

    def asking() -> None:
        try:
            while not is_over.is_set() or not answers:
                least.append(kept.keeper.last - 2)
                rows = ask(kept.sql(), "select seq from messages_now")
                answers.append(sorted(row["seq"] for row in rows))
        except BaseException as problem:
            problems.append(problem)

    asker = threading.Thread(target=asking)
    asker.start()
    for _ in range(repeats(60, 30)):
        kept.keeper.commit(2)
        kept.keeper.seal(2)
        kept.land(2)
    is_over.set()
    asker.join(60)
    assert problems == []
    assert answers
    for seqs, last in zip(answers, least, strict=True):
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) >= last
    kept.close()


def test_rows_that_were_deleted_before_they_were_landed_are_told(kept: Kept) -> None:
    NodeRecord(kept.keeper.root, "plant", "n1").trim(6)
    sql = kept.sql()
    rows = ask(sql, "select seq from messages_now")
    assert sorted(row["seq"] for row in rows) == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    (note,) = sql.notes
    assert "rows 6 to 6 of stream plant, node n1, were deleted before" in note


def test_rows_that_were_deleted_after_they_were_landed_are_in_the_table(kept: Kept) -> None:
    done: list[bool] = []

    def disturb() -> None:
        if not done:
            done.append(True)
            kept.land(3)
            NodeRecord(kept.keeper.root, "plant", "n1").trim(8)

    class Late(Disturbed):
        def _read_positions(self, opened: Any, stream: str) -> Any:
            # The table was looked at before this, and retention is looked at after it.
            found, _ = LakeSql._read_positions(self, opened, stream)
            self._disturb()
            return found, {"n1": kept.keeper.root.trimmed("plant", "n1")}

    sql = Late(kept, disturb)
    rows = ask(sql, "select seq, landed from messages_now order by seq")
    assert [row["seq"] for row in rows] == list(range(1, 11))
    assert [row["landed"] for row in rows] == [True] * 8 + [False] * 2
    assert sql.notes == []


# --- finding the record ---------------------------------------------------------------------------


def test_the_data_folder_that_a_lake_lies_in_has_its_record(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    lake = str(tmp_path / "lake")
    far = str(tmp_path / "far" / "lake")
    found = record_beside(lake, root=None, data=None, stream="plant", table="messages")
    assert found == RecordLocation(None, tmp_path, "plant", "messages")
    assert record_beside(far, root=None, data=None, stream="plant", table="messages") is None
    keeper.close()


def test_the_store_that_lies_in_or_around_a_root_belongs_to_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    ingest = Keeper(root / ".semel-ingest" / "plant", root=open_root(root))
    found = record_beside("x/lake", root=str(root), data=None, stream="plant", table="t")
    assert found == RecordLocation(str(root), root / ".semel-ingest" / "plant", "plant", "t")
    other = record_beside("x/lake", root=str(root), data=None, stream="yard", table="t")
    assert other == RecordLocation(str(root), None, "yard", "t")
    ingest.close()
    broker = Keeper(tmp_path / "data")
    streams = str(tmp_path / "data" / "streams")
    found = record_beside("x/lake", root=streams, data=None, stream="plant", table="t")
    assert found == RecordLocation(streams, tmp_path / "data", "plant", "t")
    broker.close()


# --- what is opened and read ----------------------------------------------------------------------


def test_only_tables_that_are_named_are_opened(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, good=NUMBERS, bad=NUMBERS)
    (tmp_path / "bad" / "_delta_log" / "00000000000000000000.json").write_text("{broken")
    assert ask(LakeSql(lake), "select sum(a) as s from GOOD") == [{"s": 6}]
    with pytest.raises(TableError, match="bad"):
        ask(LakeSql(lake), "select * from bad")
    names = ask(LakeSql(lake), "show tables")
    assert names == [{"name": "good"}]


def test_partitions_and_columns_that_a_question_is_not_about_are_not_read(kept: Kept) -> None:
    rows = with_date(pa.concat_tables(NodeRecord(kept.keeper.root, "plant", "n1").tables(1, 8)))
    days = []
    for offset in (0, 1):
        moved = rows.column("date").cast(pa.int32()).to_pylist()
        days.append(pa.array([day + offset for day in moved], pa.int32()).cast(pa.date32()))
    place = rows.schema.get_field_index("date")
    for number, day in enumerate(days):
        write_deltalake(
            kept.lake / "days",
            rows.set_column(place, "date", day),
            partition_by=["date"],
            mode="append" if number else "error",
        )
    first, second = (kept.lake / "days" / f"date={day[0]}" for day in days)
    (gone,) = second.glob("*.parquet")
    gone.unlink()
    question = "select count(seq) as n from days"
    with pytest.raises(SqlError, match="cannot be read"):
        ask(LakeSql(str(kept.lake)), question)
    only = f"{question} where date = DATE '{days[0][0]}'"
    assert ask(LakeSql(str(kept.lake)), only) == [{"n": 8}]
    (path,) = first.glob("*.parquet")
    spoil(path, "payload")
    assert ask(LakeSql(str(kept.lake)), only) == [{"n": 8}]
    with pytest.raises(SqlError):
        ask(LakeSql(str(kept.lake)), only.replace("count(seq)", "max(payload)"))


def spoil(path: Path, column: str) -> None:
    """Make a column of a file unreadable."""
    metadata = pq.read_metadata(path)
    group = metadata.row_group(0)
    (chunk,) = (
        group.column(at)
        for at in range(group.num_columns)
        if group.column(at).path_in_schema == column
    )
    begins = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[begins : begins + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)


def test_segments_that_a_question_is_not_about_are_not_read(kept: Kept) -> None:
    place = kept.root / "plant" / "n1" / "00000000000000000007-00000000000000000008.parquet"
    with kept.sql() as sql:
        answer = sql.query("select count(payload) as n from messages_now where seq > 8 or seq < 7")
        found = rows_of(answer)
    whole = place.read_bytes()
    spoil(place, "payload")
    assert ask(kept.sql(), "select count(payload) as n from messages_now where seq < 7") == [
        {"n": 6}
    ]
    with pytest.raises(SqlError):
        ask(kept.sql(), "select max(payload) as n from messages_now")
    place.write_bytes(whole)
    assert found == [{"n": 8}]


def test_a_flipped_bit_in_a_segment_is_an_error_that_names_it(kept: Kept) -> None:
    place = kept.root / "plant" / "n1" / segment_name(7, 8)
    whole = place.read_bytes()
    chunk = pq.ParquetFile(place).metadata.row_group(0).column(4)
    at = chunk.data_page_offset + chunk.total_compressed_size - 3
    place.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(SqlError, match=rf"{place} .* is damaged: .*semel stream trim plant"):
        ask(kept.sql(), "select max(payload) as n from messages_now")
    place.write_bytes(whole)
    assert ask(kept.sql(), "select count(payload) as n from messages_now") == [{"n": 10}]


def test_a_flipped_bit_in_a_file_of_the_lake_is_an_error(kept: Kept) -> None:
    (place, *_) = sorted((kept.lake / "messages").rglob("*.parquet"))
    whole = place.read_bytes()
    group = pq.read_metadata(place).row_group(0)
    (chunk,) = (
        group.column(at)
        for at in range(group.num_columns)
        if group.column(at).path_in_schema == "payload"
    )
    at = chunk.data_page_offset + chunk.total_compressed_size - 1
    place.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(SqlError, match=r"messages: a file cannot be read: .*CRC checksum"):
        ask(kept.sql(), "select max(payload) as n from messages")
    place.write_bytes(whole)
    assert ask(kept.sql(), "select count(payload) > 0 as n from messages") == [{"n": True}]


def test_segments_with_more_and_with_fewer_columns_are_read_by_name(kept: Kept) -> None:
    place = kept.root / "plant" / "n1" / segment_name(7, 8)
    rows = pq.read_table(place)
    rows = rows.drop_columns(["content_type"]).add_column(0, "region", pa.array(["a", "b"]))
    pq.write_table(rows, place, store_schema=False)
    question = "select seq, topic, content_type from messages_now where seq > 6 order by seq"
    assert ask(kept.sql(), question) == [
        {
            "seq": seq,
            "topic": message(seq).topic_name,
            "content_type": "text/plain" if seq > 8 and seq % 4 == 1 else None,
        }
        for seq in (7, 8, 9, 10)
    ]


# --- nothing is changed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        "copy numbers to '{place}/out.csv'",
        "copy (select 1) to '{place}/out.parquet' (format parquet)",
        "attach '{place}/out.db'",
        "export database '{place}/out'",
        "select * from read_csv('{place}/secret.csv')",
        "select * from '{place}/secret.csv'",
        "select * from read_text('{place}/secret.csv')",
        "select * from glob('{place}/*')",
        "install httpfs",
        "load '{place}/x.duckdb_extension'",
        "set enable_external_access = true",
        "set temp_directory = '{place}/out'",
        "set lock_configuration = false",
        "insert into numbers values (4)",
        "delete from numbers",
        "drop table numbers",
    ],
)
def test_a_question_can_neither_write_nor_read_anything_else(tmp_path: Path, question: str) -> None:
    (tmp_path / "secret.csv").write_text("secret\n1\n")
    lake = simple_lake(tmp_path / "lake", numbers=NUMBERS)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SqlError):
        ask(LakeSql(lake), question.format(place=tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    assert ask(LakeSql(lake), "select count(*) as n from numbers") == [{"n": 3}]


def test_python_variables_are_no_tables(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, numbers=NUMBERS)
    for name in ("NUMBERS", "lake", "reader", "statement"):
        if name != "NUMBERS":
            with pytest.raises(SqlError, match=f"no table {name}"):
                ask(LakeSql(lake), f"select * from {name}")
    assert ask(LakeSql(lake), "select count(*) as n from NUMBERS") == [{"n": 3}]


def test_tables_of_ones_own_last_as_long_as_the_question(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, numbers=NUMBERS)
    question = "create table big as select * from numbers where a > 1; select sum(a) as s from big"
    assert ask(LakeSql(lake), question) == [{"s": 5}]
    with pytest.raises(SqlError, match="no table big"):
        ask(LakeSql(lake), "select * from big")


def test_what_does_not_fit_into_memory_is_spilled_and_then_gone(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path / "lake", numbers=NUMBERS)
    sql = LakeSql(lake, memory="60MB")
    temporary = sql._temporary
    question = "select count(*) as n from (select i from range(6000000) t(i) order by hash(i)) q"
    with sql:
        answer = sql.query(question.replace("count(*) as n", "*") + " limit 1")
        assert len(list(answer.batches)) == 1
        assert temporary.is_dir()
    assert not temporary.exists()


@pytest.mark.parametrize("name", ["it's", "''", 'a "b" ; c'])
def test_the_temporary_folder_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    lake = simple_lake(tmp_path / "lake", numbers=NUMBERS)
    sql = LakeSql(lake)
    assert sql._temporary.parent == folder
    (found,) = ask(sql, "select current_setting('temp_directory') as t")
    assert found["t"] == str(sql._temporary / "spilled")


def test_a_temporary_folder_that_is_not_utf_8_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    lake = simple_lake(tmp_path / "lake", numbers=NUMBERS)
    with pytest.raises(SqlError, match="is not UTF-8: set TMPDIR to another"):
        LakeSql(lake)
    assert list(folder.iterdir()) == []


def test_a_wrong_amount_of_memory_is_one_sentence(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, numbers=NUMBERS)
    with pytest.raises(SqlError, match=r"--memory .* is not UTF-8"):
        LakeSql(lake, memory=os.fsdecode(b"\xff"))
    with pytest.raises(SqlError, match="--memory lots") as caught:
        LakeSql(lake, memory="lots")
    assert "\n" not in str(caught.value)


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_mistake_in_the_question_is_pointed_at(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, numbers=NUMBERS)
    with pytest.raises(SqlError) as caught:
        ask(LakeSql(lake), "select a fro numbers x y")
    first, place, caret = str(caught.value).splitlines()
    assert "syntax error" in first
    assert place[caret.index("^") :].startswith("numbers x")


@pytest.mark.parametrize("question", ["", " ;; ", "-- nothing"])
def test_no_question_is_a_mistake(tmp_path: Path, question: str) -> None:
    lake = simple_lake(tmp_path, numbers=NUMBERS)
    with pytest.raises(SqlError, match="no statement"):
        ask(LakeSql(lake), question)


def test_an_unknown_table_is_told_with_those_that_there_are(kept: Kept) -> None:
    with pytest.raises(SqlError) as caught:
        ask(kept.sql(), "select * from mesages_now")
    assert str(caught.value).splitlines()[0] == (
        "there is no table mesages_now: did you mean messages_now? "
        "there are messages, messages_not_landed, messages_now, messages_once"
    )
    assert "pg_" not in str(caught.value)


def test_a_qos_1_message_that_was_sent_again_is_there_once(kept: Kept) -> None:
    def sent(
        number: int,
        *,
        topic: str = "plant/1",
        payload: bytes = b"",
        qos: int = 1,
        dup: bool = False,
        client_id: str = "press",
    ) -> int:
        """Record a message with this packet identifier; its seq."""
        kept.keeper.last += 1
        commit = Commit()
        commit.at = received(kept.keeper.last) / 1e6
        commit.records.append(
            RecordedMessage(
                kept.keeper.row.id,
                kept.keeper.last,
                topic,
                payload or b"%d" % number,
                qos=qos,
                retain=False,
                dup=dup,
                client_id=client_id,
                user_name=None,
                packet_id=number,
                version=5,
                properties=NO_PROPERTIES,
            )
        )
        kept.keeper.database.apply([commit])
        return kept.keeper.last

    before = kept.keeper.last
    repeats = []
    sent(1)
    # Sent again, and once more.
    repeats += [sent(1, dup=True), sent(1, dup=True)]
    # Not repeats: without DUP; of another client; with another payload, topic or QoS; the first.
    sent(1)
    sent(1, dup=True, client_id="other")
    sent(1, dup=True, payload=b"x")
    sent(1, dup=True, payload=b"x", topic="plant/2")
    sent(2, qos=2)
    sent(2, qos=2, dup=True)
    sent(3, dup=True)
    sent(4)
    sent(5)
    # Other messages came between, with other packet identifiers.
    repeats.append(sent(4, dup=True))
    found = ask(kept.sql(), f"select seq from messages_once where seq > {before} order by seq")
    expected = [seq for seq in range(before + 1, kept.keeper.last + 1) if seq not in repeats]
    assert [row["seq"] for row in found] == expected
    names = [
        list(ask(kept.sql(), f"select * from messages_{view} limit 1")[0])
        for view in ("now", "once")
    ]
    assert names[0] == names[1]


def test_a_table_of_a_landing_file_is_queried_as_it_is(kept: Kept) -> None:
    """The rows of the record have other columns, so that they cannot be added to it."""
    columns = ["node", "seq", "received", "topic"]
    record = NodeRecord(kept.keeper.root, "plant", kept.keeper.node)
    rows = with_date(pa.concat_tables(record.tables(1, 3)).select(columns))
    land_rows(kept.lake, rows, table="typed")
    assert ask(kept.sql(), "select count(*) as n from typed") == [{"n": 3}]
    with pytest.raises(SqlError, match="there is no table typed_now"):
        ask(kept.sql(), "select * from typed_now")


def test_an_error_in_the_middle_ends_the_answer_with_it(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, numbers=pa.table({"a": range(300_000)}))
    question = "select case when a = 250000 then error('boom') else a::varchar end from numbers"
    with LakeSql(lake) as sql, pytest.raises(SqlError, match="boom"):
        list(sql.query(question).batches)


def test_an_empty_lake_and_no_lake_are_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SqlError, match="the lake has none"):
        ask(LakeSql(str(tmp_path / "empty")), "select * from messages")
    assert ask(LakeSql(str(tmp_path / "empty")), "select 1 as a") == [{"a": 1}]
    with pytest.raises(TableError, match="there is no lake at"):
        LakeSql(str(tmp_path / "none"))


def test_whoever_has_enough_ends_the_query(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, numbers=NUMBERS)
    before = threading.active_count()
    with LakeSql(lake) as sql, sql.query("select * from range(100000000000)") as answer:
        assert next(answer.batches).num_rows > 0
    assert threading.active_count() == before
    with LakeSql(lake) as sql, sql.query("select * from range(100000000000)"):
        pass
    assert threading.active_count() == before


def test_an_answer_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, numbers=NUMBERS)
    question = "select repeat('x', 100000) as x from range(100000)"  # ten gigabytes
    rows = 0
    with LakeSql(lake, memory="200MB") as sql, sql.query(question) as answer:
        for batch in answer.batches:
            rows += batch.num_rows
            if rows > 20_000:
                break
    assert rows > 20_000


def test_a_lake_with_columns_that_were_added_later_has_them_in_all_views(kept: Kept) -> None:
    table = DeltaTable(kept.lake / "messages")
    from deltalake.schema import Field, PrimitiveType

    table.alter.add_columns([Field("site", PrimitiveType("string"), nullable=True)])
    rows = ask(kept.sql(), "select * from messages_now order by seq")
    assert [row["site"] for row in rows] == [None] * 10
    assert list(rows[0])[-1] == "landed"


def test_holdings_and_table_may_be_of_several_nodes(tmp_path: Path) -> None:
    kept = Kept(tmp_path, nodes=("n1", "n2"))
    for keeper in kept.keepers:
        keeper.commit(6)
        keeper.seal(4)
    kept.land(2, of=0)
    kept.land(4, of=1)
    rows = ask(
        kept.sql(),
        "select node, landed, count(*) as n from messages_now group by all order by all",
    )
    assert [tuple(row.values()) for row in rows] == [
        ("n1", False, 4),
        ("n1", True, 2),
        # What the second node has not sealed is in a store that nobody told of.
        ("n2", True, 4),
    ]
    with StreamCatalog(kept.record.data, kept.record.root) as catalog:
        assert [each.node for each in catalog.records("plant")] == ["n1", "n2"]
    kept.close()


def test_rows_land_from_tables_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keeper.commit(2)
    kept.keeper.seal(2)
    rows = with_date(pa.concat_tables(NodeRecord(kept.keeper.root, "plant", "n1").tables(1, 2)))
    land_rows(kept.lake, rows)
    land_rows(kept.lake, rows)
    assert ask(kept.sql(), "select count(*) as n from messages_now") == [{"n": 2}]
    kept.close()


# --- payloads as text and JSON --------------------------------------------------------------------

PAYLOADS = {
    1: b'{"value": 3, "unit": "C"}',
    2: b"\xff\x00",
    3: b"21.5",
    4: "späte".encode(),
    5: b"",
    6: b'{"value": ',
    7: b'[{"value": null}]',
    8: b'{"a":' * 50_000,
}
EXPECTED = {
    1: (True, "3"),
    2: (False, None),
    3: (True, None),
    4: (True, None),
    5: (True, None),
    6: (True, None),
    7: (True, None),
    8: (True, None),
}


def test_payloads_are_text_and_json_where_they_are_that(tmp_path: Path) -> None:
    """One binary row harms nobody."""
    rows = pa.table({"seq": list(PAYLOADS), "payload": list(PAYLOADS.values())})
    write_deltalake(tmp_path / "raw", rows)
    query = "select seq, text is not null as is_text, json->>'value' as value from raw order by seq"
    found = ask(LakeSql(str(tmp_path)), query)
    assert {row["seq"]: (row["is_text"], row["value"]) for row in found} == EXPECTED
    (row,) = ask(LakeSql(str(tmp_path)), "select text, json::text as json from raw where seq = 3")
    assert row == {"text": "21.5", "json": "21.5"}
    (row,) = ask(LakeSql(str(tmp_path)), "select seq from raw where json->>'unit' = 'C'")
    assert row == {"seq": 1}


def test_own_columns_of_a_table_stay_what_they_are(tmp_path: Path) -> None:
    """Neither does a payload that is no bytes get another form."""
    own = pa.table({"payload": [b"1"], "TEXT": [7], "Json": ["own"]})
    write_deltalake(tmp_path / "own", own)
    assert ask(LakeSql(str(tmp_path)), "select text, json from own") == [{"TEXT": 7, "Json": "own"}]
    write_deltalake(tmp_path / "words", pa.table({"payload": ["words"]}))
    assert ask(LakeSql(str(tmp_path)), "select * from words") == [{"payload": "words"}]


def test_rows_that_have_not_landed_have_the_same_columns(kept: Kept) -> None:
    query = "select landed, count(*) as n, count(text) as texts from messages_now group by 1"
    found = ask(kept.sql(), query)
    assert {row["landed"] for row in found} == {True, False}
    assert all(row["n"] == row["texts"] for row in found)
