"""A database with rows of streams, made by the schema itself, and the rows that are expected."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.store import schema
from semel.store.commit import RecordedMessage
from semel.store.roots import Root
from semel.store.rows import properties_value
from semel.store.segment_reader import SegmentReader

# The time at which row 0 would have been received, in microseconds; a row takes a millisecond.
START = 1_700_000_000_000_000
MILLISECOND = 1_000

INSERT = "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def received(seq: int) -> int:
    """When row `seq` was received."""
    return START + seq * MILLISECOND


def message(seq: int, stream: int = 1) -> RecordedMessage:
    """Row `seq` of a stream: each is different, and each kind comes by."""
    qos = seq % 3
    return RecordedMessage(
        stream,
        seq,
        f"plant/line{seq % 5}/temperature",
        b"value %d" % seq,
        qos=qos,
        retain=seq % 7 == 0,
        dup=qos > 0 and seq % 11 == 0,
        client_id=f"sensor-{seq % 4}",
        user_name="ann" if seq % 2 else None,
        packet_id=seq % 65_535 + 1 if qos else 0,
        version=5 if seq % 4 else 4,
        properties=(
            Properties(
                payload_format_indicator=1,
                message_expiry_interval=seq,
                content_type="text/plain",
                user_properties=[("n", str(seq)), ("n", "again"), ("", "")],
            )
            if seq % 4 == 1
            else NO_PROPERTIES
        ),
    )


def row_of(record: RecordedMessage, at: int) -> tuple[Any, ...]:
    """The row of table `record`."""
    content = (
        record.stream,
        record.seq,
        at,
        record.qos | record.retain << 2 | record.dup << 3,
        record.packet_id,
        record.version,
        record.client_id,
        record.user_name,
        record.topic_name,
        properties_value(record.properties),
        record.payload,
    )
    return schema.with_checksum("record", content)


def plain_row(stream: int, seq: int, received: int, payload: bytes) -> tuple[Any, ...]:
    """The row of a message that has nothing but a payload."""
    content = (stream, seq, received, 0, 0, 5, "c", None, "t", None, payload)
    return schema.with_checksum("record", content)


def fields(record: RecordedMessage) -> tuple[Any, ...]:
    """What a record says, so that two can be compared."""
    return (
        record.stream,
        record.seq,
        record.topic_name,
        record.payload,
        record.qos,
        record.retain,
        record.dup,
        record.client_id,
        record.user_name,
        record.packet_id,
        record.version,
        record.properties,
    )


def make_database(path: Path | str) -> sqlite3.Connection:
    """An empty store; the connection commits by itself."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    schema.create(connection)
    return connection


def insert(connection: sqlite3.Connection, first: int, last: int, stream: int = 1) -> None:
    """Commit rows first to last of a stream."""
    put(connection, (message(seq, stream) for seq in range(first, last + 1)))


def put(connection: sqlite3.Connection, records: Iterable[RecordedMessage]) -> None:
    """Commit these records."""
    connection.execute("BEGIN")
    connection.executemany(INSERT, (row_of(each, received(each.seq)) for each in records))
    connection.execute("COMMIT")


def reader(path: Path) -> sqlite3.Connection:
    """A connection as the sealer has it."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    connection.text_factory = bytes
    return connection


def read_records(
    root: Root, stream: str, node: str, first: int, limit: int, *, stream_id: int = 0
) -> list[RecordedMessage]:
    """At most `limit` records from seq `first` on."""
    with SegmentReader(root, stream, node, stream_id=stream_id) as segments:
        return segments.read(first, limit)
