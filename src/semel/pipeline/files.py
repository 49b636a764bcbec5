"""Parquet files of a Delta table: what an executor writes, and what the commit needs to know.

Rows arrive as Arrow record batches and are buffered per partition of the table. When the buffers
exceed `BUFFER_BYTES`, the largest partition is written to a file: memory is bounded, whatever the
number of rows. A file has a unique name and is synced before the commit learns of it. It is not
part of the table until a commit names it; a file that no commit names is an orphan, which `semel
lake vacuum` deletes when it is a week old.

Statistics are taken from the Parquet footer, so that they cost nothing. There are bounds for every
column that has an order, or for none: see `statistics_from`. Float columns have neither statistics
in the footer nor a dictionary, because Spark's Parquet reader skips rows by them that SQL selects:
bounds ignore NaN, which is greater than any number, and in a dictionary -0.0 is not 0.0.
"""

import json
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from semel.counts import count
from semel.pipeline.delta_errors import one_line
from semel.pipeline.delta_fsync import fsync_path
from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import local_folder
from semel.store.roots import without_secrets
from semel.store.segments import encode_group_bytes

# Arrow bytes that are buffered before a file is written.
BUFFER_BYTES: Final = 128 * 1024 * 1024
GROUP_ROWS: Final = 256 * 1024
# Longer strings are truncated in bounds.
BOUND_CHARACTERS: Final = 64
# Decimal digits that a float represents exactly.
EXACT_DIGITS: Final = 15
# The longest file name that file systems allow.
NAME_BYTES: Final = 255
# Concurrent requests to an object store.
REQUESTS: Final = 16
# The partition folder of null in Hive and Spark.
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

# What pyarrow raises for a file that is damaged or cannot be read.
READ_ERRORS: Final = (OSError, ValueError, pa.ArrowException)

# What to do about a damaged file that no commit names yet.
WRITE_AGAIN: Final = (
    "nothing was committed; check the disks and the memory of this machine, and start again: then"
    " the rows are written again"
)

# First and last seq of consecutive rows, inclusive.
Run = tuple[int, int]

# How rows with columns `node` and `seq` are numbered: each seq once; or any number of times.
UNIQUE: Final = "unique"
REPEATED: Final = "repeated"
# What to do if a query has left messages out, or has made several rows of one.
ASK_COVERAGE: Final = "a query that filters or explodes messages needs option coverage=offsets"


@dataclass(frozen=True)
class DataFile:
    """A complete file, for the commit. Plain values, because it is sent between processes."""

    # Relative to the table, as it is on disk.
    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    statistics: str
    # In milliseconds.
    modified: int
    # Its rows of each node, ascending, if rows are numbered. If numbers may be repeated: first and
    # last.
    runs: dict[str, list[Run]]
    # The host that wrote it.
    host: str = ""


@dataclass(frozen=True)
class TableLayout:
    """How rows are divided into files."""

    # The address of the table, as the user gave it.
    address: str
    partition_by: tuple[str, ...] = ()
    # How rows are numbered by `node` and `seq`, which the commit checks; None: they are not.
    numbering: str | None = None
    # The folder, relative to the table, for rows of one partition that lack its columns.
    folder: str = ""


def write_files(batches: Iterable[pa.RecordBatch], layout: TableLayout) -> list[DataFile]:
    """Write all rows; returns the files in the order in which they were written."""
    writer = FileWriter(layout)
    for batch in batches:
        writer.add(pa.Table.from_batches([batch]))
    return writer.finish()


