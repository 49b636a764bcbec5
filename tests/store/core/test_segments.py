"""Segments: names, the reader's rule, the row, and back to records."""

import io
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.extras import need
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.store.commit import RecordedMessage
from semel.store.roots import LocalRoot
from semel.store.segment_checksums import KEY
from semel.store.segment_names import MAXIMUM_SEQ, parse_segment_name, segment_name
from semel.store.segment_reader import SegmentReader
from semel.store.segment_writer import (
    GROUP_ROWS,
    LARGEST_CHUNK,
    read_rows,
    seal_rows,
    write_segment,
    write_tables,
)
from semel.store.segments import (
    CHUNK_BYTES,
    GROUP_BYTES_KEY,
    RecordError,
    check_segment,
    first_since,
    pick,
    records_of,
    schema,
    segment_times,
    table_of,
)
from tests.store.memory_root import MemoryRoot
from tests.store.recorded import (
    fields,
    insert,
    make_database,
    message,
    put,
    read_records,
    reader,
    received,
    row_of,
)

pa = need("pyarrow", extra="broker", by="this test")
pq = need("pyarrow.parquet", extra="broker", by="this test")

# --- names ----------------------------------------------------------------------------------------


def test_a_name_holds_both_numbers_in_twenty_digits() -> None:
    assert segment_name(1, 500) == "00000000000000000001-00000000000000000500.parquet"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, MAXIMUM_SEQ), st.integers(1, MAXIMUM_SEQ))))
def test_names_are_read_back_and_sort_as_their_numbers(pairs: list[tuple[int, int]]) -> None:
    ranges = sorted((min(pair), max(pair)) for pair in pairs)
    names = [segment_name(*each) for each in ranges]
    assert names == sorted(names)
    assert [parse_segment_name(name) for name in names] == ranges


@pytest.mark.parametrize(
    "name",
    [
        "",
        "00000000000000000001-00000000000000000500",
        "00000000000000000001-00000000000000000500.parquet ",
        "00000000000000000001-00000000000000000500.parquet\n",
        "00000000000000000001-00000000000000000500.PARQUET",
        ".tmp-7-00000000000000000001-00000000000000000500.parquet",
        "00000000000000000001-0000000000000000050.parquet",
        "000000000000000000001-000000000000000000500.parquet",
        "1-500.parquet",
        "0000000000000000000١-00000000000000000500.parquet",
        "+0000000000000000001-00000000000000000500.parquet",
        "00000000000000000002-00000000000000000001.parquet",
        "00000000000000000000-00000000000000000001.parquet",
        "00000000000000000001-99999999999999999999.parquet",
        "00000000000000000001_00000000000000000500.parquet",
        "_owner.json",
        "part-0.parquet",
    ],
)
def test_what_is_not_named_as_a_segment_is_none(name: str) -> None:
    assert parse_segment_name(name) is None


@pytest.mark.parametrize(("first", "last"), [(0, 1), (2, 1), (-1, 1), (1, MAXIMUM_SEQ + 1)])
def test_no_segment_is_named_by_an_impossible_range(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="not a valid range"):
        segment_name(first, last)


def test_a_segment_of_one_row_and_the_highest_number_have_names() -> None:
    assert parse_segment_name(segment_name(1, 1)) == (1, 1)
    assert parse_segment_name(segment_name(MAXIMUM_SEQ, MAXIMUM_SEQ)) == (MAXIMUM_SEQ, MAXIMUM_SEQ)


