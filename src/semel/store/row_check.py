"""Checks whether one row of a store is valid by itself.

Messages, wills and subscriptions are built from the row with the constructors of `semel.mqtt`,
which accept only what could be sent. Check, repair and migration all use `fault_of`.
"""

import json
from typing import Final

from semel.counts import count
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5, MQTT311
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import subscription_from_options
from semel.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    check_properties_version,
    encode_properties,
)
from semel.mqtt.topics import check_topic_filter, quoted
from semel.mqtt.violation import Violation
from semel.mqtt.wire import (
    MAXIMUM_FOUR_BYTES,
    MAXIMUM_TWO_BYTES,
    MAXIMUM_VARIABLE_BYTE_INTEGER,
    check_text,
)
from semel.store.commit import MAXIMUM_IDENTITY_BYTES
from semel.store.row_checksums import WRONG_CHECKSUM, row_checksum
from semel.store.row_flags import (
    DUP,
    HAS_EXTRA,
    MAXIMUM_FLAGS,
    QOS_MASK,
    RELEASED_FLAGS,
    RETAIN,
)
from semel.store.rows import properties_as_stored
from semel.store.schema import TABLES, Row, Value, content_of

_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "INTEGER": ((int,), "an integer"),
    "REAL": ((int, float), "a number"),
    "TEXT": ((str,), "text"),
    "BLOB": ((bytes,), "bytes"),
}
_LARGEST: Final = 2**63 - 1
# The names of these columns in messages.
_LABELS: Final = {"session_id": "session", "stream_id": "stream"}


class _Fault(Exception):
    """A row is invalid. The text says why, in a few words."""


def describe_key(table: str, row: Row) -> str:
    """The key of a row, for messages: `session 1, number 3`."""
    parts: list[str] = []
    for name, value in zip(TABLES[table].key_names, row, strict=False):
        shown = quoted(value) if isinstance(value, str) else str(value)
        parts.append(f"{_LABELS.get(name, name)} {shown}")
    return ", ".join(parts)


def fault_of(table: str, row: Row) -> str | None:
    """What is wrong with a row by itself, or None."""
    try:
        _check_types(table, row)
        content = content_of(table, row)
        _check_content(table, content)
        if row_checksum(table, content) != row[TABLES[table].key_size]:
            raise _Fault(WRONG_CHECKSUM)
    except _Fault as fault:
        return str(fault)
    except Violation as violation:
        return f"{violation.rule.name}: {violation.seen}"
    return None


def fault_of_delivery(row: Row, extra: Row | None, shared_payload: Value) -> str | None:
    """What is wrong with a delivery, its extra columns and its shared payload together, or None.

    `fault_of` must have found nothing wrong with each row.
    """
    try:
        _check_whole_delivery(
            content_of("delivery", row),
            None if extra is None else content_of("delivery_extra", extra),
            shared_payload,
        )
    except _Fault as fault:
        return str(fault)
    except Violation as violation:
        return f"{violation.rule.name}: {violation.seen}"
    return None


def _check_types(table: str, row: Row) -> None:
    columns = TABLES[table].columns
    if len(columns) != len(row):
        raise _Fault(f"it has {len(row)} columns, not {len(columns)}")
    for column, value in zip(columns, row, strict=True):
        if value is None:
            if not column.is_nullable:
                raise _Fault(f"{column.name} is missing")
            continue
        types, expected = _TYPES[column.type]
        if not isinstance(value, types):
            raise _Fault(f"{column.name} is not {expected}")


def _check_range(name: str, value: Value, low: int, high: int = _LARGEST) -> None:
    assert isinstance(value, int)
    if not low <= value <= high:
        raise _Fault(f"{name} is {value}")


def _check_content(table: str, row: Row) -> None:
    if table == "metadata":
        _check_name(row[0])
    elif table == "session":
        _check_session(row)
    elif table == "stream":
        _check_stream(row)
    elif table == "subscription":
        _check_subscription(row)
    elif table == "inbound":
        _check_range("session_id", row[0], 1)
        _check_range("packet_id", row[1], 1, MAXIMUM_TWO_BYTES)
    elif table == "shared_payload":
        _check_range("id", row[0], 1)
        _check_range("use_count", row[1], 1)
    elif table == "delivery":
        _check_delivery(row)
    elif table == "delivery_extra":
        _check_extra(row)
    elif table == "will":
        _check_will(row)
    elif table == "retained":
        _check_retained(row)
    elif table == "inbox":
        _check_inbox(row)
    else:
        assert table == "record"
        _check_record(row)


