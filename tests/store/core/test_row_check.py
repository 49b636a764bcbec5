"""Checks of single rows: a row that semel could have written passes, any other has a fault.

Each row here has the checksum of its content, so that only the check of its content can find it.
How a check of a whole store reports its faults is tested with FAULTS.
"""

import pytest

from semel.mqtt import MQTT5, MQTT311
from semel.store.row_check import describe_key, fault_of
from semel.store.row_flags import RELEASED_FLAGS
from semel.store.schema import TABLES, Row, Value, with_checksum

LARGEST = (1 << 63) - 1
# A property section with a Content Type.
PROPERTIES = b"\x04\x03\x00\x01x"

# One valid row per table, without its checksum.
VALID: dict[str, Row] = {
    "metadata": ("node", "n1"),
    "session": (1, "c", 60, None, ""),
    "stream": (1, "plant", 9, 5, 7),
    "subscription": (1, "a/#", 1, 0, None),
    "inbound": (1, 1),
    "shared_payload": (1, 1, b"p"),
    "delivery": (1, 1, 0, 0, 1, "t", b"p"),
    "delivery_extra": (1, 1, 2, None, None, None, PROPERTIES),
    "will": ("c", "", None, 0, 0, "t", None, b""),
    "retained": (1, "t", 0, None, None, b"p"),
    "inbox": (1, 1, "k", 1, 1, MQTT5, "t", None, b""),
    "record": (1, 1, 0, 0, 0, MQTT5, "c", None, "t", None, b""),
}

# The columns that are integers: values at their limits, and just beyond.
LIMITS: list[tuple[str, str, list[int], list[int]]] = [
    ("session", "id", [1, LARGEST], [0, -1]),
    ("session", "expiry_interval", [0, 0xFFFF_FFFF], [-1, 0x1_0000_0000]),
    ("stream", "id", [1], [0]),
    ("stream", "last_seq", [7], [-1, 6]),
    ("stream", "sealed_seq", [0, 9], [-1, 10]),
    ("stream", "sealing_seq", [0, 9], [-1, 10]),
    ("subscription", "session_id", [1], [0]),
    ("subscription", "options", [0, 2], [3, 64]),
    ("subscription", "identifier", [0, 268_435_455], [-1, 268_435_456]),
    ("subscription", "cursor", [0, LARGEST], [-1]),
    ("inbound", "session_id", [1], [0]),
    ("inbound", "packet_id", [1, 65_535], [0, 65_536]),
    ("shared_payload", "id", [1], [0]),
    ("shared_payload", "use_count", [1], [0]),
    ("delivery", "session_id", [1], [0]),
    ("delivery", "number", [1], [0]),
    ("delivery", "packet_id", [0, 65_535], [-1, 65_536]),
    ("delivery", "release_number", [0], [-1, 1]),
    ("delivery", "flags", [1, 2, 5, 14], [0, 3, 7, 15, 16, 17, -15]),
    ("delivery_extra", "session_id", [1], [0]),
    ("delivery_extra", "number", [1], [0]),
    ("delivery_extra", "size", [1], [0]),
    ("delivery_extra", "shared_payload_id", [1], [0]),
    ("will", "qos", [0, 2], [-1, 3]),
    ("will", "retain", [0, 1], [-1, 2]),
    ("retained", "position", [1], [0]),
    ("retained", "qos", [0, 2], [-1, 3]),
    ("inbox", "session_id", [1], [0]),
    ("inbox", "number", [1], [0]),
    ("inbox", "flags", [1, 2, 13, 14], [0, 3, 4, 16, 17]),
    ("inbox", "packet_id", [0, 65_535], [-1, 65_536]),
    ("inbox", "protocol_version", [MQTT311, MQTT5], [3, 6]),
    ("record", "stream_id", [1], [0]),
    ("record", "seq", [1, LARGEST], [0]),
    ("record", "received_at", [0], [-1]),
    ("record", "flags", [0, 4], [3, 16, -16]),
    ("record", "packet_id", [0], [-1, 65_536]),
    ("record", "protocol_version", [MQTT311, MQTT5], [3, 6]),
]

# Texts that no packet, no option and no setting can have given.
TEXTS: list[tuple[str, str, list[Value]]] = [
    ("metadata", "name", ["", "a\0", "\udcff"]),
    ("session", "client_id", ["a\0", "\udcff"]),
    ("session", "identity", ["[]", "1", "{", '{"a": "\udcff"}']),
    ("stream", "name", ["", "a\0"]),
    ("subscription", "topic_filter", ["", "a#", "a\0"]),
    ("delivery", "topic", ["", "a/+", None]),
    ("delivery_extra", "share", ["", "a#"]),
    ("will", "client_id", ["a\0"]),
    ("will", "identity", ["[]"]),
    ("will", "topic", ["", "#"]),
    ("retained", "topic", ["", "+"]),
    ("retained", "payload", [b""]),
    ("inbox", "key", ["", "a\0"]),
    ("inbox", "topic", ["", "+"]),
    ("record", "client_id", ["a\0"]),
    ("record", "user_name", ["a\0"]),
    ("record", "topic", ["", "#"]),
]


