"""Columns of segments are found by name: later versions may add some, others may be missing."""

import io
from typing import Any

import pytest

from semel.extras import need
from semel.store.compaction import Compaction, NotMergeable, merge
from semel.store.node_segments import NodeSegments, SealRequest
from semel.store.reading import NodeRecord, ReadOptions
from semel.store.segment_names import segment_name
from semel.store.segment_writer import seal_rows
from semel.store.segments import (
    REQUIRED,
    RecordError,
    group_range,
    open_segment,
    schema,
    segment_times,
)
from tests.store.memory_root import MemoryRoot
from tests.store.recorded import fields, insert, make_database, read_records, received

pa = need("pyarrow", extra="broker", by="this test")
pq = need("pyarrow.parquet", extra="broker", by="this test")

PLACE = f"plant/n1/{segment_name(1, 10)}"


@pytest.fixture
def root() -> MemoryRoot:
    """Rows 1 to 10 and 11 to 20 in a segment each."""
    connection = make_database(":memory:")
    insert(connection, 1, 20)
    made = MemoryRoot()
    for first in (1, 11):
        last = first + 9
        seal_rows(connection, made, "plant", "n1", stream_id=1, first=first, last=last)
    connection.close()
    return made


def rewrite(root: MemoryRoot, change: Any) -> None:
    """Write the first segment as another version would."""
    sink = io.BytesIO()
    table = change(pq.read_table(io.BytesIO(root.files[PLACE][0])))
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    root.files[PLACE] = (sink.getvalue(), root.now)


def with_more(table: Any) -> Any:
    """A column before ours, one between them that is nested, and one after them."""
    size = table.num_rows
    pairs = pa.array([[{"a": 1, "b": "x"}]] * size)
    table = table.add_column(0, "shard", pa.array(range(size), pa.int64()))
    table = table.add_column(3, "seq_of", pairs)
    return table.append_column("region", pa.array(["eu"] * size))


def read(root: MemoryRoot) -> list[tuple[Any, ...]]:
    return [(*fields(each), each.received) for each in read_records(root, "plant", "n1", 1, 100)]


def test_columns_of_a_later_version_are_ignored(root: MemoryRoot) -> None:
    good = read(root)
    rewrite(root, with_more)
    assert read(root) == good
    (table, *_) = NodeRecord(root, "plant", "n1").tables(1, 10)
    assert table.schema.equals(schema(), check_metadata=True)
    opened = open_segment(root, "plant", "n1", first=1, last=10)
    assert group_range(opened.metadata, 0) == (1, 10)
    assert opened.unknown_columns == ["shard", "seq_of", "region"]
    opened.close()
    times = segment_times(root, "plant", "n1", first=1, last=10)
    assert times == (received(1), received(10))


@pytest.mark.parametrize("name", [each for each in schema().names if each not in REQUIRED])
def test_a_missing_column_that_may_be_null_is_null(root: MemoryRoot, name: str) -> None:
    rewrite(root, lambda table: table.drop_columns([name]))
    record = NodeRecord(root, "plant", "n1")
    tables = list(record.tables(1, 20))
    assert [table.schema.equals(schema()) for table in tables] == [True, True]
    assert tables[0].column(name).null_count == 10
    assert tables[1].column(name).null_count < 10 or name in ("response_topic", "correlation_data")
    # Alone, and not in the order of the file.
    for columns in ((name,), (name, "seq"), ("topic", name)):
        (table, *_) = record.tables(1, 10, ReadOptions(columns=columns))
        assert table.column_names == list(columns)
        assert table.num_rows == 10
    assert len(read(root)) == 20


@pytest.mark.parametrize("name", [each for each in REQUIRED if each not in ("seq", "received")])
def test_a_missing_column_that_every_row_has_is_named(root: MemoryRoot, name: str) -> None:
    rewrite(root, lambda table: table.drop_columns([name]))
    with pytest.raises(RecordError, match=f"{segment_name(1, 10)} .*it has no column {name}"):
        read(root)


def test_a_column_of_another_type_is_named(root: MemoryRoot) -> None:
    rewrite(
        root,
        lambda table: table.set_column(5, "qos", pa.array(["1"] * table.num_rows)),
    )
    with pytest.raises(RecordError, match="column qos has type string instead of int32"):
        read(root)


def test_what_this_version_does_not_know_is_not_lost_in_a_merge(root: MemoryRoot) -> None:
    rewrite(root, with_more)
    before = dict(root.files)
    with pytest.raises(NotMergeable, match=r"shard, seq_of, region"):
        merge(root, "plant", "n1", root.segments("plant", "n1"))
    assert root.files == before


def test_a_missing_column_does_not_keep_segments_from_being_merged(root: MemoryRoot) -> None:
    good = read(root)
    rewrite(root, lambda table: table.drop_columns(["response_topic"]))
    merge(root, "plant", "n1", root.segments("plant", "n1"))
    for each in (1, 11):
        root.delete(f"plant/n1/{segment_name(each, each + 9)}")
    assert read(root) == good


def test_the_sealer_merges_around_what_it_cannot_merge_and_says_so_once() -> None:
    connection = make_database(":memory:")
    connection.text_factory = bytes
    insert(connection, 1, 60)
    root = MemoryRoot()
    settings = Compaction(files=2)
    sealer = NodeSegments(connection, root, node="n1", store="s", compaction=settings)
    for first in range(1, 60, 10):
        sealer.seal(SealRequest("plant", 1, first, first + 9), now=root.now)
    rewrite(root, with_more)
    with pytest.raises(NotMergeable):
        sealer.compact("plant")
    while sealer.compact("plant"):
        pass
    ranges = {each.range for each in root.segments("plant", "n1")}
    assert (11, 60) in ranges
    assert (1, 10) in ranges
    assert not any(first == 1 and last > 10 for first, last in ranges)
    connection.close()
