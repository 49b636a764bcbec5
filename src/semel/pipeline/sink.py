"""`format("semel_delta")`: writes rows of Spark to a Delta table, each batch once.

    executors    write(batches) ─▶ Parquet files with statistics, synced ─▶ a message for the driver
    driver       commit(messages, batch) ─▶ one Delta commit

Spark creates a new writer for each step, in its own processes, so a writer has no state except its
options. `abort` does not delete files, because they may have been committed: Spark also calls it
when `commit` failed after the log entry was written. Files that no commit names are orphans, which
`semel lake vacuum` deletes.
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

from semel.pipeline.checkpoint import spans_of_batch
from semel.pipeline.errors import OptionError
from semel.pipeline.lake_address import checkpoint_folder
from semel.pipeline.sink_options import OFFSETS, SinkOptions, parse_sink_options
from semel.pipeline.source_columns import without_table_options
from semel.pipeline.table_options import parse_table_options

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from semel.pipeline.coverage import Span
    from semel.pipeline.files import DataFile
    from semel.pipeline.table import LandingBatch
    from semel.pipeline.table_reading import TableBatchReader, TableStreamReader

# The types of Delta, as Spark names them.
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
# The file of a checkpoint with its ID.
METADATA: Final = "metadata"
# Characters that Delta does not allow in column names, and the types of partition columns.
NOT_IN_NAMES: Final = " ,;{}()\n\t="
NAME_RULE: Final = "Delta allows none of ' ,;{}()=' in a name"
PARTITION_TYPES: Final = TYPES - {"binary", "decimal", "double", "float"}


@dataclass
class Written(WriterCommitMessage):
    """The files that one task has written."""

    files: "list[DataFile]"


class DeltaSink(DataSource):
    """A Delta table."""

    # The version whose schema was read; None if the user has given a schema. Spark calls `schema`
    # before it sends this object to where the query is planned.
    _loaded: int | None = None

    @classmethod
    def name(cls) -> str:
        return "semel_delta"

    def schema(self) -> "StructType":
        # Here and below: reading needs nothing of this module, and imports deltalake.
        from semel.pipeline.table_reading import nullable_schema, open_version, schema_of

        table = open_version(parse_table_options(self.options))
        self._loaded = table.version()
        return nullable_schema(schema_of(table))

    def reader(self, schema: "StructType") -> "TableBatchReader":
        from semel.pipeline.table_reading import TableBatchReader

        return TableBatchReader(parse_table_options(self.options), schema)

    def streamReader(self, schema: "StructType") -> "TableStreamReader":  # noqa: N802
        from semel.pipeline.table_reading import TableStreamReader

        return TableStreamReader(parse_table_options(self.options), schema, self._loaded)

    def writer(self, schema: "StructType", overwrite: bool) -> "BatchWriter":
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "StreamWriter":  # noqa: N802
        return StreamWriter(self.options, schema, overwrite=overwrite)


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("semel_delta")`: appends, or overwrites the table."""

    def __init__(self, options: Mapping[str, str], schema: "StructType", *, overwrite: bool):
        self.options = parse_sink_options(options)
        self.schema = without_table_options(schema).json()
        self.overwrite = overwrite
        check_columns(self.options, schema, overwrite=overwrite)
        if self.options.coverage == OFFSETS:
            raise OptionError(
                "option coverage=offsets is for streams: a batch write has no offsets"
            )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return write_rows(self.options, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        # Without a number no app transaction is needed: if the answer is lost, Spark repeats the
        # commit with the same files, and a file is in a table once.
        number = self.options.batch
        query = None if number is None else self.options.app_id
        batch = batch_of(
            self.options, self.schema, messages, self.overwrite, query=query, number=number
        )
        commit(batch, self.options)

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
                    " does not reach the sink), or option appId with a unique name"
                )
            if checkpoint_folder(self.options.checkpoint) is None:
                raise OptionError(
                    f"checkpointLocation {self.options.checkpoint} is not a local folder, so its ID"
                    " cannot be read: give option appId with a unique name"
                )
        if self.options.coverage == OFFSETS and self._checkpoint is None:
            raise OptionError(
                "option coverage=offsets reads the offsets of the query: give option"
                " checkpointLocation on the query itself, as a local folder"
            )
        if self.options.batch is not None:
            raise OptionError("option batch is for batch writes: Spark numbers those of a stream")

    @property
    def _checkpoint(self) -> "Path | None":
        checkpoint = self.options.checkpoint
        return None if checkpoint is None else checkpoint_folder(checkpoint)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return write_rows(self.options, iterator)

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
            covers=self._covered(batchId),
        )
        commit(batch, self.options)

    def _covered(self, batch: int) -> "dict[str, Span] | None":
        """What a batch covers, if its rows do not say so."""
        if self.options.coverage != OFFSETS:
            return None
        assert self._checkpoint is not None
        return spans_of_batch(self._checkpoint, batch)

    def abort(
        self,
        messages: "list[WriterCommitMessage | None]",
        batchId: int,  # noqa: N803
    ) -> None:
        return


