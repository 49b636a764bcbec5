"""`format("semel_delta")` for reading: Delta tables in Spark without Delta's Java libraries.

    driver       the files of a version, or those that later versions added ─▶ partitions of files
    executors    read(partition) ─▶ record batches, with the columns of the table's schema

A batch read is one version of the table. It takes no filters of Spark, for the reason that
`MqttBatchReader` gives. Option `filters` says which rows are read: the driver chooses files by it,
and a task row groups and rows. `native_table` has Spark's own reader read a local table.

A streaming query reads the table as it is first, and then the rows that each version appends. Its
offset is `{"version": v, "table": id}`: everything up to v is done. A batch is a function of its
offsets, because a version never changes. The id of the table, which Delta gives it, tells when
another table has taken its place. A query has the columns that the table had when it was loaded: if
its schema changes, the query fails, and reads the new one when it is loaded and started again. A
version that deletes or changes rows is refused, because rows that were read cannot be taken back;
one that only rewrites files, such as a compaction, has no new rows. Retention is no change in this
sense: rows that a version has appended are read also if they were removed since then, as long as
their files exist.

Everything runs through delta-rs and pyarrow: Spark itself opens no file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import DataType, StructType

from semel.pipeline.errors import DataLoss, OptionError, TableError
from semel.pipeline.table_filters import BoundFilters, bind_filters
from semel.pipeline.table_options import TableOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from semel.store.roots import Root

# Bytes of files that one task reads, about; a larger file has a task of its own.
PARTITION_BYTES: Final = 64 * 1024 * 1024
BATCH_ROWS: Final = 16_384
# The offset before the first version: the whole table is to be read.
NOTHING: Final = -1

# `version`, and `table`, which offsets of earlier releases lack.
TableOffset = dict[str, Any]
_REPLACED: Final = (
    "the table was deleted and created again; give the query a new checkpoint, which reads the"
    " whole table as it is"
)


@dataclass(frozen=True)
class TableFile:
    """A file of a table, and its values of the partition columns."""

    path: str
    size: int
    partition: dict[str, Any]


class FilesPartition(InputPartition):
    """Files that one task reads, and which of their rows; None: all."""

    def __init__(self, files: Sequence[TableFile], filters: BoundFilters | None = None) -> None:
        super().__init__(tuple(files))
        self.files = tuple(files)
        self.filters = filters


# --- the table, on the driver ---------------------------------------------------------------------


def open_version(options: TableOptions, version: int | None = None) -> "DeltaTable":
    """The table as of a version, or as the options say. Raises TableError and OptionError."""
    from deltalake import DeltaTable

    from semel.pipeline.delta_errors import check_column_mapping, table_errors
    from semel.pipeline.lake_address import split_address

    uri, storage = split_address(options.path)
    asked = options.version if version is None else version
    with table_errors(options.path):
        table = DeltaTable(uri, storage_options=storage or None)
        if asked is not None and asked > table.version():
            raise OptionError(f"version {asked}: the last one is {table.version()}")
        if asked is not None and asked != table.version():
            _load_version(options, table, asked)
        elif version is None and options.timestamp is not None:
            _load_time(options, table, options.timestamp)
        # It selects no file, and checks that delta-rs supports the reader features of the table.
        table.to_pyarrow_dataset(file_pruning_predicate="1 = 0")
    check_column_mapping(options.path, table)
    return table


def _load_version(options: TableOptions, table: "DeltaTable", version: int) -> None:
    """Raises OptionError for a version that the log does not have any more."""
    from deltalake.exceptions import DeltaError

    from semel.pipeline.delta_log import oldest_version
    from semel.store.roots import open_root

    try:
        table.load_as_version(version)
    except DeltaError:
        oldest = oldest_version(open_root(options.path))
        if oldest is None or version >= oldest:
            raise
        raise OptionError(
            f"{options.shown}: version {version} was cleaned up with its log entries; the oldest"
            f" one that can be read is {oldest}"
        ) from None


def _load_time(options: TableOptions, table: "DeltaTable", moment: datetime) -> None:
    """Raises OptionError for a time before the oldest version, for which delta-rs takes that one.

    If its entry was cleaned up, its time is unknown, and delta-rs decides.
    """
    from deltalake.exceptions import DeltaError

    from semel.pipeline.delta_log import oldest_version
    from semel.store.roots import open_root

    failure: DeltaError | None = None
    try:
        table.load_as_version(moment)
    except DeltaError as problem:
        # It has taken an entry from which the table cannot be read any more.
        failure = problem
    files = open_root(options.path)
    version = table.version() if failure is None else oldest_version(files)
    since = None if version is None else _time_of_version(files, version)
    if since is not None and moment < since:
        raise OptionError(
            f"{options.shown}: option timestamp: there is no version of {moment.isoformat()}; the"
            f" oldest one that can be read, version {version}, is of"
            f" {since.isoformat(timespec='milliseconds')}"
        )
    if failure is not None:
        raise failure


def _time_of_version(files: "Root", version: int) -> datetime | None:
    """When a version was committed; None if its entry was cleaned up."""
    from semel.pipeline.delta_log import DeltaLog

    log = DeltaLog(files)
    try:
        recorded = log.entry(version).milliseconds
    except FileNotFoundError:
        return None
    # A program may go by either, and the clocks of both may differ.
    written = log.written(version)
    seconds = written if recorded is None else min(recorded / 1000, written)
    return datetime.fromtimestamp(seconds, UTC)


def current_table(options: TableOptions) -> "DeltaTable":
    """The current version of the table. Later calls in a process read only new log entries."""
    from semel.pipeline.delta_errors import describe_missing_table
    from semel.pipeline.table import cached_table

    table = cached_table(options.path).load()
    if table is None:
        raise TableError(describe_missing_table(options.path))
    return table


def schema_of(table: "DeltaTable") -> StructType:
    """The schema of a table for Spark."""
    found: StructType = StructType.fromJson(json.loads(table.schema().to_json()))
    return found


def nullable_schema(schema: StructType) -> StructType:
    """The same columns, all nullable: a later version may have nulls, which Spark would not see."""
    fields = []
    for field in schema.jsonValue()["fields"]:
        kind = plain_type(schema[field["name"]].dataType)
        fields.append({**field, "type": kind, "nullable": True})
    found: StructType = StructType.fromJson({"type": "struct", "fields": fields})
    return found


def live_files(table: "DeltaTable", filters: BoundFilters | None = None) -> list[TableFile]:
    """The files of a version; with filters those that may have rows for them."""
    import pyarrow as pa

    from semel.pipeline.lake import dataset_of

    rows = pa.table(table.get_add_actions(flatten=True))
    names = table.metadata().partition_columns
    values = {name: rows.column(f"partition.{name}").to_pylist() for name in names}
    # No other column is taken by its name: statistics of a column a.b and of a field b have one.
    sizes = rows.column("size_bytes").to_pylist()
    found = []
    for at, path in enumerate(rows.column("path").to_pylist()):
        partition = {name: values[name][at] for name in names}
        found.append(TableFile(unquote(path), sizes[at] or 0, partition))
    if filters is None:
        return found
    chosen = {each.path for each in dataset_of(table).get_fragments(filters.expression())}
    return [file for file in found if file.path in chosen]


def partitions_of(
    files: Sequence[TableFile], filters: BoundFilters | None = None
) -> list[InputPartition]:
    """Partitions of about `PARTITION_BYTES`."""
    found: list[InputPartition] = []
    gathered: list[TableFile] = []
    size = 0
    for file in files:
        if gathered and size + file.size > PARTITION_BYTES:
            found.append(FilesPartition(gathered, filters))
            gathered, size = [], 0
        gathered.append(file)
        size += file.size
    if gathered:
        found.append(FilesPartition(gathered, filters))
    return found


# --- reading, on the executors --------------------------------------------------------------------


def read_files(
    options: TableOptions, schema: StructType, partition: InputPartition
) -> "Iterator[pa.RecordBatch]":
    """The rows of files, as record batches of Spark's schema. Raises TableError."""
    if not isinstance(partition, FilesPartition):
        return  # Spark's own partition for an empty batch
    import pyarrow as pa

    from semel.pipeline.delta_errors import one_line
    from semel.pipeline.files import TableFolder
    from semel.store.roots import without_secrets

    folder = TableFolder(options.path)
    target = to_arrow_schema(schema, timezone="UTC")
    needed, expression, of_groups = target, None, None
    if partition.filters is not None:
        expression = partition.filters.expression()
        of_groups = partition.filters.row_group_expression()
        compared = to_arrow_schema(partition.filters.columns, timezone="UTC")
        needed = pa.schema([*target, *(each for each in compared if each.name not in target.names)])
    for file in partition.files:
        try:
            with folder.open_parquet(file.path) as opened:
                there = set(opened.schema_arrow.names)
                columns = [name for name in needed.names if name in there]
                groups = None
                if of_groups is not None:
                    groups = folder.row_groups(file.path, of_groups, needed)
                for batch in opened.iter_batches(BATCH_ROWS, columns=columns, row_groups=groups):
                    complete = _complete(batch, file.partition, needed)
                    if expression is None:
                        yield complete
                        continue
                    chosen = complete.filter(expression)
                    if chosen.num_rows:
                        yield chosen.select(target.names)
        except FileNotFoundError:
            shown = without_secrets(options.path)
            raise DataLoss(
                f"{file.path} of {shown}, which this query still needs, was deleted by a vacuum:"
                " give the query a new checkpoint, which reads the whole table as it is; a query"
                " that may be so far behind needs a longer file_retention of the landing"
            ) from None
        except (OSError, pa.ArrowException) as problem:
            shown = without_secrets(options.path)
            raise TableError(
                f"{file.path} of {shown} cannot be read: {one_line(problem)}"
            ) from None


