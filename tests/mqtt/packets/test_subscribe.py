"""SUBSCRIBE and SUBACK [3.8, 3.9]."""

from itertools import product

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    Properties,
    Rule,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    decode,
    encode,
    observe,
    rules,
)
from semel.mqtt.packets.subscribe import subscription_from_options
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


def subscribe(version: int, *subscriptions: tuple[str, int], properties: str = "") -> bytes:
    in_5 = section(properties) if version == MQTT5 else ""
    filters = "".join(text(name) + f"{options:02x}" for name, options in subscriptions)
    return framed(0x82, "0007" + in_5 + filters)


# --- SUBSCRIBE ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscription_is_a_filter_and_a_qos(version: int, qos: int) -> None:
    packet = Subscribe(7, [Subscription("a/+/#", qos)])
    check_both_ways(subscribe(version, ("a/+/#", qos)), version, packet)


@pytest.mark.parametrize("version", BOTH)
def test_a_subscribe_has_as_many_subscriptions_as_it_likes_in_their_order(version: int) -> None:
    packet = Subscribe(7, [Subscription("b", 2), Subscription("a"), Subscription("b", 1)])
    check_both_ways(subscribe(version, ("b", 2), ("a", 0), ("b", 1)), version, packet)
    assert [each.topic_filter for each in packet.subscriptions] == ["b", "a", "b"]


@pytest.mark.parametrize(
    ("options", "subscription"),
    [
        (0x04, Subscription("a", no_local=True)),
        (0x08, Subscription("a", retain_as_published=True)),
        (0x10, Subscription("a", retain_handling=1)),
        (0x20, Subscription("a", retain_handling=2)),
        (
            0x2E,
            Subscription("a", 2, no_local=True, retain_as_published=True, retain_handling=2),
        ),
    ],
)
def test_options_are_those_of_5_and_reserved_in_311(
    options: int, subscription: Subscription
) -> None:
    packet = Subscribe(7, [subscription])
    assert subscription.options == options
    check_both_ways(subscribe(MQTT5, ("a", options)), MQTT5, packet)
    check_refused(subscribe(MQTT311, ("a", options)), MQTT311, rules.SUBSCRIPTION_OPTIONS_RESERVED)
    with refuses(rules.SUBSCRIPTION_OPTIONS_RESERVED):
        encode(packet, MQTT311)


@pytest.mark.parametrize("options", [0x40, 0x80, 0xC0, 0x41])
def test_reserved_options_are_refused(options: int) -> None:
    for version in BOTH:
        data = subscribe(version, ("a", options))
        check_refused(data, version, rules.SUBSCRIPTION_OPTIONS_RESERVED)


@pytest.mark.parametrize("version", BOTH)
def test_qos_3_is_refused(version: int) -> None:
    check_refused(subscribe(version, ("a", 3)), version, rules.SUBSCRIPTION_QOS_NOT_3)
    for qos in (3, -1, 10**30):
        with refuses(rules.SUBSCRIPTION_QOS_NOT_3):
            Subscription("a", qos)


def test_retain_handling_3_is_refused() -> None:
    check_refused(subscribe(MQTT5, ("a", 0x30)), MQTT5, rules.RETAIN_HANDLING_NOT_3)
    for handling in (3, -1, 10**30):
        with refuses(rules.RETAIN_HANDLING_NOT_3):
            Subscription("a", retain_handling=handling)


@pytest.mark.parametrize("version", BOTH)
def test_a_subscribe_without_filters_is_refused(version: int) -> None:
    check_refused(subscribe(version), version, rules.SUBSCRIBE_NOT_EMPTY)
    with refuses(rules.SUBSCRIBE_NOT_EMPTY):
        Subscribe(7, [])


@pytest.mark.parametrize("version", BOTH)
def test_packet_id_0_is_refused(version: int) -> None:
    data = subscribe(version, ("a", 0)).replace(b"\x00\x07", b"\x00\x00", 1)
    check_refused(data, version, rules.PACKET_ID_NOT_ZERO)
    for packet_id in (0, -1, 65_536):
        with refuses(rules.PACKET_ID_NOT_ZERO):
            Subscribe(packet_id, [Subscription("a")])


