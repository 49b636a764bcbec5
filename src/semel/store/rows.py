"""Encodes values as single rows of the tables, and decodes them.

`schema.TABLES` defines the columns of a row and their order, `row_flags` the encoding of flags.
Every function that decodes a row compares its checksum and raises Damaged.
"""

from typing import Any, Final
from zlib import crc32

from semel.mqtt.delivery import Delivery
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.connect import Will
from semel.mqtt.properties import (
    NO_PROPERTIES,
    TOPIC_ALIAS,
    Properties,
    encode_properties,
    read_properties,
)
from semel.mqtt.wire import Reader
from semel.store.commit import RecordedMessage
from semel.store.row_checksums import WRONG_CHECKSUM, record_checksum, row_checksum
from semel.store.row_flags import DUP, HAS_EXTRA, QOS_MASK, RETAIN, received_flags
from semel.store.schema import CHECKSUM, TABLES, Damaged

# Session id and number of a row.
SessionKey = tuple[int, int]

# Selects rows of streams as `check_records` and `recorded_message` expect them.
SELECT_RECORDS: Final = (
    f"SELECT {CHECKSUM}, {', '.join(TABLES['record'].content_names[1:])} FROM record"
)

_DELIVERY_COLUMNS: Final[int] = len(TABLES["delivery"].columns)
# Without session_id and number, which `SELECT_DELIVERIES` has only once.
_EXTRA_COLUMNS: Final[int] = len(TABLES["delivery_extra"].columns) - 2


def _select_deliveries() -> str:
    delivery = TABLES["delivery"].column_names
    extra = TABLES["delivery_extra"].column_names[2:]
    shared = TABLES["shared_payload"].column_names[1:]
    columns = [
        *delivery[:2],
        *[f"delivery.{name}" for name in delivery[2:]],
        *[f"delivery_extra.{name}" for name in extra],
        *[f"shared_payload.{name}" for name in shared],
    ]
    return (
        f"SELECT {', '.join(columns)} FROM delivery"
        " LEFT JOIN delivery_extra USING (session_id, number)"
        " LEFT JOIN shared_payload ON shared_payload.id = delivery_extra.shared_payload_id"
    )


# Selects deliveries with their extra columns and shared payloads, as `delivery_from` expects them.
SELECT_DELIVERIES: Final = _select_deliveries()


def checksum_error(table: str, key: str) -> str:
    """The message about a row whose checksum is wrong."""
    return f"{table}, {key}: {WRONG_CHECKSUM}"


# --- properties -----------------------------------------------------------------------------------


def properties_value(properties: Properties) -> bytes | None:
    """Properties as the value of a column."""
    return encode_properties(properties) if properties.present else None


def properties_from(value: bytes | None) -> Properties:
    """Properties from a column.

    A store of an older semel may have rows with a Topic Alias, which is removed, because it is not
    part of a message.
    """
    if value is None:
        return NO_PROPERTIES
    properties = properties_as_stored(value)
    if properties.has(TOPIC_ALIAS):
        return Properties([item for item in properties.items if item[0] != TOPIC_ALIAS])
    return properties


def properties_as_stored(value: bytes) -> Properties:
    """Properties from a column, including a Topic Alias."""
    return Properties(read_properties(Reader(value, 0, len(value), MQTT5)))


# --- wills, retained messages, inbox --------------------------------------------------------------


def will_row(client_id: str, identity: str, will: Will, due_at: float | None) -> tuple[object, ...]:
    """A row of `will`."""
    content: list[object] = [client_id, identity, due_at, will.qos, will.retain, will.topic_name]
    content += [properties_value(will.properties), will.payload]
    return (client_id, row_checksum("will", content), *content[1:])


def retained_row(position: int, topic_name: str, message: Message) -> tuple[object, ...]:
    """A row of `retained`."""
    content: list[object] = [position, topic_name, message.qos, message.expires_at]
    content += [properties_value(message.properties), message.payload]
    return (position, row_checksum("retained", content), *content[1:])


def inbox_row(row_key: SessionKey, key: str, message: RecordedMessage) -> tuple[object, ...]:
    """A row of `inbox`."""
    flags = received_flags(message.qos, retain=message.retain, dup=message.dup)
    content: list[object] = [row_key[0], row_key[1], key, flags, message.packet_id, message.version]
    content += [message.topic_name, properties_value(message.properties), message.payload]
    return (row_key[0], row_key[1], row_checksum("inbox", content), *content[2:])


