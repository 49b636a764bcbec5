"""PUBLISH [3.3]. The first three sections are the defects that semel comes from, on every path."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    Packet,
    Properties,
    Publish,
    Rule,
    decode,
    encode,
    observe,
    rules,
)
from tests.mqtt.verdicts import (
    BOTH,
    check_accepted,
    check_both_ways,
    check_refused,
    framed,
    observed,
    refuses,
    section,
    text,
)

# --- a wildcard in a Topic Name: 4.7.1-1 and 3.3.2-2, in 5.0 4.7.0-1 and 3.3.2-2 ------------------


@pytest.mark.parametrize("topic_name", ["sensor/#", "sensor/+", "+", "#", "a+b", "#/a"])
def test_a_wildcard_in_a_topic_name_cannot_be_encoded(topic_name: str) -> None:
    for qos in (0, 1, 2):
        with refuses(rules.TOPIC_NAME_WITHOUT_WILDCARDS):
            Publish(topic_name, b"x", qos=qos, packet_id=7 if qos else 0)


@pytest.mark.parametrize(
    "data",
    [
        "30 0b 0008 73656e736f722f23 78",
        "30 0b 0008 73656e736f722f2b 78",
        "30 04 0001 2b 78",
        "30 04 0001 23 78",
        "32 0d 0008 73656e736f722f23 0007 78",
        "34 0d 0008 73656e736f722f2b 0007 78",
    ],
)
def test_a_wildcard_in_a_topic_name_is_neither_decoded_nor_overlooked(data: str) -> None:
    check_refused(bytes.fromhex(data), MQTT311, rules.TOPIC_NAME_WITHOUT_WILDCARDS)


@pytest.mark.parametrize("topic_name", ["sensor/#", "sensor/+", "+", "#"])
def test_the_same_holds_in_5(topic_name: str) -> None:
    data = framed(0x30, text(topic_name) + "00 78")
    check_refused(data, MQTT5, rules.TOPIC_NAME_WITHOUT_WILDCARDS)


@pytest.mark.parametrize("topic_name", ["sensor/value", "sensor/*", "a", "/", "$SYS/a", "é", " "])
def test_a_topic_name_without_wildcards_passes_on_every_path(topic_name: str) -> None:
    packet = Publish(topic_name, b"x")
    check_both_ways(framed(0x30, text(topic_name) + "78"), MQTT311, packet)
    check_both_ways(framed(0x30, text(topic_name) + "0078"), MQTT5, packet)


# --- an empty Topic Name: 4.7.3-1 -----------------------------------------------------------------


def test_an_empty_topic_name_cannot_be_encoded() -> None:
    with refuses(rules.TOPIC_NAME_NOT_EMPTY):
        Publish("", b"x")
    with refuses(rules.TOPIC_NAME_NOT_EMPTY):
        Publish("", b"x", qos=1, packet_id=7)
    assert encode(Publish("a", b"x"), MQTT311).hex() == "300400016178"


@pytest.mark.parametrize("data", ["30 03 0000 78", "32 05 0000 0007 78", "34 05 0000 0007 78"])
def test_an_empty_topic_name_is_neither_decoded_nor_overlooked(data: str) -> None:
    check_refused(bytes.fromhex(data), MQTT311, rules.TOPIC_NAME_NOT_EMPTY)


@pytest.mark.parametrize("data", ["30 04 0000 00 78", "32 06 0000 0007 00 78"])
def test_an_empty_topic_name_is_refused_in_5_unless_an_alias_stands_for_it(data: str) -> None:
    check_refused(bytes.fromhex(data), MQTT5, rules.TOPIC_NAME_NOT_EMPTY)
    packet = Publish("", b"x", properties=Properties(topic_alias=1))
    check_both_ways(framed(0x30, "0000" + section("230001") + "78"), MQTT5, packet)


def test_an_alias_does_not_excuse_a_wildcard() -> None:
    with refuses(rules.TOPIC_NAME_WITHOUT_WILDCARDS):
        Publish("a/#", properties=Properties(topic_alias=1))
    data = framed(0x30, text("a/#") + section("230001"))
    check_refused(data, MQTT5, rules.TOPIC_NAME_WITHOUT_WILDCARDS)


# --- DUP at QoS 0: 3.3.1-2, 4.3.1-1 ---------------------------------------------------------------


def test_dup_at_qos_0_cannot_be_encoded() -> None:
    with refuses(rules.DUP_NEEDS_QOS):
        Publish("a", b"x", dup=True)


def test_dup_at_qos_0_is_neither_decoded_nor_overlooked() -> None:
    check_refused(bytes.fromhex("38 04 0001 61 78"), MQTT311, rules.DUP_NEEDS_QOS)
    check_refused(bytes.fromhex("39 04 0001 61 78"), MQTT311, rules.DUP_NEEDS_QOS)
    check_refused(bytes.fromhex("38 05 0001 61 00 78"), MQTT5, rules.DUP_NEEDS_QOS)


@pytest.mark.parametrize("qos", [1, 2])
def test_dup_at_qos_1_and_2_passes_on_every_path(qos: int) -> None:
    packet = Publish("a", b"x", qos=qos, packet_id=7, dup=True)
    check_both_ways(framed(0x38 | qos << 1, "0001 61 0007 78"), MQTT311, packet)
    check_both_ways(framed(0x38 | qos << 1, "0001 61 0007 00 78"), MQTT5, packet)


def test_dup_is_0_unless_it_is_asked_for() -> None:
    assert not Publish("a", qos=1, packet_id=7).dup


# --- the other flags and fields -------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_the_first_byte_carries_qos_and_retain(qos: int, retain: bool) -> None:
    packet_id = 0x0102 if qos else 0
    packet = Publish("a", b"x", qos=qos, packet_id=packet_id, retain=retain)
    number = "0102" if qos else ""
    check_both_ways(framed(0x30 | qos << 1 | retain, f"0001 61 {number} 78"), MQTT311, packet)
    check_both_ways(framed(0x30 | qos << 1 | retain, f"0001 61 {number} 00 78"), MQTT5, packet)


def test_publish_with_qos_3_is_malformed() -> None:
    for qos in (3, -1, 4, 10**30):
        with refuses(rules.QOS_NOT_3):
            Publish("a", qos=qos, packet_id=7)
    for first in (0x36, 0x37, 0x3E):
        check_refused(framed(first, "0001 61 0007 78"), MQTT311, rules.QOS_NOT_3)
        check_refused(framed(first, "0001 61 0007 00 78"), MQTT5, rules.QOS_NOT_3)


def test_a_qos_0_publish_has_no_packet_id() -> None:
    assert Publish("a", qos=0).packet_id == 0
    with refuses(rules.QOS_0_WITHOUT_PACKET_ID):
        Publish("a", qos=0, packet_id=7)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_of_qos_1_or_2_has_a_packet_id_of_1_to_65535(qos: int) -> None:
    for packet_id in (0, -1, 65_536):
        with refuses(rules.PACKET_ID_NOT_ZERO):
            Publish("a", qos=qos, packet_id=packet_id)
    check_refused(framed(0x30 | qos << 1, "0001 61 0000"), MQTT311, rules.PACKET_ID_NOT_ZERO)
    for packet_id in (1, 65_535):
        packet = Publish("a", qos=qos, packet_id=packet_id)
        data = framed(0x30 | qos << 1, f"0001 61 {packet_id:04x}")
        check_both_ways(data, MQTT311, packet)


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("0001 00", rules.TEXT_WITHOUT_NUL),
        ("0001 ff", rules.TEXT_WELL_FORMED),
        ("0003 eda080", rules.TEXT_WELL_FORMED),
    ],
)
def test_a_topic_name_that_is_no_proper_string_is_refused(topic: str, rule: Rule) -> None:
    check_refused(framed(0x30, topic), MQTT311, rule)
    check_refused(framed(0x30, topic + "00"), MQTT5, rule)


@pytest.mark.parametrize(
    ("topic_name", "rule"),
    [
        ("a\0", rules.TEXT_WITHOUT_NUL),
        ("\ud800", rules.TEXT_WELL_FORMED),
        ("a" * 65_536, rules.TEXT_FITS_ITS_LENGTH),
    ],
)
def test_a_topic_name_that_may_not_travel_cannot_be_encoded(topic_name: str, rule: Rule) -> None:
    with refuses(rule):
        Publish(topic_name)


def test_the_longest_topic_name_travels() -> None:
    packet = Publish("a" * 65_535)
    for version in BOTH:
        data = encode(packet, version)
        assert decode(data, version) == (packet, len(data))


@pytest.mark.parametrize(
    ("version", "first", "body"),
    [
        (MQTT311, 0x30, ""),
        (MQTT311, 0x30, "00"),
        (MQTT311, 0x30, "0002 61"),
        (MQTT311, 0x32, "0001 61"),
        (MQTT311, 0x32, "0001 61 00"),
        (MQTT5, 0x30, "0001 61"),
        (MQTT5, 0x32, "0001 61 0007"),
        (MQTT5, 0x30, "0001 61 01"),
        (MQTT5, 0x30, "0001 61 02 01"),
    ],
)
def test_a_publish_that_ends_within_a_field_is_refused(version: int, first: int, body: str) -> None:
    check_refused(framed(first, body), version, rules.FIELD_WITHIN_PACKET)


@pytest.mark.parametrize("payload", [b"", b"\x00", bytes(range(256)), bytes(20_000)])
def test_a_payload_is_any_bytes(payload: bytes) -> None:
    packet = Publish("a", payload, qos=1, packet_id=7)
    check_both_ways(framed(0x32, "0001 61 0007" + payload.hex()), MQTT311, packet)
    check_both_ways(framed(0x32, "0001 61 0007 00" + payload.hex()), MQTT5, packet)


def test_a_payload_too_large_for_the_remaining_length_cannot_be_encoded() -> None:
    # Remaining Length 268,435,455 is the last; two bytes of length and "a" take three of it.
    packet = Publish("a", bytes(268_435_453))
    with refuses(rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES):
        encode(packet, MQTT311)


# --- properties -----------------------------------------------------------------------------------


def test_a_publish_carries_properties_in_5() -> None:
    packet = Publish(
        "a",
        b"x",
        qos=1,
        packet_id=7,
        properties=Properties(
            [(1, 1), (2, 60), (3, "t"), (8, "r"), (9, b"c"), (35, 5)],
            subscription_identifiers=[200, 1],
            user_properties=[("k", "v"), ("k", "v")],
        ),
    )
    properties = (
        "0101 02 0000003c 03 000174 08 000172 09 000163 23 0005 0b c801 0b 01"
        "26 00016b 000176 26 00016b 000176"
    )
    data = framed(0x32, "0001 61 0007" + section(properties) + "78")
    check_both_ways(data, MQTT5, packet)


def test_a_publish_with_properties_cannot_be_encoded_for_311() -> None:
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        encode(Publish("a", properties=Properties(topic_alias=1)), MQTT311)
    assert encode(Publish("a", properties=NO_PROPERTIES), MQTT311).hex() == "3003000161"


@pytest.mark.parametrize(
    ("properties", "rule"),
    [
        ("02 01 02", rules.PROPERTY_IS_0_OR_1),
        ("04 0100 0101", rules.PROPERTY_ONCE),
        ("03 23 0000", rules.TOPIC_ALIAS_NOT_ZERO),
        ("02 0b 00", rules.PROPERTY_NOT_ZERO),
        ("03 21 0001", rules.PROPERTY_IN_ITS_PACKET),
        ("02 04 00", rules.PROPERTY_KNOWN),
        ("03 08 0000", rules.TOPIC_NAME_NOT_EMPTY),
        ("04 08 0001 23", rules.TOPIC_NAME_WITHOUT_WILDCARDS),
    ],
)
def test_a_publish_with_a_wrong_property_is_refused(properties: str, rule: Rule) -> None:
    check_refused(framed(0x30, "0001 61" + properties + "78"), MQTT5, rule)


def test_a_property_of_another_packet_cannot_be_encoded() -> None:
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        Publish("a", properties=Properties(will_delay_interval=1))


def test_a_payload_said_to_be_utf8_is_utf8() -> None:
    for payload in (b"", "é\0".encode(), b"\xef\xbb\xbf"):
        packet = Publish("a", payload, properties=Properties(payload_format_indicator=1))
        check_both_ways(framed(0x30, "0001 61 020101" + payload.hex()), MQTT5, packet)
    for payload in (b"\xff", b"a\xed\xa0\x80", b"\xc0\x80"):
        with refuses(rules.PAYLOAD_IS_UTF8_AS_INDICATED):
            Publish("a", payload, properties=Properties(payload_format_indicator=1))
        data = framed(0x30, "0001 61 020101" + payload.hex())
        check_refused(data, MQTT5, rules.PAYLOAD_IS_UTF8_AS_INDICATED)


def test_a_payload_of_which_nothing_is_said_is_any_bytes() -> None:
    packet = Publish("a", b"\xff", properties=Properties(payload_format_indicator=0))
    check_both_ways(framed(0x30, "0001 61 020100 ff"), MQTT5, packet)


# --- what an observer sees ------------------------------------------------------------------------


def test_an_observer_sees_every_fault_of_a_publish() -> None:
    data = framed(0x38, "0004 612f2300" + section("0102 230000") + "ff")
    assert observed(data, MQTT5) == [
        rules.PROPERTY_IS_0_OR_1,
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.DUP_NEEDS_QOS,
        rules.TEXT_WITHOUT_NUL,
        rules.TOPIC_NAME_WITHOUT_WILDCARDS,
    ]


def test_an_observer_sees_the_fields() -> None:
    observation = observe(framed(0x33, "0001 61 0007 02 0101 78"), MQTT5)
    assert observation is not None
    assert observation.flags == 0b0011
    assert observation.fields == (
        ("topic_name", "a"),
        ("packet_id", 7),
        ("property_length", 2),
        ("property_identifier", 1),
        ("payload_format_indicator", 1),
        ("payload", b"x"),
    )


# --- the class ------------------------------------------------------------------------------------


def test_a_publish_needs_no_more_than_a_topic_name() -> None:
    packet = Publish("a")
    assert (packet.payload, packet.qos, packet.packet_id) == (b"", 0, 0)
    assert (packet.retain, packet.dup, packet.properties) == (False, False, NO_PROPERTIES)


def test_publishes_are_equal_when_every_field_is() -> None:
    def build(**changes: object) -> Packet:
        fields: dict[str, object] = {"payload": b"x", "qos": 1, "packet_id": 7}
        return Publish("a", **{**fields, **changes})  # type: ignore[arg-type]

    assert build() == build()
    assert build() != Publish("b", b"x", qos=1, packet_id=7)
    changes: list[dict[str, object]] = [
        {"payload": b"y"},
        {"qos": 2},
        {"packet_id": 8},
        {"retain": True},
        {"dup": True},
        {"properties": Properties(topic_alias=1)},
    ]
    for change in changes:
        assert build() != build(**change)


def test_a_publish_from_bytes_that_a_user_could_write_is_accepted_whole() -> None:
    check_accepted(bytes.fromhex("30040001613f"), MQTT311, Publish("a", b"?"))