@pytest.mark.parametrize(
    ("topic_filter", "rule"),
    [
        ("", rules.TOPIC_FILTER_NOT_EMPTY),
        ("a/#/b", rules.HASH_IS_LAST_LEVEL),
        ("a#", rules.HASH_IS_LAST_LEVEL),
        ("a+", rules.PLUS_FILLS_ITS_LEVEL),
        ("\0", rules.TEXT_WITHOUT_NUL),
    ],
)
def test_a_wrong_filter_is_refused_wherever_it_stands(topic_filter: str, rule: Rule) -> None:
    with refuses(rule):
        Subscription(topic_filter)
    for version in BOTH:
        check_refused(subscribe(version, (topic_filter, 0)), version, rule)
        check_refused(subscribe(version, ("a", 0), (topic_filter, 0)), version, rule)


def test_a_filter_that_is_no_proper_utf8_is_refused() -> None:
    check_refused(framed(0x82, "0007 0001 ff 00"), MQTT311, rules.TEXT_WELL_FORMED)
    with refuses(rules.TEXT_WELL_FORMED):
        Subscription("\ud800")
    with refuses(rules.TEXT_FITS_ITS_LENGTH):
        Subscription("a" * 65_536)


@pytest.mark.parametrize(
    ("topic_filter", "rule"),
    [
        ("$share//a", rules.SHARE_NAME_NOT_EMPTY),
        ("$share/+/a", rules.SHARE_NAME_WITHOUT_WILDCARDS),
        ("$share/g", rules.SHARE_NAME_BEFORE_FILTER),
        ("$share/g/", rules.SHARE_NAME_BEFORE_FILTER),
    ],
)
def test_a_wrong_share_is_refused_in_5_and_a_filter_like_any_other_in_311(
    topic_filter: str, rule: Rule
) -> None:
    packet = Subscribe(7, [Subscription(topic_filter)])
    check_refused(subscribe(MQTT5, (topic_filter, 0)), MQTT5, rule)
    with refuses(rule):
        encode(packet, MQTT5)
    check_both_ways(subscribe(MQTT311, (topic_filter, 0)), MQTT311, packet)


@pytest.mark.parametrize("version", BOTH)
def test_a_proper_share_passes(version: int) -> None:
    packet = Subscribe(7, [Subscription("$share/g/a/#", 1)])
    check_both_ways(subscribe(version, ("$share/g/a/#", 1)), version, packet)


def test_no_local_on_a_shared_subscription_is_refused() -> None:
    with refuses(rules.NO_LOCAL_NOT_SHARED):
        Subscription("$share/g/a", no_local=True)
    check_refused(subscribe(MQTT5, ("$share/g/a", 0x04)), MQTT5, rules.NO_LOCAL_NOT_SHARED)
    packet = Subscribe(7, [Subscription("$shared/g/a", no_local=True)])
    check_both_ways(subscribe(MQTT5, ("$shared/g/a", 0x04)), MQTT5, packet)


def test_to_311_no_local_is_only_a_reserved_bit() -> None:
    data = subscribe(MQTT311, ("$share/g/a", 0x34))
    check_refused(data, MQTT311, rules.SUBSCRIPTION_OPTIONS_RESERVED)


def test_a_subscribe_carries_properties_in_5() -> None:
    properties = Properties(subscription_identifiers=[200], user_properties=[("k", "v")])
    packet = Subscribe(7, [Subscription("a")], properties=properties)
    data = subscribe(MQTT5, ("a", 0), properties="0b c801 26 00016b 000176")
    check_both_ways(data, MQTT5, packet)
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        encode(packet, MQTT311)


def test_a_second_subscription_identifier_is_refused() -> None:
    with refuses(rules.SUBSCRIPTION_IDENTIFIER_ONCE):
        Subscribe(7, [Subscription("a")], properties=Properties(subscription_identifiers=[1, 2]))
    data = subscribe(MQTT5, ("a", 0), properties="0b01 0b02")
    check_refused(data, MQTT5, rules.SUBSCRIPTION_IDENTIFIER_ONCE)


