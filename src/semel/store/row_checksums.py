"""A checksum for each row of a store, over its key and its content.

SQLite has no checksums of rows, so a bit that flips on the disk changes a payload or a key
unnoticed. Each table has a column `checksum`, an integer of two parts:

    low 32 bits     over the columns that are written once: keys, texts, payloads. A CRC-32; in the
                    tables with the most rows, a CRC-32 of the bytes with the numbers mixed in
    high 30 bits    a sum over the columns that are updated individually

The low part is computed from values that the writer has, never from the content of the table. The
high part is linear, so that SQL can derive the new value from the old one without reading a
payload, and an update does not hide earlier damage of the row. If only one column is updated, the
high part is a function of that column.

Every reader of a row compares the checksum. A row with a wrong checksum is `Damaged` and not used.
"""

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from mypy_extensions import i64

from semel.store.row_flags import RELEASED_FLAGS

# A prime, so that a flipped bit always changes the sum. Below 2^30, so that a checksum has at most
# 62 bits: compiled code stores a longer number as an object.
MODULUS: Final = 1_073_741_789
LOW: Final = 0xFFFF_FFFF

# The message about a row whose checksum does not match.
WRONG_CHECKSUM: Final = "it differs from what was written (wrong checksum)"

# SQL: the checksum with one part unchanged and the other part 0.
KEEP_HIGH: Final = "(checksum & -4294967296)"
KEEP_LOW: Final = "(checksum & 4294967295)"

# The weight of each column of a delivery in the sum.
_SESSION: Final = 31
_NUMBER: Final = 1_009
_PACKET_ID: Final = 65_537
_RELEASED: Final = 10_007
_FLAGS: Final = 524_287
DELIVERY_HIGH: Final = (
    f"(session_id * {_SESSION} + number * {_NUMBER} + packet_id * {_PACKET_ID}"
    f" + release_number * {_RELEASED} + flags * {_FLAGS}) % {MODULUS}"
)
# SQL: set packet_id to column1.
ASSIGN: Final = (
    f"packet_id = column1, checksum = {KEEP_LOW} | ((((checksum >> 32)"
    f" + (column1 - packet_id) * {_PACKET_ID} % {MODULUS} + {MODULUS}) % {MODULUS}) << 32)"
)
# SQL: set release_number to column1 and drop the message; column4 is the low part.
RELEASE: Final = (
    f"release_number = column1, flags = {RELEASED_FLAGS}, topic = NULL, payload = NULL,"
    f" checksum = column4 | ((((checksum >> 32) + ((column1 - release_number) * {_RELEASED}"
    f" + ({RELEASED_FLAGS} - flags) * {_FLAGS}) % {MODULUS} + {MODULUS}) % {MODULUS}) << 32)"
)
# The weight of each column of a stream in the sum.
_STREAM: Final = {"last_seq": 1, "sealed_seq": 3, "sealing_seq": 7}


def set_stream(column: str) -> str:
    """SQL that sets a column of a stream to the first parameter of the statement."""
    weight = _STREAM[column]
    return (
        f"{column} = ?1, checksum = {KEEP_LOW} | ((((checksum >> 32) + (?1 % {MODULUS}"
        f" - {column} % {MODULUS}) * {weight} + {weight * MODULUS}) % {MODULUS}) << 32)"
    )


# --- parts ----------------------------------------------------------------------------------------


def crc_of(table: str, values: Sequence[object]) -> int:
    """The CRC-32 of values of a row, each with its type and length."""
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
    """A number as a float, because SQLite stores 5.0 as 5 in the file."""
    return float(value) if isinstance(value, int) else value


def time_high(time: object) -> int:
    """The high part for a time that is updated individually; 0 for None."""
    if time is None:
        return 0
    return 1 + crc_of("time", (_real(time),)) % (MODULUS - 1)


def cursor_high(cursor: int | None) -> int:
    """The high part for the cursor of a subscription."""
    return 0 if cursor is None else 1 + cursor % MODULUS


def stream_high(last_seq: int, sealed_seq: int, sealing_seq: int) -> int:
    """The high part for a stream."""
    total = last_seq * _STREAM["last_seq"] + sealed_seq * _STREAM["sealed_seq"]
    return (total + sealing_seq * _STREAM["sealing_seq"]) % MODULUS


# --- rows -----------------------------------------------------------------------------------------


def text_crc(text: str) -> int:
    """The CRC-32 of a text, for the functions below. A writer of many rows should cache it."""
    return crc32(text.encode("utf-8", "surrogateescape"))


def delivery_low(session: int, number: int, topic: int, payload: bytes | None) -> int:
    """The low part for a delivery; `topic` is the CRC-32 of its topic, 0 if it has none."""
    crc: i64 = topic
    size: i64 = -1
    if payload is not None:
        crc = crc32(payload, topic)
        size = len(payload)
    first: i64 = session
    second: i64 = number
    return crc ^ (first * 8_191 + second * 131_071 + size * 257 + 1) % MODULUS


