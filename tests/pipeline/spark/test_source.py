"""The source over segments: exactly the rows, whatever happens to the files meanwhile."""

import logging
import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from semel.mqtt.properties import Properties
from semel.pipeline.errors import DataLoss, OptionError, PipelineError
from semel.pipeline.source_columns import COLUMNS, NEVER_NULL
from semel.pipeline.source_partitions import SegmentPartition
from semel.store import segment_writer
from semel.store.reading import NodeRecord
from semel.store.roots import LocalRoot, RootEntry, open_root
from semel.store.rows import properties_value
from semel.store.segment_names import segment_name
from semel.store.segment_writer import write_segment
from semel.store.segments import group_bytes, schema, table_of
from tests.pipeline.made import compact, lose, trim_before, write_messages
from tests.pipeline.sources import (
    Query,
    batch_read,
    rows,
    rows_of,
    source_of,
    spark_schema,
)

STREAM = "all"


def write(root: Path, first: int, count: int, node: str = "n1") -> None:
    write_messages(root, STREAM, node, first, count)


def made_rows(query: Query, start: dict[str, int], end: dict[str, int]) -> list[int]:
    """How many rows each partition of a batch has."""
    return [table.num_rows for table in query.tables(start, end)]


# --- what is read ---------------------------------------------------------------------------------


def test_the_schema_is_that_of_a_segment() -> None:
    found = spark_schema()
    assert {each.name: each.dataType.simpleString() for each in found} == COLUMNS
    assert to_arrow_schema(found, timezone="UTC").equals(schema())


def test_every_column_of_every_row_comes_as_it_was_recorded(tmp_path: Path) -> None:
    write(tmp_path, 1, 500)
    query = Query(tmp_path)
    query.step()
    assert query.batches == [({"n1": 0}, {"n1": 500})]
    found = pa.concat_tables(query.tables(*query.batches[0]))
    record = NodeRecord(open_root(tmp_path), STREAM, "n1")
    assert found.equals(pa.concat_tables(record.tables(1, 500)))
    assert found.column("user_properties")[0].as_py() == [
        {"key": "n", "value": "1"},
        {"key": "n", "value": "again"},
    ]


def test_rows_come_in_order_of_node_and_number(tmp_path: Path) -> None:
    for node in ("n2", "n1"):
        for first in (1, 11):
            write(tmp_path, first, 10, node)
    query = Query(tmp_path)
    assert query.drain() == rows("n1", 1, 20) + rows("n2", 1, 20)


def test_a_batch_is_the_same_rows_whatever_was_sealed_or_merged_meanwhile(tmp_path: Path) -> None:
    for first in range(1, 101, 10):
        write(tmp_path, first, 10)
    query = Query(tmp_path, maxRowsPerBatch="37")
    query.drain()
    before = [query.read(*batch) for batch in query.batches]
    assert [len(each) for each in before] == [37, 37, 26]
    compact(tmp_path, STREAM, "n1", 1, 50)
    write(tmp_path, 101, 10)
    write(tmp_path, 1, 5, "n0")
    assert [query.read(*batch) for batch in query.batches] == before
    compact(tmp_path, STREAM, "n1", 1, 110)
    assert [query.read(*batch) for batch in query.batches] == before
    query.drain()
    assert sorted(query.rows) == rows("n0", 1, 5) + rows("n1", 1, 110)


def test_a_file_that_is_merged_between_planning_and_reading_is_found_where_it_is_now(
    tmp_path: Path,
) -> None:
    for first in range(1, 101, 10):
        write(tmp_path, first, 10)
    query = Query(tmp_path)
    partitions = list(query.reader.partitions({"n1": 4}, {"n1": 95}))
    compact(tmp_path, STREAM, "n1", 1, 100)
    found = [
        row
        for each in partitions
        for batch in query.reader.read(each)
        for row in rows_of(pa.Table.from_batches([batch]))
    ]
    assert found == rows("n1", 5, 95)