def _check_name(name: Value, column: str = "name") -> None:
    assert isinstance(name, str)
    check_text(name, column, None)
    if not name:
        raise _Fault(f"{column} is empty")


def _check_session(row: Row) -> None:
    session, client_id, expiry_interval, _, identity = row
    assert isinstance(client_id, str)
    _check_range("id", session, 1)
    check_text(client_id, "client_id", None)
    _check_range("expiry_interval", expiry_interval, 0, MAXIMUM_FOUR_BYTES)
    _check_identity(identity)


def _check_stream(row: Row) -> None:
    stream, name, last_seq, sealed_seq, sealing_seq = row
    assert isinstance(last_seq, int)
    _check_range("id", stream, 1)
    _check_name(name)
    _check_range("last_seq", last_seq, 0)
    _check_range("sealed_seq", sealed_seq, 0, last_seq)
    _check_range("sealing_seq", sealing_seq, 0, last_seq)


def _check_subscription(row: Row) -> None:
    session, topic_filter, options, identifier, cursor = row
    assert isinstance(topic_filter, str)
    assert isinstance(options, int)
    _check_range("session_id", session, 1)
    if subscription_from_options(topic_filter, options).options != options:
        raise _Fault(f"options is {options}")
    _check_range("identifier", identifier, 0, MAXIMUM_VARIABLE_BYTE_INTEGER)
    if cursor is not None:
        # The cursor of a subscription to a stream may be a time, as a negative number.
        _check_range("cursor", cursor, -_LARGEST if topic_filter.startswith("$stream/") else 0)


def _check_delivery(row: Row) -> None:
    session, number, packet_id, release_number, flags, topic, payload = row
    assert isinstance(flags, int)
    _check_range("session_id", session, 1)
    _check_range("number", number, 1)
    _check_range("packet_id", packet_id, 0, MAXIMUM_TWO_BYTES)
    _check_range("release_number", release_number, 0)
    _check_range("flags", flags, 0, MAXIMUM_FLAGS)
    if not 1 <= flags & QOS_MASK <= 2:
        raise _Fault(f"flags is {flags}")
    if release_number:
        # [4.3.3] after PUBREC only the identifier is kept
        if flags != RELEASED_FLAGS or not packet_id:
            raise _Fault("it is released, but it is not a QoS 2 message that was sent")
        if topic is not None or payload is not None:
            raise _Fault("it is released, but it still has its message")
    elif topic is None:
        raise _Fault("its message is missing")
    else:
        _message(topic, b"" if payload is None else payload, flags, NO_PROPERTIES)


def _check_extra(row: Row) -> None:
    session, number, size, _, share, shared_payload_id, properties = row
    _check_range("session_id", session, 1)
    _check_range("number", number, 1)
    _check_range("size", size, 1)
    if share is not None:
        assert isinstance(share, str)
        check_topic_filter(share, None)
    if shared_payload_id is not None:
        _check_range("shared_payload_id", shared_payload_id, 1)
    _properties(properties)


def _check_whole_delivery(row: Row, extra: Row | None, shared_payload: Value) -> None:
    _, _, _, release_number, flags, topic, payload = row
    size: Value = None
    shared_payload_id: Value = None
    section: Value = None
    assert isinstance(flags, int)
    if extra is None and flags & HAS_EXTRA:
        raise _Fault("its row in delivery_extra is missing")
    if extra is not None:
        if release_number:
            raise _Fault("it is released, but it still has its message")
        if not flags & HAS_EXTRA:
            raise _Fault("it has a row in delivery_extra, but its flags do not say so")
        _, _, size, _, _, shared_payload_id, section = extra
    if release_number:
        return
    if shared_payload_id is not None:
        if payload is not None:
            raise _Fault("it has a payload of its own and a shared one")
        payload = shared_payload
    if payload is None:
        raise _Fault("its payload is missing")
    if not isinstance(payload, bytes):
        raise _Fault("its payload is not bytes")
    message = _message(topic, payload, flags, _properties(section))
    if size is not None and message.size != size:
        raise _Fault(f"size is {size!r}, but its message has {count(message.size, 'byte')}")