def delivery_high(
    session: int, number: int, packet_id: int, release_number: int, flags: int
) -> int:
    """The high part for a delivery."""
    keys: i64 = session % MODULUS * _SESSION + number % MODULUS * _NUMBER
    rest: i64 = packet_id * _PACKET_ID + release_number % MODULUS * _RELEASED + flags * _FLAGS
    return (keys + rest) % MODULUS


def inbound_checksum(session: int, packet_id: int) -> int:
    """The checksum of an inbound identifier."""
    first: i64 = session
    second: i64 = packet_id
    return (first * 8_191 + second * 131_071 + 2) % MODULUS


def record_checksum(
    stream: int,
    seq: int,
    received_at: int,
    flags: int,
    packet_id: int,
    version: int,
    client_id: int,
    user_name: int,
    topic: int,
    properties: bytes | None,
    payload: bytes,
) -> int:
    """The checksum of a row of a stream. Texts are given as their CRC-32, -1 for no user name."""
    place: i64 = seq
    # A seq may be any 64-bit number: the computation must not overflow.
    mixed: i64 = (place & LOW) * 8_191 + (place >> 32) * 131_071
    which: i64 = stream
    when: i64 = received_at
    mixed += which * 65_537 + when * 509
    how: i64 = packet_id * 64 + flags
    mixed += how * 19_937 + version * 1_259
    who: i64 = client_id
    user: i64 = user_name
    mixed += who * 12_289 + user * 24_593
    size: i64 = len(payload)
    mixed += size * 49_157
    crc = topic
    if properties is not None:
        crc = crc32(properties, crc)
        size = len(properties) + 1
        mixed += size * 98_317
    return crc32(payload, crc) ^ (mixed + 3) % MODULUS


def row_checksum(table: str, row: Sequence[object]) -> int:
    """The checksum of a row of any table, given all its columns without the checksum."""
    try:
        return _row_checksum(table, row)
    except (TypeError, AssertionError, ValueError, OverflowError):
        # A value has the wrong type. A row that was written never has this checksum.
        return crc_of(table, row)


def _row_checksum(table: str, row: Sequence[object]) -> int:
    low = 0
    high = 0
    if table == "delivery":
        session, number, packet_id, release_number, flags, topic, payload = row
        assert isinstance(session, int)
        assert isinstance(number, int)
        assert isinstance(packet_id, int)
        assert isinstance(release_number, int)
        assert isinstance(flags, int)
        assert topic is None or isinstance(topic, str)
        assert payload is None or isinstance(payload, bytes)
        low = delivery_low(session, number, 0 if topic is None else text_crc(topic), payload)
        high = delivery_high(session, number, packet_id, release_number, flags)
    elif table == "record":
        stream, seq, received_at, flags, packet_id, version, client_id, user_name, *rest = row
        assert isinstance(stream, int)
        assert isinstance(seq, int)
        assert isinstance(received_at, int)
        assert isinstance(flags, int)
        assert isinstance(packet_id, int)
        assert isinstance(version, int)
        assert isinstance(client_id, str)
        topic, properties, payload = rest
        assert isinstance(topic, str)
        assert user_name is None or isinstance(user_name, str)
        assert properties is None or isinstance(properties, bytes)
        assert isinstance(payload, bytes)
        low = record_checksum(
            stream,
            seq,
            received_at,
            flags,
            packet_id,
            version,
            text_crc(client_id),
            -1 if user_name is None else text_crc(user_name),
            text_crc(topic),
            properties,
            payload,
        )
    elif table == "inbound":
        session, packet_id = row
        assert isinstance(session, int)
        assert isinstance(packet_id, int)
        low = inbound_checksum(session, packet_id)
    elif table == "session":
        session, client_id, expiry_interval, ends_at, identity = row
        low = crc_of(table, (session, client_id, expiry_interval, identity))
        high = time_high(ends_at)
    elif table == "subscription":
        low = crc_of(table, row[:4])
        cursor = row[4]
        assert cursor is None or isinstance(cursor, int)
        high = cursor_high(cursor)
    elif table == "shared_payload":
        payload_id, use_count, payload = row
        low = crc_of(table, (payload_id, payload))
        assert isinstance(use_count, int)
        # The trigger subtracts one from both.
        high = use_count
    elif table == "retained":
        position, topic, qos, expires_at, properties, payload = row
        low = crc_of(table, (topic, qos, _real(expires_at), properties, payload))
        assert isinstance(position, int)
        high = position % MODULUS
    elif table == "stream":
        stream, name, last_seq, sealed_seq, sealing_seq = row
        low = crc_of(table, (stream, name))
        assert isinstance(last_seq, int)
        assert isinstance(sealed_seq, int)
        assert isinstance(sealing_seq, int)
        high = stream_high(last_seq, sealed_seq, sealing_seq)
    elif table == "delivery_extra":
        session, number, size, expires_at, *rest = row
        low = crc_of(table, (session, number, size, _real(expires_at), *rest))
    elif table == "will":
        client_id, identity, due_at, *rest = row
        low = crc_of(table, (client_id, identity, _real(due_at), *rest))
    else:
        low = crc_of(table, row)
    # A damaged number may exceed the modulus.
    return low | (high % MODULUS) << 32
