"""Segments: the record of a stream as Parquet files whose names state which rows they hold.

    <root>/<stream>/<node>/00000000000000000001-00000000000000000500.parquet

A segment holds every row from its first to its last seq, in order, and never changes. Two segments
may hold the same rows: compaction merges several small segments into a large one, and the small
ones are kept for a grace time. So every reader selects files by `pick`, the reader's rule: it
ignores a file whose range is within the range of another. The remaining ranges have no gaps. Files
that are not named like a segment are ignored.

The schema is chosen for Spark, which reads these files. Numbers are int32 and int64, the integer
types of Parquet, which every reader maps to INT and BIGINT (narrower types would save nothing,
because Parquet packs bits). All columns are nullable, as in a schema written as DDL, so that
Arrow's schema equals Spark's. The child of a list is called `element`. Times are microseconds in
UTC. The files do not contain Arrow's schema, so that dictionary-encoded columns are read as plain
text.

Columns are found by name. Columns that a later version has added are ignored; a missing optional
column is read as null.

Every byte is verified before it is used: see `segment_checksums`. Segments are opened only by
`open_segment` and `open_checked`.

pyarrow is an optional package and slow to import, so it is loaded when a function first needs it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

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
from semel.store.commit import RecordedMessage
from semel.store.roots import Root
from semel.store.row_flags import DUP, QOS_MASK, RETAIN
from semel.store.rows import properties_from
from semel.store.segment_checksums import KEY, VERSION, CheckedFile
from semel.store.segment_names import Range, segment_name

# Bytes of rows to read from the database at a time.
CHUNK_BYTES: Final = 8 * 1024 * 1024
# Key in the footer: the size of each row group in Arrow memory, in bytes.
GROUP_BYTES_KEY: Final = b"semel.group_bytes"
# Rows to decode at a time.
BATCH_ROWS: Final = 2_048
# How many times a folder is listed if files disappear while it is read.
LISTINGS: Final = 5

WITH_STATISTICS: Final = ("seq", "received", "topic")
# Columns that every segment must have; any other column is null in a file that lacks it.
REQUIRED: Final = (
    "seq",
    "node",
    "received",
    "topic",
    "payload",
    "qos",
    "retain",
    "dup",
    "client_id",
    "protocol_version",
)

# Sorted by identifier, which is the order of the properties of a decoded message.
_PROPERTIES: Final = (
    ("payload_format", PAYLOAD_FORMAT_INDICATOR),
    ("message_expiry", MESSAGE_EXPIRY_INTERVAL),
    ("content_type", CONTENT_TYPE),
    ("response_topic", RESPONSE_TOPIC),
    ("correlation_data", CORRELATION_DATA),
)


class RecordError(Exception):
    """The record is damaged or incomplete. The text says what is wrong."""


class SegmentError(RecordError):
    """A segment cannot be read. The text names its file, its stream and its node."""


# --- the reader's rule ----------------------------------------------------------------------------


def pick(ranges: Iterable[Range]) -> list[Range]:
    """The reader's rule: the ranges to read, ascending and without gaps.

    Leaves out a range that is within another one. Raises RecordError, which names the two files, if
    two ranges overlap in any other way, or if rows are missing between them.
    """
    chosen: list[Range] = []
    # A longer range sorts before a shorter one with the same start, so that a covering range
    # precedes the ones that it covers.
    for first, last in sorted(ranges, key=lambda each: (each[0], -each[1])):
        if chosen:
            before, through = chosen[-1]
            if last <= through:
                continue
            if first != through + 1:
                names = f"{segment_name(before, through)} and {segment_name(first, last)}"
                if first <= through:
                    raise RecordError(f"{names} overlap, but neither covers the other")
                missing = f"rows {through + 1} to {first - 1}"
                raise RecordError(f"{missing} are missing between {names}")
        chosen.append((first, last))
    return chosen


# --- the row --------------------------------------------------------------------------------------


def arrow() -> Any:
    """pyarrow. Raises MissingExtra if it is not installed."""
    return need("pyarrow", extra="broker", by="the record of a stream")


def parquet() -> Any:
    """pyarrow.parquet. Raises MissingExtra if it is not installed."""
    return need("pyarrow.parquet", extra="broker", by="the record of a stream")


@cache
def schema() -> Any:
    """The Arrow schema of a segment."""
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
    """An Arrow table of rows of table `record`, as `check_records` returns them.

    Text may be str, or bytes in UTF-8. Columns are converted as a whole, without a loop over rows;
    properties are decoded once per distinct value.
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
        "qos": pc.bit_wise_and(bits, pa.scalar(QOS_MASK, pa.int32())),
        "retain": pc.not_equal(pc.bit_wise_and(bits, pa.scalar(RETAIN, pa.int32())), 0),
        "dup": pc.not_equal(pc.bit_wise_and(bits, pa.scalar(DUP, pa.int32())), 0),
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
    # Messages of one source usually have the same properties: decode each distinct value once, and
    # let each row refer to it by its dictionary index.
    encoded = pa.array(values, pa.binary()).dictionary_encode()
    different: list[list[Any]] = [[] for _ in _PROPERTIES]
    keys: list[str] = []
    texts: list[str] = []
    # The index of each value's first pair; None: it has no user properties.
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