@pytest.mark.parametrize(
    ("properties", "rule"),
    [
        ("0b 00", rules.PROPERTY_NOT_ZERO),
        ("23 0001", rules.PROPERTY_IN_ITS_PACKET),
        ("1f 000173", rules.PROPERTY_IN_ITS_PACKET),
        ("04 00", rules.PROPERTY_KNOWN),
    ],
)
def test_a_subscribe_with_a_wrong_property_is_refused(properties: str, rule: Rule) -> None:
    check_refused(subscribe(MQTT5, ("a", 0), properties=properties), MQTT5, rule)


def test_a_property_of_another_packet_cannot_be_encoded() -> None:
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        Subscribe(7, [Subscription("a")], properties=Properties(topic_alias=1))


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (MQTT311, ""),
        (MQTT311, "00"),
        (MQTT311, "0007 00"),
        (MQTT311, "0007 0002 61"),
        (MQTT311, "0007 0001 61"),
        (MQTT311, "0007 0001 61 00 0001 61"),
        (MQTT5, "0007"),
        (MQTT5, "0007 01"),
        (MQTT5, "0007 00 0001 61"),
    ],
)
def test_a_subscribe_that_ends_within_a_field_is_refused(version: int, body: str) -> None:
    check_refused(framed(0x82, body), version, rules.FIELD_WITHIN_PACKET)


def test_other_flags_are_refused() -> None:
    for flags in {*range(16)} - {2}:
        for version in BOTH:
            data = bytes((0x80 | flags,)) + subscribe(version, ("a", 0))[1:]
            check_refused(data, version, rules.FIXED_HEADER_FLAGS)


def test_an_observer_sees_every_fault_of_a_subscribe() -> None:
    data = framed(
        0x82, "0000" + section("0b01 0b00 230001") + text("$share//a+") + "f7" + "0000 00"
    )
    assert observed(data, MQTT5) == [
        rules.SUBSCRIPTION_OPTIONS_RESERVED,
        rules.SHARE_NAME_NOT_EMPTY,
        rules.PLUS_FILLS_ITS_LEVEL,
        rules.SUBSCRIPTION_QOS_NOT_3,
        rules.RETAIN_HANDLING_NOT_3,
        rules.NO_LOCAL_NOT_SHARED,
        rules.TOPIC_FILTER_NOT_EMPTY,
        rules.PROPERTY_NOT_ZERO,
        rules.PACKET_ID_NOT_ZERO,
        rules.SUBSCRIPTION_IDENTIFIER_ONCE,
        rules.PROPERTY_IN_ITS_PACKET,
    ]


def test_subscribes_are_equal_when_every_field_is() -> None:
    a = Subscription("a")
    assert Subscribe(7, [a]) == Subscribe(7, (a,), properties=NO_PROPERTIES)
    assert Subscribe(7, [a]) != Subscribe(8, [a])
    assert Subscribe(7, [a]) != Subscribe(7, [a, a])
    identified = Properties(subscription_identifiers=[1])
    assert Subscribe(7, [a]) != Subscribe(7, [a], properties=identified)
    for other in (
        Subscription("b"),
        Subscription("a", 1),
        Subscription("a", no_local=True),
        Subscription("a", retain_as_published=True),
        Subscription("a", retain_handling=1),
    ):
        assert a != other


# --- SUBACK ---------------------------------------------------------------------------------------


def test_a_suback_has_a_code_for_each_filter() -> None:
    check_both_ways(framed(0x90, "0007 00 01 02 80"), MQTT311, SubAck(7, [0, 1, 2, 0x80]))
    check_both_ways(framed(0x90, "0007 00 00 01 02 80 a2"), MQTT5, SubAck(7, [0, 1, 2, 0x80, 0xA2]))


@pytest.mark.parametrize("version", BOTH)
def test_a_suback_without_codes_is_refused(version: int) -> None:
    body = "0007" if version == MQTT311 else "0007 00"
    check_refused(framed(0x90, body), version, rules.REASON_CODES_PRESENT)
    with refuses(rules.REASON_CODES_PRESENT):
        SubAck(7, [])


