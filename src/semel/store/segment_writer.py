"""Writes rows of a store, or of other segments, to a segment with checksums."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from semel.counts import count
from semel.store.roots import Root
from semel.store.rows import SELECT_RECORDS, check_records
from semel.store.schema import Damaged
from semel.store.segment_checksums import KEY, VERSION, add_checksums
from semel.store.segment_names import segment_name
from semel.store.segments import (
    CHUNK_BYTES,
    WITH_STATISTICS,
    RecordError,
    arrow,
    encode_group_bytes,
    parquet,
    schema,
    table_of,
)

_ROWS: Final = f"{SELECT_RECORDS} WHERE stream_id = ? AND seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"

# How many rows to read from the database at a time, each in a short transaction, so that a
# checkpoint never waits long. The number is adapted to the size of the previous rows.
FIRST_CHUNK: Final = 64
LARGEST_CHUNK: Final = 8_192

# A row group is the unit that a reader decodes, and that a writer holds in memory.
GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 32 * 1024 * 1024

_DICTIONARIES: Final = (
    "node",
    "topic",
    "qos",
    "client_id",
    "user_name",
    "packet_id",
    "protocol_version",
    "payload_format",
    "content_type",
    "response_topic",
    "message_expiry",
    "user_properties.list.element.key",
    "user_properties.list.element.value",
)
# Columns with numbers that grow in small steps.
_DELTAS: Final = ("seq", "received")


def read_rows(
    connection: sqlite3.Connection, stream_id: int, first: int, last: int
) -> Iterator[list[tuple[Any, ...]]]:
    """Rows `first` to `last` of table `record` in chunks, each read in its own transaction.

    Raises RecordError if a row is missing or damaged.
    """
    at = first
    limit = FIRST_CHUNK
    while at <= last:
        rows = connection.execute(_ROWS, (stream_id, at, last, limit)).fetchall()
        expected = range(at, min(at + limit, last + 1))
        if [row[1] for row in rows] != list(expected):
            found = {row[1] for row in rows}
            missing = next(seq for seq in expected if seq not in found)
            raise RecordError(
                f"rows {first} to {last} of stream {stream_id} cannot be sealed: row {missing} is "
                f"not in the store"
            )
        try:
            rows = check_records(stream_id, rows)
        except Damaged as problem:
            raise RecordError(f"{problem}, so it cannot be sealed") from None
        yield rows
        at += len(rows)
        # The average size of payload and properties.
        size = sum([len(row[-1]) + len(row[-2] or b"") for row in rows]) // len(rows)
        limit = min(LARGEST_CHUNK, max(1, CHUNK_BYTES // (size + 1)), limit * 8)


def write_tables(
    sink: Any, tables: Iterable[Any], *, metadata: dict[bytes, bytes] | None = None
) -> int:
    """Write tables to one Parquet file, in large row groups. Returns the number of rows.

    `metadata` is added to the footer, and so is the size of each row group in memory.
    """
    pa = arrow()
    gathered: list[Any] = []
    rows = 0
    pending = 0
    size = 0
    sizes: list[int] = []
    writer = parquet().ParquetWriter(
        sink,
        schema(),
        compression="zstd",
        store_schema=False,
        # For other readers. Our own checksums cover more.
        write_page_checksum=True,
        use_dictionary=list(_DICTIONARIES),
        column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        write_statistics=list(WITH_STATISTICS),
    )
    with writer:
        for table in _bounded(tables):
            gathered.append(table)
            pending += table.num_rows
            size += table.nbytes
            if pending >= GROUP_ROWS or size >= GROUP_BYTES:
                writer.write_table(pa.concat_tables(gathered), row_group_size=pending)
                rows += pending
                sizes.append(size)
                pending = size = 0
                gathered = []
        if pending:
            writer.write_table(pa.concat_tables(gathered), row_group_size=pending)
            rows += pending
            sizes.append(size)
        writer.add_key_value_metadata({**(metadata or {}), **encode_group_bytes(sizes)})
    return rows


def _bounded(tables: Iterable[Any]) -> Iterator[Any]:
    """The same rows in tables of at most about GROUP_BYTES."""
    for table in tables:
        rows = max(1, table.num_rows * GROUP_BYTES // max(GROUP_BYTES, table.nbytes))
        for begin in range(0, table.num_rows, rows):
            yield table.slice(begin, rows)


def write_segment(
    root: Root,
    stream: str,
    node: str,
    tables: Callable[[], Iterable[Any]],
    *,
    first: int,
    last: int,
) -> int:
    """Write the segment of rows `first` to `last`, which `tables` returns. Returns its size."""

    def fill(sink: Any) -> None:
        rows = write_tables(sink, tables(), metadata={KEY: VERSION})
        if rows != last - first + 1:
            needed = count(last - first + 1, "row")
            raise RecordError(f"{segment_name(first, last)} needs {needed}, but got {rows}")
        sink.flush()
        add_checksums(sink, _chunk_starts(sink))

    return root.write(root.file_path(stream, node, segment_name(first, last)), fill)


def _chunk_starts(sink: Any) -> list[int]:
    """The offsets of the column chunks of a file, ascending."""
    sink.seek(0)
    # The reader is not closed, because that would close the file.
    metadata = parquet().read_metadata(sink)
    starts = []
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(row_group.num_columns):
            chunk = row_group.column(column)
            begins = chunk.data_page_offset
            if chunk.has_dictionary_page:
                begins = min(begins, chunk.dictionary_page_offset)
            starts.append(begins)
    return sorted(starts)


def seal_rows(
    connection: sqlite3.Connection,
    root: Root,
    stream: str,
    node: str,
    *,
    stream_id: int,
    first: int,
    last: int,
) -> int:
    """Write the segment of rows `first` to `last` of table `record`. Returns its size in bytes."""

    def tables() -> Iterator[Any]:
        for rows in read_rows(connection, stream_id, first, last):
            yield table_of(rows, node)

    return write_segment(root, stream, node, tables, first=first, last=last)