def _complete(
    batch: "pa.RecordBatch", partition: Mapping[str, Any], target: "pa.Schema"
) -> "pa.RecordBatch":
    """The rows with all columns: from the file, from the partition, or null."""
    import pyarrow as pa

    columns = []
    for field in target:
        if field.name in partition:
            value = pa.scalar(partition[field.name], field.type)
            column = pa.repeat(value, batch.num_rows)
        elif field.name in batch.schema.names:
            column = batch.column(field.name)
            if not column.type.equals(field.type):
                if _kind(column.type) != _kind(field.type):
                    raise pa.ArrowTypeError(
                        f"column {field.name} is {column.type} there and {field.type} in the table,"
                        " whose schema was changed after this file was written; a new query, with a"
                        " new checkpoint, reads the table as it is"
                    )
                # Times may have another unit; other types differ in the names of inner fields.
                column = column.cast(field.type, safe=not pa.types.is_timestamp(field.type))
        else:
            column = pa.nulls(batch.num_rows, field.type)
        columns.append(column)
    # Nullability of a file says nothing about that of the table.
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _kind(kind: "pa.DataType") -> str:
    """What a type has in common with those that are cast to it without another meaning."""
    import pyarrow as pa

    for is_alike in (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_timestamp,
        pa.types.is_date,
        pa.types.is_nested,
    ):
        if is_alike(kind):
            return str(is_alike.__name__)
    # Some writers do not mark text as such. Arrow checks that it is UTF-8.
    is_text = pa.types.is_large_string(kind) or pa.types.is_string(kind)
    is_bytes = pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return "binary" if is_text or is_bytes else str(kind)


