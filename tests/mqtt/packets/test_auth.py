"""AUTH [3.15], which only 5.0 has."""

import pytest

from semel.mqtt import MQTT5, MQTT311, Auth, Properties, Rule, encode, observe, rules
from tests.mqtt.verdicts import check_both_ways, check_refused, framed, refuses

METHOD = Properties(authentication_method="m")


@pytest.mark.parametrize("reason", [0x00, 0x18, 0x19])
def test_an_auth_has_a_reason_and_a_method(reason: int) -> None:
    data = framed(0xF0, f"{reason:02x} 04 15 00016d")
    check_both_ways(data, MQTT5, Auth(reason, properties=METHOD))


def test_an_auth_carries_data_reason_string_and_user_properties() -> None:
    properties = Properties(
        authentication_method="m",
        authentication_data=b"\x00\xff",
        reason_string="s",
        user_properties=[("k", "v")],
    )
    data = framed(0xF0, "18 14 15 00016d 16 000200ff 1f 000173 26 00016b 000176")
    check_both_ways(data, MQTT5, Auth(0x18, properties=properties))


def test_311_has_no_auth() -> None:
    check_refused(framed(0xF0, "18 04 15 00016d"), MQTT311, rules.PACKET_TYPE_KNOWN)
    with refuses(rules.PACKET_TYPE_KNOWN):
        encode(Auth(0x18, properties=METHOD), MQTT311)


def test_an_auth_without_method_is_refused() -> None:
    with refuses(rules.AUTH_HAS_METHOD):
        Auth(0x18, properties=Properties(authentication_data=b"x"))
    check_refused(framed(0xF0, "18 00"), MQTT5, rules.AUTH_HAS_METHOD)
    check_refused(framed(0xF0, "18 04 16 000178"), MQTT5, rules.AUTH_HAS_METHOD)
    check_refused(framed(0xF0, ""), MQTT5, rules.AUTH_HAS_METHOD)


@pytest.mark.parametrize("reason", [0x01, 0x17, 0x1A, 0x80, 0x8C, 0xFF])
def test_a_code_of_another_packet_is_refused(reason: int) -> None:
    with refuses(rules.REASON_CODE_IN_TABLE):
        Auth(reason, properties=METHOD)
    data = framed(0xF0, f"{reason:02x} 04 15 00016d")
    check_refused(data, MQTT5, rules.REASON_CODE_IN_TABLE)


def test_a_property_of_another_packet_is_refused() -> None:
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        Auth(0x18, properties=Properties(authentication_method="m", topic_alias=1))
    data = framed(0xF0, "18 07 15 00016d 23 0001")
    check_refused(data, MQTT5, rules.PROPERTY_IN_ITS_PACKET)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("18", rules.FIELD_WITHIN_PACKET),
        ("18 05 15 00016d", rules.FIELD_WITHIN_PACKET),
        ("18 04 15 00016d 00", rules.NO_SURPLUS_BYTES),
        ("18 08 15 00016d 15 00016d", rules.PROPERTY_ONCE),
    ],
)
def test_a_body_that_is_wrong_is_refused(body: str, rule: Rule) -> None:
    check_refused(framed(0xF0, body), MQTT5, rule)


def test_other_flags_are_refused() -> None:
    for flags in range(1, 16):
        data = framed(0xF0 | flags, "18 04 15 00016d")
        check_refused(data, MQTT5, rules.FIXED_HEADER_FLAGS)


def test_an_observer_sees_every_fault() -> None:
    observation = observe(framed(0xF0, "01 03 230000 00"), MQTT5)
    assert observation is not None
    assert [violation.rule for violation in observation.violations] == [
        rules.NO_SURPLUS_BYTES,
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.REASON_CODE_IN_TABLE,
        rules.PROPERTY_IN_ITS_PACKET,
        rules.AUTH_HAS_METHOD,
    ]


def test_auths_are_equal_when_every_field_is() -> None:
    assert Auth(0x18, properties=METHOD) == Auth(0x18, properties=METHOD)
    assert Auth(0x18, properties=METHOD) != Auth(0x19, properties=METHOD)
    other = Properties(authentication_method="n")
    assert Auth(0x18, properties=METHOD) != Auth(0x18, properties=other)