def changed(table: str, column: str, value: Value) -> Row:
    """The valid row of a table with another value in one column, and with its checksum."""
    names = TABLES[table].content_names
    found = (
        value if name == column else old for name, old in zip(names, VALID[table], strict=True)
    )
    return with_checksum(table, tuple(found))


@pytest.mark.parametrize("table", TABLES)
def test_a_row_that_was_written_has_no_fault(table: str) -> None:
    assert fault_of(table, with_checksum(table, VALID[table])) is None


@pytest.mark.parametrize(("table", "column", "valid", "invalid"), LIMITS)
def test_a_number_beyond_its_limits_is_a_fault(
    table: str, column: str, valid: list[int], invalid: list[int]
) -> None:
    for number in valid:
        assert fault_of(table, changed(table, column, number)) is None, number
    for number in invalid:
        assert fault_of(table, changed(table, column, number)) is not None, number


@pytest.mark.parametrize(("table", "column", "invalid"), TEXTS)
def test_a_text_that_cannot_have_come_is_a_fault(
    table: str, column: str, invalid: list[Value]
) -> None:
    for value in invalid:
        assert fault_of(table, changed(table, column, value)) is not None, value


@pytest.mark.parametrize("table", TABLES)
def test_a_column_of_another_type_or_without_its_value_is_a_fault(table: str) -> None:
    row = with_checksum(table, VALID[table])
    for at, column in enumerate(TABLES[table].columns):
        wrong: Value = b"" if column.type != "BLOB" else ""
        assert fault_of(table, (*row[:at], wrong, *row[at + 1 :])) is not None
        if not column.is_nullable:
            without = (*row[:at], None, *row[at + 1 :])
            assert fault_of(table, without) == f"{column.name} is missing"


@pytest.mark.parametrize("table", TABLES)
def test_a_row_with_a_column_too_many_or_too_few_is_a_fault(table: str) -> None:
    row = with_checksum(table, VALID[table])
    for wrong in ((*row, 0), row[:-1]):
        assert fault_of(table, wrong) == f"it has {len(wrong)} columns, not {len(row)}"


def test_a_released_delivery_is_its_identifier_alone() -> None:
    def released(packet_id: int, flags: int, topic: Value, payload: Value) -> str | None:
        content = (1, 1, packet_id, 4, flags, topic, payload)
        return fault_of("delivery", with_checksum("delivery", content))

    assert released(7, RELEASED_FLAGS, None, None) is None
    for wrong in ((0, RELEASED_FLAGS), (7, 1), (7, 6)):
        assert released(*wrong, None, None) is not None, wrong
    assert released(7, RELEASED_FLAGS, "t", None) is not None
    assert released(7, RELEASED_FLAGS, None, b"") is not None


def test_a_cursor_may_be_a_time_in_a_stream_only() -> None:
    assert fault_of("subscription", changed("subscription", "cursor", -5)) is not None
    content = (1, "$stream/plant/#", 1, 0, -5)
    assert fault_of("subscription", with_checksum("subscription", content)) is None


@pytest.mark.parametrize("table", ["delivery_extra", "will", "retained", "inbox", "record"])
def test_properties_are_whole(table: str) -> None:
    assert fault_of(table, changed(table, "properties", PROPERTIES)) is None
    for wrong in (b"\x05", PROPERTIES + b"\0", b""):
        assert fault_of(table, changed(table, "properties", wrong)) is not None, wrong


def test_properties_are_of_mqtt_5_only() -> None:
    content = (1, 1, 0, 0, 0, MQTT311, "c", None, "t", PROPERTIES, b"")
    assert fault_of("record", with_checksum("record", content)) is not None


def test_a_row_that_has_another_checksum_is_a_fault() -> None:
    for table, content in VALID.items():
        row = list(with_checksum(table, content))
        checksum = row[TABLES[table].key_size]
        assert isinstance(checksum, int)
        row[TABLES[table].key_size] = checksum ^ 1
        assert fault_of(table, tuple(row)) is not None


def test_a_key_is_described_by_its_columns() -> None:
    assert describe_key("delivery", (1, 3)) == "session 1, number 3"
    assert describe_key("subscription", (2, "a b")) == "session 2, topic_filter 'a b'"
