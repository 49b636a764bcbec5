"""Segments: the record of a stream as Parquet files whose names say which rows they hold.

    <root>/<stream>/<node>/00000000000000000001-00000000000000000500.parquet

A segment holds every row from its first to its last seq, in order, and never changes. Two segments
may hold the same rows: several small ones are merged into a large one, and the small ones stay for
a while. So whoever reads goes by `pick`, the reader's rule: a file whose range lies within
another's is not there. What is left are ranges that follow each other without a gap. Anything in
the folder that is not named like a segment is ignored.

The row is made for Spark, which reads these files later: numbers are int32 and int64, because
these are Parquet's own types, which every reader maps to INT and BIGINT without a conversion
(narrow ones would save nothing: Parquet packs bits); all columns may be null, as in a schema
written as DDL, so that Arrow's schema is equal to Spark's; the child of a list is called
`element`; times are microseconds in UTC. The files do not carry Arrow's schema, and so what is
dictionary-encoded reads back as plain text.

pyarrow is an optional package and slow to import: it is loaded when a function first needs it.
"""

import re
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from semel.extras import need
from semel.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    NO_PROPERTIES,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    Properties,
)
from semel.store.commit import Record
from semel.store.rows import check_records, properties_from
from semel.store.schema import Damaged

if TYPE_CHECKING:
    from semel.store.roots import Root

# First and last seq, both included.
Range = tuple[int, int]

MAXIMUM_SEQ: Final = 2**63 - 1
_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet", re.ASCII)

# The columns of table `record` that a segment is made of, in the order of `_table`.
COLUMNS: Final = (
    "seq, received, flags, packet_id, version, client_id, user_name, topic, properties, payload"
)
_ROWS: Final = (
    f"SELECT checksum, {COLUMNS} FROM record"
    " WHERE stream = ? AND seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
)

# What is read from the database at a time: one short transaction each, so that a checkpoint never
# waits long. The number of rows follows the size of those before.
FIRST_CHUNK: Final = 64
LARGEST_CHUNK: Final = 8_192
CHUNK_BYTES: Final = 8 * 1024 * 1024

# A row group is the least that a reader decodes, and what a writer holds in memory.
GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 32 * 1024 * 1024
# Rows that a reader decodes at a time.
BATCH_ROWS: Final = 2_048
# How often a folder is listed anew if files vanish while it is read.
LISTINGS: Final = 5

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
# Numbers that grow by little.
_DELTAS: Final = ("seq", "received")
WITH_STATISTICS: Final = ("seq", "received", "topic")

# In the order of their identifiers, in which they come back.
_PROPERTIES: Final = (
    ("payload_format", PAYLOAD_FORMAT_INDICATOR),
    ("message_expiry", MESSAGE_EXPIRY_INTERVAL),
    ("content_type", CONTENT_TYPE),
    ("response_topic", RESPONSE_TOPIC),
    ("correlation_data", CORRELATION_DATA),
)


class RecordError(Exception):
    """The record is not what it should be: the text names the files and what is wrong."""


# --- names ----------------------------------------------------------------------------------------


def segment_name(first: int, last: int) -> str:
    """The name of the file with these rows; names sort as their numbers do."""
    if not 1 <= first <= last <= MAXIMUM_SEQ:
        raise ValueError(f"no segment can hold rows {first} to {last}")
    return f"{first:020}-{last:020}.parquet"