def missing_columns(schema: StructType, table: StructType) -> list[str]:
    """Which columns of a schema a table lacks, or has with another type, as sentences."""
    known = {field.name: field.dataType for field in table.fields}
    found = []
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None:
            found.append(f"the table has no column {field.name}")
        elif plain_type(field.dataType) != plain_type(kind):
            found.append(
                f"column {field.name} is {kind.simpleString()} in the table, not"
                f" {field.dataType.simpleString()}"
            )
    return found


def plain_type(kind: DataType) -> Any:
    """A type without nullability and metadata, for comparisons."""
    from semel.pipeline.table_schema import nullable

    return nullable(json.loads(kind.json()))


def check_schema(schema: StructType, table: StructType) -> None:
    """Raise OptionError if a schema given by the user is not part of the table's."""
    for sentence in missing_columns(schema, table):
        raise OptionError(sentence)


class TableBatchReader(DataSourceReader):
    """Reads one version of a table."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        options.check_batch()
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        table = open_version(self._options)
        there = schema_of(table)
        check_schema(self._schema, there)
        filters = bind_filters(self._options.filters, there)
        return partitions_of(live_files(table, filters), filters)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_files(self._options, self._schema, partition)


# --- streams --------------------------------------------------------------------------------------


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows of a table, and then those that are appended to it.

    `loaded` is the version whose schema the query has; None if the user has given a schema.
    """

    def __init__(
        self, options: TableOptions, schema: StructType, loaded: int | None = None
    ) -> None:
        options.check_stream()
        self._options = options
        self._schema = schema
        self._loaded = loaded
        self._target: int | None = None

    def initialOffset(self) -> TableOffset:  # noqa: N802
        table = open_version(self._options)
        there = schema_of(table)
        if self._loaded is None:
            check_schema(self._schema, there)
        bind_filters(self._options.filters, there)
        identity = {"table": str(table.metadata().id)}
        if self._options.starts_at_latest:
            return {"version": table.version(), **identity}
        start = self._options.starting_version
        if start is None:
            return {"version": NOTHING, **identity}
        if start > table.version() + 1:
            raise OptionError(f"startingVersion {start}: the last one is {table.version()}")
        return {"version": start - 1, **identity}

    def latestOffset(self, start: TableOffset, limit: ReadLimit) -> TableOffset:  # noqa: N802
        table = current_table(self._options)
        last = int(table.version())
        if last < start["version"]:
            raise TableError(
                f"{self._options.shown}: this query has read version {start['version']}, but the"
                f" last one is {last}: {_REPLACED}"
            )
        # With as many versions, nothing else would tell.
        self._check_identity(table, start)
        if self._target is not None:
            last = min(last, self._target)
        if start["version"] != NOTHING and self._options.versions_per_batch is not None:
            last = min(last, start["version"] + self._options.versions_per_batch)
        return {**start, "version": max(last, start["version"])}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = int(current_table(self._options).version())

    def partitions(self, start: TableOffset, end: TableOffset) -> list[InputPartition]:
        first, last = start["version"] + 1, end["version"]
        if first > last:
            return []
        if start["version"] == NOTHING and self._options.starting_version is None:
            table = open_version(self._options, last)
            self._check_identity(table, start)
            self._check_schema(table, start)
            filters = bind_filters(self._options.filters, schema_of(table))
            return partitions_of(live_files(table, filters), filters)
        table = open_version(self._options)
        self._check_identity(table, start)
        self._check_schema(table, start)
        filters = bind_filters(self._options.filters, schema_of(table))
        return partitions_of(appended_files(self._options, table, first, last), filters)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_files(self._options, self._schema, partition)

    def _check_identity(self, table: "DeltaTable", start: TableOffset) -> None:
        """Raise TableError if the offset is of another table, whose versions have other rows."""
        if start.get("table", table.metadata().id) != table.metadata().id:
            raise TableError(f"{self._options.shown}: {_REPLACED}")

    def _check_schema(self, table: "DeltaTable", start: TableOffset) -> None:
        """Raise TableError if the query would lose columns of the table, or change their values."""
        changes = self._schema_changes(table)
        if not changes:
            return
        low = max(start["version"], 0) if self._loaded is None else self._loaded
        high = table.version()
        # The first version with another schema, by bisection, because each one has to be loaded.
        while low + 1 < high:
            middle = (low + high) // 2
            try:
                is_changed = bool(self._schema_changes(open_version(self._options, middle)))
            except TableError:
                is_changed = False  # cleaned up, so older than what can be found
            low, high = (low, middle) if is_changed else (middle, high)
        raise TableError(
            f"{self._options.shown}: its schema changed in version {high}, while this query ran:"
            f" {'; '.join(changes)}. Load the table again and restart the query, which then reads"
            " the new schema from the same checkpoint"
        )

    def _schema_changes(self, table: "DeltaTable") -> list[str]:
        there = schema_of(table)
        found = missing_columns(self._schema, there)
        if self._loaded is not None:
            added = [field.name for field in there.fields if field.name not in self._schema.names]
            found += [f"column {name} was added" for name in added]
        return found

    def commit(self, end: TableOffset) -> None:
        """Does nothing: versions are kept as long as the table's log is."""

    def stop(self) -> None:
        self._target = None


