"""Whether one row of a store is what it should be, by itself.

A row is tried by the constructors of the standard's room, which accept nothing that could not be
sent. `fault_of` is the one judge, for the check of a store and for its repair.
"""

from typing import Final

from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5, MQTT311
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.publish import Publish
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
from semel.store.row_checksums import row_checksum
from semel.store.rows import HAS_PARTICULAR, properties_as_stored, subscription_from
from semel.store.schema import COLUMNS, KEYS, Row, Value, column_names, content_of

_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "i": ((int,), "an integer"),
    "r": ((int, float), "a number"),
    "t": ((str,), "text"),
    "b": ((bytes,), "bytes"),
}
_LARGEST: Final = 2**63 - 1


class _Fault(Exception):
    """What is wrong, in a few words."""


def key_of(table: str, row: Row) -> str:
    """How to call a row."""
    parts: list[str] = []
    for name, value in zip(column_names(table)[: KEYS[table]], row, strict=False):
        shown = quoted(value) if isinstance(value, str) else str(value)
        parts.append(f"{name} {shown}")
    return ", ".join(parts)


def fault_of(table: str, row: Row) -> str | None:
    """What is wrong with a row by itself; None: nothing."""
    try:
        _check_types(table, row)
        content = content_of(table, row)
        _check(table, content)
        if row_checksum(table, content) != row[KEYS[table]]:
            raise _Fault("it is not what was written (its checksum is wrong)")
    except _Fault as fault:
        return str(fault)
    except Violation as violation:
        return f"{violation.rule.name}: {violation.seen}"
    return None


def fault_of_delivery(row: Row, particular: Row | None, body: Value) -> str | None:
    """What is wrong with a delivery and what belongs to it, if nothing is with each by itself."""
    try:
        _check_whole(
            content_of("delivery", row),
            None if particular is None else content_of("particular", particular),
            body,
        )
    except _Fault as fault:
        return str(fault)
    except Violation as violation:
        return f"{violation.rule.name}: {violation.seen}"
    return None


def _check_types(table: str, row: Row) -> None:
    columns = COLUMNS[table].split()
    if len(columns) != len(row):
        raise _Fault(f"it has {len(row)} columns, not {len(columns)}")
    for column, value in zip(columns, row, strict=True):
        name, _, kind = column.partition(":")
        if value is None:
            if not kind.endswith("?"):
                raise _Fault(f"{name} is not there")
            continue
        types, said = _TYPES[kind[0]]
        if not isinstance(value, types):
            raise _Fault(f"{name} is not {said}")


def _check_range(name: str, value: Value, low: int, high: int = _LARGEST) -> None:
    assert isinstance(value, int)
    if not low <= value <= high:
        raise _Fault(f"{name} is {value}")


def _check(table: str, row: Row) -> None:
    if table == "fact":
        _check_name(row[0])
    elif table == "session":
        _check_session(row)
    elif table == "stream":
        _check_stream(row)
    elif table == "subscription":
        _check_subscription(row)
    elif table == "inbound":
        _check_range("session", row[0], 1)
        _check_range("packet_id", row[1], 1, MAXIMUM_TWO_BYTES)
    elif table == "body":
        _check_range("id", row[0], 1)
        _check_range("uses", row[1], 1)
    elif table == "delivery":
        _check_delivery(row)
    elif table == "particular":
        _check_particular(row)
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
    number, client_id, expiry, _ = row
    assert isinstance(client_id, str)
    _check_range("number", number, 1)
    check_text(client_id, "client_id", None)
    _check_range("expiry", expiry, 0, MAXIMUM_FOUR_BYTES)


def _check_stream(row: Row) -> None:
    number, name, last_seq, sealed, sealing = row
    assert isinstance(last_seq, int)
    _check_range("id", number, 1)
    _check_name(name)
    _check_range("last_seq", last_seq, 0)
    _check_range("sealed", sealed, 0, last_seq)
    _check_range("sealing", sealing, 0, last_seq)


def _check_subscription(row: Row) -> None:
    session, topic_filter, options, identifier, cursor = row
    assert isinstance(topic_filter, str)
    assert isinstance(options, int)
    _check_range("session", session, 1)
    if subscription_from(topic_filter, options).options != options:
        raise _Fault(f"options is {options}")
    _check_range("identifier", identifier, 0, MAXIMUM_VARIABLE_BYTE_INTEGER)
    if cursor is not None:
        # A subscription to a stream may begin at a time.
        _check_range("cursor", cursor, -_LARGEST if topic_filter.startswith("$stream/") else 0)


def _check_delivery(row: Row) -> None:
    session, number, packet_id, released, flags, topic, payload = row
    assert isinstance(flags, int)
    _check_range("session", session, 1)
    _check_range("number", number, 1)
    _check_range("packet_id", packet_id, 0, MAXIMUM_TWO_BYTES)
    _check_range("released", released, 0)
    _check_range("flags", flags, 0, 15)
    if not 1 <= flags & 3 <= 2:
        raise _Fault(f"flags is {flags}")
    if released:
        # [4.3.3] after PUBREC only the identifier is left
        if flags != 2 or not packet_id:
            raise _Fault("it is released, but no QoS 2 message that was sent")
        if topic is not None or payload is not None:
            raise _Fault("it is released, but its message is there")
    elif topic is None:
        raise _Fault("its message is not there")
    else:
        _message(topic, b"" if payload is None else payload, flags, NO_PROPERTIES)