# --- the reader's rule ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "chosen"),
    [
        ([], []),
        ([(1, 10)], [(1, 10)]),
        ([(11, 20), (1, 10)], [(1, 10), (11, 20)]),
        # A record may begin anywhere: retention deletes its start.
        ([(91, 100), (101, 101)], [(91, 100), (101, 101)]),
        ([(1, 10), (11, 20), (1, 20)], [(1, 20)]),
        ([(1, 10), (11, 20), (1, 20), (21, 30)], [(1, 20), (21, 30)]),
        ([(1, 10), (1, 20), (1, 30)], [(1, 30)]),
        ([(5, 10), (1, 10)], [(1, 10)]),
        ([(1, 10), (1, 10)], [(1, 10)]),
        # Those that are covered need not fit to each other.
        ([(1, 30), (2, 9), (5, 12), (20, 25)], [(1, 30)]),
        # One that is half covered by another is whole in a third.
        ([(1, 10), (5, 15), (1, 20)], [(1, 20)]),
    ],
)
def test_what_another_covers_is_not_read(
    ranges: list[tuple[int, int]], chosen: list[tuple[int, int]]
) -> None:
    assert pick(ranges) == chosen


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(1, 10), (12, 20)], "rows 11 to 11 are missing"),
        ([(1, 10), (11, 20), (31, 40)], "rows 21 to 30 are missing"),
        ([(1, 10), (10, 20)], "overlap"),
        ([(1, 10), (5, 15)], "overlap"),
    ],
)
def test_a_gap_or_half_an_overlap_names_the_two_files(
    ranges: list[tuple[int, int]], words: str
) -> None:
    with pytest.raises(RecordError, match=words) as caught:
        pick(ranges)
    for each in ranges[-2:]:
        assert segment_name(*each) in str(caught.value)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_was_merged_every_row_is_read_once(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    start = data.draw(st.integers(1, 50))
    level = []
    for length in lengths:
        level.append((start, start + length - 1))
        start += length
    present = set(level)
    for _ in range(data.draw(st.integers(0, 4))):
        low = data.draw(st.integers(0, len(level) - 1))
        high = data.draw(st.integers(low, len(level) - 1))
        merged = (level[low][0], level[high][1])
        # Of what is covered now, any part may be deleted already.
        for each in level[low : high + 1]:
            if each != merged and data.draw(st.booleans()):
                present.discard(each)
        present.add(merged)
        level[low : high + 1] = [merged]
    shuffled = data.draw(st.permutations(sorted(present)))
    assert pick(shuffled) == level


# --- the row --------------------------------------------------------------------------------------


def test_the_row_is_that_of_the_record() -> None:
    assert {field.name: str(field.type) for field in schema()} == {
        "seq": "int64",
        "node": "string",
        "received": "timestamp[us, tz=UTC]",
        "topic": "string",
        "payload": "binary",
        "qos": "int32",
        "retain": "bool",
        "dup": "bool",
        "client_id": "string",
        "user_name": "string",
        "packet_id": "int32",
        "protocol_version": "int32",
        "payload_format": "int32",
        "content_type": "string",
        "response_topic": "string",
        "correlation_data": "binary",
        "message_expiry": "int64",
        "user_properties": "list<element: struct<key: string, value: string>>",
    }
    assert all(field.nullable for field in schema())


FULL = RecordedMessage(
    1,
    42,
    "plant/ö/temperature",
    b"\x00\xff",
    qos=2,
    retain=True,
    dup=True,
    client_id="sensor",
    user_name="ann",
    packet_id=65_535,
    version=5,
    properties=Properties(
        payload_format_indicator=0,
        message_expiry_interval=4_294_967_295,
        content_type="text/plain",
        response_topic="answers/here",
        correlation_data=b"\x01\x00",
        user_properties=[("b", "1"), ("a", "2"), ("b", "1")],
    ),
)
EMPTY = RecordedMessage(1, 43, "t", b"", version=4)


def columns_of(record: RecordedMessage) -> tuple[Any, ...]:
    """A row as the sealer selects it: without its stream, at a time of its own."""
    _, seq, _, *rest = row_of(record, received(record.seq))
    return (seq, *rest)


def test_every_column_says_what_the_message_said() -> None:
    row = table_of([columns_of(FULL)], "n1").to_pylist()[0]
    assert row.pop("received").timestamp() == pytest.approx(received(42) / 1e6)
    assert row == {
        "seq": 42,
        "node": "n1",
        "topic": "plant/ö/temperature",
        "payload": b"\x00\xff",
        "qos": 2,
        "retain": True,
        "dup": True,
        "client_id": "sensor",
        "user_name": "ann",
        "packet_id": 65_535,
        "protocol_version": 5,
        "payload_format": 0,
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": b"\x01\x00",
        "message_expiry": 4_294_967_295,
        "user_properties": [
            {"key": "b", "value": "1"},
            {"key": "a", "value": "2"},
            {"key": "b", "value": "1"},
        ],
    }


def test_what_a_message_lacks_is_null() -> None:
    row = table_of([columns_of(EMPTY)], "n1").to_pylist()[0]
    assert {name for name, value in row.items() if value is None} == {
        "user_name",
        "packet_id",
        "payload_format",
        "content_type",
        "response_topic",
        "correlation_data",
        "message_expiry",
        "user_properties",
    }
    assert (row["qos"], row["retain"], row["dup"], row["payload"]) == (0, False, False, b"")


def test_without_user_properties_there_is_no_list_whatever_else_there_is() -> None:
    other = RecordedMessage(1, 44, "t", b"", version=5, properties=Properties(content_type="x"))
    found = table_of([columns_of(each) for each in (FULL, other, EMPTY)], "n1")
    assert [each and len(each) for each in found["user_properties"].to_pylist()] == [3, None, None]
    assert found["content_type"].to_pylist() == ["text/plain", "x", None]


def test_times_are_exact_to_the_microsecond() -> None:
    row = (1, START_OF_TIME, *columns_of(EMPTY)[2:])
    assert table_of([row], "n").column("received").cast(pa.int64()).to_pylist() == [START_OF_TIME]


START_OF_TIME = 1_700_000_000_123_457

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)
section = st.builds(
    Properties,
    payload_format_indicator=st.none() | st.integers(0, 1),
    message_expiry_interval=st.none() | st.integers(0, 2**32 - 1),
    content_type=st.none() | texts,
    response_topic=st.none() | st.sampled_from(["a", "a/b", "ä"]),
    correlation_data=st.none() | st.binary(max_size=4),
    user_properties=st.lists(st.tuples(texts, texts), max_size=3),
)
messages = st.builds(
    RecordedMessage,
    st.just(7),
    st.just(0),
    st.sampled_from(["a", "a/b", "ß/+".replace("+", "x")]),
    st.binary(max_size=20),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    dup=st.booleans(),
    client_id=texts,
    user_name=st.none() | texts,
    packet_id=st.integers(0, 65_535),
    version=st.sampled_from([4, 5]),
    properties=st.just(NO_PROPERTIES) | section,
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(messages, min_size=1, max_size=8))
def test_every_record_comes_back_from_its_file(drawn: list[RecordedMessage]) -> None:
    written = [
        RecordedMessage(
            7,
            seq,
            each.topic_name,
            each.payload,
            qos=each.qos,
            retain=each.retain,
            dup=each.dup,
            client_id=each.client_id,
            user_name=each.user_name,
            packet_id=each.packet_id,
            version=each.version,
            properties=each.properties,
        )
        for seq, each in enumerate(drawn, 1)
    ]
    sink = io.BytesIO()
    assert write_tables(sink, [table_of([columns_of(each) for each in written], "n")]) == len(drawn)
    table = pq.read_table(io.BytesIO(sink.getvalue()))
    assert table.schema.equals(schema())
    for before, after in zip(written, records_of(table, 7), strict=True):
        assert fields(before)[:-1] == fields(after)[:-1]
        assert set(before.properties.items) == set(after.properties.items)
        assert len(before.properties.items) == len(after.properties.items)
        assert before.properties.user_properties == after.properties.user_properties