def test_a_query_goes_on_while_segments_are_added_merged_and_nodes_come(tmp_path: Path) -> None:
    chance = random.Random(6)
    ends = {"n1": 0}
    (tmp_path / STREAM / "n1").mkdir(parents=True)
    query = Query(tmp_path, maxRowsPerBatch="23")
    for turn in range(60):
        node = chance.choice(sorted(ends))
        count = chance.randint(1, 20)
        write(tmp_path, ends[node] + 1, count, node)
        ends[node] += count
        if turn % 9 == 8:
            node = chance.choice([each for each in ends if ends[each]])
            compact(tmp_path, STREAM, node, 1, ends[node])
        if turn % 20 == 10:
            ends[f"n{turn}"] = 0
        for _ in range(chance.randint(0, 2)):
            query.step()
        if turn % 7 == 0:
            query.begin(maxRowsPerBatch=str(chance.randint(1, 50)))
    query.drain()
    expected = [row for node in ends for row in rows(node, 1, ends[node])]
    assert sorted(query.rows) == sorted(expected)
    assert len(ends) == 4
    assert query.offset == dict(sorted(ends.items()))


def test_only_the_nodes_that_are_named_are_read_and_others_stay_where_they_are(
    tmp_path: Path,
) -> None:
    for node in ("n1", "n2", "n3"):
        write(tmp_path, 1, 10, node)
    query = Query(tmp_path, nodes="n1,n3,n9")
    assert query.drain() == rows("n1", 1, 10) + rows("n3", 1, 10)
    write(tmp_path, 11, 5, "n1")
    write(tmp_path, 11, 5, "n2")
    query.begin(nodes="n2")
    assert query.drain() == rows("n2", 1, 15)
    assert query.offset == {"n1": 10, "n2": 15, "n3": 10}
    query.begin()
    assert query.drain() == rows("n1", 11, 15)


# --- where it begins ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 1),
        ("latest", 31),
        ("12", 12),
        ("2026-03-01T12:00:00.025Z", 25),
        ('{"n1": 30}', 30),
        ('{"n1": "latest"}', 31),
    ],
)
def test_a_query_begins_where_it_is_told(tmp_path: Path, start: str, first: int) -> None:
    for begin in (1, 11, 21):
        write(tmp_path, begin, 10)
    query = Query(tmp_path, start=start)
    assert query.drain() == rows("n1", first, 30)
    write(tmp_path, 31, 5)
    # A node that comes later is read from its beginning, wherever the others began.
    write(tmp_path, 1, 5, "n2")
    assert query.drain() == rows("n1", 31, 35) + rows("n2", 1, 5)
    # Where it began matters once only.
    query.begin(start="earliest")
    assert query.drain() == []


def test_a_query_waits_for_a_root_that_is_empty(tmp_path: Path) -> None:
    query = Query(tmp_path)
    assert query.drain() == []
    query_of_a_stream = Query(tmp_path, stream=STREAM)
    assert query_of_a_stream.drain() == []
    write(tmp_path, 1, 3)
    assert query.drain() == rows("n1", 1, 3)
    assert query_of_a_stream.drain() == rows("n1", 1, 3)


def test_the_only_stream_of_a_root_need_not_be_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    assert Query(tmp_path).drain() == rows("n1", 1, 3)
    write_messages(tmp_path, "plant", "n1", 1, 9)
    assert Query(tmp_path, stream="plant").drain() == rows("n1", 1, 9)
    with pytest.raises(OptionError, match=r"option stream is missing: .* has all, plant"):
        Query(tmp_path).drain()
    with pytest.raises(OptionError, match=r"no stream plants: .*; did you mean plant\?"):
        Query(tmp_path, stream="plants").drain()
    with pytest.raises(OptionError, match="option stream: there is no stream plants"):
        batch_read(tmp_path, stream="plants")


def test_a_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    for read in (lambda: Query(tmp_path / "rot").drain(), lambda: batch_read(tmp_path / "rot")):
        with pytest.raises(OptionError, match=r"option root: there is no folder .*rot"):
            read()
    with pytest.raises(OptionError, match="has no streams"):
        batch_read(tmp_path)


# --- limits ---------------------------------------------------------------------------------------


def test_a_limit_of_rows_is_kept_and_shared(tmp_path: Path) -> None:
    write(tmp_path, 1, 100)
    write(tmp_path, 1, 12, "n2")
    query = Query(tmp_path, maxRowsPerBatch="40")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(40)
    query.drain()
    assert [end for _, end in query.batches] == [
        {"n1": 28, "n2": 12},
        {"n1": 68, "n2": 12},
        {"n1": 100, "n2": 12},
    ]
    assert query.reader.reportLatestOffset() == {"n1": 100, "n2": 12}