def appended_files(
    options: TableOptions, table: "DeltaTable", first: int, last: int
) -> list[TableFile]:
    """The files that versions have added. Raises DataLoss, or TableError for changed rows."""
    from semel.pipeline.delta_log import RETENTION, DeltaLog
    from semel.store.roots import open_root

    log = DeltaLog(open_root(options.path))
    kinds = {field.name: field.dataType.typeName() for field in schema_of(table).fields}
    found: list[TableFile] = []
    for version in range(first, last + 1):
        try:
            entry = log.entry(version)
        except FileNotFoundError:
            raise DataLoss(
                f"{options.shown}: the log entry of version {version}, which this query still"
                " needs, was cleaned up: give the query a new checkpoint, which reads the whole"
                " table again, and a new table to write to"
            ) from None
        # Retention removes rows that were appended by an earlier version, which this query has
        # read, or reads by that version.
        if entry.changes_rows and entry.operation != RETENTION:
            if options.skip_changes:
                continue
            raise TableError(
                f"{options.shown}: version {version} ({entry.operation or 'unknown operation'})"
                " deletes or changes rows, which a stream cannot take back: option"
                " skipChangeCommits=true leaves such versions out"
            )
        for action in entry.added:
            if action.get("dataChange", True):
                values = action.get("partitionValues") or {}
                partition = {
                    name: partition_value(text, kinds[name]) for name, text in values.items()
                }
                path = unquote(action["path"])
                found.append(TableFile(path, int(action.get("size") or 0), partition))
    return found


def partition_value(text: str | None, kind: str) -> Any:
    """A value of a partition column, from its text in the log."""
    if text is None or text == "":
        return None
    if kind in ("byte", "short", "integer", "long"):
        return int(text)
    if kind in ("float", "double"):
        return float(text)
    if kind == "decimal":
        return Decimal(text)
    if kind == "boolean":
        return text == "true"
    if kind == "date":
        return date.fromisoformat(text)
    if kind == "timestamp":
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found
    if kind == "timestamp_ntz":
        return datetime.fromisoformat(text)
    if kind == "string":
        return text
    raise TableError(f"partition columns of type {kind} cannot be read")
