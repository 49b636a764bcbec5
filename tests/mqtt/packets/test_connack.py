"""CONNACK [3.2]."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    ConnAck,
    Properties,
    Rule,
    encode,
    observe,
    rules,
)
from tests.mqtt.verdicts import BOTH, check_both_ways, check_refused, framed, refuses


def test_an_accepting_connack_says_whether_a_session_was_present() -> None:
    check_both_ways(framed(0x20, "00 00"), MQTT311, ConnAck())
    check_both_ways(framed(0x20, "01 00"), MQTT311, ConnAck(session_present=True))
    check_both_ways(framed(0x20, "00 00 00"), MQTT5, ConnAck())
    check_both_ways(framed(0x20, "01 00 00"), MQTT5, ConnAck(session_present=True))


def test_a_refusing_connack_has_the_code_of_its_version() -> None:
    check_both_ways(framed(0x20, "00 05"), MQTT311, ConnAck(0x05))
    check_both_ways(framed(0x20, "00 87 00"), MQTT5, ConnAck(0x87))
    check_refused(framed(0x20, "00 87"), MQTT311, rules.REASON_CODE_IN_TABLE)
    check_refused(framed(0x20, "00 05 00"), MQTT5, rules.REASON_CODE_IN_TABLE)
    with refuses(rules.REASON_CODE_IN_TABLE):
        encode(ConnAck(0x87), MQTT311)
    with refuses(rules.REASON_CODE_IN_TABLE):
        encode(ConnAck(0x05), MQTT5)
    with refuses(rules.REASON_CODE_IN_TABLE):
        ConnAck(0x06)


def test_a_refusing_connack_has_no_session() -> None:
    for reason in (0x05, 0x87):
        with refuses(rules.SESSION_PRESENT_NEEDS_SUCCESS):
            ConnAck(reason, session_present=True)
    check_refused(framed(0x20, "01 05"), MQTT311, rules.SESSION_PRESENT_NEEDS_SUCCESS)
    check_refused(framed(0x20, "01 87 00"), MQTT5, rules.SESSION_PRESENT_NEEDS_SUCCESS)


@pytest.mark.parametrize("flags", [0x02, 0x03, 0x40, 0x80, 0xFF])
def test_reserved_flags_are_refused(flags: int) -> None:
    check_refused(framed(0x20, f"{flags:02x} 00"), MQTT311, rules.CONNACK_RESERVED_FLAGS)
    check_refused(framed(0x20, f"{flags:02x} 00 00"), MQTT5, rules.CONNACK_RESERVED_FLAGS)


def test_a_connack_carries_properties_in_5() -> None:
    properties = Properties(
        [(17, 60), (33, 5), (36, 1), (37, 0), (39, 1000), (18, "c"), (34, 9), (31, "s")],
        user_properties=[("k", "v")],
    )
    section = (
        "23 11 0000003c 21 0005 2401 2500 27 000003e8 12 000163 22 0009 1f 00017326 00016b 000176"
    )
    check_both_ways(framed(0x20, "00 00" + section), MQTT5, ConnAck(properties=properties))
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        encode(ConnAck(properties=properties), MQTT311)


def test_authentication_data_may_stand_alone_here() -> None:
    # 3.2.2.3.18 has no word about a method, as 3.1.2.11.10 has for CONNECT.
    packet = ConnAck(properties=Properties(authentication_data=b"x"))
    check_both_ways(framed(0x20, "00 00 04 16 000178"), MQTT5, packet)


def test_a_property_of_another_packet_is_refused() -> None:
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        ConnAck(properties=Properties(topic_alias=1))
    check_refused(framed(0x20, "00 00 03 230001"), MQTT5, rules.PROPERTY_IN_ITS_PACKET)


@pytest.mark.parametrize(
    ("version", "body", "rule"),
    [
        (MQTT311, "", rules.FIELD_WITHIN_PACKET),
        (MQTT311, "00", rules.FIELD_WITHIN_PACKET),
        (MQTT311, "00 00 00", rules.NO_SURPLUS_BYTES),
        (MQTT5, "00 00", rules.FIELD_WITHIN_PACKET),
        (MQTT5, "00 00 00 00", rules.NO_SURPLUS_BYTES),
        (MQTT5, "00 00 02 24 02", rules.PROPERTY_IS_0_OR_1),
        (MQTT5, "00 00 03 21 0000", rules.PROPERTY_NOT_ZERO),
        (MQTT5, "00 00 05 27 00000000", rules.PROPERTY_NOT_ZERO),
        (MQTT5, "00 00 04 2400 2400", rules.PROPERTY_ONCE),
    ],
)
def test_a_body_that_is_wrong_is_refused(version: int, body: str, rule: Rule) -> None:
    check_refused(framed(0x20, body), version, rule)


def test_other_flags_in_the_first_byte_are_refused() -> None:
    for flags in range(1, 16):
        check_refused(framed(0x20 | flags, "0000"), MQTT311, rules.FIXED_HEADER_FLAGS)
        check_refused(framed(0x20 | flags, "000000"), MQTT5, rules.FIXED_HEADER_FLAGS)


def test_an_observer_sees_every_fault() -> None:
    observation = observe(framed(0x20, "03 01 03 230000 00"), MQTT5)
    assert observation is not None
    assert [violation.rule for violation in observation.violations] == [
        rules.NO_SURPLUS_BYTES,
        rules.CONNACK_RESERVED_FLAGS,
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.REASON_CODE_IN_TABLE,
        rules.SESSION_PRESENT_NEEDS_SUCCESS,
        rules.PROPERTY_IN_ITS_PACKET,
    ]


def test_connacks_are_equal_when_every_field_is() -> None:
    assert ConnAck() == ConnAck(0, session_present=False, properties=NO_PROPERTIES)
    assert ConnAck() != ConnAck(1)
    assert ConnAck() != ConnAck(session_present=True)
    assert ConnAck() != ConnAck(properties=Properties(reason_string="s"))
    for version in BOTH:
        assert encode(ConnAck(), version) != encode(ConnAck(session_present=True), version)
