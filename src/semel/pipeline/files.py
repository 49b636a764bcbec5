"""Parquet files of a Delta table: what an executor writes, with all that the commit has to know.

Rows come as Arrow record batches and are gathered for each partition of the table. When more is
gathered than fits `BUFFER_BYTES`, the largest partition becomes a file: memory is bounded, whatever
the number of rows. A file has a name that nobody else can have, is synced before its name is told,
and means nothing until a commit names it; one that no commit names is an orphan, which
`semel lake vacuum` removes when it is a week old.

Statistics are those of the Parquet footer, so that they cost nothing. Bounds are said for every
column that has an order, or for none: see `statistics_of`.
"""

import json
import secrets
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
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

# Rows in memory before a file is written, in bytes of Arrow.
BUFFER_BYTES: Final = 128 * 1024 * 1024
GROUP_ROWS: Final = 256 * 1024
# A bound that is a longer text is cut.
BOUND_CHARACTERS: Final = 64
# Decimal digits that a float keeps.
EXACT_DIGITS: Final = 15
# Bytes that a file system allows for a name.
NAME_BYTES: Final = 255
# Files that an object store is asked about at the same time.
REQUESTS: Final = 16
# What Hive and Spark call the folder of rows without a value.
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

# First and last seq of rows without a gap, both included.
Run = tuple[int, int]


@dataclass(frozen=True)
class DataFile:
    """A file that is there whole, for the commit. Plain values: it crosses processes."""

    # Below the table, as it is on disk.
    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    statistics: str
    # In milliseconds.
    modified: int
    # What it holds of each node, ascending, if rows are numbered.
    runs: dict[str, list[Run]]
    # The machine that wrote it.
    host: str = ""


@dataclass(frozen=True)
class TableLayout:
    """How rows become files."""

    # The table's place, as the user gave it.
    address: str
    partition_by: tuple[str, ...] = ()
    # Whether rows have the columns `node` and `seq`, which the commit is to know.
    is_numbered: bool = False
    # Where in the table files go that are of one partition, without its columns.
    folder: str = ""


def write_files(batches: Iterable[pa.RecordBatch], layout: TableLayout) -> list[DataFile]:
    """Write all rows; what was written, in order."""
    folder = TableFolder(layout.address)
    written: list[DataFile] = []
    held: dict[tuple[Any, ...], list[pa.Table]] = {}
    sizes: dict[tuple[Any, ...], int] = {}

    def release(key: tuple[Any, ...]) -> None:
        table = pa.concat_tables(held.pop(key))
        del sizes[key]
        written.append(_write(folder, table, layout, key))

    for batch in batches:
        if not batch.num_rows:
            continue
        table = in_utc(pa.Table.from_batches([batch]))
        for key, part in _parts(table, layout.partition_by):
            held.setdefault(key, []).append(part)
            sizes[key] = sizes.get(key, 0) + part.nbytes
        while sum(sizes.values()) > BUFFER_BYTES:
            release(max(sizes, key=lambda each: sizes[each]))
    for key in list(held):
        release(key)
    return written