def _check_will(row: Row) -> None:
    client_id, identity, _, qos, retain, topic, properties, payload = row
    assert isinstance(client_id, str)
    assert isinstance(topic, str)
    assert isinstance(payload, bytes)
    assert isinstance(qos, int)
    check_text(client_id, "client_id", None)
    _check_identity(identity)
    Will(topic, payload, qos=qos, properties=_properties(properties))
    _check_range("retain", retain, 0, 1)


def _check_retained(row: Row) -> None:
    position, topic, qos, _, properties, payload = row
    _check_range("position", position, 1)
    _check_range("qos", qos, 0, 2)
    # [3.3.1.3] an empty payload deletes a retained message, and is not retained itself
    if not payload:
        raise _Fault("payload is empty")
    _message(topic, payload, qos, _properties(properties))


def _check_inbox(row: Row) -> None:
    session, number, key, flags, packet_id, version, *message = row
    _check_range("session_id", session, 1)
    _check_range("number", number, 1)
    _check_name(key, "key")
    _check_publish(flags, packet_id, version, *message)
    assert isinstance(flags, int)
    if not flags & QOS_MASK:
        raise _Fault("it is a QoS 0 message, which has no acknowledgement")


def _check_record(row: Row) -> None:
    stream, seq, received_at, flags, packet_id, version, client_id, user_name, *message = row
    assert isinstance(client_id, str)
    _check_range("stream_id", stream, 1)
    _check_range("seq", seq, 1)
    _check_range("received_at", received_at, 0)
    check_text(client_id, "client_id", None)
    _check_user_name(user_name)
    _check_publish(flags, packet_id, version, *message)


def _check_publish(
    flags: Value, packet_id: Value, version: Value, topic: Value, section: Value, payload: Value
) -> None:
    """Check a message as it was received."""
    assert isinstance(topic, str)
    assert isinstance(payload, bytes)
    assert isinstance(flags, int)
    assert isinstance(packet_id, int)
    assert isinstance(version, int)
    _check_range("flags", flags, 0, MAXIMUM_FLAGS)
    if version not in (MQTT311, MQTT5):
        raise _Fault(f"protocol_version is {version}")
    properties = _properties(section)
    check_properties_version(properties.present, version)
    qos = flags & QOS_MASK
    Publish(
        topic,
        payload,
        qos=qos,
        # A will has no identifier, whatever its QoS, nor has a message that the server lost.
        packet_id=packet_id or (1 if qos else 0),
        retain=bool(flags & RETAIN),
        dup=bool(flags & DUP),
        properties=properties,
    )


def _check_identity(identity: Value) -> None:
    """Check that it is a JSON object, or empty. Its content is the business of its owner."""
    assert isinstance(identity, str)
    if not identity:
        return
    if len(identity) > MAXIMUM_IDENTITY_BYTES:
        raise _Fault("identity is too long")
    if any("\ud800" <= each <= "\udfff" for each in identity):
        raise _Fault("identity is not valid UTF-8")
    try:
        is_object = isinstance(json.loads(identity), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise _Fault("identity is not a JSON object")


def _check_user_name(user_name: Value) -> None:
    if user_name is not None:
        assert isinstance(user_name, str)
        check_text(user_name, "user_name", None)


def _properties(value: Value) -> Properties:
    if value is None:
        return NO_PROPERTIES
    assert isinstance(value, bytes)
    # A Topic Alias from an older semel is harmless: `properties_from` removes it.
    properties = properties_as_stored(value)
    if encode_properties(properties) != value:
        raise _Fault("properties do not have the length that they state")
    return properties


def _message(topic: Value, payload: Value, flags: Value, properties: Properties) -> Message:
    assert isinstance(topic, str)
    assert isinstance(payload, bytes)
    assert isinstance(flags, int)
    return Message(topic, payload, qos=flags & QOS_MASK, properties=properties)
