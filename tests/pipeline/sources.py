"""A reader without Spark: what the engine asks of it, asked here, in the engine's order."""

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from semel.pipeline.errors import sentence_of
from semel.pipeline.offsets import Offset
from semel.pipeline.source import MqttSource, MqttStreamReader
from semel.store.segments import schema

Row = tuple[str, int]


def spark_schema(*columns: str) -> StructType:
    """The record's schema in Spark, or some columns of it."""
    whole = from_arrow_schema(schema())
    return whole if not columns else StructType([whole[name] for name in columns])


def source_of(root: Path, **options: str) -> MqttSource:
    """As Spark makes it; it is pickled once, as there."""
    made: MqttSource = again(MqttSource({"root": str(root), **options}))
    return made


def again(thing: Any) -> Any:
    """A copy, as another process gets it."""
    return pickle.loads(pickle.dumps(thing))


class Query:
    """A streaming query: its checkpoint is `offset`, and what it has got is `rows`."""

    def __init__(self, root: Path, *, columns: tuple[str, ...] = (), **options: str) -> None:
        self.root = root
        self.columns = columns
        self.offset: Offset | None = None
        self.rows: list[Row] = []
        self.batches: list[tuple[Offset, Offset]] = []
        self.reader: MqttStreamReader
        self.begin(**options)

    def begin(self, **options: str) -> None:
        """Begin, or begin again with other options and the same checkpoint."""
        source = source_of(self.root, **options)
        self.reader = source.streamReader(spark_schema(*self.columns))

    def step(self, limit: ReadLimit | None = None) -> list[Row]:
        """One batch; what it has."""
        if self.offset is None:
            self.offset = _through_json(self.reader.initialOffset())
        end = self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit())
        end = _through_json(end)
        if end == self.offset:
            return []
        found = self.read(self.offset, end)
        self.batches.append((self.offset, end))
        self.offset = end
        self.rows += found
        return found

    def drain(self) -> list[Row]:
        """Batches until the offset stays; what they have."""
        found: list[Row] = []
        before: Offset | None = None
        while before != self.offset or before is None:
            before = self.offset
            found += self.step()
        return found

    def tables(self, start: Offset, end: Offset) -> Iterator[pa.Table]:
        """What each partition of a batch has."""
        for partition in self.reader.partitions(start, end):
            yield table_of(self.reader, partition, spark_schema(*self.columns))

    def read(self, start: Offset, end: Offset) -> list[Row]:
        """The rows of a batch, in order."""
        return [row for table in self.tables(start, end) for row in rows_of(table)]


def table_of(reader: Any, partition: InputPartition, columns: StructType) -> pa.Table:
    """What a task gets from a partition; its batches are as Spark wants them."""
    wanted = to_arrow_schema(columns, timezone="UTC")
    batches = list(again(reader).read(again(partition)))
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema.equals(wanted)
    return pa.Table.from_batches(batches, schema=wanted)


def rows_of(table: pa.Table) -> list[Row]:
    """Node and number of each row."""
    return list(zip(table.column("node").to_pylist(), table.column("seq").to_pylist(), strict=True))


def rows(node: str, first: int, last: int) -> list[Row]:
    """Rows that are expected."""
    return [(node, seq) for seq in range(first, last + 1)]


def batch_read(
    root: Path, *columns: str, filters: Iterable[Any] = (), **options: str
) -> tuple[pa.Table, list[Any]]:
    """What `spark.read` gets, in order, and the filters that are left to Spark."""
    wanted = spark_schema(*columns)
    reader = source_of(root, **options).reader(wanted)
    left = list(reader.pushFilters(list(filters))) if filters else []
    tables = [table_of(reader, each, wanted) for each in reader.partitions()]
    empty = pa.Table.from_batches([], schema=to_arrow_schema(wanted, timezone="UTC"))
    return pa.concat_tables([empty, *tables]), left


def _through_json(offset: Offset) -> Offset:
    found: Offset = json.loads(json.dumps(offset))
    assert list(found) == sorted(found), "Spark compares offsets as texts"
    return found


def problem_of(action: Callable[[], Any]) -> str:
    """The sentence that a user of Spark gets."""
    with pytest.raises(PySparkException) as caught:
        action()
    found = sentence_of(caught.value)
    assert found is not None, str(caught.value)
    return found
