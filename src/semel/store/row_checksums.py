"""A checksum for each row of a store: whether it is what was written, key and all.

SQLite has no checksums of its own, so a bit that flips on the disk gives another payload, or
another key, and nobody is told. Each table has a column `checksum`, an integer of two parts:

    low 32 bits     CRC-32 of what is written at once: keys, texts, payloads
    high 31 bits    a sum over the columns that are changed one by one

The low part comes from values that the writer has, never from what the table says. The high part is
linear, so that SQL can go on from the old value to the new one without reading a payload, and a
value that was damaged before stays damaged: an update does not make it right. Where a column is set
alone, the high part is a function of that column.

Whoever reads a row compares; what differs is `Damaged`, and is not used.
"""

from collections.abc import Sequence
from typing import Final
from zlib import crc32

# The prime number 2^31 - 1: no flipped bit is a multiple of it.
MODULUS: Final = 2_147_483_647
LOW: Final = 0xFFFF_FFFF

# In SQL: a checksum with one of its parts left as it is, and the other one 0.
KEEP_HIGH: Final = "(checksum & -4294967296)"
KEEP_LOW: Final = "(checksum & 4294967295)"

# Of a delivery: so much for each unit of its columns.
_SESSION: Final = 31
_NUMBER: Final = 1_009
_PACKET_ID: Final = 65_537
_RELEASED: Final = 10_007
_FLAGS: Final = 524_287
DELIVERY_HIGH: Final = (
    f"(session * {_SESSION} + number * {_NUMBER} + packet_id * {_PACKET_ID}"
    f" + released * {_RELEASED} + flags * {_FLAGS}) % {MODULUS}"
)
# Sets packet_id to column1.
ASSIGN: Final = (
    f"packet_id = column1, checksum = {KEEP_LOW} | ((((checksum >> 32)"
    f" + (column1 - packet_id) * {_PACKET_ID} % {MODULUS} + {MODULUS}) % {MODULUS}) << 32)"
)
# Sets released to column1, and leaves the rest of a message behind; column4 is the low part.
RELEASE: Final = (
    "released = column1, flags = 2, topic = NULL, payload = NULL,"
    f" checksum = column4 | ((((checksum >> 32) + ((column1 - released) * {_RELEASED}"
    f" + (2 - flags) * {_FLAGS}) % {MODULUS} + {MODULUS}) % {MODULUS}) << 32)"
)
# Of a stream: likewise.
_STREAM: Final = {"last_seq": 1, "sealed": 3, "sealing": 7}


def set_stream(column: str) -> str:
    """What sets a column of a stream to the first parameter of a statement."""
    weight = _STREAM[column]
    return (
        f"{column} = ?1, checksum = {KEEP_LOW} | ((((checksum >> 32) + (?1 % {MODULUS}"
        f" - {column} % {MODULUS}) * {weight} + {weight * MODULUS}) % {MODULUS}) << 32)"
    )


# --- parts ----------------------------------------------------------------------------------------


def crc_of(table: str, values: Sequence[object]) -> int:
    """The CRC-32 of some values of a row; each tells its type and length."""
    crc = crc32(table.encode())
    for value in values:
        if value is None:
            crc = crc32(b"n", crc)
        elif isinstance(value, int):
            crc = crc32(b"i%d," % value, crc)
        elif isinstance(value, float):
            crc = crc32(f"r{value!r},".encode(), crc)
        elif isinstance(value, str):
            data = value.encode("utf-8", "surrogateescape")
            crc = crc32(data, crc32(b"t%d:" % len(data), crc))
        else:
            assert isinstance(value, bytes)
            crc = crc32(value, crc32(b"b%d:" % len(value), crc))
    return crc


def _real(value: object) -> object:
    """A file has 5 where the column has 5.0."""
    return float(value) if isinstance(value, int) else value


def time_high(time: object) -> int:
    """The high part for a time that is set alone; None: 0."""
    if time is None:
        return 0
    return 1 + crc_of("time", (_real(time),)) % (MODULUS - 1)


def cursor_high(cursor: int | None) -> int:
    """The high part for the cursor of a subscription."""
    return 0 if cursor is None else 1 + cursor % MODULUS


def stream_high(last_seq: int, sealed: int, sealing: int) -> int:
    """The high part for a stream."""
    total = last_seq * _STREAM["last_seq"] + sealed * _STREAM["sealed"]
    return (total + sealing * _STREAM["sealing"]) % MODULUS


# --- rows -----------------------------------------------------------------------------------------


def delivery_low(session: int, number: int, topic: bytes | None, payload: bytes | None) -> int:
    """The low part for a delivery."""
    head = b"d%d,%d,%d,%d:" % (
        session,
        number,
        -1 if topic is None else len(topic),
        -1 if payload is None else len(payload),
    )
    crc = crc32(head if topic is None else head + topic)
    return crc if payload is None else crc32(payload, crc)


