"""`format("semel_delta")`: rows of Spark into a Delta table, each batch once.

    executors    write(batches) ─▶ Parquet files with statistics, synced ─▶ a message for the driver
    driver       commit(messages, batch) ─▶ one Delta commit

Spark makes a writer anew for each step, in processes of its own, so that a writer holds nothing but
its options. What `abort` is called for may have been committed: Spark calls it also when `commit`
failed after the log entry was there. So nothing is deleted in it; files that no commit names are
orphans, and `semel lake vacuum` removes them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from semel.pipeline.errors import OptionError
from semel.pipeline.lake_address import checkpoint_folder
from semel.pipeline.sink_options import SinkOptions, parse_sink_options
from semel.pipeline.source_columns import without_table_options

if TYPE_CHECKING:
    import pyarrow as pa

    from semel.pipeline.files import DataFile
    from semel.pipeline.table import LandingBatch

# Those of Delta, as Spark names them.
TYPES: Final = frozenset(
    {
        "binary",
        "boolean",
        "byte",
        "date",
        "decimal",
        "double",
        "float",
        "integer",
        "long",
        "short",
        "string",
        "timestamp",
        "timestamp_ntz",
    }
)
# Where a checkpoint says which it is.
METADATA: Final = "metadata"
# What Delta does not allow in the name of a column, and what can tell a partition.
NOT_IN_NAMES: Final = " ,;{}()\n\t="
PARTITION_TYPES: Final = TYPES - {"binary", "decimal", "double", "float"}


@dataclass
class Written(WriterCommitMessage):
    """What one task has written."""

    files: "list[DataFile]"


class DeltaSink(DataSource):
    """A Delta table."""

    @classmethod
    def name(cls) -> str:
        return "semel_delta"

    def schema(self) -> str:
        raise OptionError(
            "semel_delta writes: read the table with `semel sql`, delta-rs, DuckDB or Polars"
        )

    def writer(self, schema: "StructType", overwrite: bool) -> "BatchWriter":
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "StreamWriter":  # noqa: N802
        return StreamWriter(self.options, schema, overwrite=overwrite)


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("semel_delta")`: append, or overwrite all that is there."""

    def __init__(self, options: Mapping[str, str], schema: "StructType", *, overwrite: bool):
        self.options = parse_sink_options(options)
        self.schema = without_table_options(schema).json()
        self.overwrite = overwrite
        check_columns(self.options, schema, overwrite=overwrite)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return written(self.options, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        # It needs no name: if its answer is lost it is made again with the same files, and a file
        # is in a table once.
        commit(batch_of(self.options, self.schema, messages, self.overwrite), self.options)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        return


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("semel_delta")`."""

    def __init__(self, options: Mapping[str, str], schema: "StructType", *, overwrite: bool):
        self.options = parse_sink_options(options)
        self.schema = without_table_options(schema).json()
        self.overwrite = overwrite
        check_columns(self.options, schema, overwrite=overwrite)
        if self.options.app_id is None:
            if self.options.checkpoint is None:
                raise OptionError(
                    "give option checkpointLocation on the query itself (a default of the session"
                    " does not reach the table), or option appId with a name of its own"
                )
            if checkpoint_folder(self.options.checkpoint) is None:
                raise OptionError(
                    f"checkpointLocation {self.options.checkpoint} is no folder of this machine,"
                    " and its id cannot be read: give option appId with a name of its own"
                )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return written(self.options, iterator)

    def commit(
        self,
        messages: "list[WriterCommitMessage | None]",
        batchId: int,  # noqa: N803
    ) -> None:
        batch = batch_of(
            self.options,
            self.schema,
            messages,
            self.overwrite,
            query=query_of(self.options),
            number=batchId,
        )
        commit(batch, self.options)

    def abort(
        self,
        messages: "list[WriterCommitMessage | None]",
        batchId: int,  # noqa: N803
    ) -> None:
        return


def check_columns(options: SinkOptions, schema: "StructType", *, overwrite: bool) -> None:
    """Refuse at once what could only fail later."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    lower = [name.lower() for name in types]
    for name in types:
        if lower.count(name.lower()) > 1:
            raise OptionError(f"two columns are called {name}: Delta does not tell case apart")
    for field in schema.fields:
        if any(sign in field.name for sign in NOT_IN_NAMES):
            raise OptionError(f"column {field.name!r}: Delta allows none of ' ,;{{}}()=' in a name")
        foreign = foreign_type(field.dataType)
        if foreign is not None:
            raise OptionError(f"column {field.name}: Delta has no type {foreign}: cast it")
    for name in options.partition_by:
        if name not in types:
            raise OptionError(f"partitionBy: there is no column {name}")
        kind = schema[name].dataType
        if kind.typeName() not in PARTITION_TYPES:
            raise OptionError(f"partitionBy: {name} is {kind.simpleString()}, which tells no part")
    if options.partition_by and len(options.partition_by) == len(types):
        raise OptionError("partitionBy: a table cannot be partitioned by all of its columns")
    if options.stream is not None:
        if overwrite:
            raise OptionError("option stream: rows of a stream are appended, never overwritten")
        if types.get("node") != "string" or types.get("seq") != "bigint":
            raise OptionError("option stream: its rows have the columns node STRING and seq BIGINT")
        if {"node", "seq"} & set(options.partition_by):
            raise OptionError("partitionBy: with option stream, node and seq are in the files")


def foreign_type(kind: "DataType") -> str | None:
    """What in a type is none of Delta's; None: nothing."""
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif kind.typeName() not in TYPES:
        return str(kind.simpleString())
    return next((found for each in inner if (found := foreign_type(each)) is not None), None)


def written(options: SinkOptions, batches: "Iterator[pa.RecordBatch]") -> Written:
    """Write the rows of one task."""
    # Here and below: pyarrow and deltalake are slow to import, and a planner needs neither.
    from semel.pipeline.files import TableLayout, write_files

    layout = TableLayout(options.path, options.partition_by, is_numbered=options.stream is not None)
    return Written(write_files(batches, layout))


def batch_of(
    options: SinkOptions,
    schema: str,
    messages: "list[Any]",
    overwrite: bool,
    *,
    query: str | None = None,
    number: int | None = None,
) -> "LandingBatch":
    """What the tasks have written, for the commit."""
    from semel.pipeline.stream_record import StreamRecord
    from semel.pipeline.table import LandingBatch

    record = None
    if options.root is not None:
        assert options.stream is not None
        record = StreamRecord(options.root, options.stream)
    return LandingBatch(
        files=[file for message in messages if message is not None for file in message.files],
        schema=schema,
        partition_by=options.partition_by,
        query=query,
        number=number,
        stream=options.stream,
        record=record,
        may_skip=not options.fail_on_data_loss,
        may_add_columns=options.merge_schema,
        overwrite=overwrite,
    )


def commit(batch: "LandingBatch", options: SinkOptions) -> None:
    """Commit it, or find that it was."""
    from semel.pipeline.table import cached_table

    if batch.files or batch.overwrite:
        cached_table(options.path).commit(batch)


def query_of(options: SinkOptions) -> str:
    """What tells this query from others: its checkpoint's own id, or what the user says."""
    if options.app_id is not None:
        return options.app_id
    assert options.checkpoint is not None
    folder = checkpoint_folder(options.checkpoint)
    assert folder is not None
    try:
        return str(json.loads((folder / METADATA).read_text("utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise OptionError(
            f"checkpointLocation: {folder} does not say which query it is of: {problem}; give"
            " option appId with a name that no other query has"
        ) from None