def records_of(table: Any, stream_id: int = 0) -> list[RecordedMessage]:
    """The rows of a table as records.

    Properties are sorted by identifier, which MQTT permits, because their order has no meaning.
    User properties keep their order.
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
        RecordedMessage(
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


# --- reading --------------------------------------------------------------------------------------


def group_range(metadata: Any, group: int) -> Range:
    """First and last seq of a row group, from its statistics."""
    return _group_limits(metadata, group, "seq")


def group_bytes(metadata: Any) -> list[int]:
    """The size of each row group in Arrow memory, in bytes.

    For files of earlier versions and of other programs it is the encoded size, which is less if
    values repeat.
    """
    groups = range(metadata.num_row_groups)
    noted = ((metadata.metadata or {}).get(GROUP_BYTES_KEY) or b"").split(b",")
    if len(noted) == len(groups) and all(each.isdigit() for each in noted):
        return [int(each) for each in noted]
    return [metadata.row_group(group).total_byte_size for group in groups]


def encode_group_bytes(sizes: Sequence[int]) -> dict[bytes, bytes]:
    """Metadata of a footer, for `group_bytes`."""
    return {GROUP_BYTES_KEY: b",".join(b"%d" % each for each in sizes)}


def chunk_of(row_group: Any, name: str) -> Any:
    """The metadata of a column of a row group, None if it has no such column."""
    index = schema().names.index(name)
    # The usual index, unless the file has other columns than this version writes.
    if index < row_group.num_columns and row_group.column(index).path_in_schema == name:
        return row_group.column(index)
    for index in range(row_group.num_columns):
        if row_group.column(index).path_in_schema == name:
            return row_group.column(index)
    return None


def _group_limits(metadata: Any, group: int, name: str) -> tuple[Any, Any]:
    chunk = chunk_of(metadata.row_group(group), name)
    statistics = None if chunk is None else chunk.statistics
    if statistics is None or not statistics.has_min_max:
        raise RecordError(f"column {name} has no statistics, so semel did not write this file")
    # Raw values, because Arrow would convert a time to a datetime.
    return statistics.min_raw, statistics.max_raw


def damaged_segment(
    root: Root, stream: str, node: str, *, first: int, last: int, what: str
) -> SegmentError:
    """The error for a segment whose bytes differ from those that were written."""
    path = root.file_path(stream, node, segment_name(first, last))
    return SegmentError(
        f"{root.address}/{path} of stream {stream}, node {node}, is damaged: {what}. Restore this "
        f"file from a backup, or delete its rows and all before them with `semel stream trim "
        f"{stream} --node {node} --before {last + 1}`; `semel stream verify` lists all such files"
    )


def open_checked(root: Root, stream: str, node: str, *, first: int, last: int) -> CheckedFile:
    """The file of a segment, whose `read` verifies every byte that it returns.

    Raises FileNotFoundError, and SegmentError for damage, as `read` does.
    """

    def damaged(what: str) -> SegmentError:
        return damaged_segment(root, stream, node, first=first, last=last, what=what)

    source = root.read(root.file_path(stream, node, segment_name(first, last)))
    try:
        return CheckedFile(source, damaged)
    except BaseException:
        source.close()
        raise


class SegmentFile:
    """An open segment, with the methods of a ParquetFile that are needed here.

    Tables have all columns of the schema, or the requested ones; a column that the file lacks is
    null.
    """

    def __init__(self, file: CheckedFile, damaged: Callable[[str], RecordError]) -> None:
        """Takes ownership of `file`. Raises RecordError if semel did not write it."""
        self.file = file
        self._damaged = damaged
        pa, pq = arrow(), parquet()
        try:
            # Pass the footer, because Arrow would read much of the data together with it.
            footer = pq.read_metadata(pa.BufferReader(file.footer)) if file.footer else None
            self._parquet = pq.ParquetFile(
                pa.PythonFile(file, mode="r"),
                metadata=footer,
                # Our own checksums cover the pages too.
                page_checksum_verification=not file.has_checksums,
            )
        except (pa.ArrowException, OSError) as problem:
            raise self._segment_error(problem) from problem
        self.metadata = self._parquet.metadata
        own = self.metadata.metadata or {}
        if KEY in own and own[KEY] != VERSION:
            raise RecordError(
                "its checksums were written by a later version of semel: update this installation"
            )
        if KEY in own and not file.has_checksums:
            raise damaged("its checksums are missing")
        found = self._parquet.schema_arrow
        self._absent_columns = [name for name in schema().names if name not in found.names]
        for name in self._absent_columns:
            if name in REQUIRED:
                raise RecordError(f"it is not a segment: it has no column {name}")
        for field in schema():
            if field.name in found.names and found.field(field.name).type != field.type:
                raise RecordError(
                    f"it is not a segment: column {field.name} has type "
                    f"{found.field(field.name).type} instead of {field.type}"
                )
        self.unknown_columns = [name for name in found.names if name not in schema().names]

    def _segment_error(self, problem: Exception) -> Exception:
        """The error for damage that Arrow cannot decode; an error of the disk unchanged."""
        if self.file.failure is not None:
            return problem
        return self._damaged(" ".join(str(problem).split()))

    def close(self, *, force: bool = True) -> None:
        """Close the file."""
        self._parquet.close(force=force)
        self.file.close()

    def iter_batches(
        self,
        *,
        batch_size: int,
        row_groups: list[int],
        columns: list[str] | None = None,
        use_threads: bool = False,
    ) -> Iterator[Any]:
        """The rows of these row groups as record batches, reading one row group at a time."""
        names = schema().names if columns is None else columns
        for group in row_groups:
            batches = self._parquet.iter_batches(
                batch_size=batch_size,
                row_groups=[group],
                columns=self._present(names),
                use_threads=use_threads,
            )
            while True:
                try:
                    batch = next(batches, None)
                except (arrow().ArrowException, OSError) as problem:
                    raise self._segment_error(problem) from problem
                if batch is None:
                    break
                yield self._complete(batch, names)

    def read_row_group(
        self, group: int, *, columns: list[str] | None = None, use_threads: bool = False
    ) -> Any:
        """The rows of a row group as a table."""
        names = schema().names if columns is None else columns
        try:
            table = self._parquet.read_row_group(
                group, columns=self._present(names), use_threads=use_threads
            )
        except (arrow().ArrowException, OSError) as problem:
            raise self._segment_error(problem) from problem
        return self._complete(table, names)

    def _present(self, names: Sequence[str]) -> list[str]:
        present = [name for name in names if name not in self._absent_columns]
        # At least one column, so that Arrow can count the rows.
        return present or ["seq"]

    def _complete(self, rows: Any, names: Sequence[str]) -> Any:
        """Rows with exactly these columns, in this order."""
        pa = arrow()
        fields = [schema().field(name) for name in names]
        columns = [
            pa.nulls(rows.num_rows, field.type)
            if field.name in self._absent_columns
            else rows.column(field.name)
            for field in fields
        ]
        return type(rows).from_arrays(columns, schema=pa.schema(fields))


def open_segment(root: Root, stream: str, node: str, *, first: int, last: int) -> SegmentFile:
    """Open a segment for reading.

    Raises FileNotFoundError, or SegmentError if it is damaged or does not hold the rows of its
    name.
    """
    name = segment_name(first, last)

    def damaged(what: str) -> SegmentError:
        return damaged_segment(root, stream, node, first=first, last=last, what=what)

    file = open_checked(root, stream, node, first=first, last=last)
    try:
        opened = SegmentFile(file, damaged)
        _check_rows(opened.metadata, first, last)
    except SegmentError:
        file.close()
        raise
    except RecordError as problem:
        file.close()
        raise SegmentError(f"{name} of stream {stream}, node {node}: {problem}") from problem
    except BaseException:
        file.close()
        raise
    return opened


def _check_rows(metadata: Any, first: int, last: int) -> None:
    at = first
    for group in range(metadata.num_row_groups):
        low, high = group_range(metadata, group)
        if low != at or high - low + 1 != metadata.row_group(group).num_rows:
            raise RecordError(f"row {at} is not where its row group should begin")
        at = high + 1
    if at != last + 1:
        raise RecordError(f"it ends with row {at - 1} instead of {last}")


def check_segment(root: Root, stream: str, node: str, *, first: int, last: int) -> None:
    """Check by its footer that a segment exists and holds rows `first` to `last`.

    Raises FileNotFoundError or SegmentError.
    """
    open_segment(root, stream, node, first=first, last=last).close()


def verify_segment(
    root: Root,
    stream: str,
    node: str,
    *,
    first: int,
    last: int,
    pause: Callable[[], None] = lambda: None,
) -> bool:
    """Verify every byte of a segment. Raises FileNotFoundError or SegmentError.

    Returns False if it was written by an earlier version, without checksums: then all rows can be
    decoded, but not verified. `pause` is called between reads.
    """
    opened = open_segment(root, stream, node, first=first, last=last)
    try:
        if opened.file.has_checksums:
            opened.file.check_all(pause)
            return True
        at = first
        for group in range(opened.metadata.num_row_groups):
            table = opened.read_row_group(group)
            if table.column("seq").to_pylist() != list(range(at, at + table.num_rows)):
                what = f"rows starting at {at} are not those of its name"
                raise damaged_segment(root, stream, node, first=first, last=last, what=what)
            at += table.num_rows
            pause()
        return False
    finally:
        opened.close()


def segment_times(root: Root, stream: str, node: str, *, first: int, last: int) -> Range:
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


def list_ranges(root: Root, stream: str, node: str) -> list[Range]:
    """The ranges of the segments to read, by the reader's rule. Raises RecordError.

    Lists again if there is a gap, because a listing is not atomic: while the oldest segments are
    being deleted, it may include one of them and lack the next.
    """
    for _ in range(LISTINGS - 1):
        try:
            return pick(each.range for each in root.segments(stream, node))
        except RecordError:
            continue
    return pick(each.range for each in root.segments(stream, node))


def first_since(root: Root, stream: str, node: str, received: int) -> int | None:
    """The lowest seq in segments that was received at this time (microseconds) or later."""
    for _ in range(LISTINGS - 1):
        try:
            return first_among(root, stream, node, list_ranges(root, stream, node), received)
        except FileNotFoundError:
            continue
    return first_among(root, stream, node, list_ranges(root, stream, node), received)


def first_among(
    root: Root, stream: str, node: str, segments: Iterable[Range], received: int
) -> int | None:
    """The same, in these segments. Raises FileNotFoundError if one has been deleted."""
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