def test_texts_may_come_as_utf_8() -> None:
    row = columns_of(FULL)
    as_bytes = tuple(value.encode() if isinstance(value, str) else value for value in row)
    assert table_of([as_bytes], "n").equals(table_of([row], "n"))


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Any:
    connection = make_database(tmp_path / "store.db")
    yield connection
    connection.close()


@pytest.fixture
def root(tmp_path: Path) -> LocalRoot:
    return LocalRoot(tmp_path / "streams")


def seal(connection: sqlite3.Connection, root: Any, first: int, last: int) -> int:
    """Rows first to last of stream 1, which is called plant here."""
    return seal_rows(connection, root, "plant", "n1", stream_id=1, first=first, last=last)


def test_a_file_is_made_for_spark(
    database: sqlite3.Connection, root: LocalRoot, tmp_path: Path
) -> None:
    insert(database, 1, 300)
    size = seal(database, root, 1, 300)
    path = tmp_path / "streams/plant/n1" / segment_name(1, 300)
    assert path.stat().st_size == size
    with pq.ParquetFile(path) as opened:
        # With Arrow's schema a reader would make dictionary types of dictionary pages.
        assert set(opened.metadata.metadata) == {KEY, GROUP_BYTES_KEY}
        assert opened.schema_arrow.equals(schema())
        group = opened.metadata.row_group(0)
        columns = {
            group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)
        }
        assert {each.compression for each in columns.values()} == {"ZSTD"}
        assert "RLE_DICTIONARY" in columns["topic"].encodings
        assert "RLE_DICTIONARY" not in columns["payload"].encodings
        assert "DELTA_BINARY_PACKED" in columns["seq"].encodings
        assert "user_properties.list.element.key" in columns
        assert opened.schema.column(0).physical_type == "INT64"
        assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(
            opened.schema.column(2).logical_type
        )


