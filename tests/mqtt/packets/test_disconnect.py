"""DISCONNECT [3.14]."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    Disconnect,
    Properties,
    Rule,
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
    refuses,
)


def test_a_normal_disconnect_is_two_bytes_under_both_versions() -> None:
    for version in BOTH:
        check_both_ways(b"\xe0\x00", version, Disconnect())


def test_a_reason_without_properties_has_no_property_length() -> None:
    check_both_ways(framed(0xE0, "04"), MQTT5, Disconnect(0x04))
    check_both_ways(framed(0xE0, "8e"), MQTT5, Disconnect(0x8E))


def test_forms_longer_than_needed_are_read_all_the_same() -> None:
    check_accepted(framed(0xE0, "00"), MQTT5, Disconnect())
    check_accepted(framed(0xE0, "00 00"), MQTT5, Disconnect())
    check_accepted(framed(0xE0, "8e 00"), MQTT5, Disconnect(0x8E))


def test_a_disconnect_carries_properties_in_5() -> None:
    properties = Properties(
        session_expiry_interval=60,
        server_reference="b",
        reason_string="s",
        user_properties=[("k", "v")],
    )
    section = "14 11 0000003c 1c 000162 1f 000173 26 00016b 000176"
    for reason in (0x00, 0x9C):
        packet = Disconnect(reason, properties=properties)
        check_both_ways(framed(0xE0, f"{reason:02x} {section}"), MQTT5, packet)


def test_311_knows_neither_reason_nor_properties() -> None:
    check_refused(framed(0xE0, "00"), MQTT311, rules.NO_SURPLUS_BYTES)
    check_refused(framed(0xE0, "00 00"), MQTT311, rules.NO_SURPLUS_BYTES)
    with refuses(rules.REASON_CODE_IN_TABLE):
        encode(Disconnect(0x04), MQTT311)
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        encode(Disconnect(properties=Properties(reason_string="s")), MQTT311)


@pytest.mark.parametrize("reason", [0x01, 0x05, 0x7F, 0x84, 0x91, 0x92, 0xA3, 0xFF])
def test_a_code_of_another_packet_is_refused(reason: int) -> None:
    with refuses(rules.REASON_CODE_IN_TABLE):
        Disconnect(reason)
    check_refused(framed(0xE0, f"{reason:02x}"), MQTT5, rules.REASON_CODE_IN_TABLE)


def test_a_property_of_another_packet_is_refused() -> None:
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        Disconnect(properties=Properties(authentication_method="m"))
    check_refused(framed(0xE0, "00 04 15 00016d"), MQTT5, rules.PROPERTY_IN_ITS_PACKET)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("00 01", rules.FIELD_WITHIN_PACKET),
        ("00 00 00", rules.NO_SURPLUS_BYTES),
        ("00 0a 11 00000001 11 00000001", rules.PROPERTY_ONCE),
        ("00 02 04 00", rules.PROPERTY_KNOWN),
    ],
)
def test_a_body_that_is_wrong_is_refused(body: str, rule: Rule) -> None:
    check_refused(framed(0xE0, body), MQTT5, rule)


def test_other_flags_are_refused() -> None:
    for flags in range(1, 16):
        for version in BOTH:
            check_refused(bytes((0xE0 | flags, 0)), version, rules.FIXED_HEADER_FLAGS)


def test_an_observer_sees_every_fault() -> None:
    observation = observe(framed(0xE0, "01 03 230000 00"), MQTT5)
    assert observation is not None
    assert [violation.rule for violation in observation.violations] == [
        rules.NO_SURPLUS_BYTES,
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.REASON_CODE_IN_TABLE,
        rules.PROPERTY_IN_ITS_PACKET,
    ]


def test_disconnects_are_equal_when_every_field_is() -> None:
    assert Disconnect() == Disconnect(0, properties=NO_PROPERTIES)
    assert Disconnect() != Disconnect(0x04)
    assert Disconnect() != Disconnect(properties=Properties(reason_string="s"))