def parse_segment_name(name: str) -> Range | None:
    """First and last seq, or None if this is no name of a segment."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    return (first, last) if 1 <= first <= last <= MAXIMUM_SEQ else None


def pick(ranges: Iterable[Range]) -> list[Range]:
    """The reader's rule: those to read, ascending. They follow each other without a gap.

    A range within another is left out. Raises RecordError, which names the two files, if two
    overlap otherwise or if rows are missing between two.
    """
    chosen: list[Range] = []
    # Of two that begin together the longer one comes first: what covers a range is before it.
    for first, last in sorted(ranges, key=lambda each: (each[0], -each[1])):
        if chosen:
            before, through = chosen[-1]
            if last <= through:
                continue
            if first != through + 1:
                names = f"{segment_name(before, through)} and {segment_name(first, last)}"
                if first <= through:
                    raise RecordError(f"{names} overlap, and neither covers the other")
                missing = f"rows {through + 1} to {first - 1}"
                raise RecordError(f"{missing} are missing between {names}")
        chosen.append((first, last))
    return chosen


# --- the row --------------------------------------------------------------------------------------


def arrow() -> Any:
    """pyarrow, or MissingExtra."""
    return need("pyarrow", extra="broker", by="the record of a stream")


def parquet() -> Any:
    """pyarrow.parquet, or MissingExtra."""
    return need("pyarrow.parquet", extra="broker", by="the record of a stream")


@cache
def schema() -> Any:
    """The row, as an Arrow schema."""
    pa = arrow()
    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])
    return pa.schema(
        [
            ("seq", pa.int64()),
            ("node", pa.string()),
            ("received", pa.timestamp("us", tz="UTC")),
            ("topic", pa.string()),
            ("payload", pa.binary()),
            ("qos", pa.int32()),
            ("retain", pa.bool_()),
            ("dup", pa.bool_()),
            ("client_id", pa.string()),
            ("user_name", pa.string()),
            ("packet_id", pa.int32()),
            ("protocol_version", pa.int32()),
            ("payload_format", pa.int32()),
            ("content_type", pa.string()),
            ("response_topic", pa.string()),
            ("correlation_data", pa.binary()),
            ("message_expiry", pa.int64()),
            ("user_properties", pa.list_(pa.field("element", pair))),
        ]
    )


def table_of(rows: Sequence[tuple[Any, ...]], node: str) -> Any:
    """An Arrow table of rows of table `record`, whose columns are COLUMNS in this order.

    Texts may be str, or bytes in UTF-8. Nothing is done for each row, but where there are
    properties: those are decoded once for each different value.
    """
    pa = arrow()
    pc = need("pyarrow.compute", extra="broker", by="the record of a stream")
    (
        seq,
        received,
        flags,
        packet_id,
        version,
        client_id,
        user_name,
        topic,
        properties,
        payload,
    ) = zip(*rows, strict=True)
    size = len(rows)
    bits = pa.array(flags, pa.int32())
    packet_ids = pa.array(packet_id, pa.int32())
    columns = {
        "seq": pa.array(seq, pa.int64()),
        "node": pa.repeat(pa.scalar(node, pa.string()), size),
        "received": pa.array(received, pa.int64()).view(pa.timestamp("us", tz="UTC")),
        "topic": pa.array(topic, pa.string()),
        "payload": pa.array(payload, pa.binary()),
        "qos": pc.bit_wise_and(bits, pa.scalar(3, pa.int32())),
        "retain": pc.not_equal(pc.bit_wise_and(bits, pa.scalar(4, pa.int32())), 0),
        "dup": pc.not_equal(pc.bit_wise_and(bits, pa.scalar(8, pa.int32())), 0),
        "client_id": pa.array(client_id, pa.string()),
        "user_name": pa.array(user_name, pa.string()),
        "packet_id": pc.if_else(pc.equal(packet_ids, 0), pa.scalar(None, pa.int32()), packet_ids),
        "protocol_version": pa.array(version, pa.int32()),
        **_property_columns(properties),
    }
    return pa.Table.from_arrays([columns[name] for name in schema().names], schema=schema())


def _property_columns(values: Sequence[bytes | None]) -> dict[str, Any]:
    pa = arrow()
    names = [*(name for name, _ in _PROPERTIES), "user_properties"]
    if values.count(None) == len(values):
        return {name: pa.nulls(len(values), schema().field(name).type) for name in names}
    # Messages of one source mostly carry the same properties: each value is decoded once, and a
    # row takes what its number says.
    encoded = pa.array(values, pa.binary()).dictionary_encode()
    different: list[list[Any]] = [[] for _ in _PROPERTIES]
    keys: list[str] = []
    texts: list[str] = []
    # Where the pairs of each begin; null: it has none.
    starts: list[int | None] = []
    for value in encoded.dictionary.to_pylist():
        items = properties_from(value).items
        single = dict(items)
        for column, (_, identifier) in zip(different, _PROPERTIES, strict=True):
            column.append(single.get(identifier))
        start = len(keys)
        for identifier, pair in items:
            if identifier == USER_PROPERTY and isinstance(pair, tuple):
                keys.append(pair[0])
                texts.append(pair[1])
        starts.append(start if len(keys) > start else None)
    starts.append(len(keys))
    columns = {
        name: pa.array(column, schema().field(name).type).take(encoded.indices)
        for column, (name, _) in zip(different, _PROPERTIES, strict=True)
    }
    pairs = schema().field("user_properties").type
    both = [pa.array(keys, pa.string()), pa.array(texts, pa.string())]
    lists = pa.ListArray.from_arrays(
        pa.array(starts, pa.int32()),
        pa.StructArray.from_arrays(both, fields=list(pairs.value_type)),
        type=pairs,
    )
    columns["user_properties"] = lists.take(encoded.indices)
    return columns


def records_of(table: Any, stream_id: int = 0) -> list[Record]:
    """The rows of a table as records.

    The order among different properties means nothing in MQTT and becomes that of their
    identifiers; user properties keep theirs.
    """
    columns = [
        table.column(name).to_pylist()
        for name in (
            "seq",
            "topic",
            "payload",
            "qos",
            "retain",
            "dup",
            "client_id",
            "user_name",
            "packet_id",
            "protocol_version",
        )
    ]
    columns.append(table.column("received").cast(arrow().int64()).to_pylist())
    columns.append(_properties_of(table))
    return [
        Record(
            stream_id,
            seq,
            topic,
            payload,
            qos=qos,
            retain=retain,
            dup=dup,
            client_id=client_id,
            user_name=user_name,
            packet_id=packet_id or 0,
            version=version,
            properties=properties,
            received=received,
        )
        for (
            seq,
            topic,
            payload,
            qos,
            retain,
            dup,
            client_id,
            user_name,
            packet_id,
            version,
            received,
            properties,
        ) in zip(*columns, strict=True)
    ]


def _properties_of(table: Any) -> list[Properties]:
    size = table.num_rows
    items: list[list[tuple[int, Any]]] = [[] for _ in range(size)]
    present = False
    for name, identifier in _PROPERTIES:
        column = table.column(name)
        if column.null_count < size:
            present = True
            for row, value in zip(items, column.to_pylist(), strict=True):
                if value is not None:
                    row.append((identifier, value))
    pairs = table.column("user_properties")
    if pairs.null_count < size:
        present = True
        for row, several in zip(items, pairs.to_pylist(), strict=True):
            for pair in several or ():
                row.append((USER_PROPERTY, (pair["key"], pair["value"])))
    if not present:
        return [NO_PROPERTIES] * size
    return [Properties(row) if row else NO_PROPERTIES for row in items]


# --- writing --------------------------------------------------------------------------------------


def read_rows(
    connection: sqlite3.Connection, stream_id: int, first: int, last: int
) -> Iterator[list[tuple[Any, ...]]]:
    """The rows first to last of table `record`, in chunks, each read by a transaction of its own.

    Raises RecordError unless they are all there, as they were written.
    """
    at = first
    limit = FIRST_CHUNK
    while at <= last:
        rows = connection.execute(_ROWS, (stream_id, at, last, limit)).fetchall()
        wanted = range(at, min(at + limit, last + 1))
        if [row[1] for row in rows] != list(wanted):
            there = {row[1] for row in rows}
            missing = next(seq for seq in wanted if seq not in there)
            raise RecordError(
                f"row {missing} of stream {stream_id} is not in the store, but rows {first} to "
                f"{last} were to be sealed"
            )
        try:
            rows = check_records(stream_id, rows)
        except Damaged as problem:
            raise RecordError(f"{problem}, and is not sealed") from None
        yield rows
        at += len(rows)
        size = sum([len(row[-1]) for row in rows]) // len(rows)
        limit = min(LARGEST_CHUNK, max(1, CHUNK_BYTES // (size + 1)), limit * 8)


def write_tables(sink: Any, tables: Iterable[Any]) -> int:
    """Write tables into one Parquet file, as few row groups as is good; returns the rows."""
    pa = arrow()
    gathered: list[Any] = []
    rows = 0
    pending = 0
    size = 0
    writer = parquet().ParquetWriter(
        sink,
        schema(),
        compression="zstd",
        store_schema=False,
        use_dictionary=list(_DICTIONARIES),
        column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        write_statistics=list(WITH_STATISTICS),
    )
    with writer:
        for table in tables:
            gathered.append(table)
            pending += table.num_rows
            size += table.nbytes
            if pending >= GROUP_ROWS or size >= GROUP_BYTES:
                writer.write_table(pa.concat_tables(gathered), row_group_size=pending)
                rows += pending
                pending = size = 0
                gathered = []
        if gathered:
            writer.write_table(pa.concat_tables(gathered), row_group_size=pending)
            rows += pending
    return rows


def write_segment(
    root: "Root",
    stream: str,
    node: str,
    tables: Callable[[], Iterable[Any]],
    *,
    first: int,
    last: int,
) -> int:
    """Write the segment first to last from tables with just these rows; returns its bytes."""

    def fill(sink: Any) -> None:
        rows = write_tables(sink, tables())
        if rows != last - first + 1:
            raise RecordError(f"{rows} rows for {segment_name(first, last)}")

    return root.write(root.place(stream, node, segment_name(first, last)), fill)


def seal_rows(
    connection: sqlite3.Connection,
    root: "Root",
    stream: str,
    node: str,
    *,
    stream_id: int,
    first: int,
    last: int,
) -> int:
    """Make the segment first to last from table `record`; returns its bytes."""

    def tables() -> Iterator[Any]:
        for rows in read_rows(connection, stream_id, first, last):
            yield table_of(rows, node)

    return write_segment(root, stream, node, tables, first=first, last=last)


# --- reading --------------------------------------------------------------------------------------


def group_range(metadata: Any, group: int) -> Range:
    """First and last seq of a row group, from its statistics."""
    return _group_limits(metadata, group, "seq")


def _group_limits(metadata: Any, group: int, name: str) -> tuple[Any, Any]:
    row_group = metadata.row_group(group)
    place = schema().names.index(name)
    statistics = row_group.column(place).statistics
    if statistics is None or not statistics.has_min_max:
        raise RecordError(f"column {name} has no statistics: semel did not write this file")
    # The raw value: a time would become a datetime.
    return statistics.min_raw, statistics.max_raw


def open_segment(root: "Root", stream: str, node: str, *, first: int, last: int) -> Any:
    """A segment as a ParquetFile, whose file its `close` closes. FileNotFoundError: gone.

    Raises RecordError if it is not what its name says.
    """
    pa = arrow()
    name = segment_name(first, last)
    source = root.read(root.place(stream, node, name))
    try:
        opened = parquet().ParquetFile(source)
    except pa.ArrowException as problem:
        source.close()
        raise RecordError(f"{name} of stream {stream}, node {node}: {problem}") from problem
    except OSError:
        source.close()
        raise
    try:
        _check_segment(opened, first, last)
    except RecordError as problem:
        opened.close(force=True)
        raise RecordError(f"{name} of stream {stream}, node {node}: {problem}") from problem
    return opened


def _check_segment(opened: Any, first: int, last: int) -> None:
    if not opened.schema_arrow.equals(schema()):
        raise RecordError("its columns are not those of a record")
    metadata = opened.metadata
    at = first
    for group in range(metadata.num_row_groups):
        low, high = group_range(metadata, group)
        if low != at or high - low + 1 != metadata.row_group(group).num_rows:
            raise RecordError(f"row {at} is not where it should be")
        at = high + 1
    if at != last + 1:
        raise RecordError(f"it holds rows up to {at - 1} only")


def check_segment(root: "Root", stream: str, node: str, *, first: int, last: int) -> None:
    """Return if the segment is there and holds first to last; else FileNotFoundError, RecordError.

    By its footer: a whole file, its number of rows, and their numbers.
    """
    open_segment(root, stream, node, first=first, last=last).close(force=True)


def segment_times(root: "Root", stream: str, node: str, *, first: int, last: int) -> Range:
    """When the oldest and the newest row of a segment were received, in microseconds."""
    opened = open_segment(root, stream, node, first=first, last=last)
    try:
        metadata = opened.metadata
        limits = [
            _group_limits(metadata, group, "received") for group in range(metadata.num_row_groups)
        ]
    finally:
        opened.close(force=True)
    return min(low for low, _ in limits), max(high for _, high in limits)


def listed(root: "Root", stream: str, node: str) -> list[Range]:
    """The segments to read, by the reader's rule; lists again if the folder changes meanwhile.

    A listing is not one moment: while the oldest segments are deleted it may hold one of them and
    lack the next.
    """
    for _ in range(LISTINGS - 1):
        try:
            return pick(each.range for each in root.segments(stream, node))
        except RecordError:
            continue
    return pick(each.range for each in root.segments(stream, node))


class SegmentReader:
    """Reads the record of (stream, node) from any row on; going on where it stopped is cheap.

    `read` returns what is there: nothing at the end, and from the oldest row on if what is asked
    for is gone.
    """

    def __init__(self, root: "Root", stream: str, node: str, *, stream_id: int = 0) -> None:
        self._root = root
        self._stream = stream
        self._node = node
        self._stream_id = stream_id
        # As listed last; what has gone since is found out when it is opened.
        self._ranges: list[Range] = []
        # The open segment and what it still has to give, from seq `_at` on.
        self._at = 0
        self._opened: Any = None
        self._batches: Iterator[Any] = iter(())
        self._rest: Any = None

    def close(self) -> None:
        """Let go of the open file; another `read` opens it again."""
        if self._opened is not None:
            self._opened.close(force=True)
        self._opened = self._rest = None
        self._batches = iter(())

    def __enter__(self) -> "SegmentReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, first: int, limit: int) -> list[Record]:
        """Up to `limit` records, from seq `first` on. RecordError: the record is damaged."""
        table = self.read_table(first, limit)
        return [] if table is None else records_of(table, self._stream_id)

    def read_table(self, first: int, limit: int) -> Any:
        """The same as an Arrow table, or None."""
        gathered: list[Any] = []
        at = first
        wanted = limit
        attempts = 0
        while wanted > 0:
            try:
                piece = self._piece(at, wanted)
            except FileNotFoundError:
                # Deleted between listing and opening: what holds its rows now is listed.
                self.close()
                self._ranges = []
                attempts += 1
                if attempts == LISTINGS:
                    raise
                continue
            if piece is None:
                break
            begins = piece.column("seq")[0].as_py()
            if gathered and begins != at:
                break
            gathered.append(piece)
            attempts = 0
            wanted -= piece.num_rows
            at = begins + piece.num_rows
        if not gathered:
            return None
        return arrow().concat_tables(gathered)

    def _piece(self, first: int, limit: int) -> Any:
        """One table that begins with the lowest row from `first` on, or None at the end."""
        if self._opened is None or first != self._at:
            self.close()
            if not self._open(first):
                return None
        while self._rest is None or not self._rest.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                self.close()
                if not self._open(self._at):
                    return None
                continue
            self._rest = arrow().Table.from_batches([batch])
            begins = self._rest.column("seq")[0].as_py()
            if begins < self._at:
                self._rest = self._rest.slice(self._at - begins)
        piece = self._rest.slice(0, limit)
        self._rest = self._rest.slice(limit)
        self._at += piece.num_rows
        return piece

    def _open(self, first: int) -> bool:
        """Open the segment with row `first`, or the oldest if that is gone."""
        if not self._ranges or self._ranges[-1][1] < first:
            self._ranges = listed(self._root, self._stream, self._node)
        place = bisect_left(self._ranges, first, key=lambda each: each[1])
        if place == len(self._ranges):
            return False
        low, high = self._ranges[place]
        self._opened = open_segment(self._root, self._stream, self._node, first=low, last=high)
        self._at = max(first, low)
        metadata = self._opened.metadata
        groups = [
            group
            for group in range(metadata.num_row_groups)
            if group_range(metadata, group)[1] >= self._at
        ]
        self._batches = self._opened.iter_batches(
            batch_size=BATCH_ROWS, row_groups=groups, use_threads=False
        )
        self._rest = None
        return True


def read_records(
    root: "Root", stream: str, node: str, first: int, limit: int, *, stream_id: int = 0
) -> list[Record]:
    """Up to `limit` records from seq `first` on. Who reads on and on keeps a SegmentReader."""
    with SegmentReader(root, stream, node, stream_id=stream_id) as reader:
        return reader.read(first, limit)


def first_since(root: "Root", stream: str, node: str, received: int) -> int | None:
    """The lowest seq of a row that was received at that time (in microseconds) or later."""
    for _ in range(LISTINGS - 1):
        try:
            return first_among(root, stream, node, listed(root, stream, node), received)
        except FileNotFoundError:
            continue
    return first_among(root, stream, node, listed(root, stream, node), received)


def first_among(
    root: "Root", stream: str, node: str, segments: Iterable[Range], received: int
) -> int | None:
    """The same, of these segments. Raises FileNotFoundError if one is gone."""
    for low, high in segments:
        opened = open_segment(root, stream, node, first=low, last=high)
        try:
            metadata = opened.metadata
            for group in range(metadata.num_row_groups):
                if _group_limits(metadata, group, "received")[1] < received:
                    continue
                table = opened.read_row_group(group, columns=["seq", "received"], use_threads=False)
                times = table.column("received").cast(arrow().int64()).to_pylist()
                for seq, time in zip(table.column("seq").to_pylist(), times, strict=True):
                    if time >= received:
                        return int(seq)
        finally:
            opened.close(force=True)
    return None