def _check_particular(row: Row) -> None:
    session, number, size, _, share, body, properties = row
    _check_range("session", session, 1)
    _check_range("number", number, 1)
    _check_range("size", size, 1)
    if share is not None:
        assert isinstance(share, str)
        check_topic_filter(share, None)
    if body is not None:
        _check_range("body", body, 1)
    _properties(properties)


def _check_whole(row: Row, particular: Row | None, body: Value) -> None:
    _, _, _, released, flags, topic, payload = row
    size: Value = None
    reference: Value = None
    section: Value = None
    assert isinstance(flags, int)
    if particular is None and flags & HAS_PARTICULAR:
        raise _Fault("what is particular about it is not there")
    if particular is not None:
        if released:
            raise _Fault("it is released, but its message is there")
        if not flags & HAS_PARTICULAR:
            raise _Fault("something is particular about it, which its flags do not say")
        _, _, size, _, _, reference, section = particular
    if released:
        return
    if reference is not None:
        if payload is not None:
            raise _Fault("it has a payload, and a body")
        payload = body
    if payload is None:
        raise _Fault("its payload is not there")
    if not isinstance(payload, bytes):
        raise _Fault("its payload is not bytes")
    message = _message(topic, payload, flags, _properties(section))
    if size is not None and message.size != size:
        raise _Fault(f"size is {size!r}, its message has {message.size}")


def _check_will(row: Row) -> None:
    client_id, user_name, _, qos, retain, topic, properties, payload = row
    assert isinstance(client_id, str)
    assert isinstance(topic, str)
    assert isinstance(payload, bytes)
    assert isinstance(qos, int)
    check_text(client_id, "client_id", None)
    _check_user_name(user_name)
    Will(topic, payload, qos=qos, properties=_properties(properties))
    _check_range("retain", retain, 0, 1)


def _check_retained(row: Row) -> None:
    place, topic, qos, _, properties, payload = row
    _check_range("place", place, 1)
    _check_range("qos", qos, 0, 2)
    # [3.3.1.3] an empty payload is no retained message, but the end of one
    if not payload:
        raise _Fault("payload is empty")
    _message(topic, payload, qos, _properties(properties))


def _check_inbox(row: Row) -> None:
    session, number, key, flags, packet_id, version, *message = row
    _check_range("session", session, 1)
    _check_range("number", number, 1)
    _check_name(key, "key")
    _check_publish(flags, packet_id, version, *message)
    assert isinstance(flags, int)
    if not flags & 3:
        raise _Fault("it is a QoS 0 message, which nobody acknowledges")


def _check_record(row: Row) -> None:
    stream, seq, received, flags, packet_id, version, client_id, user_name, *message = row
    assert isinstance(client_id, str)
    _check_range("stream", stream, 1)
    _check_range("seq", seq, 1)
    _check_range("received", received, 0)
    check_text(client_id, "client_id", None)
    _check_user_name(user_name)
    _check_publish(flags, packet_id, version, *message)


def _check_publish(
    flags: Value, packet_id: Value, version: Value, topic: Value, section: Value, payload: Value
) -> None:
    """A message as it came in."""
    assert isinstance(topic, str)
    assert isinstance(payload, bytes)
    assert isinstance(flags, int)
    assert isinstance(packet_id, int)
    assert isinstance(version, int)
    _check_range("flags", flags, 0, 15)
    if version not in (MQTT311, MQTT5):
        raise _Fault(f"version is {version}")
    properties = _properties(section)
    check_properties_version(properties.present, version)
    qos = flags & 3
    Publish(
        topic,
        payload,
        qos=qos,
        # A will has no identifier, whatever its QoS, nor what a server has forgotten.
        packet_id=packet_id or (1 if qos else 0),
        retain=bool(flags & 4),
        dup=bool(flags & 8),
        properties=properties,
    )


def _check_user_name(user_name: Value) -> None:
    if user_name is not None:
        assert isinstance(user_name, str)
        check_text(user_name, "user_name", None)


def _properties(value: Value) -> Properties:
    if value is None:
        return NO_PROPERTIES
    assert isinstance(value, bytes)
    # A Topic Alias of an older semel is harmless: `properties_from` leaves it out.
    properties = properties_as_stored(value)
    if encode_properties(properties) != value:
        raise _Fault("properties do not end where they should")
    return properties


def _message(topic: Value, payload: Value, flags: Value, properties: Properties) -> Message:
    assert isinstance(topic, str)
    assert isinstance(payload, bytes)
    assert isinstance(flags, int)
    return Message(topic, payload, qos=flags & 3, properties=properties)