def test_the_same_rows_give_the_same_bytes(database: sqlite3.Connection) -> None:
    insert(database, 1, 1_000)
    roots = MemoryRoot(), MemoryRoot()
    for each in roots:
        seal(database, each, 1, 1_000)
    assert roots[0].files == roots[1].files


def test_rows_are_read_in_chunks_that_hold_up_no_checkpoint(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    insert(database, 1, 3 * LARGEST_CHUNK)
    connection = reader(tmp_path / "store.db")
    sizes = []
    for rows in read_rows(connection, 1, 1, 3 * LARGEST_CHUNK):
        sizes.append(len(rows))
        insert(database, 1, 1, stream=1 + len(sizes))
        busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy
    connection.close()
    assert sum(sizes) == 3 * LARGEST_CHUNK
    assert max(sizes) == LARGEST_CHUNK


def test_an_open_reader_would_hold_up_a_checkpoint(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    """The test above can fail."""
    insert(database, 1, 10)
    connection = reader(tmp_path / "store.db")
    cursor = connection.execute("SELECT * FROM record")
    cursor.fetchone()
    insert(database, 11, 11)
    database.execute("PRAGMA busy_timeout = 0")
    busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy
    cursor.close()
    connection.close()


@pytest.mark.slow
def test_large_payloads_make_chunks_of_few_rows(database: sqlite3.Connection) -> None:
    payload = bytes(CHUNK_BYTES // 4)
    put(database, (RecordedMessage(1, seq, "t", payload) for seq in range(1, 81)))
    sizes = [len(rows) for rows in read_rows(database, 1, 1, 80)]
    assert sum(sizes) == 80
    assert max(sizes[1:]) <= 4


@pytest.mark.parametrize("missing", [1, 40, 64, 65, 100, 600])
def test_a_row_that_is_not_there_is_named(database: sqlite3.Connection, missing: int) -> None:
    put(database, (message(seq) for seq in range(1, 601) if seq != missing))
    root = MemoryRoot()
    with pytest.raises(RecordError, match=f"row {missing} is not in the store"):
        seal(database, root, 1, 600)
    assert root.files == {}


def test_a_file_with_too_few_rows_is_not_written() -> None:
    root = MemoryRoot()
    table = table_of([columns_of(message(1))], "n1")
    with pytest.raises(RecordError, match=f"{segment_name(1, 2)} needs 2 rows, but got 1"):
        write_segment(root, "plant", "n1", lambda: [table], first=1, last=2)
    assert root.files == {}
    write_segment(root, "plant", "n1", lambda: [table], first=1, last=1)
    check_segment(root, "plant", "n1", first=1, last=1)


def test_rows_around_the_range_and_of_other_streams_are_left_alone(
    database: sqlite3.Connection,
) -> None:
    insert(database, 1, 30)
    insert(database, 1, 30, stream=2)
    root = MemoryRoot()
    seal(database, root, 11, 20)
    found = read_records(root, "plant", "n1", 1, 100, stream_id=1)
    assert [fields(each) for each in found] == [fields(message(seq)) for seq in range(11, 21)]


# --- reading --------------------------------------------------------------------------------------


@pytest.fixture
def sealed(database: sqlite3.Connection) -> MemoryRoot:
    """Rows 11 to 100 in segments of ten."""
    insert(database, 11, 100)
    root = MemoryRoot()
    for first in range(11, 100, 10):
        seal(database, root, first, first + 9)
    return root


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_any_part_can_be_read(data: st.DataObject) -> None:
    connection = make_database(":memory:")
    insert(connection, 5, 40)
    root = MemoryRoot()
    for first, last in ((5, 5), (6, 20), (21, 40)):
        seal(connection, root, first, last)
    connection.close()
    with SegmentReader(root, "plant", "n1", stream_id=1) as reading:
        for _ in range(3):
            first = data.draw(st.integers(1, 45))
            limit = data.draw(st.integers(0, 50))
            begin = max(first, 5)
            expected = [fields(message(seq)) for seq in range(begin, min(begin + limit, 41))]
            assert [fields(each) for each in reading.read(first, limit)] == expected


def test_reading_goes_on_across_segments_and_sees_new_ones(
    sealed: MemoryRoot, database: sqlite3.Connection
) -> None:
    with SegmentReader(sealed, "plant", "n1", stream_id=1) as reading:
        seen: list[int] = []
        while found := reading.read(seen[-1] + 1 if seen else 1, 7):
            seen += [each.seq for each in found]
        assert seen == list(range(11, 101))
        insert(database, 101, 105)
        seal(database, sealed, 101, 105)
        assert [each.seq for each in reading.read(101, 7)] == list(range(101, 106))
        assert reading.read(106, 7) == []


def test_going_on_opens_each_segment_once(sealed: MemoryRoot) -> None:
    opened: list[str] = []
    sealed.hook = lambda what, path: opened.append(path) if what == "read" else None
    with SegmentReader(sealed, "plant", "n1") as reading:
        for first in range(11, 101):
            assert [each.seq for each in reading.read(first, 1)] == [first]
    assert len(opened) == len(set(opened)) == 9


@pytest.mark.slow
def test_a_large_segment_is_read_from_the_middle(tmp_path: Path) -> None:
    connection = make_database(":memory:")
    last = 2 * GROUP_ROWS
    put(connection, (RecordedMessage(1, seq, "t", b"%d" % seq) for seq in range(1, last + 1)))
    root = LocalRoot(tmp_path)
    seal(connection, root, 1, last)
    connection.close()
    with pq.ParquetFile(tmp_path / "plant/n1" / segment_name(1, last)) as opened:
        assert opened.metadata.num_row_groups > 1
    found = read_records(root, "plant", "n1", GROUP_ROWS - 3, 10)
    assert [each.payload for each in found] == [
        b"%d" % seq for seq in range(GROUP_ROWS - 3, GROUP_ROWS + 7)
    ]
    assert [each.seq for each in read_records(root, "plant", "n1", last, 10)] == [last]


def test_an_empty_or_unknown_stream_has_no_records() -> None:
    assert read_records(MemoryRoot(), "plant", "n1", 1, 10) == []
    assert first_since(MemoryRoot(), "plant", "n1", 0) is None


def test_a_file_that_goes_while_it_is_read_is_looked_for_elsewhere(
    sealed: MemoryRoot, database: sqlite3.Connection
) -> None:
    old = sealed.file_path("plant", "n1", segment_name(31, 40))

    def vanish(what: str, path: str) -> None:
        if (what, path) == ("read", old) and old in sealed.files:
            sealed.hook = lambda what, path: None
            seal(database, sealed, 11, 100)
            sealed.delete(old)

    sealed.hook = vanish
    assert [each.seq for each in read_records(sealed, "plant", "n1", 35, 20)] == list(range(35, 55))


def test_what_retention_takes_while_it_is_read_ends_the_piece(sealed: MemoryRoot) -> None:
    """Rows that are returned follow each other; the next piece begins after the hole."""

    def take(what: str, path: str) -> None:
        if (what, path) == ("read", sealed.file_path("plant", "n1", segment_name(21, 30))):
            sealed.hook = lambda what, path: None
            for first in (11, 21, 31):
                sealed.delete(sealed.file_path("plant", "n1", segment_name(first, first + 9)))

    sealed.hook = take
    with SegmentReader(sealed, "plant", "n1") as reading:
        assert [each.seq for each in reading.read(15, 50)] == list(range(15, 21))
        assert [each.seq for each in reading.read(21, 5)] == list(range(41, 46))


def test_a_file_that_is_listed_but_never_there_is_an_error(sealed: MemoryRoot) -> None:
    listing = sealed.entries("plant/n1")

    class Ghost(MemoryRoot):
        def entries(self, folder: str) -> Any:
            return listing

    with pytest.raises(FileNotFoundError):
        read_records(Ghost(), "plant", "n1", 11, 1)
    with pytest.raises(FileNotFoundError):
        first_since(Ghost(), "plant", "n1", 0)


def test_a_gap_is_reported_and_not_jumped_over(sealed: MemoryRoot) -> None:
    sealed.delete(sealed.file_path("plant", "n1", segment_name(31, 40)))
    with pytest.raises(RecordError, match="rows 31 to 40 are missing"):
        read_records(sealed, "plant", "n1", 11, 100)


def test_a_gap_that_was_only_in_the_listing_is_none(sealed: MemoryRoot) -> None:
    """The oldest segments are deleted while somebody lists: one is seen, the next is not."""
    calls: list[str] = []

    class Listed(MemoryRoot):
        def entries(self, folder: str) -> Any:
            calls.append(folder)
            found = super().entries(folder)
            if len(calls) == 1:
                return [each for each in found if each.name != segment_name(21, 30)]
            return [each for each in found if each.name > segment_name(30, 30)]

    root = Listed()
    root.files = sealed.files
    assert [each.seq for each in read_records(root, "plant", "n1", 1, 2)] == [31, 32]


@pytest.mark.parametrize("keep", [0, 1, 8, 200, -1, -100])
def test_a_damaged_file_is_named(sealed: MemoryRoot, keep: int) -> None:
    path = sealed.file_path("plant", "n1", segment_name(31, 40))
    data, modified = sealed.files[path]
    sealed.files[path] = (data[:keep], modified)
    with pytest.raises(RecordError, match=segment_name(31, 40)):
        check_segment(sealed, "plant", "n1", first=31, last=40)
    with pytest.raises(RecordError, match="stream plant, node n1"):
        read_records(sealed, "plant", "n1", 31, 1)


def test_a_whole_file_passes(sealed: MemoryRoot) -> None:
    check_segment(sealed, "plant", "n1", first=31, last=40)


def test_a_disk_that_cannot_be_read_is_no_damage(sealed: MemoryRoot) -> None:
    class Broken(io.BytesIO):
        def readinto(self, memory: Any, /) -> int:
            raise OSError(5, "Input/output error")

    class Disk(MemoryRoot):
        def read(self, path: str) -> Any:
            return Broken(sealed.files[path][0])

    with pytest.raises(OSError, match="Input/output error"):
        check_segment(Disk(), "plant", "n1", first=31, last=40)


@pytest.mark.parametrize("name", [(31, 41), (30, 39), (31, 39), (41, 50), (1, 40)])
def test_a_file_with_other_rows_than_its_name_says_is_refused(
    sealed: MemoryRoot, name: tuple[int, int]
) -> None:
    moved = MemoryRoot()
    moved.files[moved.file_path("plant", "n1", segment_name(*name))] = sealed.files[
        sealed.file_path("plant", "n1", segment_name(31, 40))
    ]
    with pytest.raises(RecordError, match=segment_name(*name)):
        check_segment(moved, "plant", "n1", first=name[0], last=name[1])


@pytest.mark.parametrize("columns", [["seq"], ["received", "seq"]])
def test_a_parquet_file_of_somebody_else_is_refused(columns: list[str]) -> None:
    root = MemoryRoot()
    table = pa.table({name: pa.array([1], pa.int64()) for name in columns})

    def fill(sink: Any) -> None:
        pq.write_table(table, sink)

    root.write(root.file_path("plant", "n1", segment_name(1, 1)), fill)
    with pytest.raises(RecordError, match="it has no column node"):
        check_segment(root, "plant", "n1", first=1, last=1)


def test_a_file_without_statistics_is_refused() -> None:
    root = MemoryRoot()
    table = table_of([columns_of(message(1))], "n1")

    def fill(sink: Any) -> None:
        pq.write_table(table, sink, store_schema=False, write_statistics=False)

    root.write(root.file_path("plant", "n1", segment_name(1, 1)), fill)
    with pytest.raises(RecordError, match="no statistics"):
        check_segment(root, "plant", "n1", first=1, last=1)


def test_times_of_a_segment_are_those_of_its_oldest_and_newest_row(sealed: MemoryRoot) -> None:
    times = segment_times(sealed, "plant", "n1", first=31, last=40)
    assert times == (received(31), received(40))


@pytest.mark.parametrize(
    ("at", "seq"),
    [
        (0, 11),
        (received(11), 11),
        (received(11) + 1, 12),
        (received(55) - 1, 55),
        (received(60) + 1, 61),
        (received(100), 100),
        (received(100) + 1, None),
    ],
)
def test_the_first_row_since_a_time_is_found(sealed: MemoryRoot, at: int, seq: int | None) -> None:
    assert first_since(sealed, "plant", "n1", at) == seq


# --- pyarrow --------------------------------------------------------------------------------------