def in_utc(table: pa.Table) -> pa.Table:
    """The same moments with UTC as their zone, which is all that Delta knows."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz not in (None, "UTC"):
            kind = pa.timestamp(field.type.unit, tz="UTC")
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def _parts(
    table: pa.Table, partition_by: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, in their order, without the columns that say which it is."""
    if not partition_by:
        yield (), table
        return
    rest = table.drop_columns(list(partition_by))
    try:
        chosen = table.select(list(partition_by))
        keys = chosen.group_by(list(partition_by)).aggregate([]).to_pylist()
    except OverflowError as problem:
        raise TableError(
            f"partitionBy: a date or time is none of the calendar: {problem}"
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
        # A comparison with null is null, and such a row is not of this partition.
        yield tuple(key.values()), rest.filter(mask, null_selection_behavior="drop")


def partition_value(value: Any) -> str | None:
    """A value as the Delta log writes that of a partition; an empty text is none, too."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if isinstance(value, str | int | date):
        return str(value)
    raise TableError(f"a table cannot be partitioned by a value such as {value!r}")


def _write(
    folder: "TableFolder", table: pa.Table, layout: TableLayout, key: tuple[Any, ...]
) -> DataFile:
    partition = {
        name: partition_value(value) for name, value in zip(layout.partition_by, key, strict=True)
    }
    # As Hive and Spark name folders. What the log has is encoded once more, by delta-rs.
    folders = [
        f"{quote(name, safe='')}={HIVE_NULL if value is None else quote(value, safe='')}"
        for name, value in partition.items()
    ]
    for each in folders:
        if len(each) > NAME_BYTES:
            # For the log any folder would do, but there are readers that go by its name.
            name = each.partition("=")[0]
            raise TableError(f"partitionBy: a value of {name} is too long for a folder's name")
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
        # As it is: there are readers that do not understand all of JSON's escapes.
        statistics=json.dumps(statistics_of(footer, table), ensure_ascii=False),
        modified=time.time_ns() // 1_000_000,
        runs=runs_of(table) if layout.is_numbered else {},
        host=socket.gethostname(),
    )


def _fill(sink: Any, table: pa.Table) -> pq.FileMetaData:
    """Write all rows, and the footer; what that says. Raises OSError."""
    footers: list[pq.FileMetaData] = []
    writer = open_parquet_writer(sink, table.schema, footers)
    try:
        writer.write_table(table, row_group_size=GROUP_ROWS)
        groups = range(0, table.num_rows, GROUP_ROWS)
        sizes = [table.slice(begin, GROUP_ROWS).nbytes for begin in groups]
        writer.add_key_value_metadata(encode_group_bytes(sizes))
        writer.close()
    except OSError:
        # Not by `with`: a writer that has failed fails again when it is closed, in other words that
        # hide why. It would close itself, too, when nobody needs it any more.
        with suppress(Exception):
            writer.close()
        writer.is_open = False
        raise
    return footers[0]


def open_parquet_writer(
    sink: Any, schema: pa.Schema, footers: list[pq.FileMetaData]
) -> pq.ParquetWriter:
    """A writer as all files of a table are written; its footer is in `footers` at the end."""
    growing = [
        field.name
        for field in schema
        if pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)
    ]
    dictionaries = [
        field.name
        for field in schema
        # Bytes are mostly each different: a dictionary of them is thrown away in the end.
        if field.name not in growing and not pa.types.is_binary(field.type)
    ]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=dictionaries,
        column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED") or None,
        store_schema=False,
        # A flipped bit is an error for whoever compares them, as compaction does.
        write_page_checksum=True,
        metadata_collector=footers,
    )


def runs_of(table: pa.Table) -> dict[str, list[Run]]:
    """The numbers of the rows of each node. Refuses a row without one, and a number twice.

    Rows of a record are in order, and then there is one run of them; but a program may have
    shuffled them.
    """
    if table.column("node").null_count or table.column("seq").null_count:
        raise TableError("a row has no node or no seq: rows of a stream have both")
    nodes = table.column("node").unique().to_pylist()
    found: dict[str, list[Run]] = {}
    for node in nodes:
        rows = table if len(nodes) == 1 else table.filter(pc.equal(table.column("node"), node))
        seqs = rows.column("seq").combine_chunks()
        steps = pc.pairwise_diff(seqs).slice(1)
        if not pc.all(pc.equal(steps, 1), min_count=0).as_py():
            seqs = seqs.take(pc.sort_indices(seqs))
            steps = pc.pairwise_diff(seqs).slice(1)
            if pc.any(pc.equal(steps, 0)).as_py():
                raise TableError(f"a row of node {node} came twice, and nothing was committed")
        breaks = pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()
        starts = [0, *(each + 1 for each in breaks)]
        ends = [*breaks, len(seqs) - 1]
        firsts, lasts = (seqs.take(pa.array(each)).to_pylist() for each in (starts, ends))
        found[node] = list(zip(firsts, lasts, strict=True))
    return found


def statistics_of(footer: pq.FileMetaData, table: pa.Table) -> dict[str, Any]:
    """What the Delta log is to say about a file with the rows of a table."""
    with_nan = {
        field.name
        for field in table.schema
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(table.column(field.name))).as_py()
    }
    return statistics_from(footer, table.schema, table.num_rows, with_nan)


def statistics_from(
    footer: pq.FileMetaData, schema: pa.Schema, rows: int, with_nan: Collection[str]
) -> dict[str, Any]:
    """What the Delta log is to say about a file, from its own footer.

    `with_nan` names the columns that contain NaN, which a footer does not tell. Some readers take
    a column that has no bounds, beside others that have, for one that holds nothing. So there are
    bounds for all columns that can have them, or for none.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    place = 0
    for field in schema:
        leaves = _leaves(field.type)
        if leaves == 1 and not pa.types.is_nested(field.type):
            found = [
                footer.row_group(each).column(place).statistics
                for each in range(footer.num_row_groups)
            ]
            if any(each is None or not each.has_null_count for each in found):
                return {"numRecords": rows}
            nulls[field.name] = sum(each.null_count for each in found)
            if nulls[field.name] < rows and not pa.types.is_binary(field.type):
                # Spark orders NaN above all numbers, and Parquet's bounds pass over it.
                bounds = None if field.name in with_nan else _bounds(found)
                if bounds is None:
                    return {"numRecords": rows}
                lowest[field.name], highest[field.name] = bounds
        place += leaves
    return {
        "numRecords": rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }


def _leaves(kind: pa.DataType) -> int:
    """How many columns of Parquet a column of Arrow is."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(each).type) for each in range(kind.num_fields))


def _bounds(statistics: list[Any]) -> tuple[Any, Any] | None:
    """The lowest and the highest value of a column that has values; None: they cannot be said."""
    # A row group of nulls alone has none.
    bounded = [each for each in statistics if each.num_values]
    if not bounded or not all(each.has_min_max for each in bounded):
        return None
    try:
        low = _lower(min(each.min for each in bounded))
        high = _upper(max(each.max for each in bounded))
    except (OverflowError, ValueError):
        return None  # a day that Python's calendar does not have
    return None if low is None or high is None else (low, high)


def _lower(value: Any) -> Any:
    """A lower bound as JSON of the Delta log."""
    return value[:BOUND_CHARACTERS] if isinstance(value, str) else _said(value)


def _upper(value: Any) -> Any:
    """An upper bound as JSON of the Delta log. A text that is cut is made larger than it was."""
    if not isinstance(value, str):
        return _said(value)
    if len(value) <= BOUND_CHARACTERS:
        return value
    for end in range(BOUND_CHARACTERS, 0, -1):
        sign = ord(value[end - 1])
        if sign < 0x10FFFF:
            # Between these two there are only surrogates.
            return value[: end - 1] + chr(0xE000 if sign == 0xD7FF else sign + 1)
    return None


def _said(value: Any) -> Any:
    """A value as JSON of the Delta log; None: it cannot be said."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Decimal):
        # There are readers that take a number of JSON for a float, and some that do not know
        # exponents: what cannot be said to both is not said.
        number = float(value)
        is_plain = len(value.as_tuple().digits) <= EXACT_DIGITS and "e" not in repr(number)
        return number if is_plain else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return None


class TableFolder:
    """Where the files of a table are: a folder of this machine, or an object store."""

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
        """A new file, open for writing."""
        if self.local is None:
            return self._remote.open_output_stream(f"{self._path}/{path}")
        target = self.local / path
        _make_folder(target.parent)
        return open(target, "xb")

    def discard(self, path: str) -> None:
        """Delete a file that could not be written: nobody else knows its name."""
        with suppress(OSError):
            if self.local is None:
                self._remote.delete_file(f"{self._path}/{path}")
            else:
                (self.local / path).unlink()

    def fsync(self, path: str) -> int:
        """Let a file that was written last, with its name; its size."""
        if self.local is None:
            # What was put lasts.
            return int(self._remote.get_file_info(f"{self._path}/{path}").size)
        target = self.local / path
        fsync_path(target)
        fsync_path(target.parent)
        return target.stat().st_size

    def check_files(self, files: Sequence[DataFile]) -> None:
        """Raise TableError unless each of these files is here at its size, as this process sees it.

        Whoever wrote them may have had another file system at the same path.
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
                f"{shown}: {file.path}, written{where}, {found} where the driver"
                f" ({socket.gethostname()}) commits: the lake must be on storage that the driver"
                " and the workers share, an object store or a file system that all of them mount"
                " at this path; nothing was committed, and the rows land once it is"
            )

    def _sizes(self, paths: list[str]) -> list[int | None]:
        """The bytes of each file; None: there is no such file."""
        if self.local is not None:
            return [_size(self.local / path) for path in paths]
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(self._remote_size, paths))

    def _remote_size(self, path: str) -> int | None:
        info = self._remote.get_file_info(f"{self._path}/{path}")
        return int(info.size) if info.type == fs.FileType.File else None

    def open_parquet(self, path: str, *, verify: bool = True) -> pq.ParquetFile:
        """A file, open for reading; `verify` compares the checksums of pages. Raises OSError."""
        place = f"{self._path}/{path}" if self.local is None else self.local / path
        remote = self._remote if self.local is None else None
        return pq.ParquetFile(place, filesystem=remote, page_checksum_verification=verify)

    def read(self, path: str) -> pa.Table:
        """The rows of a file, without those columns that its folders' names tell."""
        try:
            with self.open_parquet(path) as file:
                return file.read()
        except OSError as problem:
            shown = without_secrets(self.address)
            raise TableError(f"{path} of {shown} cannot be read: {one_line(problem)}") from problem


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it that are not there; the new names last."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_path(folder.parent)