def inbox_message(content: tuple[object, ...]) -> tuple[int, str, RecordedMessage]:
    """Number, key and message of a row of `inbox`, which is passed without its checksum."""
    _, number, key, flags, packet_id, version, topic, section, payload = content
    assert isinstance(number, int)
    assert isinstance(key, str)
    assert isinstance(flags, int)
    assert isinstance(packet_id, int)
    assert isinstance(version, int)
    assert isinstance(topic, str)
    assert isinstance(payload, bytes)
    properties = properties_from(section if isinstance(section, bytes) else None)
    # The constructor raises Violation if the message could not be sent.
    message = Message(
        topic,
        payload,
        qos=flags & QOS_MASK,
        retain=bool(flags & RETAIN),
        properties=properties,
    )
    received = RecordedMessage(
        0,
        0,
        message.topic_name,
        message.payload,
        qos=message.qos,
        retain=message.retain,
        dup=bool(flags & DUP),
        packet_id=packet_id,
        version=version,
        properties=properties,
    )
    return number, key, received


# --- deliveries -----------------------------------------------------------------------------------


def delivery_from(row: tuple[object, ...]) -> Delivery:
    """A delivery from a row of SELECT_DELIVERIES. Raises Damaged."""
    session, number, checksum, packet_id, released, flags, topic, payload = row[:_DELIVERY_COLUMNS]
    content = (session, number, packet_id, released, flags, topic, payload)
    if checksum != row_checksum("delivery", content):
        raise Damaged(checksum_error("delivery", f"session {session}, number {number}"))
    assert isinstance(number, int)
    assert isinstance(packet_id, int)
    assert isinstance(released, int)
    assert isinstance(flags, int)
    expires_at: object = None
    share: object = None
    section: object = None
    if flags & HAS_EXTRA:
        shared_start = _DELIVERY_COLUMNS + _EXTRA_COLUMNS
        checksum, size, expires_at, share, shared_id, section = row[_DELIVERY_COLUMNS:shared_start]
        content = (session, number, size, expires_at, share, shared_id, section)
        is_intact = checksum == row_checksum("delivery_extra", content)
        if is_intact and shared_id is not None:
            checksum, use_count, payload = row[shared_start:]
            shared = (shared_id, use_count, payload)
            is_intact = checksum == row_checksum("shared_payload", shared)
        if not is_intact:
            raise Damaged(checksum_error("delivery", f"session {session}, number {number}"))
    qos = flags & QOS_MASK
    message: Message | None = None
    if not released:
        assert isinstance(topic, str)
        assert isinstance(payload, bytes)
        message = Message(
            topic,
            payload,
            qos=qos,
            retain=bool(flags & RETAIN),
            properties=properties_from(section if isinstance(section, bytes) else None),
            expires_at=expires_at if isinstance(expires_at, float) else None,
        )
    delivery = Delivery(number, message, share if isinstance(share, str) else "", qos)
    delivery.packet_id = packet_id
    delivery.released = released
    return delivery


# --- records --------------------------------------------------------------------------------------


def check_records(stream: int, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Check rows of SELECT_RECORDS, all of one stream. Returns them without their checksums.

    Texts may be str, or bytes in UTF-8. Raises Damaged.
    """
    found: list[tuple[Any, ...]] = []
    for row in rows:
        if not _is_intact_record(stream, row):
            raise Damaged(checksum_error("record", f"stream {stream}, seq {row[1]}"))
        found.append(row[1:])
    return found


def _is_intact_record(stream: int, row: tuple[object, ...]) -> bool:
    checksum, seq, received_at, flags, packet_id, version, client_id, user_name, topic = row[:9]
    if isinstance(topic, str):
        return checksum == row_checksum("record", (stream, *row[1:]))
    properties, payload = row[9:]
    return (
        isinstance(seq, int)
        and isinstance(received_at, int)
        and isinstance(flags, int)
        and isinstance(packet_id, int)
        and isinstance(version, int)
        and isinstance(client_id, bytes)
        and (user_name is None or isinstance(user_name, bytes))
        and isinstance(topic, bytes)
        and (properties is None or isinstance(properties, bytes))
        and isinstance(payload, bytes)
        and checksum
        == record_checksum(
            stream,
            seq,
            received_at,
            flags,
            packet_id,
            version,
            crc32(client_id),
            -1 if user_name is None else crc32(user_name),
            crc32(topic),
            properties,
            payload,
        )
    )


def recorded_message(stream: int, row: tuple[Any, ...]) -> RecordedMessage:
    """The message of one row of SELECT_RECORDS, whose texts are str. Raises Damaged."""
    if not _is_intact_record(stream, row):
        raise Damaged(checksum_error("record", f"stream {stream}, seq {row[1]}"))
    _, seq, received_at, flags, packet_id, version, client_id, user_name, topic, *rest = row
    section, payload = rest
    return RecordedMessage(
        stream,
        seq,
        topic,
        payload,
        qos=flags & QOS_MASK,
        retain=bool(flags & RETAIN),
        dup=bool(flags & DUP),
        client_id=client_id,
        user_name=user_name,
        packet_id=packet_id,
        version=version,
        properties=properties_from(section),
        received=received_at,
    )