def check_columns(options: SinkOptions, schema: "StructType", *, overwrite: bool) -> None:
    """Raise OptionError now for what would fail later."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    lower = [name.lower() for name in types]
    for name in types:
        if lower.count(name.lower()) > 1:
            raise OptionError(f"two columns are called {name}: Delta ignores case")
    for field in schema.fields:
        if any(sign in field.name for sign in NOT_IN_NAMES):
            raise OptionError(f"column {field.name!r}: {NAME_RULE}")
        foreign = foreign_type(field.dataType)
        if foreign is not None:
            raise OptionError(f"column {field.name}: Delta has no type {foreign}: cast it")
        check_structs(field.name, field.dataType)
    paths = paths_of_fields("", schema)
    for path in paths:
        if paths.count(path) > 1:
            raise OptionError(
                f"column {path!r} and a field of a column have the same path, which readers of the"
                " table confuse: rename the column"
            )
    for name in options.partition_by:
        if name not in types:
            raise OptionError(f"partitionBy: there is no column {name}")
        kind = schema[name].dataType
        if kind.typeName() not in PARTITION_TYPES:
            raise OptionError(
                f"partitionBy: {name}: cannot partition by a {kind.simpleString()} column"
            )
    for name in options.key:
        if name not in types:
            raise OptionError(f"option key: there is no column {name}")
        kind = schema[name].dataType
        if kind.typeName() not in PARTITION_TYPES:
            raise OptionError(f"option key: {name}: a {kind.simpleString()} column cannot be a key")
    if options.partition_by and len(options.partition_by) == len(types):
        raise OptionError("partitionBy: a table cannot be partitioned by all of its columns")
    if options.stream is not None:
        if overwrite:
            raise OptionError("option stream: rows of a stream are appended, never overwritten")
        if types.get("node") != "string" or types.get("seq") != "bigint":
            raise OptionError("option stream requires columns node STRING and seq BIGINT")
        if {"node", "seq"} & set(options.partition_by):
            raise OptionError("partitionBy: with option stream, node and seq cannot be partitions")


def check_structs(name: str, kind: "DataType") -> None:
    """Raise OptionError for a struct without fields, or with fields that differ only in case."""
    if isinstance(kind, ArrayType):
        check_structs(name, kind.elementType)
    elif isinstance(kind, MapType):
        check_structs(name, kind.keyType)
        check_structs(name, kind.valueType)
    elif isinstance(kind, StructType):
        if not kind.fields:
            raise OptionError(f"column {name}: Delta has no struct without fields: leave it out")
        lower = [field.name.lower() for field in kind.fields]
        for field in kind.fields:
            if lower.count(field.name.lower()) > 1:
                raise OptionError(
                    f"column {name}: two fields are called {field.name}: Delta ignores case"
                )
            check_structs(f"{name}.{field.name}", field.dataType)


def paths_of_fields(above: str, kind: "StructType") -> list[str]:
    """The paths of all columns and fields of structs, as a Delta log has them, in lowercase."""
    found = []
    for field in kind.fields:
        path = f"{above}{field.name}".lower()
        found.append(path)
        if isinstance(field.dataType, StructType):
            found += paths_of_fields(f"{path}.", field.dataType)
    return found


def foreign_type(kind: "DataType") -> str | None:
    """The part of a type that Delta does not have, or None."""
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif kind.typeName() not in TYPES or "collate" in kind.simpleString():
        return str(kind.simpleString())
    return next((found for each in inner if (found := foreign_type(each)) is not None), None)


def write_rows(options: SinkOptions, batches: "Iterator[pa.RecordBatch]") -> Written:
    """Write the rows of one task."""
    # Here and below: pyarrow and deltalake are slow to import, and planning needs neither.
    from semel.pipeline.files import REPEATED, UNIQUE, TableLayout, write_files

    numbering = None
    if options.stream is not None:
        numbering = REPEATED if options.coverage == OFFSETS else UNIQUE
    layout = TableLayout(options.path, options.partition_by, numbering=numbering)
    return Written(write_files(batches, layout))


def batch_of(
    options: SinkOptions,
    schema: str,
    messages: "list[Any]",
    overwrite: bool,
    *,
    query: str | None = None,
    number: int | None = None,
    covers: "dict[str, Span] | None" = None,
) -> "LandingBatch":
    """The batch that the tasks have written, for the commit."""
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
        covers=covers,
        record=record,
        may_skip=not options.fail_on_data_loss,
        may_add_columns=options.merge_schema,
        overwrite=overwrite,
        key=options.key,
    )


def commit(batch: "LandingBatch", options: SinkOptions) -> None:
    """Commit a batch, unless it is committed already."""
    from semel.pipeline.table import cached_table

    if batch.files or batch.overwrite or batch.covers:
        cached_table(options.path).commit(batch)


def query_of(options: SinkOptions) -> str:
    """The identity of this query: option appId, or the ID of its checkpoint."""
    if options.app_id is not None:
        return options.app_id
    assert options.checkpoint is not None
    folder = checkpoint_folder(options.checkpoint)
    assert folder is not None
    try:
        return str(json.loads((folder / METADATA).read_text("utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise OptionError(
            f"checkpointLocation: the ID in {folder} cannot be read: {problem}; give option appId"
            " with a unique name"
        ) from None
