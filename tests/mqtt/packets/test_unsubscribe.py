"""UNSUBSCRIBE and UNSUBACK [3.10, 3.11]."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    Properties,
    Rule,
    SubAck,
    UnsubAck,
    Unsubscribe,
    encode,
    observe,
    rules,
)
from tests.mqtt.verdicts import (
    BOTH,
    check_both_ways,
    check_refused,
    framed,
    observed,
    refuses,
    section,
    text,
)


def unsubscribe(version: int, *topic_filters: str, properties: str = "") -> bytes:
    in_5 = section(properties) if version == MQTT5 else ""
    return framed(0xA2, "0007" + in_5 + "".join(map(text, topic_filters)))


# --- UNSUBSCRIBE ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_an_unsubscribe_has_filters_in_their_order(version: int) -> None:
    check_both_ways(unsubscribe(version, "a"), version, Unsubscribe(7, ["a"]))
    packet = Unsubscribe(7, ["b/#", "a/+", "b/#"])
    check_both_ways(unsubscribe(version, "b/#", "a/+", "b/#"), version, packet)


@pytest.mark.parametrize("version", BOTH)
def test_an_unsubscribe_without_filters_is_refused(version: int) -> None:
    check_refused(unsubscribe(version), version, rules.UNSUBSCRIBE_NOT_EMPTY)
    with refuses(rules.UNSUBSCRIBE_NOT_EMPTY):
        Unsubscribe(7, [])


def test_one_string_is_not_a_list_of_filters() -> None:
    with pytest.raises(TypeError):
        Unsubscribe(7, "abc")
    assert Unsubscribe(7, ["abc"]).topic_filters == ("abc",)


@pytest.mark.parametrize("version", BOTH)
def test_packet_id_0_is_refused(version: int) -> None:
    data = unsubscribe(version, "a").replace(b"\x00\x07", b"\x00\x00", 1)
    check_refused(data, version, rules.PACKET_ID_NOT_ZERO)
    for packet_id in (0, -1, 65_536):
        with refuses(rules.PACKET_ID_NOT_ZERO):
            Unsubscribe(packet_id, ["a"])


@pytest.mark.parametrize(
    ("topic_filter", "rule"),
    [
        ("", rules.TOPIC_FILTER_NOT_EMPTY),
        ("a/#/b", rules.HASH_IS_LAST_LEVEL),
        ("a+", rules.PLUS_FILLS_ITS_LEVEL),
        ("\0", rules.TEXT_WITHOUT_NUL),
    ],
)
def test_a_wrong_filter_is_refused_wherever_it_stands(topic_filter: str, rule: Rule) -> None:
    with refuses(rule):
        Unsubscribe(7, ["a", topic_filter])
    for version in BOTH:
        check_refused(unsubscribe(version, topic_filter), version, rule)
        check_refused(unsubscribe(version, "a", topic_filter), version, rule)


def test_a_filter_that_is_no_proper_string_is_refused() -> None:
    check_refused(framed(0xA2, "0007 0001 ff"), MQTT311, rules.TEXT_WELL_FORMED)
    with refuses(rules.TEXT_WELL_FORMED):
        Unsubscribe(7, ["\ud800"])
    with refuses(rules.TEXT_FITS_ITS_LENGTH):
        Unsubscribe(7, ["a" * 65_536])


@pytest.mark.parametrize("topic_filter", ["$share/g/a", "$share//a", "$share/g", "$share/+/a"])
def test_the_rules_for_shares_bind_subscribe_alone(topic_filter: str) -> None:
    for version in BOTH:
        packet = Unsubscribe(7, [topic_filter])
        check_both_ways(unsubscribe(version, topic_filter), version, packet)


def test_an_unsubscribe_carries_user_properties_in_5() -> None:
    packet = Unsubscribe(7, ["a"], properties=Properties(user_properties=[("k", "v")]))
    data = unsubscribe(MQTT5, "a", properties="26 00016b 000176")
    check_both_ways(data, MQTT5, packet)
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        encode(packet, MQTT311)


@pytest.mark.parametrize("properties", ["0b 01", "1f 000173", "23 0001"])
def test_no_other_property_may_stand_there(properties: str) -> None:
    data = unsubscribe(MQTT5, "a", properties=properties)
    check_refused(data, MQTT5, rules.PROPERTY_IN_ITS_PACKET)


def test_a_property_of_another_packet_cannot_be_encoded() -> None:
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        Unsubscribe(7, ["a"], properties=Properties(subscription_identifiers=[1]))


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (MQTT311, ""),
        (MQTT311, "00"),
        (MQTT311, "0007 00"),
        (MQTT311, "0007 0002 61"),
        (MQTT311, "0007 0001 61 00"),
        (MQTT5, "0007"),
        (MQTT5, "0007 01"),
    ],
)
def test_an_unsubscribe_that_ends_within_a_field_is_refused(version: int, body: str) -> None:
    check_refused(framed(0xA2, body), version, rules.FIELD_WITHIN_PACKET)


def test_other_flags_are_refused() -> None:
    for flags in {*range(16)} - {2}:
        for version in BOTH:
            data = bytes((0xA0 | flags,)) + unsubscribe(version, "a")[1:]
            check_refused(data, version, rules.FIXED_HEADER_FLAGS)


def test_an_observer_sees_every_fault_of_an_unsubscribe() -> None:
    data = framed(0xA2, "0000" + section("230000") + "0000" + text("a#"))
    assert observed(data, MQTT5) == [
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.PACKET_ID_NOT_ZERO,
        rules.TOPIC_FILTER_NOT_EMPTY,
        rules.HASH_IS_LAST_LEVEL,
        rules.PROPERTY_IN_ITS_PACKET,
    ]


def test_unsubscribes_are_equal_when_every_field_is() -> None:
    assert Unsubscribe(7, ["a"]) == Unsubscribe(7, ("a",), properties=NO_PROPERTIES)
    assert Unsubscribe(7, ["a"]) != Unsubscribe(8, ["a"])
    assert Unsubscribe(7, ["a"]) != Unsubscribe(7, ["b"])
    other = Properties(user_properties=[("k", "v")])
    assert Unsubscribe(7, ["a"]) != Unsubscribe(7, ["a"], properties=other)


# --- UNSUBACK -------------------------------------------------------------------------------------


def test_an_unsuback_of_311_is_a_packet_id() -> None:
    check_both_ways(framed(0xB0, "0007"), MQTT311, UnsubAck(7))
    check_refused(framed(0xB0, "0007 00"), MQTT311, rules.NO_SURPLUS_BYTES)
    with refuses(rules.REASON_CODES_PRESENT):
        encode(UnsubAck(7, [0]), MQTT311)


def test_an_unsuback_of_5_has_a_code_for_each_filter() -> None:
    check_both_ways(framed(0xB0, "0007 00 00 11 87"), MQTT5, UnsubAck(7, [0, 0x11, 0x87]))
    check_refused(framed(0xB0, "0007 00"), MQTT5, rules.REASON_CODES_PRESENT)
    with refuses(rules.REASON_CODES_PRESENT):
        encode(UnsubAck(7), MQTT5)


def test_a_code_of_another_packet_is_refused() -> None:
    with refuses(rules.REASON_CODE_IN_TABLE):
        UnsubAck(7, [0, 0x01])
    check_refused(framed(0xB0, "0007 00 00 01"), MQTT5, rules.REASON_CODE_IN_TABLE)


@pytest.mark.parametrize("version", BOTH)
def test_an_unsuback_with_packet_id_0_is_refused(version: int) -> None:
    body = "0000" if version == MQTT311 else "0000 00 00"
    check_refused(framed(0xB0, body), version, rules.PACKET_ID_NOT_ZERO)
    with refuses(rules.PACKET_ID_NOT_ZERO):
        UnsubAck(0)


def test_an_unsuback_carries_properties_in_5() -> None:
    packet = UnsubAck(7, [0], properties=Properties(reason_string="s"))
    check_both_ways(framed(0xB0, "0007 04 1f 000173 00"), MQTT5, packet)
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        encode(UnsubAck(7, properties=Properties(reason_string="s")), MQTT311)
    check_refused(framed(0xB0, "0007 03 230001 00"), MQTT5, rules.PROPERTY_IN_ITS_PACKET)
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        UnsubAck(7, [0], properties=Properties(topic_alias=1))


@pytest.mark.parametrize(
    ("version", "body"), [(MQTT311, ""), (MQTT311, "00"), (MQTT5, "0007"), (MQTT5, "0007 01")]
)
def test_an_unsuback_that_ends_within_a_field_is_refused(version: int, body: str) -> None:
    check_refused(framed(0xB0, body), version, rules.FIELD_WITHIN_PACKET)


def test_an_observer_sees_every_fault_of_an_unsuback() -> None:
    observation = observe(framed(0xB0, "0000 03 230000 01"), MQTT5)
    assert observation is not None
    assert [violation.rule for violation in observation.violations] == [
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.PACKET_ID_NOT_ZERO,
        rules.REASON_CODE_IN_TABLE,
        rules.PROPERTY_IN_ITS_PACKET,
    ]


def test_unsubacks_are_equal_when_every_field_is() -> None:
    assert UnsubAck(7) == UnsubAck(7, (), properties=NO_PROPERTIES)
    assert UnsubAck(7) != UnsubAck(8)
    assert UnsubAck(7) != UnsubAck(7, [0])
    assert UnsubAck(7) != UnsubAck(7, properties=Properties(reason_string="s"))
    unlike: object = SubAck(7, [0])
    assert UnsubAck(7, [0]) != unlike
