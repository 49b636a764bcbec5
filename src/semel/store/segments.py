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

Columns are found by their names. A later version may have written more of them, which are ignored;
one that may be null may be missing, and is null then.

Nothing is read that is not what was written: see `checksums`. Whoever opens a segment does so by
`open_segment` or `open_checked`.

pyarrow is an optional package and slow to import: it is loaded when a function first needs it.
"""

import re
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
from semel.store.commit import RecordedMessage
from semel.store.rows import properties_from
from semel.store.segment_checksums import KEY, VERSION, CheckedFile

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
# Bytes of rows that are read from the database at a time.
CHUNK_BYTES: Final = 8 * 1024 * 1024
# In a footer: bytes of Arrow that the rows of each row group take.
GROUP_BYTES_KEY: Final = b"semel.group_bytes"
# Rows that a reader decodes at a time.
BATCH_ROWS: Final = 2_048
# How often a folder is listed anew if files vanish while it is read.
LISTINGS: Final = 5

WITH_STATISTICS: Final = ("seq", "received", "topic")
# Columns without which a row is none; all others are null in a file that lacks them.
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


def records_of(table: Any, stream_id: int = 0) -> list[RecordedMessage]:
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
    """What the rows of each row group take in memory, in bytes of Arrow.

    Files of earlier versions and of other programs say only what they take as they are encoded,
    which is less where values repeat.
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
    """The metadata of a column of a row group; None: it has no such column."""
    place = schema().names.index(name)
    # Where it is unless the file has other columns than ours.
    if place < row_group.num_columns and row_group.column(place).path_in_schema == name:
        return row_group.column(place)
    for place in range(row_group.num_columns):
        if row_group.column(place).path_in_schema == name:
            return row_group.column(place)
    return None


def _group_limits(metadata: Any, group: int, name: str) -> tuple[Any, Any]:
    chunk = chunk_of(metadata.row_group(group), name)
    statistics = None if chunk is None else chunk.statistics
    if statistics is None or not statistics.has_min_max:
        raise RecordError(f"column {name} has no statistics: semel did not write this file")
    # The raw value: a time would become a datetime.
    return statistics.min_raw, statistics.max_raw


def damaged_segment(
    root: "Root", stream: str, node: str, *, first: int, last: int, what: str
) -> RecordError:
    """A segment is not what was written: which file, what is wrong, what to do."""
    place = root.place(stream, node, segment_name(first, last))
    return RecordError(
        f"{root.address}/{place} of stream {stream}, node {node}, is damaged: {what}. Restore this "
        f"file from a copy, or give up its rows and all before them by `semel stream trim {stream} "
        f"--node {node} --before {last + 1}`; `semel stream verify` finds all such files"
    )


def open_checked(root: "Root", stream: str, node: str, *, first: int, last: int) -> CheckedFile:
    """The file of a segment, of which nothing can be read that is not what was written.

    Raises FileNotFoundError, and RecordError for damage, as its `read` does.
    """

    def damaged(what: str) -> RecordError:
        return damaged_segment(root, stream, node, first=first, last=last, what=what)

    source = root.read(root.place(stream, node, segment_name(first, last)))
    try:
        return CheckedFile(source, damaged)
    except BaseException:
        source.close()
        raise


class SegmentFile:
    """An open segment, with the few methods of a ParquetFile that are needed here.

    Tables have the columns of a record, or those that are asked for, whatever the file has: one
    that it lacks is null.
    """

    def __init__(self, file: CheckedFile, damaged: Callable[[str], RecordError]) -> None:
        """Takes over `file`. Raises RecordError if it is none of ours."""
        self.file = file
        self._damaged = damaged
        pa, pq = arrow(), parquet()
        try:
            # Arrow would read the footer with as much of the data as lies before it.
            footer = pq.read_metadata(pa.BufferReader(file.footer)) if file.footer else None
            self._parquet = pq.ParquetFile(
                pa.PythonFile(file, mode="r"),
                metadata=footer,
                # Where there are checksums of ours they cover the pages too.
                page_checksum_verification=not file.has_checksums,
            )
        except (pa.ArrowException, OSError) as problem:
            raise self._explained(problem) from problem
        self.metadata = self._parquet.metadata
        own = self.metadata.metadata or {}
        if KEY in own and own[KEY] != VERSION:
            raise RecordError(
                "its checksums are those of a later version of semel: update this one"
            )
        if KEY in own and not file.has_checksums:
            raise damaged("its checksums are missing")
        found = self._parquet.schema_arrow
        self._lacking = [name for name in schema().names if name not in found.names]
        for name in self._lacking:
            if name in REQUIRED:
                raise RecordError(f"it is no segment of a record: it has no column {name}")
        for field in schema():
            if field.name in found.names and found.field(field.name).type != field.type:
                raise RecordError(
                    f"it is no segment of a record: column {field.name} is "
                    f"{found.field(field.name).type}, not {field.type}"
                )
        self.unknown_columns = [name for name in found.names if name not in schema().names]

    def _explained(self, problem: Exception) -> Exception:
        """What Arrow cannot make sense of is damage; a disk that fails is not."""
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
        """The rows of some row groups as record batches. One row group is read at a time."""
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
                    raise self._explained(problem) from problem
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
            raise self._explained(problem) from problem
        return self._complete(table, names)

    def _present(self, names: Sequence[str]) -> list[str]:
        present = [name for name in names if name not in self._lacking]
        # Rows are counted by a column.
        return present or ["seq"]

    def _complete(self, rows: Any, names: Sequence[str]) -> Any:
        """Rows with these columns in this order."""
        pa = arrow()
        fields = [schema().field(name) for name in names]
        columns = [
            pa.nulls(rows.num_rows, field.type)
            if field.name in self._lacking
            else rows.column(field.name)
            for field in fields
        ]
        return type(rows).from_arrays(columns, schema=pa.schema(fields))


def open_segment(root: "Root", stream: str, node: str, *, first: int, last: int) -> SegmentFile:
    """A segment, open to be read. FileNotFoundError: gone.

    Raises RecordError if it is not what its name says, or is damaged.
    """
    name = segment_name(first, last)

    def damaged(what: str) -> RecordError:
        return damaged_segment(root, stream, node, first=first, last=last, what=what)

    file = open_checked(root, stream, node, first=first, last=last)
    try:
        opened = SegmentFile(file, damaged)
        _check_rows(opened.metadata, first, last)
    except RecordError as problem:
        file.close()
        if name in str(problem):
            raise
        raise RecordError(f"{name} of stream {stream}, node {node}: {problem}") from problem
    except BaseException:
        file.close()
        raise
    return opened


def _check_rows(metadata: Any, first: int, last: int) -> None:
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
    open_segment(root, stream, node, first=first, last=last).close()


def verify_segment(
    root: "Root",
    stream: str,
    node: str,
    *,
    first: int,
    last: int,
    pause: Callable[[], None] = lambda: None,
) -> bool:
    """Return if every byte of a segment is what was written; else FileNotFoundError, RecordError.

    False: it is of an earlier version and has no checksums. Then all rows can be decoded, but
    whether they are those that were written nobody can tell. `pause` is called now and then.
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
                what = f"rows from {at} on are not those of its name"
                raise damaged_segment(root, stream, node, first=first, last=last, what=what)
            at += table.num_rows
            pause()
        return False
    finally:
        opened.close()


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