class FileWriter:
    """Writes rows as they come, and keeps at most `buffer_bytes` of them in memory."""

    def __init__(self, layout: TableLayout, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._layout = layout
        self._buffer_bytes = buffer_bytes
        self._folder = TableFolder(layout.address)
        self._written: list[DataFile] = []
        self._buffers: dict[tuple[Any, ...], list[pa.Table]] = {}
        self._sizes: dict[tuple[Any, ...], int] = {}

    def add(self, rows: pa.Table) -> None:
        """Add rows, which all have the same columns."""
        if not rows.num_rows:
            return
        for key, part in _parts(as_in_delta(rows), self._layout.partition_by):
            self._buffers.setdefault(key, []).append(part)
            self._sizes[key] = self._sizes.get(key, 0) + part.nbytes
        while sum(self._sizes.values()) > self._buffer_bytes:
            self._release(max(self._sizes, key=lambda each: self._sizes[each]))

    def finish(self) -> list[DataFile]:
        """Write what is left; returns the files in the order in which they were written."""
        for key in list(self._buffers):
            self._release(key)
        return self._written

    def _release(self, key: tuple[Any, ...]) -> None:
        table = pa.concat_tables(self._buffers.pop(key))
        del self._sizes[key]
        self._written.append(_write(self._folder, table, self._layout, key))


def new_part(
    address: str, file: DataFile, landed: Mapping[str, int], numbering: str
) -> list[DataFile]:
    """The rows of a file after these positions: the file, nothing, or a new file."""
    at = {node: landed[node] for node in file.runs}
    if all(runs[0][0] > at[node] for node, runs in file.runs.items()):
        return [file]
    if all(runs[-1][1] <= at[node] for node, runs in file.runs.items()):
        return []
    rows = TableFolder(address).read(file.path)
    mask = None
    for node, seq in at.items():
        new = pc.and_(pc.equal(rows.column("node"), node), pc.greater(rows.column("seq"), seq))
        mask = new if mask is None else pc.or_(mask, new)
    folder = file.path.rpartition("/")[0]
    layout = TableLayout(address, numbering=numbering, folder=folder)
    rest = write_files(rows.filter(mask).to_batches(), layout)
    return [replace(each, partition=file.partition) for each in rest]


def as_in_delta(table: pa.Table) -> pa.Table:
    """The same rows as tables have them: nullable columns, and UTC, the only time zone of Delta.

    So all files of a table have the same schema, whether a query or a compaction has written them.
    """
    schema = pa.schema([field.with_nullable(True) for field in table.schema])
    table = pa.Table.from_arrays(table.columns, schema=schema)
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz not in (None, "UTC"):
            kind = pa.timestamp(field.type.unit, tz="UTC")
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def _parts(
    table: pa.Table, partition_by: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, in their order, without the partition columns."""
    if not partition_by:
        yield (), table
        return
    rest = table.drop_columns(list(partition_by))
    try:
        chosen = table.select(list(partition_by))
        keys = chosen.group_by(list(partition_by)).aggregate([]).to_pylist()
    except OverflowError as problem:
        raise TableError(f"partitionBy: a date or time is out of range: {problem}") from None
    except UnicodeDecodeError as problem:
        found = ", ".join(name for name in partition_by if _is_ill_formed(table.column(name)))
        raise TableError(
            f"partitionBy: a value of {found} is not UTF-8, which the name of a folder must be:"
            f" {problem.reason}"
        ) from None
    if len(keys) == 1:
        yield tuple(keys[0].values()), rest
        return
    for key in keys:
        mask = None
        for name, value in key.items():
            column = table.column(name)
            same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value))
            mask = same if mask is None else pc.and_(mask, same)
        # A comparison with null is null: such a row belongs to another partition.
        yield tuple(key.values()), rest.filter(mask, null_selection_behavior="drop")


def _is_ill_formed(column: pa.ChunkedArray) -> bool:
    """Whether text is not UTF-8, which Spark does not check when it casts to a string."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def partition_value(value: Any) -> str | None:
    """A partition value as in the Delta log; an empty string counts as null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if isinstance(value, str | int | date):
        return str(value)
    raise TableError(f"a table cannot be partitioned by a value such as {value!r}")


def partition_folder(name: str, value: str | None) -> str:
    """The name of the folder with the rows of a partition value, as in Hive and Spark.

    Some readers take partition values from it, so one of more than NAME_BYTES is not shortened.
    """
    # delta-rs encodes the path once more in the log.
    return f"{quote(name, safe='')}={HIVE_NULL if value is None else quote(value, safe='')}"


def _write(
    folder: "TableFolder", table: pa.Table, layout: TableLayout, key: tuple[Any, ...]
) -> DataFile:
    partition = {
        name: partition_value(value) for name, value in zip(layout.partition_by, key, strict=True)
    }
    folders = [partition_folder(name, value) for name, value in partition.items()]
    for name, each in zip(partition, folders, strict=True):
        if len(each) > NAME_BYTES:
            raise TableError(f"partitionBy: a value of {name} is too long for a folder name")
    if layout.folder:
        folders = [layout.folder]
    path = "/".join([*folders, f"part-{secrets.token_hex(16)}.zstd.parquet"])
    try:
        with folder.create(path) as sink:
            footer = _fill(sink, table)
        size = folder.fsync(path)
    except OSError as problem:
        folder.discard(path)
        shown = without_secrets(layout.address)
        raise TableError(
            f"{shown} cannot be written: {one_line(problem)}; nothing was committed"
        ) from problem
    return DataFile(
        path=path,
        size=size,
        rows=table.num_rows,
        partition=partition,
        # Not escaped: some readers do not support all escapes of JSON.
        statistics=json.dumps(statistics_of(footer, table), ensure_ascii=False),
        modified=time.time_ns() // 1_000_000,
        runs={} if layout.numbering is None else runs_of(table, layout.numbering),
        host=socket.gethostname(),
    )


def _fill(sink: Any, table: pa.Table) -> pq.FileMetaData:
    """Write all rows; returns the footer. Raises OSError."""
    footers: list[pq.FileMetaData] = []
    with open_parquet_writer(sink, table.schema, footers) as writer:
        writer.write_table(table, row_group_size=GROUP_ROWS)
        groups = range(0, table.num_rows, GROUP_ROWS)
        sizes = [table.slice(begin, GROUP_ROWS).nbytes for begin in groups]
        writer.add_key_value_metadata(encode_group_bytes(sizes))
    return footers[0]


@contextmanager
def open_parquet_writer(
    sink: Any, schema: pa.Schema, footers: list[pq.FileMetaData]
) -> Iterator[pq.ParquetWriter]:
    """A writer for files of a table; when it is closed, it adds its footer to `footers`."""
    growing = [
        field.name
        for field in schema
        if pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)
    ]
    dictionaries = [
        field.name
        for field in schema
        # Binary values rarely repeat, so a dictionary of them would be discarded.
        if field.name not in growing
        and not pa.types.is_binary(field.type)
        and not pa.types.is_floating(field.type)
    ]
    with_statistics = [
        path
        for field in schema
        for path, kind in _leaves(field.name, field.type)
        if not pa.types.is_floating(kind)
    ]
    writer = pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=dictionaries,
        write_statistics=with_statistics,
        column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED") or None,
        store_schema=False,
        # Readers that verify checksums, such as compaction, notice a flipped bit.
        write_page_checksum=True,
        metadata_collector=footers,
    )
    try:
        yield writer
        writer.close()
    except BaseException:
        # A writer that has failed raises another error when it is closed, which would hide the
        # cause. It would also close itself when it is garbage-collected.
        with suppress(Exception):
            writer.close()
        writer.is_open = False
        raise


def runs_of(table: pa.Table, numbering: str = UNIQUE) -> dict[str, list[Run]]:
    """The seqs of each node as runs. Raises TableError for a missing or a duplicate seq.

    Rows of a record are in order and form one run, unless a program has shuffled them. If numbers
    may be repeated, a node has one run, from its first to its last seq.
    """
    if table.column("node").null_count or table.column("seq").null_count:
        raise TableError("a row has no node or no seq: rows of a stream have both")
    nodes = table.column("node").unique().to_pylist()
    found: dict[str, list[Run]] = {}
    for node in nodes:
        rows = table if len(nodes) == 1 else table.filter(pc.equal(table.column("node"), node))
        seqs = rows.column("seq").combine_chunks()
        if numbering == REPEATED:
            bounds = pc.min_max(seqs).as_py()
            found[node] = [(bounds["min"], bounds["max"])]
            continue
        steps = pc.pairwise_diff(seqs).slice(1)
        if not pc.all(pc.equal(steps, 1), min_count=0).as_py():
            seqs = seqs.take(pc.sort_indices(seqs))
            steps = pc.pairwise_diff(seqs).slice(1)
            if pc.any(pc.equal(steps, 0)).as_py():
                raise TableError(
                    f"a row of node {node} is duplicated; nothing was committed; {ASK_COVERAGE}"
                )
        breaks = pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()
        starts = [0, *(each + 1 for each in breaks)]
        ends = [*breaks, len(seqs) - 1]
        bounds = (seqs.take(pa.array(each)).to_pylist() for each in (starts, ends))
        found[node] = list(zip(*bounds, strict=True))
    return found


class FloatStatistics:
    """Null counts and bounds of the float columns of a file, which its footer lacks."""

    def __init__(self, schema: pa.Schema) -> None:
        self.nulls = {field.name: 0 for field in schema if pa.types.is_floating(field.type)}
        self._with_nan: set[str] = set()
        self._bounds: dict[str, tuple[float, float]] = {}

    def add(self, rows: pa.Table) -> None:
        """Add rows of the file."""
        for name in self.nulls:
            column = rows.column(name)
            self.nulls[name] += column.null_count
            if pc.any(pc.is_nan(column)).as_py():
                self._with_nan.add(name)
            found = pc.min_max(column).as_py()
            if found["min"] is not None:
                known = self._bounds.get(name, (found["min"], found["max"]))
                self._bounds[name] = min(known[0], found["min"]), max(known[1], found["max"])

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """The lowest and highest value, or None if they cannot be represented."""
        # Spark orders NaN above all numbers, and JSON cannot represent it.
        if name in self._with_nan or name not in self._bounds:
            return None
        low, high = self._bounds[name]
        # Either zero may be among the values, as in Parquet's bounds.
        low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
        return (low, high) if isfinite(low) and isfinite(high) else None


def statistics_of(footer: pq.FileMetaData, table: pa.Table) -> dict[str, Any]:
    """The statistics of a file for the Delta log, from its footer and its rows."""
    floats = FloatStatistics(table.schema)
    floats.add(table)
    return statistics_from(footer, table.schema, table.num_rows, floats)


def statistics_from(
    footer: pq.FileMetaData, schema: pa.Schema, rows: int, floats: FloatStatistics
) -> dict[str, Any]:
    """The statistics of a file for the Delta log, from its footer.

    If some columns have bounds, some readers treat a column without bounds as one without values.
    So there are bounds for all columns that can have them, or for none.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    place = 0
    for field in schema:
        found = []
        if not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type):
            found = [
                footer.row_group(each).column(place).statistics
                for each in range(footer.num_row_groups)
            ]
            if any(each is None or not each.has_null_count for each in found):
                return {"numRecords": rows}
            nulls[field.name] = sum(each.null_count for each in found)
        elif field.name in floats.nulls:
            nulls[field.name] = floats.nulls[field.name]
        has_order = field.name in nulls and not pa.types.is_binary(field.type)
        if has_order and nulls[field.name] < rows:
            is_float = field.name in floats.nulls
            bounds = floats.bounds(field.name) if is_float else _bounds(found)
            if bounds is None:
                return {"numRecords": rows}
            lowest[field.name], highest[field.name] = bounds
        place += len(_leaves(field.name, field.type))
    return {
        "numRecords": rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }


def _leaves(path: str, kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """The Parquet columns of an Arrow column, in their order: their paths, and types."""
    if not pa.types.is_nested(kind):
        return [(path, kind)]
    if pa.types.is_map(kind):
        inner = [(f"{path}.key_value.key", kind.key_type)]
        inner.append((f"{path}.key_value.value", kind.item_type))
    elif pa.types.is_struct(kind):
        inner = [(f"{path}.{field.name}", field.type) for field in kind]
    else:
        inner = [(f"{path}.list.element", kind.value_type)]
    return [leaf for each in inner for leaf in _leaves(*each)]


def _bounds(statistics: list[Any]) -> tuple[Any, Any] | None:
    """The lowest and highest value of a column, or None if they cannot be represented."""
    # A row group with only nulls has none.
    bounded = [each for each in statistics if each.num_values]
    if not bounded or not all(each.has_min_max for each in bounded):
        return None
    try:
        low = _lower(min(each.min for each in bounded))
        high = _upper(max(each.max for each in bounded))
    except (OverflowError, ValueError):
        return None  # a date out of the range of Python
    return None if low is None or high is None else (low, high)


def _lower(value: Any) -> Any:
    """A lower bound as JSON of the Delta log."""
    return value[:BOUND_CHARACTERS] if isinstance(value, str) else _json_value(value)


def _upper(value: Any) -> Any:
    """An upper bound as JSON of the Delta log. A truncated string is rounded up."""
    if not isinstance(value, str):
        return _json_value(value)
    if len(value) <= BOUND_CHARACTERS:
        return value
    for end in range(BOUND_CHARACTERS, 0, -1):
        code = ord(value[end - 1])
        if code < 0x10FFFF:
            # The code points between these two are surrogates.
            return value[: end - 1] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None


def _json_value(value: Any) -> Any:
    """A value as JSON of the Delta log, or None if it cannot be represented."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, Decimal):
        # Some readers parse numbers as floats, and some do not support exponents. Values that not
        # all of them read correctly are left out.
        number = float(value)
        is_plain = len(value.as_tuple().digits) <= EXACT_DIGITS and "e" not in repr(number)
        return number if is_plain else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return None


class TableFolder:
    """The files of a table, in a local folder or an object store."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.local = local_folder(address)
        if self.local is None:
            try:
                self._remote, path = fs.FileSystem.from_uri(address)
            except (OSError, ValueError) as problem:
                shown = without_secrets(address)
                raise TableError(f"the table {shown} cannot be opened: {problem}") from problem
            self._path = path.rstrip("/")

    def create(self, path: str) -> Any:
        """Create a file and open it for writing."""
        if self.local is None:
            return self._remote.open_output_stream(f"{self._path}/{path}")
        target = self.local / path
        _make_folder(target.parent)
        return open(target, "xb")

    def discard(self, path: str) -> None:
        """Delete a file that could not be completed."""
        with suppress(OSError):
            if self.local is None:
                self._remote.delete_file(f"{self._path}/{path}")
            else:
                (self.local / path).unlink()

    def fsync(self, path: str) -> int:
        """Make a new file and its directory entry durable; returns its size."""
        if self.local is None:
            # A completed PUT is durable.
            return int(self._remote.get_file_info(f"{self._path}/{path}").size)
        target = self.local / path
        fsync_path(target)
        fsync_path(target.parent)
        return target.stat().st_size

    def check_files(self, files: Sequence[DataFile]) -> None:
        """Raise TableError unless this process sees each of these files with its size.

        The process that wrote them may have had another file system mounted at the same path.
        """
        shown = without_secrets(self.address)
        try:
            sizes = self._sizes([file.path for file in files])
        except OSError as problem:
            raise TableError(f"{shown} cannot be read: {one_line(problem)}") from problem
        for file, size in zip(files, sizes, strict=True):
            if size == file.size:
                continue
            found = (
                "is missing"
                if size is None
                else f"has {count(size, 'byte')} instead of {file.size:,}"
            )
            where = f" on {file.host}" if file.host else ""
            raise TableError(
                f"{shown}: {file.path}, written{where}, {found} on the driver"
                f" ({socket.gethostname()}): the lake must be on storage that the driver and the"
                " workers share, an object store or a file system that all of them mount at this"
                " path; nothing was committed, and the rows land once it is"
            )

    def _sizes(self, paths: list[str]) -> list[int | None]:
        """The size of each file, or None if it does not exist."""
        if self.local is not None:
            return [_size(self.local / path) for path in paths]
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(self._remote_size, paths))

    def _remote_size(self, path: str) -> int | None:
        info = self._remote.get_file_info(f"{self._path}/{path}")
        return int(info.size) if info.type == fs.FileType.File else None

    def open_parquet(self, path: str, *, verify: bool = True) -> pq.ParquetFile:
        """Open a file for reading; `verify` checks page checksums. Raises OSError."""
        place = f"{self._path}/{path}" if self.local is None else self.local / path
        remote = self._remote if self.local is None else None
        return pq.ParquetFile(place, filesystem=remote, page_checksum_verification=verify)

    def row_groups(self, path: str, filters: Any, schema: pa.Schema) -> list[int]:
        """The row groups of a file that may have rows for which an expression is true.

        By Parquet's statistics. `schema` has the columns of the expression. Raises OSError.
        """
        # Few programs need it.
        import pyarrow.dataset as ds

        place = f"{self._path}/{path}" if self.local is None else str(self.local / path)
        remote = fs.LocalFileSystem() if self.local is not None else self._remote
        fragment = ds.ParquetFileFormat().make_fragment(place, remote)
        return [group.id for group in fragment.subset(filters, schema).row_groups]

    def read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file that no commit names yet, without partition columns; or some columns.

        Files of a version are read by `file_verification`. Raises TableError.
        """
        try:
            with self.open_parquet(path) as file:
                return file.read(columns=columns)
        except READ_ERRORS as problem:
            shown = without_secrets(self.address)
            raise TableError(
                f"{path} of {shown}, which was just written, cannot be read: {one_line(problem)};"
                f" {WRITE_AGAIN}"
            ) from problem


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_path(folder.parent)