def test_what_the_engine_asks_for_goes_before_the_option(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        write(tmp_path, first, 10)
    query = Query(tmp_path, maxRowsPerBatch="4")
    assert query.step(ReadMaxRows(3)) == rows("n1", 1, 3)
    assert query.step(ReadAllAvailable()) == rows("n1", 4, 30)
    assert Query(tmp_path).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_with_what_there_was(tmp_path: Path) -> None:
    write(tmp_path, 1, 50)
    query = Query(tmp_path, maxRowsPerBatch="20")
    query.reader.prepareForTriggerAvailableNow()
    query.step()
    write(tmp_path, 51, 50)
    write(tmp_path, 1, 5, "n2")
    query.drain()
    assert query.rows == rows("n1", 1, 50)
    query.begin(maxRowsPerBatch="20")
    query.reader.prepareForTriggerAvailableNow()
    assert sorted(query.drain()) == rows("n1", 51, 100) + rows("n2", 1, 5)


# --- loss -----------------------------------------------------------------------------------------


def test_rows_deleted_before_they_are_read_fail_the_query_or_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for first in range(1, 51, 10):
        write(tmp_path, first, 10)
    query = Query(tmp_path, maxRowsPerBatch="15")
    query.step()
    trim_before(tmp_path, STREAM, "n1", 35)
    with pytest.raises(DataLoss, match="rows 16 to 30 of stream all, node n1, which this query"):
        query.step()
    query.begin(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert query.drain() == rows("n1", 31, 50)
    assert "rows 16 to 30" in caplog.text


def test_a_batch_that_is_read_again_after_its_rows_were_deleted_is_a_loss(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        write(tmp_path, first, 10)
    query = Query(tmp_path)
    query.step()
    trim_before(tmp_path, STREAM, "n1", 11)
    (batch,) = query.batches
    with pytest.raises(DataLoss, match="rows 1 to 10"):
        query.read(*batch)
    query.begin(failOnDataLoss="false")
    assert query.read(*batch) == rows("n1", 11, 30)


@pytest.mark.parametrize("noted", [True, False])
def test_rows_that_vanish_between_planning_and_reading_are_a_loss(
    tmp_path: Path, noted: bool
) -> None:
    for first in (1, 11, 21):
        write(tmp_path, first, 10)
    failing, going_on = Query(tmp_path), Query(tmp_path, failOnDataLoss="false")
    plans = [query.reader.partitions({}, {"n1": 30}) for query in (failing, going_on)]
    if noted:
        trim_before(tmp_path, STREAM, "n1", 21)
        why, left = "rows 1 to 20 .* were deleted", rows("n1", 21, 30)
    else:
        lose(tmp_path, STREAM, "n1", 11, 20)
        why, left = "rows 11 to 20 .* are missing", rows("n1", 1, 10) + rows("n1", 21, 30)
    (planned,), (planned_too,) = plans
    with pytest.raises(DataLoss, match=why):
        list(failing.reader.read(planned))
    found = pa.Table.from_batches(list(going_on.reader.read(planned_too)))
    assert rows_of(found) == left


def test_a_node_that_vanishes_is_a_loss(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    write(tmp_path, 1, 10, "n2")
    (tmp_path / STREAM / "n3").mkdir()
    query = Query(tmp_path)
    query.drain()
    assert query.offset == {"n1": 10, "n2": 10}
    (tmp_path / STREAM / "n3").rmdir()
    assert query.drain() == []
    lose(tmp_path, STREAM, "n2", 1, 10)
    (tmp_path / STREAM / "n2").rmdir()
    with pytest.raises(DataLoss, match=r"processed the rows up to 10 .*n2.* has none of its rows"):
        query.step()
    query.begin(failOnDataLoss="false")
    write(tmp_path, 11, 4)
    assert query.drain() == rows("n1", 11, 14)
    assert query.offset == {"n1": 14, "n2": 10}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_node_that_goes_on_with_the_numbers_of_another_is_read(
    tmp_path: Path, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who changes the name of a node has its rows in a new folder, from the next number on."""
    write(tmp_path, 1, 10)
    query = Query(tmp_path, failOnDataLoss=fail)
    query.drain()
    write(tmp_path, 501, 20, "n2")
    assert query.drain() == rows("n2", 501, 520)
    assert query.offset == {"n1": 10, "n2": 520}
    # Each batch can be read again, and no row is said to be lost.
    assert [row for batch in query.batches for row in query.read(*batch)] == query.rows
    assert not caplog.records
    # But rows that there were are a loss, also for who reads the node for the first time.
    query.begin(failOnDataLoss="true")
    lose(tmp_path, STREAM, "n1", 1, 10)
    with pytest.raises(DataLoss, match=r"rows 1 to 10 .*n1"):
        query.read({}, {"n1": 10})


@pytest.mark.parametrize("start", ["earliest", "latest", "1", "2026-03-01T12:00:00Z"])
def test_a_node_that_is_quiet_when_a_query_begins_is_read_when_it_speaks(
    tmp_path: Path, start: str
) -> None:
    write(tmp_path, 1, 10)
    (tmp_path / STREAM / "n2").mkdir()
    query = Query(tmp_path, start=start)
    query.drain()
    write(tmp_path, 501, 20, "n2")
    assert query.drain() == rows("n2", 501, 520)


def test_rows_that_go_between_planning_and_reading_end_a_task(tmp_path: Path) -> None:
    write(tmp_path, 1, 500)
    write(tmp_path, 501, 500)
    for fail in ("true", "false"):
        query = Query(tmp_path, failOnDataLoss=fail)
        (partition, *_) = query.reader.partitions({"n1": 400}, {"n1": 1_000})
        kept = tmp_path / STREAM / "n1" / "kept"
        (file,) = [
            each for each in (tmp_path / STREAM / "n1").glob("*.parquet") if "501" in each.name
        ]
        file.rename(kept)
        if fail == "true":
            with pytest.raises(DataLoss, match="rows 501 to 1000"):
                list(query.reader.read(partition))
        else:
            found = [batch.num_rows for batch in query.reader.read(partition)]
            assert sum(found) == 100
        kept.rename(file)


def test_a_time_is_found_in_a_record_with_a_gap(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    write(tmp_path, 21, 10)
    query = Query(tmp_path, start="2026-03-01T12:00:00.025Z")
    assert query.drain() == rows("n1", 25, 30)
    query = Query(tmp_path, start="2026-03-01T12:00:00Z", failOnDataLoss="false")
    assert query.drain() == rows("n1", 1, 10) + rows("n1", 21, 30)
    query = Query(tmp_path, start="2026-03-01T12:00:00Z")
    with pytest.raises(DataLoss, match="rows 11 to 20"):
        query.drain()


def test_an_empty_root_may_be_asked_for_a_time_of_a_node(tmp_path: Path) -> None:
    query = Query(tmp_path, start='{"n1": "2026-03-01T12:00:00.005Z"}')
    assert query.drain() == []
    write(tmp_path, 1, 10)
    assert query.drain() == rows("n1", 1, 10)


def test_a_root_that_has_lost_everything_is_a_loss(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    query = Query(tmp_path)
    query.drain()
    lose(tmp_path, STREAM, "n1", 1, 10)
    (tmp_path / STREAM / "n1").rmdir()
    (tmp_path / STREAM).rmdir()
    query.begin()
    with pytest.raises(DataLoss, match="has none of its rows"):
        query.step()
    with pytest.raises(DataLoss, match="rows 1 to 10"):
        query.read({"n1": 0}, {"n1": 10})


def test_retention_that_deletes_what_was_read_is_no_loss(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        write(tmp_path, first, 10)
    query = Query(tmp_path)
    query.drain()
    trim_before(tmp_path, STREAM, "n1", 99)
    assert query.drain() == []
    write(tmp_path, 31, 2)
    assert query.drain() == rows("n1", 31, 32)


def test_a_damaged_segment_is_an_error_and_never_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    write(tmp_path, 11, 10)
    first, second = sorted((tmp_path / STREAM / "n1").iterdir())
    query = Query(tmp_path, failOnDataLoss="false")
    assert len(query.read({}, {"n1": 20})) == 20
    second.write_bytes(first.read_bytes())
    with pytest.raises(PipelineError, match="row 11 is not where its row group should begin"):
        query.read({}, {"n1": 20})
    second.write_bytes(b"PAR1 and no more")
    with pytest.raises(PipelineError, match="of stream all, node n1"):
        query.read({}, {"n1": 20})


# --- partitions -----------------------------------------------------------------------------------


def test_one_flipped_bit_in_a_segment_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, 1, 100)
    (segment,) = (tmp_path / STREAM / "n1").glob("*.parquet")
    whole = segment.read_bytes()
    good = batch_read(tmp_path)[0].to_pylist()
    for at in range(50, len(whole), len(whole) // 25):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        with pytest.raises(PipelineError, match=f"{segment} .* is damaged: .*semel stream trim"):
            batch_read(tmp_path)[0].to_pylist()
    segment.write_bytes(whole)
    assert batch_read(tmp_path)[0].to_pylist() == good


def test_columns_of_other_versions_are_ignored_or_null(tmp_path: Path) -> None:
    write(tmp_path, 1, 20)
    (segment,) = (tmp_path / STREAM / "n1").glob("*.parquet")
    good = batch_read(tmp_path)[0].to_pylist()
    table = pq.read_table(segment).drop_columns(["content_type"])
    table = table.add_column(0, "region", pa.array(["eu"] * 20))
    pq.write_table(table, segment, store_schema=False)
    found = batch_read(tmp_path)[0].to_pylist()
    assert found == [{**row, "content_type": None} for row in good]


def test_small_segments_of_several_nodes_are_gathered(tmp_path: Path) -> None:
    for node in ("n1", "n2", "n3"):
        for first in range(1, 101, 10):
            write(tmp_path, first, 10, node)
    query = Query(tmp_path)
    (partition,) = query.reader.partitions({}, {"n1": 100, "n2": 55, "n3": 100})
    assert isinstance(partition, SegmentPartition)
    assert [(each.node, each.first, each.last) for each in partition.rows] == [
        ("n1", 1, 100),
        ("n2", 1, 55),
        ("n3", 1, 100),
    ]
    assert len(pickle.dumps(partition)) < 2_000


def test_segments_are_gathered_up_to_the_rows_of_a_partition(tmp_path: Path) -> None:
    for first in range(1, 60_001, 6_000):
        write_messages(tmp_path, STREAM, "n1", first, 6_000, properties=False)
    end = {"n1": 60_000}
    assert made_rows(Query(tmp_path, minPartitions="1"), {}, end) == [60_000]
    assert made_rows(Query(tmp_path, minPartitions="2"), {}, end) == [30_000, 30_000]
    # Fewer rows than that are not worth a task.
    assert made_rows(Query(tmp_path, minPartitions="99"), {}, end) == [
        18_000,
        18_000,
        18_000,
        6_000,
    ]
    query = Query(tmp_path, minPartitions="1", rowsPerPartition="12000")
    assert made_rows(query, {}, end) == [12_000] * 5


def test_a_large_segment_is_cut_at_its_row_groups(tmp_path: Path) -> None:
    # It is written in tables of 50,000 rows: two of them fill a row group.
    write_messages(tmp_path, STREAM, "n1", 1, 300_000, payload=b"", properties=False)
    query = Query(tmp_path, rowsPerPartition="50000")
    assert made_rows(query, {}, {"n1": 300_000}) == [100_000] * 3
    assert made_rows(query, {"n1": 50_000}, {"n1": 230_000}) == [50_000, 100_000, 30_000]
    assert query.read({"n1": 99_990}, {"n1": 100_010}) == rows("n1", 99_991, 100_010)


def test_a_partition_is_bounded_by_what_its_rows_take_in_memory(tmp_path: Path) -> None:
    # A few kilobytes each as files, and 30 MiB in memory: what a file takes says nothing.
    mebibyte = bytes(1024 * 1024)
    for first in range(1, 211, 30):
        write_messages(tmp_path, STREAM, "n1", first, 30, payload=mebibyte, properties=False)
        write_messages(tmp_path, STREAM, "n2", first, 30, payload=b"1", properties=False)
    (segment, *_) = open_root(tmp_path).segments(STREAM, "n1")
    assert segment.size < 100_000
    query = Query(tmp_path)
    assert made_rows(query, {}, {"n1": 210}) == [60, 60, 60, 30]
    assert made_rows(query, {"n1": 10}, {"n1": 115}) == [50, 55]
    assert made_rows(query, {}, {"n2": 210}) == [210]
    assert query.read({"n1": 10}, {"n1": 115}) == rows("n1", 11, 115)


def test_a_partition_is_bounded_where_properties_repeat(tmp_path: Path) -> None:
    """Repeated values are stored once: what a file takes encoded is not what they take."""
    pairs = [(f"p{number}", str(number) * 60_000) for number in range(9)]
    properties = properties_value(Properties(user_properties=pairs))
    made = [(seq, seq, 0, 0, 5, "c", None, "t", properties, b"") for seq in range(1, 201)]
    root = open_root(tmp_path)
    tables = [table_of(made, "n1")]
    size = write_segment(root, STREAM, "n1", lambda: tables, first=1, last=200)
    assert size < 100_000
    found = list(Query(tmp_path).tables({}, {"n1": 200}))
    assert sum(table.num_rows for table in found) == 200
    assert max(table.nbytes for table in found) <= 96 * 1024 * 1024
    # A segment that is merged from others is bounded, too.
    made = [(seq, *row[1:]) for seq, row in enumerate(made, 201)]
    tables = [table_of(made, "n1")]
    write_segment(root, STREAM, "n1", lambda: tables, first=201, last=400)
    compact(root, STREAM, "n1", 1, 400)
    found = list(Query(tmp_path).tables({}, {"n1": 400}))
    assert sum(table.num_rows for table in found) == 400
    assert max(table.nbytes for table in found) <= 96 * 1024 * 1024


def test_a_segment_that_does_not_tell_what_its_rows_take_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "encode_group_bytes", lambda _: {})
    write(tmp_path, 1, 10)
    path = tmp_path / STREAM / "n1" / segment_name(1, 10)
    assert made_rows(Query(tmp_path), {}, {"n1": 10}) == [10]
    metadata = pq.read_metadata(path)
    assert group_bytes(metadata) == [metadata.row_group(0).total_byte_size]


def test_an_empty_batch_has_no_partitions_and_spark_gives_one_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    query = Query(tmp_path)
    assert list(query.reader.partitions({"n1": 10}, {"n1": 10})) == []
    assert list(query.reader.read(InputPartition(None))) == []


def test_a_batch_lists_each_node_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen to find where a batch ends is what it is planned with."""
    for node in ("n1", "n2"):
        write(tmp_path, 1, 10, node)
    query = Query(tmp_path)
    query.drain()
    listed: list[str] = []
    real = LocalRoot.entries

    def entries(self: LocalRoot, folder: str) -> list[RootEntry]:
        listed.append(folder)
        return real(self, folder)

    monkeypatch.setattr(LocalRoot, "entries", entries)
    for node in ("n1", "n2"):
        write(tmp_path, 11, 10, node)
    listed.clear()
    assert query.step() == rows("n1", 11, 20) + rows("n2", 11, 20)
    assert listed == [STREAM, f"{STREAM}/n1", f"{STREAM}/n2"]
    # One that was planned by another reader is listed.
    again = Query(tmp_path)
    listed.clear()
    assert again.read({"n1": 5}, {"n1": 15}) == rows("n1", 6, 15)
    assert f"{STREAM}/n1" in listed


def test_a_listing_without_rows_that_were_there_is_not_believed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of a listing are not one moment: between them segments may have been merged."""
    write(tmp_path, 1, 10)
    write(tmp_path, 11, 10)
    query = Query(tmp_path)
    query.drain()
    real = LocalRoot.entries_by_node

    def without_the_last(self: LocalRoot, stream: str) -> dict[str, list[RootEntry]]:
        found = real(self, stream)
        return {node: entries[:1] for node, entries in found.items()}

    monkeypatch.setattr(LocalRoot, "entries_by_node", without_the_last)
    assert query.step() == []
    lose(tmp_path, STREAM, "n1", 11, 20)
    with pytest.raises(DataLoss, match="has only rows up to 10"):
        query.step()


# --- columns --------------------------------------------------------------------------------------


def test_a_schema_chooses_columns_in_its_order(tmp_path: Path) -> None:
    write(tmp_path, 1, 40)
    found, _ = batch_read(tmp_path, "topic", "seq", "node")
    assert found.column_names == ["topic", "seq", "node"]
    assert rows_of(found) == rows("n1", 1, 40)
    found, _ = batch_read(tmp_path, "payload", start="5", end="7")
    assert found.to_pydict() == {"payload": [b"value 5 of n1", b"value 6 of n1", b"value 7 of n1"]}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (StructType().add("sequence", LongType()), "the record has no column sequence"),
        (StructType().add("topics", StringType()), r"no column topics: did you mean topic\?"),
        (StructType().add("seq", IntegerType()), "column seq of the record is bigint, not int"),
        (StructType().add("seq", StringType()), "column seq of the record is bigint, not string"),
        (StructType().add("seq", LongType()).add("seq", LongType()), "has column seq twice"),
        (StructType(), "the schema has no columns"),
    ],
)
def test_a_column_that_the_record_has_not_is_refused(
    tmp_path: Path, columns: StructType, said: str
) -> None:
    source = source_of(tmp_path)
    for make in (source.reader, source.streamReader):
        with pytest.raises(OptionError, match=said):
            make(columns)


def test_option_columns_makes_the_schema_and_agrees_with_one_that_is_given(tmp_path: Path) -> None:
    write(tmp_path, 1, 40)
    source = source_of(tmp_path, columns="topic,seq,node")
    assert source.schema() == "topic string NOT NULL, seq bigint NOT NULL, node string NOT NULL"
    found, _ = batch_read(tmp_path, "topic", "seq", "node", columns="topic,seq,node")
    assert rows_of(found) == rows("n1", 1, 40)
    for make in (source.reader, source.streamReader):
        with pytest.raises(OptionError, match="option columns is topic,seq,node, but the schema"):
            make(spark_schema("topic", "seq"))


def test_a_column_that_may_not_be_null_is_taken(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    columns = StructType().add("seq", LongType(), nullable=False).add("topic", StringType())
    reader = source_of(tmp_path).reader(columns)
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    assert batch.schema.equals(to_arrow_schema(columns, timezone="UTC"))
    columns = StructType().add("user_name", StringType(), nullable=False)
    with pytest.raises(OptionError, match="column user_name of the record may be null"):
        source_of(tmp_path).reader(columns)


def test_nulls_where_no_record_has_them_are_an_error_that_names_the_column(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    columns = spark_schema()
    for column in columns:
        column.nullable = column.name not in NEVER_NULL

    def read() -> list[dict[str, Any]]:
        reader = source_of(tmp_path).reader(columns)
        (partition,) = reader.partitions()
        return [row for batch in reader.read(partition) for row in batch.to_pylist()]

    assert len(read()) == 3
    (segment,) = (tmp_path / STREAM / "n1").glob("*.parquet")
    table = pq.read_table(segment)
    place = table.column_names.index("topic")
    nulls = pa.array(["t", None, "t"])
    pq.write_table(table.set_column(place, "topic", nulls), segment, store_schema=False)
    with pytest.raises(
        PipelineError, match="stream all, node n1: column topic of a segment has nulls"
    ):
        read()


# --- batch reads ----------------------------------------------------------------------------------


def test_a_batch_read_takes_what_there_is(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        write(tmp_path, first, 10)
    write(tmp_path, 1, 5, "n2")
    assert rows_of(batch_read(tmp_path)[0]) == rows("n1", 1, 30) + rows("n2", 1, 5)
    trim_before(tmp_path, STREAM, "n1", 15)
    assert rows_of(batch_read(tmp_path)[0]) == rows("n1", 11, 30) + rows("n2", 1, 5)
    with pytest.raises(DataLoss, match="rows 3 to 10"):
        batch_read(tmp_path, start='{"n1": 3}')
    found, _ = batch_read(tmp_path, start='{"n1": 3}', failOnDataLoss="false", nodes="n1")
    assert rows_of(found) == rows("n1", 11, 30)


def test_a_batch_read_goes_from_a_place_to_a_place(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        write(tmp_path, first, 10)
    given = {"start": "5", "end": "25"}
    assert rows_of(batch_read(tmp_path, **given)[0]) == rows("n1", 5, 25)
    given = {"start": "2026-03-01T12:00:00.005Z", "end": "2026-03-01T12:00:00.025Z"}
    assert rows_of(batch_read(tmp_path, **given)[0]) == rows("n1", 5, 24)
    assert rows_of(batch_read(tmp_path, start="latest")[0]) == []
    with pytest.raises(OptionError, match="option end is before option start"):
        batch_read(tmp_path, start="20", end="10")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": "n3"}, "option nodes: there is no node n3: the nodes are n1, n2"),
        (
            {"start": '{"north": "latest"}'},
            "option start: there is no node north: the nodes are n1",
        ),
        ({"end": '{"north": 5}'}, "option end: there is no node north"),
        ({"end": '{"n2": 5}', "nodes": "n1"}, "option end: node n2 is not one of option nodes"),
    ],
)
def test_a_batch_read_refuses_nodes_that_are_not_there(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    write(tmp_path, 1, 10)
    write(tmp_path, 1, 10, "n2")
    with pytest.raises(OptionError, match=said):
        batch_read(tmp_path, **options)
    found, _ = batch_read(tmp_path, nodes="n1", start='{"n1": 5}', end='{"n1": 6}')
    assert rows_of(found) == rows("n1", 5, 6)


def test_a_root_one_level_too_high_or_too_low_is_refused(tmp_path: Path) -> None:
    streams = tmp_path / "data" / "streams"
    write(streams, 1, 10)
    for place in (tmp_path / "data", streams / STREAM):
        with pytest.raises(OptionError, match=r"option root: .* has no segments of stream"):
            batch_read(place)
    with pytest.raises(OptionError, match=r"option root: .* has no segments of stream streams"):
        Query(tmp_path / "data").step()
    assert rows_of(batch_read(streams)[0]) == rows("n1", 1, 10)


def test_a_stream_that_has_an_owner_and_no_rows_yet_is_empty(tmp_path: Path) -> None:
    open_root(str(tmp_path)).claim(STREAM, "n1", "store")
    assert rows_of(batch_read(tmp_path)[0]) == []
    assert Query(tmp_path).drain() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxRowsPerBatch": "5"}, "option maxRowsPerBatch is for readStream"),
        ({"url": "mqtt://host", "topics": "a"}, "option url is for readStream"),
    ],
)
def test_a_batch_read_refuses_what_is_for_streams(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        source_of(tmp_path, **options).reader(spark_schema())
    source_of(tmp_path, **options).streamReader(spark_schema())


def test_a_stream_refuses_an_end(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="option end is for read"):
        source_of(tmp_path, end="5").streamReader(spark_schema())
    source_of(tmp_path, end="5").reader(spark_schema())


# --- what goes to tasks ---------------------------------------------------------------------------


def test_a_password_stays_with_the_driver(tmp_path: Path) -> None:
    given = {"url": "mqtt://host", "topics": "a", "username": "ann", "password": "hidden-1"}
    reader = source_of(tmp_path, **given).streamReader(spark_schema())
    assert b"hidden-1" not in pickle.dumps(reader)
    assert "hidden-1" not in repr(vars(reader))


def test_a_record_with_nulls_only_and_one_with_large_payloads_come_whole(tmp_path: Path) -> None:
    large = [
        (seq, seq, 0, 0, 4, "c", None, "t", None, bytes([seq]) * 3_000_000) for seq in range(1, 30)
    ]

    def tables() -> Any:
        for row in large:
            yield table_of([row], "n1")

    write_segment(open_root(tmp_path), STREAM, "n1", tables, first=1, last=29)
    query = Query(tmp_path)
    found = pa.concat_tables(query.tables({}, {"n1": 29}))
    assert [len(each) for each in found.column("payload").to_pylist()] == [3_000_000] * 29
    assert found.column("user_properties").null_count == 29
    # A row group is bounded by its bytes, and so is a batch.
    assert max(batch.nbytes for batch in found.to_batches()) < 48 * 1024 * 1024