def delivery_high(session: int, number: int, packet_id: int, released: int, flags: int) -> int:
    """The high part for a delivery."""
    keys = session * _SESSION + number * _NUMBER
    return (keys + packet_id * _PACKET_ID + released * _RELEASED + flags * _FLAGS) % MODULUS


def with_packet_id(checksum: int, before: int, after: int) -> int:
    """The checksum of a delivery whose packet identifier becomes another."""
    high = ((checksum >> 32) + (after - before) * _PACKET_ID) % MODULUS
    return checksum & LOW | high << 32


def inbound_checksum(session: int, packet_id: int) -> int:
    """The checksum of an inbound identifier."""
    return crc32(b"q%d,%d" % (session, packet_id))


def record_checksum(
    stream: int,
    seq: int,
    received: int,
    flags: int,
    packet_id: int,
    version: int,
    client_id: bytes,
    user_name: bytes | None,
    topic: bytes,
    properties: bytes | None,
    payload: bytes,
) -> int:
    """The checksum of a row of a stream; texts are in UTF-8."""
    head = b"r%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d:" % (
        stream,
        seq,
        received,
        flags,
        packet_id,
        version,
        len(client_id),
        -1 if user_name is None else len(user_name),
        len(topic),
        -1 if properties is None else len(properties),
        len(payload),
    )
    head += client_id
    if user_name is not None:
        head += user_name
    head += topic
    if properties is not None:
        head += properties
    return crc32(payload, crc32(head))


def _data(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    assert value is None or isinstance(value, bytes)
    return value


def row_checksum(table: str, row: Sequence[object]) -> int:
    """The checksum of a row of any table: its columns without the checksum, in their order."""
    try:
        return _row_checksum(table, row)
    except (TypeError, AssertionError, ValueError):
        # Something is not of its type. No row that was written has this.
        return crc_of(table, row)


def _row_checksum(table: str, row: Sequence[object]) -> int:
    low = 0
    high = 0
    if table == "delivery":
        session, number, packet_id, released, flags, topic, payload = row
        assert isinstance(session, int)
        assert isinstance(number, int)
        assert isinstance(packet_id, int)
        assert isinstance(released, int)
        assert isinstance(flags, int)
        assert not isinstance(topic, bytes)
        assert not isinstance(payload, str)
        low = delivery_low(session, number, _data(topic), _data(payload))
        high = delivery_high(session, number, packet_id, released, flags)
    elif table == "record":
        stream, seq, received, flags, packet_id, version, client_id, user_name, topic, *rest = row
        assert isinstance(stream, int)
        assert isinstance(seq, int)
        assert isinstance(received, int)
        assert isinstance(flags, int)
        assert isinstance(packet_id, int)
        assert isinstance(version, int)
        assert isinstance(client_id, str)
        assert isinstance(topic, str)
        properties, payload = rest
        assert not isinstance(user_name, bytes)
        assert not isinstance(properties, str)
        assert isinstance(payload, bytes)
        low = record_checksum(
            stream,
            seq,
            received,
            flags,
            packet_id,
            version,
            client_id.encode("utf-8", "surrogateescape"),
            _data(user_name),
            topic.encode("utf-8", "surrogateescape"),
            _data(properties),
            payload,
        )
    elif table == "inbound":
        session, packet_id = row
        assert isinstance(session, int)
        assert isinstance(packet_id, int)
        low = inbound_checksum(session, packet_id)
    elif table == "session":
        low = crc_of(table, row[:3])
        high = time_high(row[3])
    elif table == "subscription":
        low = crc_of(table, row[:4])
        cursor = row[4]
        assert cursor is None or isinstance(cursor, int)
        high = cursor_high(cursor)
    elif table == "body":
        number, uses, payload = row
        low = crc_of(table, (number, payload))
        assert isinstance(uses, int)
        # A use less is one less.
        high = uses
    elif table == "retained":
        place, topic, qos, expires_at, properties, payload = row
        low = crc_of(table, (topic, qos, _real(expires_at), properties, payload))
        assert isinstance(place, int)
        high = place % MODULUS
    elif table == "stream":
        number, name, last_seq, sealed, sealing = row
        low = crc_of(table, (number, name))
        assert isinstance(last_seq, int)
        assert isinstance(sealed, int)
        assert isinstance(sealing, int)
        high = stream_high(last_seq, sealed, sealing)
    elif table == "particular":
        session, number, size, expires_at, *rest = row
        low = crc_of(table, (session, number, size, _real(expires_at), *rest))
    elif table == "will":
        client_id, user_name, due_at, *rest = row
        low = crc_of(table, (client_id, user_name, _real(due_at), *rest))
    else:
        low = crc_of(table, row)
    # A number beyond all bounds is not one of ours.
    return low | (high % MODULUS) << 32
