"""Parquet files of a Delta table: what an executor writes, with all that the commit has to know.

Rows come as Arrow record batches and are gathered for each partition of the table. When more is
gathered than fits `HELD_BYTES`, the largest partition becomes a file: memory is bounded, whatever
the number of rows. A file has a name that nobody else can have, is synced before its name is told,
and means nothing until a commit names it; one that no commit names is an orphan, which
`semel lake vacuum` removes when it is a week old.

Statistics are those of the Parquet footer, so that they cost nothing. What they cannot say exactly
is left out, never guessed: a reader that finds no bounds reads the file.
"""

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from semel.pipeline.errors import TableError
from semel.pipeline.places import local_folder, said
from semel.store.roots import without_secrets

# Rows in memory before a file is written, in bytes of Arrow.
HELD_BYTES: Final = 128 * 1024 * 1024
GROUP_ROWS: Final = 256 * 1024
# A longer text is no bound that is worth its place in the log.
BOUND_CHARACTERS: Final = 64
# What Hive and Spark call the folder of rows without a value.
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"

# First seq, last seq, number of rows.
Extent = tuple[int, int, int]


@dataclass(frozen=True)
class DataFile:
    """A file that is there whole, for the commit. Plain values: it crosses processes."""

    # Below the table, as the Delta log has it: encoded as in an address.
    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    statistics: str
    # In milliseconds.
    modified: int
    # What it holds of each node, if rows are numbered.
    extents: dict[str, Extent]


@dataclass(frozen=True)
class Layout:
    """How rows become files."""

    # The table's place, as the user gave it.
    address: str
    partition_by: tuple[str, ...] = ()
    # Whether rows have the columns `node` and `seq`, which the commit is to know.
    is_numbered: bool = False


def write_files(batches: Iterable[pa.RecordBatch], layout: Layout) -> list[DataFile]:
    """Write all rows; what was written, in order."""
    folder = Folder(layout.address)
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
        while sum(sizes.values()) > HELD_BYTES:
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
    keys = table.select(list(partition_by)).group_by(list(partition_by)).aggregate([]).to_pylist()
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
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, str | int | date):
        return str(value)
    raise TableError(f"a table cannot be partitioned by a value such as {value!r}")


def _write(folder: "Folder", table: pa.Table, layout: Layout, key: tuple[Any, ...]) -> DataFile:
    partition = {
        name: partition_value(value) for name, value in zip(layout.partition_by, key, strict=True)
    }
    # Twice encoded: a folder's name is encoded as Hive does it, and the log's path as an address.
    folders = [
        f"{quote(name, safe='')}={NO_VALUE if value is None else quote(value, safe='')}"
        for name, value in partition.items()
    ]
    path = "/".join([*folders, f"part-{secrets.token_hex(16)}.zstd.parquet"])
    footers: list[pq.FileMetaData] = []
    try:
        with folder.create(path) as sink, _writer(sink, table.schema, footers) as writer:
            writer.write_table(table, row_group_size=GROUP_ROWS)
        size = folder.settle(path)
    except OSError as problem:
        shown = without_secrets(layout.address)
        raise TableError(f"{shown} cannot be written: {said(problem)}") from problem
    return DataFile(
        path=quote(path, safe="/="),
        size=size,
        rows=table.num_rows,
        partition=partition,
        statistics=json.dumps(statistics_of(footers[0], table)),
        modified=time.time_ns() // 1_000_000,
        extents=extents_of(table) if layout.is_numbered else {},
    )


def _writer(sink: Any, schema: pa.Schema, footers: list[pq.FileMetaData]) -> pq.ParquetWriter:
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
        metadata_collector=footers,
    )


def extents_of(table: pa.Table) -> dict[str, Extent]:
    """First, last and number of the rows of each node."""
    found = table.group_by("node").aggregate([("seq", "min"), ("seq", "max"), ("seq", "count")])
    extents: dict[str, Extent] = {}
    for row in found.to_pylist():
        if row["node"] is None or row["seq_count"] == 0:
            raise TableError("a row has no node or no seq: rows of a stream have both")
        extents[row["node"]] = (row["seq_min"], row["seq_max"], row["seq_count"])
    if pc.sum(found.column("seq_count")).as_py() != table.num_rows:
        raise TableError("a row has no seq: rows of a stream have one")
    return extents


def statistics_of(footer: pq.FileMetaData, table: pa.Table) -> dict[str, Any]:
    """What the Delta log is to say about a file, from its own footer."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    plain = set(table.column_names)
    for place in range(footer.num_columns):
        chunks = [footer.row_group(each).column(place) for each in range(footer.num_row_groups)]
        name = chunks[0].path_in_schema
        if name not in plain:
            continue  # a part of a list, map or struct
        found = [chunk.statistics for chunk in chunks]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        # A row group of nulls alone has no bounds.
        bounded = [
            each
            for each, chunk in zip(found, chunks, strict=True)
            if each.null_count < chunk.num_values
        ]
        if not bounded or not all(each.has_min_max for each in bounded):
            continue
        low = _bound(min(each.min for each in bounded))
        high = _bound(max(each.max for each in bounded))
        if low is None or high is None or _has_nan(table.column(name)):
            continue
        lowest[name] = low
        highest[name] = high
    return {
        "numRecords": table.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }


def _bound(value: Any) -> Any:
    """A value as JSON of the Delta log; None: it is not to be said."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f")
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and len(value) <= BOUND_CHARACTERS:
        return value
    return None


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Spark orders NaN above all numbers, and Parquet's bounds pass over it."""
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


class Folder:
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

    def settle(self, path: str) -> int:
        """Let a file that was written last, with its name; its size."""
        if self.local is None:
            # What was put lasts.
            return int(self._remote.get_file_info(f"{self._path}/{path}").size)
        target = self.local / path
        _sync(target)
        _sync(target.parent)
        return target.stat().st_size

    def read(self, path: str) -> pa.Table:
        """The rows of a file, without those columns that its folders' names tell."""
        place = f"{self._path}/{path}" if self.local is None else self.local / path
        remote = self._remote if self.local is None else None
        try:
            with pq.ParquetFile(place, filesystem=remote) as file:
                return file.read()
        except OSError as problem:
            shown = without_secrets(self.address)
            raise TableError(f"{path} of {shown} cannot be read: {said(problem)}") from problem


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it that are not there; the new names last."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    """Let a file or a folder last. An error of this is never tried again: it comes out."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