def test_a_suback_with_a_code_of_the_other_version_is_refused_wherever_it_stands() -> None:
    packet = SubAck(7, [0, 0x87])
    check_both_ways(framed(0x90, "0007 00 00 87"), MQTT5, packet)
    check_refused(framed(0x90, "0007 00 87"), MQTT311, rules.REASON_CODE_IN_TABLE)
    with refuses(rules.REASON_CODE_IN_TABLE):
        encode(packet, MQTT311)
    check_refused(framed(0x90, "0007 00 00 03"), MQTT5, rules.REASON_CODE_IN_TABLE)
    with refuses(rules.REASON_CODE_IN_TABLE):
        SubAck(7, [0, 3])


def test_an_unsuback_shares_these_functions_but_has_codes_in_5_only() -> None:
    check_both_ways(framed(0xB0, "0007"), MQTT311, UnsubAck(7))
    check_both_ways(framed(0xB0, "0007 00 11"), MQTT5, UnsubAck(7, [0x11]))
    check_refused(framed(0xB0, "0007 11"), MQTT311, rules.NO_SURPLUS_BYTES)
    check_refused(framed(0xB0, "0007 00"), MQTT5, rules.REASON_CODES_PRESENT)


@pytest.mark.parametrize("version", BOTH)
def test_a_suback_with_packet_id_0_is_refused(version: int) -> None:
    body = "0000 00" if version == MQTT311 else "0000 00 00"
    check_refused(framed(0x90, body), version, rules.PACKET_ID_NOT_ZERO)
    with refuses(rules.PACKET_ID_NOT_ZERO):
        SubAck(0, [0])


def test_a_suback_carries_properties_in_5() -> None:
    packet = SubAck(7, [0], properties=Properties(reason_string="s"))
    check_both_ways(framed(0x90, "0007 04 1f 000173 00"), MQTT5, packet)
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        encode(packet, MQTT311)
    check_refused(framed(0x90, "0007 03 230001 00"), MQTT5, rules.PROPERTY_IN_ITS_PACKET)
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        SubAck(7, [0], properties=Properties(topic_alias=1))


@pytest.mark.parametrize(
    ("version", "body"), [(MQTT311, ""), (MQTT311, "00"), (MQTT5, "0007"), (MQTT5, "0007 01")]
)
def test_a_suback_that_ends_within_a_field_is_refused(version: int, body: str) -> None:
    check_refused(framed(0x90, body), version, rules.FIELD_WITHIN_PACKET)


def test_an_observer_sees_every_fault_of_a_suback() -> None:
    observation = observe(framed(0x91, "0000 03 230000 03 00 ff"), MQTT5)
    assert observation is not None
    assert [violation.rule for violation in observation.violations] == [
        rules.FIXED_HEADER_FLAGS,
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.PACKET_ID_NOT_ZERO,
        rules.REASON_CODE_IN_TABLE,
        rules.REASON_CODE_IN_TABLE,
        rules.PROPERTY_IN_ITS_PACKET,
    ]


def test_subacks_are_equal_when_every_field_is() -> None:
    assert SubAck(7, [0]) == SubAck(7, (0,), properties=NO_PROPERTIES)
    assert SubAck(7, [0]) != SubAck(8, [0])
    assert SubAck(7, [0]) != SubAck(7, [1])
    assert SubAck(7, [0]) != SubAck(7, [0], properties=Properties(reason_string="s"))


@pytest.mark.parametrize(
    ("qos", "no_local", "as_published", "handling"),
    list(product((0, 1, 2), (False, True), (False, True), (0, 1, 2))),
)
def test_options_of_a_subscription(
    qos: int, no_local: bool, as_published: bool, handling: int
) -> None:
    subscription = Subscription(
        "a/#",
        qos,
        no_local=no_local,
        retain_as_published=as_published,
        retain_handling=handling,
    )
    assert subscription_from_options("a/#", subscription.options) == subscription


def test_a_subscribe_is_read_to_its_end_before_a_subscription_is_refused() -> None:
    with refuses(rules.SUBSCRIPTION_QOS_NOT_3):
        decode(subscribe(MQTT5, ("a", 3), ("#a", 0)))
    with refuses(rules.HASH_IS_LAST_LEVEL):
        decode(subscribe(MQTT5, ("#a", 0), ("a", 3)))
    with refuses(rules.FIELD_WITHIN_PACKET):
        decode(framed(0x82, "000700" + text("a") + "03" + "000261"))
    assert decode(subscribe(MQTT5, ("a", 1), ("a/#", 0))) is not None
