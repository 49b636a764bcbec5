"""Filters of batch reads: what is left out is what Spark would have left out."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from semel.pipeline.source_filters import Condition, RowSelection, condition_of
from semel.store.roots import open_root
from semel.store.segment_writer import write_segment
from semel.store.segments import table_of
from tests.pipeline.made import received_at, write_messages
from tests.pipeline.sources import batch_read, rows, rows_of

STREAM = "all"
COMPARED: dict[type, Any] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    StringStartsWith: lambda a, b: a.startswith(b),
    StringEndsWith: lambda a, b: a.endswith(b),
    StringContains: lambda a, b: b in a,
}


def holds(given: Any, row: dict[str, Any]) -> bool | None:
    """What SQL says of a filter and a row: true, false or null."""
    if isinstance(given, Not):
        found = holds(given.child, row)
        return None if found is None else not found
    value = row[given.attribute[0]]
    if isinstance(given, IsNull):
        return value is None
    if isinstance(given, IsNotNull):
        return value is not None
    if isinstance(given, EqualNullSafe):
        return bool(value == given.value)
    if value is None:
        return None
    if isinstance(given, In):
        if value in given.value:
            return True
        return None if None in given.value else False
    if given.value is None:
        return None
    if isinstance(value, str):
        # Spark compares texts by their bytes.
        return bool(COMPARED[type(given)](value.encode(), given.value.encode()))
    return bool(COMPARED[type(given)](value, given.value))


def write_varied(root: Path, node: str, count: int) -> None:
    """Small row groups, with nulls, odd topics and a clock that was set back."""
    chance = random.Random(node)
    topics = ["plant/a", "plant/b", "plant", "pl", "plänt/ä", "\U0001f600/x", "~", "a" * 5_000]
    found: list[Any] = []
    for seq in range(1, count + 1):
        at = 1_772_366_400_000_000 + (seq if seq % 50 else seq - 40) * 1_000_000
        qos = chance.randint(0, 2)
        user = chance.choice([None, "ann", "bob", ""])
        topic = topics[seq // 40 % len(topics)]
        found.append((seq, at, qos, qos, 5, f"c{seq % 3}", user, topic, None, b""))

    for first in range(0, count, 100):
        part = found[first : first + 100]

        def tables(part: Any = part) -> Any:
            yield table_of(part, node)

        write_segment(
            open_root(root), STREAM, node, tables, first=first + 1, last=first + len(part)
        )


def random_filter(chance: random.Random) -> Filter:
    column = chance.choice(["seq", "node", "received", "topic", "user_name", "qos", "packet_id"])

    def value() -> Any:
        if column == "seq":
            return chance.choice([0, 1, 57, 100, 101, 250, 299, 300, 301, -5])
        if column in ("qos", "packet_id"):
            return chance.choice([0, 1, 2, 3, 2**40])
        if column == "received":
            return received_at(0) + timedelta(seconds=chance.choice([-1, 0, 50, 61.5, 210, 9999]))
        if column == "node":
            return chance.choice(["n1", "n2", "n", "n3", ""])
        return chance.choice(["plant/a", "plant", "pl", "plänt", "ann", "", "\U0001f600", "~~"])

    kinds: list[Any] = [EqualTo, EqualNullSafe, In, GreaterThan, GreaterThanOrEqual]
    kinds += [LessThan, LessThanOrEqual, IsNull, IsNotNull]
    if column in ("topic", "node", "user_name"):
        kinds += [StringStartsWith, StringEndsWith, StringContains]
    kind = chance.choice(kinds)
    made: Filter
    if kind is In:
        values = [value() for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.2:
            values.append(None)
        made = In((column,), tuple(values))
    elif kind in (IsNull, IsNotNull):
        made = kind((column,))
    else:
        is_none = chance.random() < 0.1 and not kind.__name__.startswith("String")
        made = kind((column,), None if is_none else value())
    return Not(made) if chance.random() < 0.3 else made


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("varied")
    write_varied(root, "n1", 300)
    write_varied(root, "n2", 120)
    return root


@pytest.mark.parametrize("seed", range(150))
def test_pushed_filters_leave_the_rows_that_sql_leaves(varied: Path, seed: int) -> None:
    chance = random.Random(seed)
    filters = [random_filter(chance) for _ in range(chance.randint(1, 3))]
    everything = batch_read(varied)[0].to_pylist()
    expected = [row for row in everything if all(holds(each, row) is True for each in filters)]
    found, left = batch_read(varied, filters=filters)
    assert all(any(each is given for given in filters) for each in left)
    # Spark applies what was left to it.
    kept = [row for row in found.to_pylist() if all(holds(each, row) is True for each in left)]
    assert kept == expected
    if not left:
        assert found.num_rows == len(expected)


def test_filters_on_topic_time_node_and_number_are_taken() -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    taken = [
        EqualTo(("topic",), "a"),
        In(("topic",), ("a", "b")),
        StringStartsWith(("topic",), "a/"),
        GreaterThanOrEqual(("received",), noon),
        LessThan(("received",), noon),
        EqualTo(("node",), "n1"),
        GreaterThan(("seq",), 5),
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "a")),
    ]
    assert all(condition_of(each) is not None for each in taken)


def test_what_cannot_be_applied_exactly_is_left_to_spark() -> None:
    left = [
        EqualTo(("payload",), b"x"),
        EqualTo(("user_properties",), []),
        EqualTo(("topic",), None),
        EqualTo(("topic",), 5),
        EqualTo(("seq",), 5.0),
        EqualTo(("seq",), True),
        EqualTo(("seq",), 2**63),
        EqualTo(("received",), datetime(2026, 3, 1)),
        EqualTo(("user_properties", "key"), "n"),
        In(("topic",), ("a", None)),
        In(("topic",), ()),
        EqualNullSafe(("topic",), None),
        Not(EqualNullSafe(("topic",), "a")),
        Not(Not(EqualTo(("topic",), "a"))),
    ]
    assert [each for each in left if condition_of(each) is not None] == []


def test_rows_by_number_are_planned_and_others_are_not(tmp_path: Path) -> None:
    for first in range(1, 101, 10):
        write_messages(tmp_path, STREAM, "n1", first, 10)
        write_messages(tmp_path, STREAM, "n2", first, 10)
    # What is not planned is not opened: it may be gone.
    filters = [GreaterThan(("seq",), 22), In(("seq",), (25, 38)), EqualTo(("node",), "n2")]
    for path in (tmp_path / STREAM / "n1").iterdir():
        path.write_bytes(b"damaged")
    for path in sorted((tmp_path / STREAM / "n2").iterdir())[4:]:
        path.write_bytes(b"damaged")
    found, left = batch_read(tmp_path, filters=filters)
    assert left == []
    assert rows_of(found) == [("n2", 25), ("n2", 38)]


def test_row_groups_are_passed_over_by_their_statistics(tmp_path: Path) -> None:
    tables = [
        table_of([(seq, seq, 0, 0, 4, "c", None, topic, None, b"")], "n1")
        for seq, topic in ((1, "a/1"), (2, "b/1"), (3, "b/2"), (4, "c"))
    ]
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, tables[0].schema, store_schema=False) as writer:
        for table in tables:
            writer.write_table(table)
    metadata = pq.ParquetFile(path).metadata

    def wanted(*conditions: Condition) -> list[int]:
        test = RowSelection(conditions)
        return [seq for seq in range(1, 5) if test(metadata, seq - 1)]

    assert wanted(Condition("topic", "starts", "b/")) == [2, 3]
    assert wanted(Condition("topic", "=", "c")) == [4]
    assert wanted(Condition("topic", "in", ("c", "a/1"))) == [1, 4]
    assert wanted(Condition("topic", ">", "b/2")) == [4]
    assert wanted(Condition("topic", "<=", "b/1")) == [1, 2]
    assert wanted(Condition("received", ">=", 2), Condition("received", "<", 4)) == [2, 3]
    assert wanted(Condition("received", ">", 2), Condition("topic", "starts", "b")) == [3]
    # When in doubt, yes.
    assert wanted(Condition("topic", "=", "c", is_negated=True)) == [1, 2, 3, 4]
    assert wanted(Condition("topic", "contains", "zzz")) == [1, 2, 3, 4]
    assert wanted(Condition("client_id", "=", "zzz")) == [1, 2, 3, 4]


def test_filters_work_on_chosen_columns(tmp_path: Path) -> None:
    write_messages(tmp_path, STREAM, "n1", 1, 50)
    filters = [EqualTo(("topic",), "plant/line3/temperature")]
    found, left = batch_read(tmp_path, "topic", "seq", filters=filters)
    assert left == []
    assert found.schema.names == ["topic", "seq"]
    assert found.column("seq").to_pylist() == list(range(3, 51, 5))


def test_without_filters_all_rows_come(varied: Path) -> None:
    assert rows_of(batch_read(varied)[0]) == rows("n1", 1, 300) + rows("n2", 1, 120)


def test_types_are_those_of_the_record_after_a_filter(varied: Path) -> None:
    found, _ = batch_read(varied, filters=[IsNull(("user_name",))])
    assert found.column("user_name").null_count == found.num_rows > 0
    assert pa.types.is_timestamp(found.schema.field("received").type)
